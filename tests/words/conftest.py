"""A small corpus with structure, and vector files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from qkv.words import WordVectors

TOPICS = (
    "cat dog mouse horse rabbit".split(),
    "red green blue yellow pink".split(),
    "one two three four five".split(),
    "milk bread cheese butter honey".split(),
)


def make_topic_lines(num_lines: int = 2000, seed: int = 0) -> list[str]:
    """Return lines of words of one topic each, with common words between them."""
    rng = random.Random(seed)
    lines = []
    for _ in range(num_lines):
        topic = rng.choice(TOPICS)
        words = [
            rng.choice(topic) if rng.random() < 0.7 else rng.choice(["the", "a", "of"])
            for _ in range(12)
        ]
        lines.append(" ".join(words))
    return lines


@pytest.fixture
def topic_file(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(make_topic_lines()) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def vectors() -> WordVectors:
    """Random vectors of words, some of them not ASCII."""
    torch.manual_seed(0)
    return WordVectors(["the", "Straße", "</s>", "日本", "e9"], torch.randn(5, 7))
