"""Core: the few methods that a tokenizer needs of whatever turns text into tokens and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from qkv.text.encoding import Encoding

Text: TypeAlias = str | list[str]  # a list is words
Row: TypeAlias = tuple[Text, Text | None]


class Core(Protocol):
    """A backend; `Rust` for nearly every family."""

    @property
    def languages(self) -> Mapping[str, int]: ...

    @property
    def joint(self) -> str: ...

    def encode(
        self, rows: Sequence[Row], *, special: bool, target: bool, language: str | None
    ) -> list[Encoding]: ...

    def ids(
        self, rows: Sequence[Row], *, special: bool, target: bool, language: str | None
    ) -> list[list[int]]: ...

    def decode(self, ids: Sequence[int], *, special: bool) -> str: ...

    def token(self, number: int) -> str | None: ...

    def id(self, token: str) -> int | None: ...

    def special(self) -> dict[str, int]: ...

    def json(self) -> bytes | None: ...

    def __len__(self) -> int: ...


def check_text(*texts: Text | None) -> None:
    """Complain of what is not text: no file, and no backend, can hold half a surrogate pair."""
    for text in texts:
        for part in text if isinstance(text, list) else [text]:
            if part is not None and not isinstance(part, str):
                raise ValueError(f"{part!r}: expected a string")
            if part is not None and (found := re.search("[\ud800-\udfff]", part)):
                what = f"U+{ord(found[0]):04X} at character {found.start()}"
                raise ValueError(f"text: a lone surrogate, {what}; decode it anew with errors='replace'")


def check_language(language: str, languages: Mapping[str, int]) -> None:
    if language not in languages:
        known = ", ".join(languages) or "none"
        raise ValueError(f"language {language!r}: not one of this tokenizer's ({known})")


def tidy(text: str) -> str:
    """No space before punctuation and contractions, as Hugging Face's clean_up_tokenization_spaces."""
    for mark in (".", "?", "!", ","):
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for end in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {end}", end)
    return text
