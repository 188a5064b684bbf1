"""Weights: tensor files, their formats, and the names of tensors in them."""
