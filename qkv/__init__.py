"""qkv: every classic Transformer from one readable core."""

from qkv.families import families
from qkv.look import look
from qkv.model import Model, build, load
from qkv.nn.batch import Batch, Rows

__version__ = "0.1.0"
__all__ = ["Batch", "Model", "Rows", "build", "families", "load", "look"]
