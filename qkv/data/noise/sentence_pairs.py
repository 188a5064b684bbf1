"""Sentence pairs: two segments of text for next sentence prediction (BERT) and sentence order
prediction (ALBERT), without [CLS] and [SEP].
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.store.shards import TokenIdArray

Document = Sequence[TokenIdArray]  # its sentences, none of them empty


class SegmentPair(NamedTuple):
    """Two segments and the label of the pair."""

    segment_a: NDArray[np.int64]
    segment_b: NDArray[np.int64]
    label: int  # 0: b follows a; 1: b is from another document (BERT), or precedes a (ALBERT)


def sample_next_sentence_pairs(
    documents: Sequence[Document],
    document_index: int,
    rng: np.random.Generator,
    *,
    max_length: int,
    short_seq_prob: float = 0.1,
) -> list[SegmentPair]:
    """Sample BERT's pairs of at most `max_length` tokens from a document; half have a random b.

    A pair is filled with sentences up to `max_length`; with probability `short_seq_prob` all pairs
    of the document are filled up to a smaller random length. Sentences that a random b replaces
    begin the next pair. A single sentence always has a random b.
    """
    if len(documents) < 2:
        raise ValueError(
            f"{len(documents)} documents, expected at least 2: segment b comes from another document"
        )
    document = documents[document_index]
    target_length = _sample_target_length(max_length, short_seq_prob, rng)
    pairs = []
    start = 0
    while start < len(document):
        stop = _find_segment_end(document, start, target_length)
        split = start + (int(rng.integers(1, stop - start)) if stop - start > 1 else 1)
        a = _concatenate(document[start:split])
        is_random = stop - start == 1 or rng.random() < 0.5
        if is_random:
            other = int(rng.integers(len(documents) - 1))
            other_document = documents[other + (other >= document_index)]
            first = int(rng.integers(max(len(other_document), 1)))
            last = _find_segment_end(other_document, first, target_length - len(a))
            b = _concatenate(other_document[first:last])
            stop = split
        else:
            b = _concatenate(document[split:stop])
        pairs.append(SegmentPair(*_truncate_pair(a, b, max_length, rng), int(is_random)))
        start = stop
    return pairs


def sample_sentence_order_pairs(
    document: Document, rng: np.random.Generator, *, max_length: int, short_seq_prob: float = 0.1
) -> list[SegmentPair]:
    """Sample ALBERT's pairs from a document: consecutive segments, half of them swapped.

    They are filled like BERT's pairs. A single sentence is split in two (ALBERT's script uses a
    random b, which its paper argues against).
    """
    target_length = _sample_target_length(max_length, short_seq_prob, rng)
    pairs = []
    start = 0
    while start < len(document):
        stop = _find_segment_end(document, start, target_length)
        text = _concatenate(document[start:stop])
        if stop - start > 1:
            num_sentences = int(rng.integers(1, stop - start))
            split = sum(map(len, document[start : start + num_sentences]))
        else:
            split = int(rng.integers(1, len(text))) if len(text) > 1 else 0
        start = stop
        if split:
            is_swapped = bool(rng.random() < 0.5)
            a = text[split:] if is_swapped else text[:split]
            b = text[:split] if is_swapped else text[split:]
            pairs.append(SegmentPair(*_truncate_pair(a, b, max_length, rng), int(is_swapped)))
    return pairs


def _concatenate(sentences: Document) -> TokenIdArray:
    if not len(sentences) or not all(map(len, sentences)):
        raise ValueError(
            "a document without sentences, or a sentence without tokens; remove blank lines and empty texts"
        )
    return np.concatenate(sentences)


def _sample_target_length(max_length: int, short_seq_prob: float, rng: np.random.Generator) -> int:
    if max_length < 2:
        raise ValueError(f"max_length {max_length}, expected at least 2: one token of each segment")
    return int(rng.integers(2, max_length + 1)) if rng.random() < short_seq_prob else max_length


def _find_segment_end(document: Document, start: int, target_length: int) -> int:
    """Return the index at which the sentences from `start` reach `target_length` tokens, or the end."""
    length = 0
    for i in range(start, len(document)):
        length += len(document[i])
        if length >= target_length:
            return i + 1
    return len(document)


def _truncate_pair(
    a: TokenIdArray, b: TokenIdArray, max_length: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Truncate a pair to `max_length` tokens: the longer segment loses tokens at random ends."""
    length_a = min(len(a), max(max_length - len(b), (max_length + 1) // 2))
    length_b = min(len(b), max(max_length - len(a), max_length // 2))
    return _truncate_randomly(a, length_a, rng), _truncate_randomly(b, length_b, rng)


def _truncate_randomly(
    ids: TokenIdArray, max_length: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    num_removed_in_front = int(rng.binomial(len(ids) - max_length, 0.5))
    return ids[num_removed_in_front : num_removed_in_front + max_length].astype(np.int64)
