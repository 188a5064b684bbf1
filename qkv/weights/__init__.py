"""Weights: tensor files, their formats, and names tables."""
