"""Tokenizer backends, which convert text to tokens and back."""
