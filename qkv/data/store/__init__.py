"""Token shards on disk."""
