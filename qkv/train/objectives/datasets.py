"""Feeds: how the shards of a run become examples in an order, as its objective reads them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Examples
from qkv.data.batches.dataset import Framed, Packed, Pieces, Segmented, Stream, Windows
from qkv.data.batches.sampler import Feed, recurrent_feed, rows_feed, stream_feed
from qkv.data.noise.span_corruption import lengths as span_lengths
from qkv.data.store.shards import Shards
from qkv.train.setup_context import Given, Part

Feeds = Callable[[Given, Shards, Part], Feed]


def rows_in(given: Given) -> int:
    """Rows of a batch whose rows are of one length."""
    return given.recipe.data.rows or max(1, given.recipe.data.tokens // given.length)


def blocks(given: Given, shards: Shards, part: Part, *, size: int, ahead: int, framed: bool = False) -> Feed:
    """Blocks of one long text."""
    stream = Stream(shards, size, *part.edges(shards.tokens(), size + ahead, "tokens"), ahead=ahead)
    examples = Framed(stream, given.words.frame) if framed else stream
    return stream_feed(
        examples, size, ahead, rows_in(given), seed=given.recipe.learn.seed, shuffled=part.first,
        static=given.recipe.data.static,
    )  # fmt: skip


def stream(given: Given, shards: Shards, part: Part) -> Feed:
    return blocks(given, shards, part, size=given.length, ahead=1)


def in_turn(given: Given, shards: Shards, part: Part, *, ahead: int) -> Feed:
    """Each row goes on where it ended in the last batch; a short text has fewer rows."""
    if not given.model.args.get("memory"):
        raise ValueError(
            f"objective {given.recipe.objective.name}: {given.model.family.name} remembers nothing "
            "(model.memory); transformer-xl and xlnet do"
        )
    size = given.length
    made = Stream(shards, size, *part.edges(shards.tokens(), size + ahead, "tokens"), ahead=ahead)
    rows = min(rows_in(given), len(made) // (size + ahead))
    return recurrent_feed(made, size, ahead, rows, seed=given.recipe.learn.seed)


def segments(given: Given, shards: Shards, part: Part) -> Feed:
    """Segments of one long text, and the token after each."""
    return in_turn(given, shards, part, ahead=1)


def by_number(given: Given, examples: Examples, part: Part, lengths: NDArray[np.int64] | None = None) -> Feed:
    """Examples by number, or, where their lengths are given, so many that they have `data.tokens`."""
    data = given.recipe.data
    rows = rows_in(given) if lengths is None else data.rows
    return rows_feed(
        examples, lengths, rows=rows, tokens=data.tokens, seed=given.recipe.learn.seed,
        shuffled=part.first, static=data.static,
    )  # fmt: skip


def packed(given: Given, shards: Shards, part: Part) -> Feed:
    """Blocks of one long text, or documents packed into rows; special tokens around each."""
    frame, size = given.words.frame, given.length - given.words.frame.size
    if given.one_text:
        return blocks(given, shards, part, size=size, ahead=0, framed=True)
    pieces = Pieces(part.documents(shards, given.recipe.learn.seed), size)
    rows = Packed(Framed(pieces, frame), pieces.lengths() + frame.size, given.length)
    return by_number(given, rows, part)


def ordered(given: Given, shards: Shards, part: Part) -> Feed:
    """XLNet's rows: with a memory, segments in a row."""
    if not given.setting("memory", False):
        return packed(given, shards, part)
    if not given.one_text:
        raise ValueError(
            'objective.memory: a memory goes on in one long text; data.unit = "file" makes it one'
        )
    return in_turn(given, shards, part, ahead=0)


def pieces(given: Given, shards: Shards, part: Part) -> Feed:
    """Blocks of one long text, or documents in pieces; there is room for special tokens around each."""
    size = given.length - max(given.words.frame.size, 2)
    if given.one_text:
        return blocks(given, shards, part, size=size, ahead=0)
    cut = Pieces(part.documents(shards, given.recipe.learn.seed), size)
    return by_number(given, cut, part, cut.lengths())


def under_code(given: Given, shards: Shards, part: Part) -> Feed:
    """Pieces of documents: a code in front of them, and the last token only asked for, they fill a row."""
    cut = Pieces(part.documents(shards, given.recipe.learn.seed), given.length)
    return by_number(given, cut, part, cut.lengths())


def corrupted(given: Given, shards: Shards, part: Part) -> Feed:
    """Blocks of the length that, spans taken out, is that of a row."""
    how = {name: float(given.setting(name, usual)) for name, usual in (("density", 0.15), ("mean", 3.0))}
    return blocks(given, shards, part, size=span_lengths(given.length, **how)[0], ahead=0)


def paired(given: Given, shards: Shards, part: Part) -> Feed:
    """Pairs of sentences out of documents."""
    documents = part.documents(shards, given.recipe.learn.seed)
    size = max(given.length - given.words.pair.size, 1)
    return by_number(given, Segmented(documents, size, marked=given.setting("whole", False)), part)


def records(*fields: str) -> Feeds:
    """A record an example."""

    def feed(given: Given, shards: Shards, part: Part) -> Feed:
        documents = part.documents(shards, given.recipe.learn.seed)
        return by_number(given, documents, part, documents.lengths(*fields))

    return feed


def windows(given: Given, shards: Shards, part: Part) -> Feed:
    """A window of a record an example."""
    made = Windows(part.documents(shards, given.recipe.learn.seed))
    return by_number(given, made, part, made.lengths())
