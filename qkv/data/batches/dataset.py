"""Sources: shards as examples. Knows no tokenizer and no order.

Stream     blocks of one long row of tokens
Documents  records as they are          Pieces    the same, long ones in pieces
Framed     special tokens around each   Packed    several of them in one row
Windows    rows that a record holds     Segmented documents of sentences, to be paired
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Example, Examples
from qkv.data.batches.packing import pack
from qkv.data.batches.sampler import Indices
from qkv.data.encode.special_tokens import Frame
from qkv.data.store.shards import Shards

ALONG = ("tokens", "types", "starts")  # fields with one value a token


class Stream:
    """Tokens from `first` up to `last`; an example is the block at its index, and `ahead` tokens more."""

    def __init__(
        self, shards: Shards, size: int, first: int = 0, last: int | None = None, *, ahead: int = 1
    ) -> None:
        self.shards, self.size, self.first, self.ahead = shards, size, first, ahead
        self.last = shards.tokens() if last is None else last
        if len(self) < size + ahead:
            raise ValueError(
                f"{len(self)} tokens in all, expected {size + ahead} at least, for one row of data.length; "
                "a smaller one takes less"
            )

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, i: int) -> Example:
        begin = self.first + int(i)
        end = min(begin + self.size + self.ahead, self.last)
        held = (name for name in ALONG if name in self.shards.fields)
        return {name: self.shards.slice(begin, end, name).astype(np.int64) for name in held}


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


class Pieces:
    """Documents in pieces of at most `size` tokens; an empty one is left out."""

    def __init__(self, documents: Documents, size: int) -> None:
        if size < 1:
            raise ValueError(f"rows of {size} tokens beside the special ones; expected a larger data.length")
        lengths = documents.lengths("tokens")[:, 0]
        count = -(-lengths // size)
        self.documents, self.document = documents, np.repeat(np.arange(len(lengths)), count)
        self.start = size * (np.arange(len(self.document)) - (np.cumsum(count) - count)[self.document])
        self.stop = np.minimum(self.start + size, lengths[self.document])

    def __len__(self) -> int:
        return len(self.document)

    def __getitem__(self, i: int) -> Example:
        here = slice(int(self.start[i]), int(self.stop[i]))
        example = self.documents[int(self.document[i])]
        return {name: x[here] if name in ALONG else x for name, x in example.items()}

    def lengths(self) -> NDArray[np.int64]:
        return self.stop - self.start


class Framed:
    """Examples with the special tokens of a text around each."""

    def __init__(self, examples: Examples, frame: Frame) -> None:
        self.examples, self.frame = examples, frame

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, i: int) -> Example:
        example = self.examples[i]
        starts = {"starts": self.frame.along(example["starts"], 1)} if "starts" in example else {}
        return {**example, "tokens": self.frame.tokens(example["tokens"]), **starts}


class Packed:
    """Rows of several examples, `size` tokens at most; `document` tells them apart."""

    def __init__(self, examples: Examples, lengths: NDArray[np.int64], size: int) -> None:
        self.examples, self.rows = examples, [row[:, 0] for row in pack(lengths, size)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Example:
        parts = [self.examples[int(d)] for d in self.rows[i]]
        whole = {name: np.concatenate([p[name] for p in parts]) for name in ALONG if name in parts[0]}
        return whole | {"document": np.repeat(np.arange(len(parts)), [len(p["tokens"]) for p in parts])}


class Windows:
    """Records that hold several rows, one behind the other; the field `windows` has their lengths.

    Other fields have one value a window."""

    def __init__(self, documents: Documents) -> None:
        self.documents = documents
        count = documents.lengths("windows")[:, 0]
        self.document = np.repeat(np.arange(len(count)), count)
        self.turn = np.arange(len(self.document)) - (np.cumsum(count) - count)[self.document]
        every = [documents.shards.document(int(i), "windows") for i in documents.which]
        self._lengths = np.concatenate([np.empty(0, np.int64), *every]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.document)

    def __getitem__(self, i: int) -> Example:
        example, turn = self.documents[int(self.document[i])], int(self.turn[i])
        stop = int(example["windows"][: turn + 1].sum())
        here = slice(stop - int(example["windows"][turn]), stop)
        return {name: x[here] if name in ALONG else x[turn] for name, x in example.items()}

    def lengths(self) -> NDArray[np.int64]:
        return self._lengths


class Cut(Sequence[NDArray[np.int64]]):
    """A text in pieces that end there; one is cut out when it is asked for."""

    def __init__(self, ids: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.ids, self.ends = ids, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        return self.ids[self.ends[place - 1] if place else 0 : self.ends[place]]


class Sentences(Sequence[Sequence[NDArray[np.int64]]]):
    """Documents as lists of sentences. With `marked` an id is 2 · id + 1 where a word starts, else 2 · id:
    whatever cuts and joins sentences takes the starts along."""

    def __init__(self, documents: Documents, *, marked: bool = False) -> None:
        self.documents, self.marked = documents, marked

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, number: int) -> Cut:  # type: ignore[override]
        held = self.documents[number]
        ids = 2 * held["tokens"] + held["starts"] if self.marked else held["tokens"]
        return Cut(ids, np.cumsum(held["sentences"]))


class Segmented:
    """About as many examples of a document as rows of `size` would hold: which document, which of them."""

    def __init__(self, documents: Documents, size: int, *, marked: bool = False) -> None:
        lengths = documents.lengths("tokens")[:, 0]
        whole = Documents(documents.shards, documents.which[lengths > 1])  # a lone token is no pair
        self.sentences = Sentences(whole, marked=marked)
        count = -(-lengths[lengths > 1] // size)
        self.document = np.repeat(np.arange(len(count)), count)
        self.turn = np.arange(len(self.document)) - (np.cumsum(count) - count)[self.document]

    def __len__(self) -> int:
        return len(self.document)

    def __getitem__(self, i: int) -> Example:
        return {"documents": self.sentences, "number": int(self.document[i]), "turn": int(self.turn[i])}
