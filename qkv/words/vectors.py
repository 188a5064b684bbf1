"""WordVectors: words, their vectors, and their nearest neighbors by cosine similarity. Knows no files
but through `save`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.validate import check_number
from qkv.words.write import write_vectors

MAX_COMPARED_WORDS = 100_000  # the most frequent words, which suggestions are searched in
MAX_LENGTH_DIFFERENCE = 2  # characters


class WordVectors:
    """Vectors of words, usually sorted by the frequency of the words.

    `words` is the list of words and `vectors` a tensor (V, D) with a row for each."""

    def __init__(self, words: Sequence[str], vectors: Tensor) -> None:
        if vectors.ndim != 2 or len(vectors) != len(words) or not len(words):
            raise ValueError(
                f"{len(words)} words and vectors of shape {tuple(vectors.shape)}, "
                "expected at least one word and one row for each"
            )
        self.words = list(words)
        self.vectors = vectors
        self.index = {word: i for i, word in enumerate(self.words)}
        if len(self.index) < len(self.words):
            word = next(word for i, word in enumerate(self.words) if self.index[word] != i)
            raise ValueError(f"the word {word!r} occurs twice, expected different words")

    @property
    def vector_size(self) -> int:
        """The number of dimensions of the vectors."""
        return self.vectors.shape[1]

    @cached_property
    def normalized_vectors(self) -> Tensor:
        """The vectors divided by their lengths; a zero vector stays zero."""
        return F.normalize(self.vectors.float())

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Tensor:
        return self.vectors[self.get_index(word)]

    def __repr__(self) -> str:
        return f"<WordVectors: {len(self):,} words, {self.vector_size} dimensions>"

    def get_index(self, word: str) -> int:
        """Return the row of a word; an unknown word is an error that suggests similar words."""
        if word not in self.index:
            similar_words = self.suggest_words(word)
            hint = f"; did you mean {', '.join(similar_words)}?" if similar_words else ""
            raise ValueError(f"{word!r} is not among the {len(self):,} words{hint}")
        return self.index[word]

    def find_index(self, word: str) -> int | None:
        """Return the row of a word, else of the word in lowercase, else None."""
        return self.index.get(word, self.index.get(word.lower()))

    def suggest_words(self, word: str, max_words: int = 3) -> list[str]:
        """Return known words with a similar spelling."""
        variants = [x for x in (word.lower(), word.capitalize(), word.upper()) if x in self.index]
        candidates = [
            x
            for x in self.words[:MAX_COMPARED_WORDS]
            if abs(len(x) - len(word)) <= MAX_LENGTH_DIFFERENCE and {*x[:2]} & {*word[:2]}
        ]
        close_words = difflib.get_close_matches(word, candidates, n=max_words, cutoff=0.7)
        return [*dict.fromkeys([*variants, *close_words])][:max_words]

    def similarity(self, word1: str, word2: str) -> float:
        """Return the cosine similarity of two words."""
        rows = [self.get_index(word1), self.get_index(word2)]
        a, b = F.normalize(self.vectors[rows].float())
        return float(a @ b)

    def most_similar(
        self,
        positive: str | Sequence[str],
        negative: str | Sequence[str] = (),
        *,
        topn: int = 10,
    ) -> list[tuple[str, float]]:
        """Return the words nearest to the sum of some words minus others, with cosine similarities.

        The vectors are normalized before they are added (3CosAdd; Levy and Goldberg 2014). The
        words of the query are not returned."""
        check_number("topn", topn, integer=True, at_least=1)
        positive = [positive] if isinstance(positive, str) else list(positive)
        negative = [negative] if isinstance(negative, str) else list(negative)
        if not positive and not negative:
            raise ValueError("no words, expected at least one")
        rows = [self.get_index(word) for word in (*positive, *negative)]
        signs = torch.tensor([1.0] * len(positive) + [-1.0] * len(negative))
        query = F.normalize(signs @ self.normalized_vectors[rows], dim=0)
        scores = self.normalized_vectors @ query  # (V,)
        scores[rows] = -torch.inf
        num_results = min(topn, len(self) - len({*rows}))
        best_scores, best_rows = scores.topk(num_results)
        return [
            (self.words[i], score)
            for i, score in zip(best_rows.tolist(), best_scores.tolist(), strict=True)
        ]

    def analogy(self, a: str, b: str, c: str, *, topn: int = 10) -> list[tuple[str, float]]:
        """Return the words nearest to a - b + c: `analogy("king", "man", "woman")` finds "queen"."""
        return self.most_similar([a, c], [b], topn=topn)

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None:
        """Write a vector file: word2vec (text), word2vec-binary or glove; compressed if it ends
        with .gz. The default format is word2vec-binary for .bin, else word2vec."""
        write_vectors(Path(path), self.words, self.vectors, format=format)
