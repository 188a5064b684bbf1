"""Adapters in PEFT's files: read onto a model, and written from one."""
