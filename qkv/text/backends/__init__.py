"""Tokenizer backends: what turns text into tokens and back."""
