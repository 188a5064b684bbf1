"""Small SentencePiece models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sentencepiece

TEXTS = [
    "the cat sat on the mat , and the dog sat there too .",
    "a dog and a cat are on the mat !",
    "there is the man , the woman and the child .",
]


def train_sentencepiece(prefix: Path, vocab_size: int, **settings: Any) -> tuple[Path, list[str]]:
    """Train a model; return its file and its pieces in the order of their ids."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5), model_prefix=str(prefix), vocab_size=vocab_size,
        hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    path = prefix.with_name(prefix.name + ".model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return path, [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
