"""qkv: every classic Transformer from one readable core."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv import decode as decode
    from qkv import words as words
    from qkv.attention_weights import look
    from qkv.batch import Batch, Inputs
    from qkv.explorer.view import view
    from qkv.export.formats import export_model
    from qkv.families import list_families
    from qkv.image_tokenizer import ImageTokenizer
    from qkv.model.build import build
    from qkv.model.load import load
    from qkv.model.model import Model
    from qkv.nn.functional import attention
    from qkv.tasks.registry import task
    from qkv.text import Tokenizer
    from qkv.train.evaluate.evaluate_model import evaluate
    from qkv.train.fit import fit

__version__ = "0.5.0"
__all__ = [
    "Batch",
    "ImageTokenizer",
    "Inputs",
    "Model",
    "Tokenizer",
    "attention",
    "build",
    "evaluate",
    "export_model",
    "fit",
    "list_families",
    "load",
    "look",
    "task",
    "view",
]

_MODULES = {
    "Batch": "qkv.batch",
    "ImageTokenizer": "qkv.image_tokenizer",
    "Inputs": "qkv.batch",
    "Model": "qkv.model.model",
    "Tokenizer": "qkv.text",
    "attention": "qkv.nn.functional",
    "build": "qkv.model.build",
    "export_model": "qkv.export.formats",
    "list_families": "qkv.families",
    "evaluate": "qkv.train.evaluate.evaluate_model",
    "fit": "qkv.train.fit",
    "load": "qkv.model.load",
    "look": "qkv.attention_weights",
    "task": "qkv.tasks.registry",
    "view": "qkv.explorer.view",
}
_PACKAGES = ("decode", "words")  # with public names of their own: qkv.words.load


def __getattr__(name: str) -> object:
    """Import a public name on first use, because `qkv --help` should not import torch."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
