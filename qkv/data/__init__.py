"""Files on their way to batches: records, then token shards."""
