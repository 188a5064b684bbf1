"""How the commands of tasks that write are told to search for words. Knows no task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyclopts import Parameter

from qkv.cli.inputs import Whole


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Search:
    """How words are searched for; what is not given is as the model's folder says.

    Parameters
    ----------
    beam
        so many beams
    best
        so many results, the best first
    length_penalty
        above 0: longer results are better
    max_new
        words that are written at most, in pieces
    """

    beam: Whole | None = None
    best: Whole | None = None
    length_penalty: float | None = None
    max_new: Whole | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return given(
            beams=self.beam, results=self.best, length_penalty=self.length_penalty, max_new=self.max_new
        )


USUAL = Search()


def given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
