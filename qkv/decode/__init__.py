"""Decoding: ids out of a network, one step at a time. Knows no text."""
