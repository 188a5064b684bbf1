"""Tasks: texts or images in, small frozen dataclasses out."""
