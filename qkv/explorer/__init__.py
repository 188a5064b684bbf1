"""Attention explorer: a page in the browser, and the server that computes what it shows."""
