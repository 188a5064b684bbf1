"""Reading: files and datasets as a stream of records."""
