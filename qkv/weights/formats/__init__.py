"""Weight files of other programs."""
