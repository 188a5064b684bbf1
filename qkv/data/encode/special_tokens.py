"""Frame: the special tokens that a tokenizer puts around texts, and the type of each. Knows no tensors.

(CLS)  text  (SEP)               one text: two runs of special tokens
(CLS)  a  (SEP)  b  (SEP)        a pair: three
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import Ids
from qkv.text import Tokenizer

Run = tuple[int, ...]


class Frame(NamedTuple):
    """What stands before, between and after texts."""

    ids: tuple[Run, ...] = ((), ())
    types: tuple[Run, ...] = ((), ())
    texts: Run = (0,)  # the type of each text

    @property
    def size(self) -> int:
        """Tokens that it adds."""
        return sum(map(len, self.ids))

    def tokens(self, *texts: Ids) -> NDArray[np.int64]:
        """The texts in their frame."""
        return self._joined(self.ids, texts)

    def kinds(self, *texts: Ids) -> NDArray[np.int64]:
        """The types of those tokens."""
        return self._joined(
            self.types, [np.full(len(text), kind) for text, kind in zip(texts, self.texts, strict=True)]
        )

    def along(self, text: Ids, fill: int) -> NDArray[np.int64]:
        """One value a token of a text, and `fill` for each special one."""
        return self._joined([[fill] * len(run) for run in self.ids], [text])

    @staticmethod
    def _joined(
        runs: tuple[Run, ...] | list[list[int]], texts: tuple[Ids, ...] | list[Ids]
    ) -> NDArray[np.int64]:
        turns = chain.from_iterable(zip(runs, [*texts, ()], strict=True))
        return np.concatenate([np.asarray(each, np.int64) for each in turns])


def frame(tokenizer: Tokenizer, texts: int = 1) -> Frame:
    """The frame that a tokenizer puts around one text, or around two."""
    whole = tokenizer.encode("a", "a" if texts == 2 else None)
    places = [[i for i, owner in enumerate(whole.sequence) if owner == text] for text in range(texts)]
    if not all(places):
        raise ValueError("the tokenizer has no token for the letter 'a' and none for what it does not know")
    edges = [-1, *chain.from_iterable((held[0], held[-1]) for held in places), len(whole)]
    gaps = [range(a + 1, b) for a, b in list(pairwise(edges))[::2]]
    return Frame(
        tuple(tuple(whole.ids[i] for i in gap) for gap in gaps),
        tuple(tuple(whole.types[i] for i in gap) for gap in gaps),
        tuple(whole.types[held[0]] for held in places),
    )
