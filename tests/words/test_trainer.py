"""Training: words of a topic become similar; one thread is reproducible; a stopped training continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import qkv
from qkv.words import WordsConfig, WordVectors, trainer
from qkv.words.checkpoint import CHECKPOINT_FILE, CONFIG_FILE
from qkv.words.config import WordsSettings
from qkv.words.update import UPDATES
from tests.support.errors import assert_error
from tests.words.conftest import TOPICS, make_topic_lines

SMALL: dict[str, Any] = dict(
    vector_size=16, epochs=3, min_count=2, sample=0.0, lr=0.05, num_threads=1
)


def measure_topics(vectors: WordVectors) -> float:
    """Return the share of words whose four nearest words are the others of their topic."""
    correct = [
        {near for near, _ in vectors.most_similar(word, topn=4)} == {*topic} - {word}
        for topic in TOPICS
        for word in topic
    ]
    return sum(correct) / len(correct)


@pytest.mark.parametrize("algorithm", ["skip-gram", "cbow"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_words_of_a_topic_become_similar(
    algorithm: str, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "BLOCK_SIZE", 2000)  # several blocks for the threads
    settings = SMALL | dict(algorithm=algorithm, num_threads=num_threads)
    vectors = qkv.words.train(make_topic_lines(), **settings)
    assert measure_topics(vectors) == 1
    assert len(vectors) == 23
    assert vectors.words[:3] != vectors.words[3:6]
    assert torch.isfinite(vectors.vectors).all()


def test_an_untrained_table_has_no_topics() -> None:
    vectors = qkv.words.train(make_topic_lines(), **SMALL | dict(epochs=1, lr=1e-9))
    assert measure_topics(vectors) < 0.5


def test_one_thread_is_reproducible(topic_file: Path) -> None:
    first, repeated, other = (
        qkv.words.train(topic_file, **SMALL | dict(seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first.vectors, repeated.vectors)
    assert not torch.equal(first.vectors, other.vectors)


def test_the_learning_rate_decays_linearly(
    topic_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "BLOCK_SIZE", 1000)
    rates: list[float] = []
    update = UPDATES["skip-gram"]

    def record(*samples: Any, negative: int, lr: float) -> None:
        rates.append(lr)
        update(*samples, negative=negative, lr=lr)

    monkeypatch.setitem(UPDATES, "skip-gram", record)
    qkv.words.train(topic_file, **SMALL | dict(lr=0.1, min_lr_ratio=0.1))
    assert rates[0] == 0.1
    assert rates == sorted(rates, reverse=True)
    assert rates[len(rates) // 2] == pytest.approx(0.055, rel=0.02)
    assert rates[-1] == pytest.approx(0.01, rel=0.05)


def test_a_stopped_training_continues_to_the_same_vectors(
    topic_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "BLOCK_SIZE", 1000)
    expected = qkv.words.train(topic_file, **SMALL)
    folder = tmp_path / "training"
    train_block = trainer.WordTrainer.train_block
    blocks: list[int] = []

    def train_and_stop(self: trainer.WordTrainer, number: int) -> None:
        train_block(self, number)
        blocks.append(number)
        if len(blocks) in (20, 40, 60):
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.WordTrainer, "train_block", train_and_stop)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            qkv.words.train(topic_file, checkpoint=folder, **SMALL)
        assert (folder / CHECKPOINT_FILE).exists()
    vectors = qkv.words.train(topic_file, checkpoint=folder, **SMALL)
    assert blocks == list(range(len(blocks)))
    assert torch.equal(vectors.vectors, expected.vectors)
    assert vectors.words == expected.words


def test_a_training_folder_of_other_settings_is_refused(topic_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "training"

    def train(**settings: Any) -> WordVectors:
        return qkv.words.train(topic_file, checkpoint=folder, **SMALL | settings)

    train()
    assert_error(lambda: train(window=3, epochs=4), "another window, epochs", "remove this folder")
    topic_file.write_text("other " * 1000)
    assert_error(train, "another corpus")
    (folder / CONFIG_FILE).unlink()
    assert_error(train, "not the folder of a training")


def test_a_damaged_checkpoint(topic_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "training"
    qkv.words.train(topic_file, checkpoint=folder, **SMALL)
    for content in (b"", b"\x08\0\0\0\0\0\0\0{}      "):
        (folder / CHECKPOINT_FILE).write_bytes(content)
        assert_error(
            lambda: qkv.words.train(topic_file, checkpoint=folder, **SMALL),
            CHECKPOINT_FILE,
        )


def test_threads_of_torch_are_restored() -> None:
    before = torch.get_num_threads()
    qkv.words.train(make_topic_lines(100), **SMALL)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(vector_size=0), "vector_size is 0"),
        (dict(window=1.5), "window is 1.5"),
        (dict(sample=-1), "sample is -1"),
        (dict(lr=float("nan")), "lr is nan"),
        (dict(algorithm="glove"), "expected one of skip-gram, cbow"),
        (dict(split="x"), "expected one of words, whitespace"),
        (dict(num_threads=0), "num_threads is 0"),
        (dict(checkpoint="x"), "expected a corpus in files"),
        (dict(min_count=10**9), "lower min_count"),
    ],
)
def test_invalid_settings(settings: dict[str, Any], words: str) -> None:
    assert_error(lambda: qkv.words.train(make_topic_lines(50), **settings), words)


def test_the_keyword_arguments_are_the_fields_of_the_config() -> None:
    assert get_type_hints(WordsSettings) == get_type_hints(WordsConfig)


def test_unknown_settings_have_hints() -> None:
    def train(**settings: Any) -> WordVectors:
        return qkv.words.train(make_topic_lines(50), **settings)

    assert_error(lambda: train(alpha=0.1), "alpha", "lr")
    assert_error(lambda: train(workers=3), "workers", "num_threads")
    assert_error(lambda: train(min_cout=3), "min_cout", "min_count")
