"""Summarise: a long text as a short one, by an encoder-decoder; how long it is, the folder says or you."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from qkv.decode import Found
from qkv.tasks.base import Row, Text
from qkv.tasks.checks import checked
from qkv.tasks.pace import Progress
from qkv.tasks.portions import begins
from qkv.tasks.write import Rewrite, Written, joined


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

    def texts(self, given: str, what: str) -> list[Text]:
        return [self.before + body for _, body in self.portions(checked(given, what))]

    def found(self, given: str, rows: Sequence[Row], said: Sequence[list[Found]]) -> Written:
        if len(rows) == 1:
            return super().found(given, rows, said)
        places = begins(self.portions(given))
        read = zip(rows, places, said, strict=True)
        parts = [[self.written(one, row, given, at) for one in each] for row, at, each in read]
        blanks = ["", *[" "] * (len(parts) - 1)]
        best = tuple(
            joined(each, [blank + one.text for blank, one in zip(blanks, each, strict=True)])
            for each in zip(*parts, strict=False)
        )
        return replace(best[0], best=best)

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
