"""Tokenizers: training, loading, saving, encoding and decoding. Imports torch only to return tensors."""

from qkv.text.batch_encoding import BatchEncoding as BatchEncoding
from qkv.text.encoding import Encoding as Encoding
from qkv.text.tokenizer import Tokenizer as Tokenizer
