"""Recipes of tiny models, for tests of runs."""

# A character model of text.txt; a test appends the table [train].
CHARACTER_MODEL = """
[model]
family = "gpt2"
depth = 1
width = 16
heads = 2
[tokenizer]
type = "char"
vocab_size = 60
template = "plain"
[data]
train = "text.txt"
unit = "file"
validation = 0.2
max_length = 8
batch_size = 2
[objective]
name = "causal-lm"
"""
