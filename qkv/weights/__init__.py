"""Weights on their way between files and networks."""
