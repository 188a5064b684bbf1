"""Decoding: ids out of a network, one step at a time, for many rows at once. Knows no text."""

from qkv.decode.engine import Engine, generate, stream
from qkv.decode.entry import Event, Found
from qkv.decode.files import read_how, write_how
from qkv.decode.lean import prepare
from qkv.decode.settings import How

__all__ = ["Engine", "Event", "Found", "How", "generate", "prepare", "read_how", "stream", "write_how"]
