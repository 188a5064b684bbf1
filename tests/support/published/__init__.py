"""Folders as they were published: tiny, with the tensor names and the config.json keys of real files.

Each row cites where the spelling was seen."""
