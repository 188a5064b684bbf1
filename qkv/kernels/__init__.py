"""Attention kernels and optimized forms of single operations, each with a reference implementation."""
