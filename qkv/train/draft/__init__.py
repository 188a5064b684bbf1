"""Drafts of recipes for data files, written by `qkv new`."""
