"""Sources: shards as examples in an order. Knows no tokenizer.

A stream is cut into blocks, documents are packed into rows, pairs and labelled texts gathered by length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkv.data.feed import Feed, Indices, Plan, by_rows
from qkv.data.pack import blocks, buckets, pack, streams
from qkv.data.rows import Example
from qkv.data.shards import Shards


class Stream:
    """Tokens from `first` up to `last`; an example is the block at its index, and one token more."""

    def __init__(self, shards: Shards, size: int, first: int = 0, last: int | None = None) -> None:
        self.shards, self.size, self.first = shards, size, first
        self.last = shards.tokens() if last is None else last
        if len(self) <= size:
            raise ValueError(f"{len(self)} tokens in all, expected more than the {size} of data.length")

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, i: int) -> Example:
        begin = self.first + int(i)
        return {"tokens": self.shards.slice(begin, min(begin + self.size + 1, self.last)).astype(np.int64)}


class Documents:
    """Records as they are, or the few of them that `which` names; ids become int64."""

    def __init__(self, shards: Shards, which: Indices | None = None) -> None:
        self.shards, self.which = shards, np.arange(len(shards)) if which is None else which

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, i: int) -> Example:
        record = self.shards.record(int(self.which[i]))
        return {name: ids.astype(np.int64) for name, ids in record.items()}

    def lengths(self, *fields: str) -> NDArray[np.int64]:
        """(N, fields)."""
        return np.stack([self.shards.lengths(field)[self.which] for field in fields], axis=1)


class Packed:
    """Rows of several documents; `document` tells them apart."""

    def __init__(self, documents: Documents, size: int, *, longer: str = "split") -> None:
        lengths = documents.lengths("tokens")[:, 0]
        self.documents, self.rows = (
            documents,
            pack(lengths, size, longer="cut" if longer == "cut" else "split"),
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Example:
        parts = [self.documents[d]["tokens"][start:stop] for d, start, stop in self.rows[i].tolist()]
        numbers = [np.full(len(part), number) for number, part in enumerate(parts)]
        return {"tokens": np.concatenate(parts), "document": np.concatenate(numbers)}


def stream_feed(stream: Stream, rows: int, *, seed: int = 0, shuffled: bool = True) -> Feed:
    """Blocks that cover the stream once an epoch, cut at other places each time."""

    def plan(rng: np.random.Generator) -> list[Indices]:
        spare = len(stream) - stream.size - 1
        offset = int(rng.integers(0, min(stream.size, spare + 1))) if shuffled else 0
        starts = blocks(len(stream), stream.size, offset=offset)
        starts = rng.permutation(starts) if shuffled else starts
        whole = len(starts) - len(starts) % rows if shuffled and len(starts) >= rows else len(starts)
        return [starts[i : min(i + rows, whole)] for i in range(0, whole, rows)]

    return Feed(stream, plan, seed=seed)


def recurrent_feed(stream: Stream, rows: int, *, seed: int = 0) -> Feed:
    """Each row of a batch goes on where the same row of the last one ended (Transformer-XL)."""
    return Feed(stream, lambda rng: list(streams(len(stream), rows, stream.size)), seed=seed)


def rows_feed(
    documents: Documents, fields: Sequence[str], *, rows: int = 0, tokens: int = 0, seed: int = 0,
    shuffled: bool = True,
) -> Feed:  # fmt: skip
    """Examples by number, or gathered by length so that no batch is larger than `tokens`."""
    plan: Plan = by_rows(len(documents), rows or 1, shuffled=shuffled)
    lengths = documents.lengths(*fields)
    if tokens:
        plan = lambda rng: buckets(lengths, tokens, rng)  # noqa: E731
    return Feed(documents, plan, seed=seed, lengths=lengths.max(axis=1))
