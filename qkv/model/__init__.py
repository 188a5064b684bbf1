"""Models: build, load, run and save."""
