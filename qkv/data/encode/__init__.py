"""Encoding of records to token ids."""
