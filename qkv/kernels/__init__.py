"""Attention kernels and fast forms of single operations, each beside its plain reference."""
