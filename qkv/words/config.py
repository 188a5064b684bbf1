"""WordsConfig: the settings of the training of word vectors, those of word2vec and gensim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from qkv.validate import check_number

ALGORITHMS = ("skip-gram", "cbow")
WORD_SPLITS = ("words", "whitespace")
MAX_VECTOR_SIZE = 100_000
SETTING_BOUNDS: dict[str, dict[str, float]] = {
    "vector_size": dict(integer=True, at_least=1, at_most=MAX_VECTOR_SIZE),
    "window": dict(integer=True, at_least=1, at_most=1000),
    "negative": dict(integer=True, at_least=1, at_most=1000),
    "sample": dict(at_least=0, at_most=1),
    "min_count": dict(integer=True, at_least=1),
    "epochs": dict(integer=True, at_least=1, at_most=1_000_000),
    "lr": dict(more_than=0, at_most=1),
    "min_lr_ratio": dict(at_least=0, at_most=1),
    "seed": dict(integer=True, at_least=0, less_than=2**63),
}


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    """The settings that determine the vectors of a corpus."""

    algorithm: str = "skip-gram"  # skip-gram or cbow
    vector_size: int = 100  # numbers of a vector
    window: int = 5  # largest distance of a context word; a distance up to it is drawn per position
    negative: int = 5  # noise words per pair of words (cbow: per position)
    sample: float = 1e-3  # words with a larger share of the corpus are subsampled; 0: none
    min_count: int = 5  # words that occur less often are left out
    epochs: int = 5
    lr: float = 0.025  # at the start; it decays linearly
    min_lr_ratio: float = 0.004  # the last learning rate, as a fraction of the first
    seed: int = 0
    split: str = "words"  # words: runs of letters and digits; whitespace: the text is tokenized
    lowercase: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("algorithm", ALGORITHMS), ("split", WORD_SPLITS)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} {getattr(self, name)!r}, expected one of {', '.join(choices)}"
                )
        for name, bounds in SETTING_BOUNDS.items():
            check_number(name, getattr(self, name), **bounds)  # type: ignore[arg-type]


class WordsSettings(TypedDict, total=False):
    """The fields of WordsConfig, as keyword arguments."""

    algorithm: str
    vector_size: int
    window: int
    negative: int
    sample: float
    min_count: int
    epochs: int
    lr: float
    min_lr_ratio: float
    seed: int
    split: str
    lowercase: bool
