"""Reply: the answer to a question, out of the scores of every window of its context. Knows no network.

    windows of a context ─ start, end (B, T) ─ scored: the best spans of each ─ replies: the best of all

B windows, T tokens of the longest of them, L tokens that an answer may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.text import Encoding

LONGEST = 30  # tokens of an answer (BERT)


class Window(NamedTuple):
    """What is known of the tokens of a window."""

    offsets: NDArray[np.int32]  # (T, 2) the characters of the context that each covers
    inside: NDArray[np.bool_]  # (T,) whether it is of the context
    nowhere: int  # the token that stands for no answer

    @staticmethod
    def of(encoding: Encoding, nowhere: int) -> Window:
        inside = np.array([owner == 1 for owner in encoding.sequence])
        return Window(np.array(encoding.offsets, np.int32).reshape(-1, 2), inside, nowhere)


class Span(NamedTuple):
    """Characters of a context, from `start` up to `end`; none of them: no answer."""

    score: float
    start: int = 0
    end: int = 0

    def text(self, context: str) -> str:
        """As it is written there, without blanks around it."""
        return context[self.start : self.end].strip()


class Scored(NamedTuple):
    """What a window says: its best spans, and the score of no answer."""

    spans: list[Span]
    none: float


def scored(
    start: Tensor, end: Tensor, windows: Sequence[Window], *, left: bool = False, longest: int = LONGEST,
    most: int = 1,
) -> list[Scored]:  # fmt: skip
    """The `most` best spans of every window, by the sum of the scores of their first and last token, (B, T).

    `left`: pads stand on the left."""
    start, end, inside = start.float(), end.float(), np.zeros(start.shape, np.bool_)
    skips = [start.shape[1] - len(each.inside) if left else 0 for each in windows]
    for row, window, skip in zip(inside, windows, skips, strict=True):
        row[skip : skip + len(window.inside)] = window.inside
    found = best(start, end, torch.from_numpy(inside).to(start.device), longest=longest, most=most)
    places = [[skip + window.nowhere] for window, skip in zip(windows, skips, strict=True)]
    nowhere = torch.tensor(places, device=start.device)
    none = (start.gather(1, nowhere) + end.gather(1, nowhere))[:, 0].tolist()
    rows = zip(windows, skips, *(x.tolist() for x in found), strict=True)
    spans = [
        [
            Span(score, int(window.offsets[a - skip, 0]), int(window.offsets[b - skip, 1]))
            for score, a, b in zip(*three, strict=True)
            if score > -torch.inf
        ]
        for window, skip, *three in rows
    ]
    return [Scored(*each) for each in zip(spans, none, strict=True)]


def best(
    start: Tensor, end: Tensor, inside: Tensor, *, longest: int, most: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, first and last tokens (B, most) of the best spans of at most `longest` tokens, all of them
    `inside`; where there are fewer, a score is -inf."""
    start, end = (x.masked_fill(~inside, -torch.inf) for x in (start, end))
    ends = F.pad(end, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (B, T) -> (B, T, L)
    total = (start[..., None] + ends).flatten(1)
    found = total.topk(min(most, total.shape[1]), dim=-1)
    begin = found.indices // longest
    return found.values, begin, begin + found.indices % longest


def replies(windows: Iterable[Scored], *, none: bool = False, bias: float = 0.0) -> list[Span]:
    """What all windows of a question say, the best first and each once. With `none` one of them is no answer.

    It is for a window that holds no answer to say so, thus the least that any window gives to it counts. A
    `bias` is added to that: where it is more, fewer questions are answered."""
    every = list(windows)
    found: dict[tuple[int, int], Span] = {}
    for span in (span for window in every for span in window.spans):
        held = found.get(span[1:])
        if held is None or held.score < span.score:
            found[span[1:]] = span
    spans = [*found.values()]
    if none:
        spans.append(Span(min(window.none for window in every) + bias))
    return sorted(spans, key=lambda span: -span.score)
