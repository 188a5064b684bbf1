"""Feeds: how the shards of a run become examples in an order, as its objective reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.data.feed import Feed, recurrent_feed, rows_feed, stream_feed
from qkv.data.shards import Shards
from qkv.data.source import Framed, Packed, Pieces, Segmented, Stream, Windows
from qkv.data.spans import lengths as span_lengths
from qkv.learn.given import Given, Part

Feeds = Callable[[Given, Shards, Part], Feed]


def rows_in(given: Given) -> int:
    """Rows of a batch whose rows are of one length."""
    return given.recipe.data.rows or max(1, given.recipe.data.tokens // given.length)


def blocks(given: Given, shards: Shards, part: Part, *, size: int, ahead: int, framed: bool = False) -> Feed:
    """Blocks of one long text."""
    stream = Stream(shards, size, *part.edges(shards.tokens()), ahead=ahead)
    examples = Framed(stream, given.words.frame) if framed else stream
    how = dict(seed=given.recipe.learn.seed, static=given.recipe.data.static)
    return stream_feed(examples, size, ahead, rows_in(given), shuffled=part.first, **how)  # type: ignore[arg-type]


def stream(given: Given, shards: Shards, part: Part) -> Feed:
    return blocks(given, shards, part, size=given.length, ahead=1)


def segments(given: Given, shards: Shards, part: Part) -> Feed:
    """Each row goes on where it ended in the last batch."""
    made = Stream(shards, given.length, *part.edges(shards.tokens()), ahead=1)
    return recurrent_feed(made, given.length, 1, rows_in(given), seed=given.recipe.learn.seed)


def by_number(given: Given, examples: Any, part: Part, lengths: Any = None) -> Feed:
    data = given.recipe.data
    return rows_feed(
        examples, lengths, rows=data.rows, tokens=data.tokens, seed=given.recipe.learn.seed,
        shuffled=part.first, static=data.static,
    )  # fmt: skip


def packed(given: Given, shards: Shards, part: Part) -> Feed:
    """Blocks of one long text, or documents packed into rows; special tokens around each."""
    frame, size = given.words.frame, given.length - given.words.frame.size
    if given.one_text:
        return blocks(given, shards, part, size=size, ahead=0, framed=True)
    pieces = Pieces(part.documents(shards, given.recipe.learn.seed), size)
    rows = Packed(Framed(pieces, frame), pieces.lengths() + frame.size, given.length)
    how = dict(seed=given.recipe.learn.seed, static=given.recipe.data.static)
    return rows_feed(rows, rows=rows_in(given), shuffled=part.first, **how)  # type: ignore[arg-type]


def ordered(given: Given, shards: Shards, part: Part) -> Feed:
    """XLNet's rows: with a memory, segments in a row."""
    if not given.setting("memory", False):
        return packed(given, shards, part)
    if not given.one_text:
        raise ValueError(
            'objective.memory: a memory goes on in one long text; data.unit = "file" makes it one'
        )
    made = Stream(shards, given.length, *part.edges(shards.tokens()), ahead=0)
    return recurrent_feed(made, given.length, 0, rows_in(given), seed=given.recipe.learn.seed)


def pieces(given: Given, shards: Shards, part: Part) -> Feed:
    """Blocks of one long text, or documents in pieces; there is room for special tokens around each."""
    size = given.length - max(given.words.frame.size, 2)
    if given.one_text:
        return blocks(given, shards, part, size=size, ahead=0)
    cut = Pieces(part.documents(shards, given.recipe.learn.seed), size)
    return by_number(given, cut, part, cut.lengths())


def under_code(given: Given, shards: Shards, part: Part) -> Feed:
    """Pieces of a row less one token, in front of which a code stands; one more is the last label."""
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
