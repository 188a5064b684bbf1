"""Evaluation of word vectors on published test files: word similarity and analogies.

    similarity   two words and a score on a line: WordSim-353 (csv, tab), SimLex-999, RG-65, MEN ...
    analogies    four words on a line, below lines with ": section" (questions-words)

A pair or question with a word that has no vector is left out, and counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from qkv.correlation import spearmanr
from qkv.data.read.lines import TextFile
from qkv.validate import check_number, shorten_repr
from qkv.words.vectors import WordVectors

SCORE_COLUMN = {"simlex999": 3}  # the column of the score in files with more columns, by a title
RESTRICT_VOCAB = 300_000  # the most frequent words, which the answers of analogies are searched in
QUESTIONS_AT_ONCE = 256


@dataclass(frozen=True)
class SimilarityResult:
    """The Spearman correlation of cosine similarities with the scores of people."""

    spearman: float
    num_pairs: int  # with vectors
    num_unknown: int  # pairs with a word that has no vector

    @property
    def num_all(self) -> int:
        """The number of pairs in the file."""
        return self.num_pairs + self.num_unknown


@dataclass(frozen=True)
class AnalogyResult:
    """The share of questions of a section whose nearest word is the answer."""

    section: str
    num_correct: int
    num_questions: int  # with vectors
    num_unknown: int

    @property
    def accuracy(self) -> float:
        """The share of correct answers; 0 without questions."""
        return self.num_correct / max(self.num_questions, 1)


def read_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and fields, separated by tabs, else commas, else spaces. Comments and blank
    lines are left out."""
    for number, line in TextFile(str(path)).iter_lines():
        if line.strip() and not line.startswith("#"):
            separator = "\t" if "\t" in line else "," if "," in line else None
            yield number, [field.strip().strip('"') for field in line.strip().split(separator)]


def is_analogy_file(path: Path) -> bool:
    """Return whether the first line of a test file is the title of a section, or has four words."""
    fields = next(iter(read_fields(path)), (0, [""]))[1]
    return fields[0].startswith(":") or (
        len(fields) == 4 and not any(parse_score(field) is not None for field in fields)
    )


def parse_score(text: str) -> float | None:
    """Return a number, None for any other text."""
    return float(text) if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text, re.I) else None


def read_similarity_file(path: Path) -> list[tuple[str, str, float]]:
    """Return the pairs of words of a test file with their scores."""
    pairs: list[tuple[str, str, float]] = []
    column = 2
    for number, fields in read_fields(path):
        score = parse_score(fields[column]) if len(fields) > column else None
        if score is None and not pairs:  # titles
            titles = [title.lower() for title in fields]
            column = next((titles.index(t) for t in SCORE_COLUMN if t in titles), column)
            continue
        if score is None or not all(fields[:2]):
            raise ValueError(
                f"{path}, line {number}: {shorten_repr(' '.join(fields))}, expected two words and a score"
            )
        pairs.append((fields[0], fields[1], score))
    if len(pairs) < 2:
        raise ValueError(f"{path}: {len(pairs)} pairs of words with a score, expected 2 or more")
    return pairs


def read_analogy_file(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Return the questions of a test file by section: a is to b as c is to d."""
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    section = "all"
    for number, fields in read_fields(path):
        if fields[0].startswith(":"):
            section = " ".join(fields).lstrip(": ") or "all"
        elif len(fields) == 4:
            a, b, c, d = fields
            sections.setdefault(section, []).append((a, b, c, d))
        else:
            raise ValueError(
                f"{path}, line {number}: {shorten_repr(' '.join(fields))}, expected four words"
            )
    if not sections:
        raise ValueError(f"{path}: no questions, expected lines of four words")
    return sections


def evaluate_similarity(
    vectors: WordVectors, pairs: Sequence[tuple[str, str, float]]
) -> SimilarityResult:
    """Compare the cosine similarities of pairs of words with their scores. A word is looked up as it
    is, else in lowercase."""
    rows = [(vectors.find_index(a), vectors.find_index(b), score) for a, b, score in pairs]
    known = [(a, b, score) for a, b, score in rows if a is not None and b is not None]
    if len(known) < 2:
        raise ValueError(
            f"{len(known)} of {len(pairs)} pairs have vectors for both words, expected 2 or more; are "
            "the vectors of the same language?"
        )
    unit = vectors.normalized_vectors
    similarities = [float(unit[a] @ unit[b]) for a, b, _ in known]
    scores = [score for _, _, score in known]
    return SimilarityResult(spearmanr(similarities, scores), len(known), len(pairs) - len(known))


def evaluate_analogies(
    vectors: WordVectors,
    sections: dict[str, list[tuple[str, str, str, str]]],
    restrict_vocab: int = RESTRICT_VOCAB,
) -> list[AnalogyResult]:
    """Answer the questions of each section with 3CosAdd: the word nearest to b - a + c, among the first
    `restrict_vocab` words without a, b and c."""
    check_number("restrict_vocab", restrict_vocab, integer=True, at_least=1)
    unit = vectors.normalized_vectors[:restrict_vocab]
    results = []
    for section, questions in sections.items():
        rows = [[vectors.find_index(word) for word in question] for question in questions]
        known = torch.tensor(
            [row for row in rows if all(i is not None and i < len(unit) for i in row)],
            dtype=torch.long,
        ).view(-1, 4)
        num_correct = 0
        for batch in known.split(QUESTIONS_AT_ONCE) if len(known) else ():
            a, b, c, d = batch.T
            scores = (unit[b] - unit[a] + unit[c]) @ unit.T  # (Q, V)
            scores.scatter_(1, batch[:, :3], -torch.inf)
            num_correct += int((scores.argmax(1) == d).sum())
        results.append(AnalogyResult(section, num_correct, len(known), len(rows) - len(known)))
    return results
