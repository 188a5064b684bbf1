"""Reading of small corpora."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.data.read.corpus import Corpus
from tests.support.errors import assert_error

Write = Callable[[str, str | bytes], Path]  # the fixture that writes a file


def read(path: Any, **options: Any) -> list[dict[str, object]]:
    return [dict(record) for record in Corpus(path, **options)]


def assert_short_error(call: Callable[[], object], *words: object) -> str:
    """Assert that the call raises a short ValueError of one line with all words; return it."""
    message = assert_error(call, *words)
    assert len(message) < 600
    return message
