"""Data: files become records, records become token shards, shards become batches."""
