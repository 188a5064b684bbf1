"""qkv: every classic Transformer from one readable core."""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkv.batch import Batch, Rows
    from qkv.families import families
    from qkv.foreign import load
    from qkv.learn.fit import fit
    from qkv.look import look
    from qkv.model import Model, build
    from qkv.tasks.task import task
    from qkv.text import Tokenizer

__version__ = "0.2.0"
__all__ = ["Batch", "Model", "Rows", "Tokenizer", "build", "families", "fit", "load", "look", "task"]

_HOMES = dict(
    Batch="qkv.batch", Model="qkv.model", Rows="qkv.batch", Tokenizer="qkv.text", build="qkv.model",
    families="qkv.families", fit="qkv.learn.fit", load="qkv.foreign", look="qkv.look", task="qkv.tasks.task",
)  # fmt: skip


class _Package(ModuleType):
    """Imports what is public, and torch with it, when it is first asked for: `qkv --help` answers at once."""

    def __getattr__(self, name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(_HOMES[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # An import of the module qkv.look must not hide the function qkv.look, nor qkv.families its function.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
