"""Batches: datasets, samplers, packing, collation."""
