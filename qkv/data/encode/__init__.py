"""Encoding: records become token ids."""
