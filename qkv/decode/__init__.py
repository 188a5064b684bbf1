"""Decoding: ids out of a network, one step at a time, for many rows at once. Knows no text."""

from qkv.decode.config import How
from qkv.decode.engine import Engine, generate, stream
from qkv.decode.generation_config import read_how, write_how
from qkv.decode.optimize_for_inference import prepare
from qkv.decode.request import Event, Found

__all__ = ["Engine", "Event", "Found", "How", "generate", "prepare", "read_how", "stream", "write_how"]
