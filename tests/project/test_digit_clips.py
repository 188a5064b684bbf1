"""Clips of drifting digits: labels are those of the digits seen, and the parts share no digits."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from qkv.data.read.corpus import Corpus
from tests.data.test_idx import encode
from tools import digit_clips


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Files of digits: a block of the same level, which tells the digit and the file."""
    for file, base in (("train", 100), ("t10k", 180)):
        labels = np.arange(20, dtype=np.uint8) % 10
        images = np.zeros((20, 28, 28), np.uint8)
        images[:, 4:24, 4:24] = (base + 4 * labels)[:, None, None]
        (tmp_path / f"{file}-images-idx3-ubyte").write_bytes(encode(images))
        (tmp_path / f"{file}-labels-idx1-ubyte").write_bytes(encode(labels))
    return tmp_path


def test_labels_are_the_digits_seen(
    mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setattr(digit_clips, "NOISE_STD", 0.0)
    monkeypatch.setattr(digit_clips, "HIDDEN_PROB", 0.0)
    out = tmp_path / "out"
    arguments = ["digit_clips", str(mnist), str(out), "--clips", "6", "2", "3", "--seed", "4"]
    monkeypatch.setattr(sys, "argv", arguments)
    digit_clips.main()
    for name, base, count in (("train", 100, 6), ("validation", 100, 2), ("test", 180, 3)):
        records = list(Corpus(out / f"{name}.npz"))
        assert len(records) == count
        for record in records:
            frames, labels = np.asarray(record["frames"]), record["labels"]
            assert isinstance(labels, list)
            seen = (frames.max(axis=(1, 2)).astype(int) - base) // 4
            assert seen.astype(str).tolist() == labels
            stays = [len(list(group)) for _, group in groupby(labels)]
            assert min(stays[:-1], default=digit_clips.MIN_STAY) >= digit_clips.MIN_STAY
    labels_text = (out / "sample-0.txt").read_text().split()
    assert labels_text == next(iter(Corpus(out / "test.npz")))["labels"]
    before = (out / "train.npz").read_bytes()
    monkeypatch.setattr(sys, "argv", [*arguments, "--single-frames"])
    digit_clips.main()
    singles = list(Corpus(out / "train.npz"))
    assert len(singles) == 6 * digit_clips.NUM_FRAMES
    monkeypatch.setattr(sys, "argv", arguments)
    digit_clips.main()
    first = next(iter(Corpus(out / "train.npz")))
    assert (out / "train.npz").read_bytes()[1000:] == before[1000:]
    assert np.array_equal(np.asarray(singles[0]["frames"])[0], np.asarray(first["frames"])[0])


def test_half_of_the_frames_have_a_rectangle(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = np.full((400, 36, 36), 128, np.float32)
    monkeypatch.setattr(digit_clips, "NOISE_STD", 0.0)
    hidden = digit_clips.add_noise(frames.copy(), np.random.default_rng(0)) != 128
    counts = hidden.sum(axis=(1, 2))
    assert 0.4 < (counts > 0).mean() < 0.6
    low, high = digit_clips.HIDDEN_SIDES
    assert low**2 <= counts[counts > 0].min() <= counts.max() <= high**2


def test_every_frame_has_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digit_clips, "HIDDEN_PROB", 0.0)
    frames = digit_clips.add_noise(np.full((9, 36, 36), 128, np.float32), np.random.default_rng(0))
    assert np.allclose(frames.std(axis=(1, 2)), digit_clips.NOISE_STD, rtol=0.1)
