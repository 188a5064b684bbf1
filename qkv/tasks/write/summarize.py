"""Summarise: a long text as a short one, by an encoder-decoder; how long it is, the folder says or you."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from qkv.tasks.batching import Progress
from qkv.tasks.write.base import Rewrite, Written


@dataclass(frozen=True, kw_only=True)
class Summarise(Rewrite):
    """The folder's part `summarization` has its settings, and T5's prefix. `long="window"` summarises a text
    that is too long part by part; `again`: what comes of its parts is summarised once more, until it is one
    part."""

    name: ClassVar[str] = "summarise"
    again: bool = False

    @property
    def part(self) -> str | None:
        return "summarization"

    def put(self, parted: Sequence[tuple[str, str]], parts: Sequence[Written]) -> list[str]:
        return [" " * (place > 0) + part.text for place, part in enumerate(parts)]

    def results(
        self, given: Sequence[str], batch_tokens: int = 4096, progress: Progress = False
    ) -> list[Written]:
        found = super().results(given, batch_tokens, progress)
        both = [*enumerate(zip(given, found, strict=True))]
        long = [
            place for place, (text, one) in both
            if self.again and 0 < len(one.text) < len(text) and len(self.texts(text, "text")) > 1
        ]  # fmt: skip
        shorter = self.results([found[place].text for place in long], batch_tokens, progress) if long else []
        for place, one in zip(long, shorter, strict=True):
            found[place] = one
        return found
