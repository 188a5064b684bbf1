"""The formats of other libraries that qkv loads; other formats are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from qkv.model.foreign.ctranslate2 import is_ctranslate2, load_ctranslate2
from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
from qkv.model.foreign.marian import is_marian, load_marian
from qkv.model.model import Model
from qkv.weights.formats.unsupported import check_supported_format


class ForeignFormat(NamedTuple):
    """A format: its name, a test of a path, and the function that loads a model from it."""

    name: str
    is_format_of: Callable[[Path], bool]
    load: Callable[[Path], Model]


FOREIGN_FORMATS = (
    ForeignFormat("fairseq checkpoint", is_fairseq, load_fairseq),
    ForeignFormat("Marian model", is_marian, load_marian),
    ForeignFormat("CTranslate2 model", is_ctranslate2, load_ctranslate2),
)


def find_foreign_format(path: Path) -> ForeignFormat | None:
    """Return the format of a folder or file; None for a folder of Hugging Face, qkv or an adapter.

    A format that qkv does not read raises a ValueError that names it and says what to do."""
    for file_format in FOREIGN_FORMATS:
        if file_format.is_format_of(path):
            return file_format
    if not (path / "config.json").exists() and not (path / "modules.json").exists():
        check_supported_format(path)
    return None
