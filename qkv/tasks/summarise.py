"""Summarise: a long text as a short one, by an encoder-decoder; how long it is, the folder says or you."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qkv.tasks.base import Text
from qkv.tasks.checks import checked
from qkv.tasks.write import Rewrite


@dataclass(frozen=True, kw_only=True)
class Summarise(Rewrite):
    """The folder's part `summarization` has its settings, and T5's prefix."""

    name: ClassVar[str] = "summarise"

    @property
    def part(self) -> str | None:
        return "summarization"

    def texts(self, given: str, what: str) -> list[Text]:
        return [self.before + checked(given, what)]
