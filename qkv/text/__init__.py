"""Text to tokens and back: tokenizers trained, loaded and saved. Knows no tensors."""

from qkv.text.encoding import Encoding as Encoding
from qkv.text.tokenizer import Tokenizer as Tokenizer
