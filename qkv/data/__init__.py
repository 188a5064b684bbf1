"""Data pipeline: files to records, records to token shards, token shards to batches."""
