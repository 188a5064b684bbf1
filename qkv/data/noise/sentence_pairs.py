"""Segments: what one example holds of a document: two texts that may belong together (BERT, ALBERT), or a
chunk under a control code (CTRL). Puts no [CLS] and [SEP] around them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import Ids

Document = Sequence[Ids]  # its sentences, none of them empty


class Segments(NamedTuple):
    """Two texts, and whether the second is not what comes after the first."""

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    label: int  # 0: b comes after a; 1: b is of another document (BERT), or comes before a (ALBERT)


def next_sentence(
    documents: Sequence[Document], number: int, rng: np.random.Generator, *, size: int, short: float = 0.1
) -> list[Segments]:
    """BERT's pairs from one of the documents, of at most `size` tokens together; in half of them b is random.

    A pair is filled with sentences up to `size`, or, with chance `short`, all pairs of the document are
    filled up to a smaller random number. Sentences that a random b displaces start the next pair. A lone
    sentence always has a random b.
    """
    if len(documents) < 2:
        raise ValueError(f"{len(documents)} documents, expected at least 2: b is taken from another")
    document = documents[number]
    goal = _goal(size, short, rng)
    pairs = []
    start = 0
    while start < len(document):
        stop = _stop(document, start, goal)
        cut = start + (int(rng.integers(1, stop - start)) if stop - start > 1 else 1)
        a = _joined(document[start:cut])
        apart = stop - start == 1 or rng.random() < 0.5
        if apart:
            other = int(rng.integers(len(documents) - 1))
            strange = documents[other + (other >= number)]
            place = int(rng.integers(max(len(strange), 1)))
            b = _joined(strange[place : _stop(strange, place, goal - len(a))])
            stop = cut
        else:
            b = _joined(document[cut:stop])
        pairs.append(Segments(*_truncated(a, b, size, rng), int(apart)))
        start = stop
    return pairs


def sentence_order(
    document: Document, rng: np.random.Generator, *, size: int, short: float = 0.1
) -> list[Segments]:
    """ALBERT's pairs from a document: two texts in a row, half of them swapped; filled as BERT's are.

    A lone sentence is cut in two (ALBERT's script gives it a random b, which its paper argues against).
    """
    goal = _goal(size, short, rng)
    pairs = []
    start = 0
    while start < len(document):
        stop = _stop(document, start, goal)
        text = _joined(document[start:stop])
        if stop - start > 1:
            cut = sum(map(len, document[start : start + int(rng.integers(1, stop - start))]))
        else:
            cut = int(rng.integers(1, len(text))) if len(text) > 1 else 0
        start = stop
        if cut:
            a, b = text[:cut], text[cut:]
            swapped = bool(rng.random() < 0.5)
            pairs.append(Segments(*_truncated(*((b, a) if swapped else (a, b)), size, rng), int(swapped)))
    return pairs


def _joined(sentences: Document) -> Ids:
    if not len(sentences) or not all(map(len, sentences)):
        found = "a document without sentences, or a sentence without tokens"
        raise ValueError(f"{found}; expected none; leave blank lines and empty texts out")
    return np.concatenate(sentences)


def _goal(size: int, short: float, rng: np.random.Generator) -> int:
    if size < 2:
        raise ValueError(f"size {size}, expected at least 2: a token of each text")
    return int(rng.integers(2, size + 1)) if rng.random() < short else size


def _stop(document: Document, start: int, goal: int) -> int:
    """Where the sentences from `start` on are `goal` tokens or more, one sentence at least; or the end."""
    length = 0
    for place in range(start, len(document)):
        length += len(document[place])
        if length >= goal:
            return place + 1
    return len(document)


def _truncated(
    a: Ids, b: Ids, size: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both, cut to `size` in all: the longer one loses a token at either end, at random, until they fit."""
    keep = min(len(a), max(size - len(b), (size + 1) // 2)), min(len(b), max(size - len(a), size // 2))
    return _cut(a, keep[0], rng), _cut(b, keep[1], rng)


def _cut(ids: Ids, keep: int, rng: np.random.Generator) -> NDArray[np.int64]:
    front = int(rng.binomial(len(ids) - keep, 0.5))
    return ids[front : front + keep].astype(np.int64)
