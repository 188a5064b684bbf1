"""Tokenizers: training, loading, saving, encoding and decoding. Knows no tensors."""

from qkv.text.encoding import Encoding as Encoding
from qkv.text.tokenizer import Tokenizer as Tokenizer
