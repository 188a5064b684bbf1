"""Recurrent encoders and decoders: cells, layers, attention to the source, the stack."""

from qkv.nn.recurrent.stack import RecurrentStack

__all__ = ["RecurrentStack"]
