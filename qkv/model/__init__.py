"""The model: built, loaded, run and saved."""
