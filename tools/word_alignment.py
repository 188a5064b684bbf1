"""Word alignments and phrase pairs of a parallel corpus.

Alignments: IBM model 2 with a diagonal prior (Dyer, Chahuneau and Smith 2013), trained by
expectation maximization in both directions and intersected. Phrase pairs: all pairs of spans that
are consistent with the alignment (Koehn, Och and Marcu 2003)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sentence = Sequence[str]
Span = tuple[int, int]  # start and end
Ids = NDArray[np.int64]
NULL_PROBABILITY = 0.08  # probability that a word has no counterpart
DIAGONAL_TENSION = 4.0  # strength of the preference for equal relative positions


@dataclass(frozen=True)
class Links:
    """All candidate links of a corpus: one entry per pair of words of a sentence pair."""

    pair: Ids  # index of the word pair in the translation table
    source_word: Ids  # id of the source word; 0: no counterpart
    word: Ids  # index of the target word in the corpus; the links of a word are competitors
    sentence: Ids
    source_position: Ids  # -1: no counterpart
    target_position: Ids
    prior: NDArray[np.float64]


def align_corpus(
    sources: Sequence[Sentence], targets: Sequence[Sentence], iterations: int = 5
) -> list[set[tuple[int, int]]]:
    """Return the links (source position, target position) of every sentence pair that both directions
    agree on."""
    forward = align_one_direction(sources, targets, iterations)
    backward = align_one_direction(targets, sources, iterations)
    return [
        links & {(source, target) for target, source in reverse}
        for links, reverse in zip(forward, backward, strict=True)
    ]


def align_one_direction(
    sources: Sequence[Sentence], targets: Sequence[Sentence], iterations: int
) -> list[set[tuple[int, int]]]:
    """Return the most probable source position of every target word."""
    links = list_links(sources, targets)
    num_pairs = int(links.pair.max()) + 1
    num_words = int(links.word.max()) + 1
    source_of_pair = np.zeros(num_pairs, np.int64)
    source_of_pair[links.pair] = links.source_word
    table = np.ones(num_pairs)
    for _ in range(iterations):
        posterior = table[links.pair] * links.prior
        posterior /= np.bincount(links.word, posterior, num_words)[links.word]
        counts = np.bincount(links.pair, posterior, num_pairs)
        table = counts / np.bincount(source_of_pair, counts)[source_of_pair]
    score = table[links.pair] * links.prior
    order = np.lexsort((-score, links.word))
    _, first = np.unique(links.word[order], return_index=True)
    best = order[first]
    result: list[set[tuple[int, int]]] = [set() for _ in sources]
    columns = (links.sentence[best], links.source_position[best], links.target_position[best])
    for sentence, source, target in zip(*(column.tolist() for column in columns), strict=True):
        if source >= 0:
            result[sentence].add((source, target))
    return result


def list_links(sources: Sequence[Sentence], targets: Sequence[Sentence]) -> Links:
    """Return every target word with every source word of its sentence, and with no word."""
    source_ids = _number_words(sources)
    target_ids = _number_words(targets)
    parts: list[tuple[Ids, ...]] = []
    priors = []
    word_start = 0
    for index, (source, target) in enumerate(zip(source_ids, target_ids, strict=True)):
        m = len(source)
        n = len(target)
        i = np.arange(-1, m)  # -1: no counterpart
        j = np.arange(n)
        distance = np.abs((i[None, 1:] + 0.5) / m - (j[:, None] + 0.5) / n)
        diagonal = np.exp(-DIAGONAL_TENSION * distance)
        diagonal *= (1 - NULL_PROBABILITY) / diagonal.sum(1, keepdims=True)
        priors.append(np.hstack([np.full((n, 1), NULL_PROBABILITY), diagonal]).ravel())
        source_row = np.concatenate([[0], source])
        parts.append((
            np.tile(source_row, n), np.repeat(target, m + 1), np.repeat(j + word_start, m + 1),
            np.full(n * (m + 1), index), np.tile(i, n), np.repeat(j, m + 1),
        ))  # fmt: skip
        word_start += n
    source_word, target_word, word, sentence, i_all, j_all = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    _, pair = np.unique(source_word * (target_word.max() + 1) + target_word, return_inverse=True)
    return Links(pair, source_word, word, sentence, i_all, j_all, np.concatenate(priors))


def extract_phrases(links: set[tuple[int, int]], max_length: int) -> Iterator[tuple[Span, Span]]:
    """Yield the consistent spans of source and target whose first and last words are aligned."""
    aligned_sources = sorted({source for source, _ in links})
    for start in aligned_sources:
        for end in aligned_sources:
            if not start <= end < start + max_length:
                continue
            targets = [target for source, target in links if start <= source <= end]
            low, high = min(targets), max(targets)
            if high - low < max_length and all(
                start <= source <= end for source, target in links if low <= target <= high
            ):
                yield (start, end + 1), (low, high + 1)


def _number_words(sentences: Sequence[Sentence]) -> list[Ids]:
    """Return the ids of the words, from 1; 0 is no word."""
    numbers: dict[str, int] = {}
    return [
        np.array([numbers.setdefault(word, len(numbers) + 1) for word in sentence], np.int64)
        for sentence in sentences
    ]
