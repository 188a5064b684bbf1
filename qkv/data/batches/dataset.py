"""Map-style datasets of token shards. Do not depend on tokenizers or on the sampling order.

TokenStreamDataset    blocks of one long token stream
DocumentDataset       unchanged documents
ChunkedDataset        documents in chunks of a maximum length
SpecialTokensDataset  examples with special tokens
PackedDataset         several examples packed into one row
WindowDataset         the windows of documents
SentencePairDataset   documents of sentences, from which sentence pairs are sampled
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Dataset, Example
from qkv.data.batches.packing import pack_sequences
from qkv.data.batches.sampler import Indices
from qkv.data.encode.special_tokens import SpecialTokensTemplate
from qkv.data.store.shards import Shards

TOKEN_FIELDS = ("tokens", "types", "starts")  # fields with one value per token


class TokenStreamDataset:
    """The tokens from `start` to `stop` as one stream.

    Example i is the block that begins at token i, and `lookahead` more tokens."""

    def __init__(
        self,
        shards: Shards,
        block_size: int,
        start: int = 0,
        stop: int | None = None,
        *,
        lookahead: int = 1,
    ) -> None:
        self.shards = shards
        self.block_size = block_size
        self.start = start
        self.stop = shards.count_tokens() if stop is None else stop
        self.lookahead = lookahead
        if len(self) < block_size + lookahead:
            raise ValueError(
                f"{len(self)} tokens in total, expected at least {block_size + lookahead}, "
                "for one row of data.max_length; use a smaller data.max_length or more text"
            )

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, i: int) -> Example:
        begin = self.start + int(i)
        end = min(begin + self.block_size + self.lookahead, self.stop)
        names = [name for name in TOKEN_FIELDS if name in self.shards.field_sizes]
        return {
            name: self.shards.get_token_range(begin, end, name).astype(np.int64) for name in names
        }


class DocumentDataset:
    """All documents, or those of `indices`, with ids as int64."""

    def __init__(self, shards: Shards, indices: Indices | None = None) -> None:
        self.shards = shards
        self.indices = np.arange(len(shards)) if indices is None else indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Example:
        fields = self.shards.get_fields(int(self.indices[i]))
        return {name: ids.astype(np.int64) for name, ids in fields.items()}

    def lengths(self, *fields: str) -> NDArray[np.int64]:
        """Return the lengths of these fields (N, fields)."""
        return np.stack([self.shards.lengths(field)[self.indices] for field in fields], axis=1)


class ChunkedDataset:
    """Documents in chunks of at most `max_length` tokens; empty documents are omitted."""

    def __init__(self, documents: DocumentDataset, max_length: int) -> None:
        if max_length < 1:
            raise ValueError(
                f"rows of {max_length} tokens without special tokens, expected at least 1; "
                "use a larger data.max_length"
            )
        lengths = documents.lengths("tokens")[:, 0]
        self.documents = documents
        self.document_indices, chunk_indices = _enumerate_parts(-(-lengths // max_length))
        self.starts = max_length * chunk_indices
        self.stops = np.minimum(self.starts + max_length, lengths[self.document_indices])

    def __len__(self) -> int:
        return len(self.document_indices)

    def __getitem__(self, i: int) -> Example:
        chunk = slice(int(self.starts[i]), int(self.stops[i]))
        example = self.documents[int(self.document_indices[i])]
        return {name: x[chunk] if name in TOKEN_FIELDS else x for name, x in example.items()}

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of every chunk (N,)."""
        return self.stops - self.starts


class SpecialTokensDataset:
    """Examples with the special tokens of a single text."""

    def __init__(self, dataset: Dataset, template: SpecialTokensTemplate) -> None:
        self.dataset = dataset
        self.template = template

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Example:
        example = self.dataset[i]
        extended = {**example, "tokens": self.template.build_token_ids(example["tokens"])}
        if "starts" in example:
            extended["starts"] = self.template.extend_values(example["starts"], 1)
        return extended


class PackedDataset:
    """Rows of several examples, at most `max_length` tokens each; `document_ids` separate them."""

    def __init__(self, dataset: Dataset, lengths: NDArray[np.int64], max_length: int) -> None:
        self.dataset = dataset
        self.rows = [row[:, 0] for row in pack_sequences(lengths, max_length)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Example:
        examples = [self.dataset[int(index)] for index in self.rows[i]]
        packed = {
            name: np.concatenate([example[name] for example in examples])
            for name in TOKEN_FIELDS
            if name in examples[0]
        }
        lengths = [len(example["tokens"]) for example in examples]
        return packed | {"document_ids": np.repeat(np.arange(len(examples)), lengths)}


class WindowDataset:
    """The windows of every document, which are stored one after another.

    The field `windows` has their lengths; other fields have one value per token or per window."""

    def __init__(self, documents: DocumentDataset) -> None:
        self.documents = documents
        counts = documents.lengths("windows")[:, 0]
        self.document_indices, self.window_indices = _enumerate_parts(counts)
        lengths = [documents.shards.get_document(int(i), "windows") for i in documents.indices]
        self._lengths = np.concatenate([np.empty(0, np.int64), *lengths]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.document_indices)

    def __getitem__(self, i: int) -> Example:
        example = self.documents[int(self.document_indices[i])]
        window = int(self.window_indices[i])
        stop = int(example["windows"][: window + 1].sum())
        tokens = slice(stop - int(example["windows"][window]), stop)
        return {
            name: x[tokens] if name in TOKEN_FIELDS else x[window] for name, x in example.items()
        }

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of every window (N,)."""
        return self._lengths


class SplitDocument(Sequence[NDArray[np.int64]]):
    """The sentences of a document, given their ends; a sentence is sliced on access."""

    def __init__(self, token_ids: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.token_ids = token_ids
        self.ends = ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.token_ids[self.ends[index - 1] if index else 0 : self.ends[index]]


class DocumentSentences(Sequence[Sequence[NDArray[np.int64]]]):
    """Documents as lists of sentences.

    With `mark_word_starts`, an id is encoded as 2 · id + 1 if a word starts there, else as 2 · id, so
    that the word starts are kept when sentences are truncated and joined."""

    def __init__(self, documents: DocumentDataset, *, mark_word_starts: bool = False) -> None:
        self.documents = documents
        self.mark_word_starts = mark_word_starts

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> SplitDocument:  # type: ignore[override]
        document = self.documents[index]
        ids = document["tokens"]
        if self.mark_word_starts:
            ids = 2 * ids + document["starts"]
        return SplitDocument(ids, np.cumsum(document["sentences"]))


class SentencePairDataset:
    """Sentence pairs: an example is the index of a document and of one of its pairs.

    A document has about as many examples as rows of `max_length` tokens."""

    def __init__(
        self, documents: DocumentDataset, max_length: int, *, mark_word_starts: bool = False
    ) -> None:
        lengths = documents.lengths("tokens")[:, 0]
        has_pair = lengths > 1  # a pair has at least two tokens
        pairable = DocumentDataset(documents.shards, documents.indices[has_pair])
        self.sentences = DocumentSentences(pairable, mark_word_starts=mark_word_starts)
        self.document_indices, self.pair_indices = _enumerate_parts(
            -(-lengths[has_pair] // max_length)
        )

    def __len__(self) -> int:
        return len(self.document_indices)

    def __getitem__(self, i: int) -> Example:
        return {
            "documents": self.sentences,
            "number": int(self.document_indices[i]),
            "turn": int(self.pair_indices[i]),
        }


def _enumerate_parts(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the document of each part, and its index in it: [2, 1] -> [0, 0, 1], [0, 1, 0]."""
    document_indices = np.repeat(np.arange(len(counts)), counts)
    first_parts = np.cumsum(counts) - counts
    return document_indices, np.arange(len(document_indices)) - first_parts[document_indices]
