"""Word vectors: training (skip-gram and CBOW), vector files, nearest words, analogies and tests."""

from qkv.words.config import WordsConfig
from qkv.words.read import load_vectors as load
from qkv.words.trainer import train
from qkv.words.vectors import WordVectors

__all__ = ["WordVectors", "WordsConfig", "load", "train"]
