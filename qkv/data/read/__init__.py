"""Reading: files and hub datasets as a stream of records."""
