"""TranslationCorpus: pairs of sentences, held out by sentence, and rows of one or more pairs.

Short pairs are concatenated, so that rows of many lengths have the same kind of content. Does not
depend on networks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qkv.data.batches.collate import Example
from qkv.data.read.lines import TextFile
from qkv.text import Tokenizer

POOL_SIZE = 8192  # examples that are sorted by length and cut into batches at a time
HASH_RANGE = 2**32
MAX_DRAWS = 200  # for each row of a test set

Ids = NDArray[np.int64]


class SentencePair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class TranslationCorpus:
    """Training pairs as token ids without end tokens, and test pairs as texts."""

    tokenizer: Tokenizer
    train: list[tuple[Ids, Ids]]
    test: list[SentencePair]

    @property
    def eos_token_id(self) -> int:
        assert self.tokenizer.eos_token_id is not None
        return self.tokenizer.eos_token_id

    def build_example(self, pairs: Sequence[tuple[Ids, Ids]]) -> Example:
        """Return the concatenation of pairs, with an end token on both sides."""
        end = np.array([self.eos_token_id])
        source = np.concatenate([*(pair[0] for pair in pairs), end])
        return {"source": source, "target": np.concatenate([*(pair[1] for pair in pairs), end])}

    def encode_pairs(self, pairs: Sequence[SentencePair]) -> list[Example]:
        """Return examples of texts."""
        return [self.build_example([ids]) for ids in encode_pairs(self.tokenizer, pairs)]

    def iter_batches(
        self, *, max_pairs: int, batch_tokens: int, seed: int
    ) -> Iterator[list[Example]]:
        """Yield batches without end: rows of 1 to `max_pairs` random pairs, of similar length.

        A row has n pairs with a probability proportional to 1/n, so that each number of pairs has the
        same share of the tokens. A padded batch has at most `batch_tokens` tokens on each side."""
        rng = np.random.default_rng(seed)
        numbers = np.arange(1, max_pairs + 1)
        probs = 1 / numbers
        probs /= probs.sum()
        while True:
            counts = rng.choice(numbers, POOL_SIZE, p=probs)
            rows = np.split(rng.integers(len(self.train), size=counts.sum()), counts.cumsum()[:-1])
            examples = [self.build_example([self.train[i] for i in row]) for row in rows]
            batches = cut_batches(examples, batch_tokens)
            for index in rng.permutation(len(batches)):
                yield batches[index]


def cut_batches(examples: list[Example], batch_tokens: int) -> list[list[Example]]:
    """Sort examples by length and cut them into batches of at most `batch_tokens`, padding included."""
    examples.sort(key=lambda example: (len(example["target"]), len(example["source"])))
    batches: list[list[Example]] = [[]]
    longest = 0
    for example in examples:
        longest = max(longest, len(example["target"]), len(example["source"]))
        if batches[-1] and (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = max(len(example["target"]), len(example["source"]))
        batches[-1].append(example)
    return batches


@lru_cache(maxsize=1)  # cells of one experiment share their data
def load_corpus(
    path: Path, *, vocab_size: int, test_fraction: float, max_words: int = 0
) -> TranslationCorpus:
    """Read tab-separated pairs (English, French) for translation from French, and train a joint BPE
    tokenizer on the training pairs. `max_words`: only pairs with at most so many French words."""
    pairs = [
        pair for pair in read_pairs(path) if not max_words or count_words(pair.source) <= max_words
    ]
    train, test = hold_out_pairs(pairs, test_fraction)
    if not train or not test:
        raise ValueError(
            f"{path}: {len(train)} training and {len(test)} test pairs of {len(pairs)}, "
            "expected some of both; is it the whole file?"
        )
    tokenizer = Tokenizer.train(
        (text for pair in train for text in pair),
        type="bpe",
        vocab_size=vocab_size,
        template="seq2seq",
    )
    return TranslationCorpus(tokenizer=tokenizer, train=encode_pairs(tokenizer, train), test=test)


def read_pairs(path: Path) -> list[SentencePair]:
    """Read lines `English<tab>French`, with more columns or none; the source is French."""
    pairs = []
    for number, line in TextFile(str(path)).iter_lines():
        columns = line.split("\t")
        if len(columns) < 2:
            raise ValueError(
                f"{path}, line {number}: {len(columns)} column, expected English<tab>French"
            )
        pairs.append(SentencePair(columns[1], columns[0]))
    return pairs


def hold_out_pairs(
    pairs: Sequence[SentencePair], test_fraction: float
) -> tuple[list[SentencePair], list[SentencePair]]:
    """Return training and test pairs, by a hash of the target sentence.

    No sentence of a test pair, in either language, occurs in a training pair."""
    limit = test_fraction * HASH_RANGE
    test = [pair for pair in pairs if zlib.crc32(pair.target.encode()) < limit]
    targets = {pair.target for pair in test}
    sources = {pair.source for pair in test}
    train = [pair for pair in pairs if pair.target not in targets and pair.source not in sources]
    return train, test


def encode_pairs(tokenizer: Tokenizer, pairs: Sequence[SentencePair]) -> list[tuple[Ids, Ids]]:
    """Return the token ids of both sides, without special tokens."""
    sources, targets = (
        tokenizer.encode_ids([pair[side] for pair in pairs], add_special_tokens=False)
        for side in (0, 1)
    )
    return [
        (np.array(source, np.int64), np.array(target, np.int64))
        for source, target in zip(sources, targets, strict=True)
    ]


def count_words(text: str) -> int:
    return len(text.split())


def draw_test_rows(
    pairs: Sequence[SentencePair], *, max_pairs: int, edges: Sequence[int], rows: int
) -> dict[int, list[SentencePair]]:
    """Return concatenations of 1 to `max_pairs` different pairs by the number of source words: `rows`
    for each range that ends at an edge, always the same ones; an error if all ranges are empty.

    A range in which most rows would be repetitions of others is left out."""
    rng = np.random.default_rng(0)
    buckets: dict[int, list[SentencePair]] = {edge: [] for edge in edges}
    for _ in range(MAX_DRAWS * rows * len(edges)):
        if all(len(bucket) == rows for bucket in buckets.values()):
            break
        count = int(rng.integers(1, max_pairs + 1))
        chosen = [pairs[i] for i in rng.choice(len(pairs), count, replace=False)]
        row = SentencePair(*(" ".join(texts) for texts in zip(*chosen, strict=True)))
        edge = next((edge for edge in edges if count_words(row.source) <= edge), None)
        if edge is not None and len(buckets[edge]) < rows:
            buckets[edge].append(row)
    buckets = {
        edge: bucket for edge, bucket in buckets.items() if 2 * len({*bucket}) >= len(bucket)
    }
    if not any(buckets.values()):
        raise ValueError(
            f"no row of the test sentences has at most {max(edges, default=0)} words, expected some; "
            "set larger edges, or max_words"
        )
    return buckets
