"""Weight formats of other programs."""
