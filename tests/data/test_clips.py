"""Clips in .npz files: what is written is read; other files are errors of one line."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.read.clips import write_clips
from qkv.data.read.corpus import Corpus
from tests.support.corpora import assert_short_error

FRAMES = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
LABELS = np.array([[0, 1, 1], [2, 2, 0]])


def test_written_clips_are_read(tmp_path: Path) -> None:
    path = tmp_path / "clips.npz"
    for frames, labels in (
        (FRAMES, LABELS),
        (FRAMES[..., None].repeat(3, -1), np.array([["a", "b", "b"], ["c", "c", "a"]])),
    ):
        write_clips(path, frames, labels)
        records = list(Corpus(path))
        assert [record["labels"] for record in records] == labels.astype(str).tolist()
        for record, clip in zip(records, frames, strict=True):
            assert np.array_equal(record["frames"], clip)  # type: ignore[arg-type]
        assert records[1].location == f"{path}, clip 2"
    np.savez_compressed(path, frames=FRAMES, labels=LABELS)
    assert len(list(Corpus(path))) == 2


@pytest.mark.parametrize(("arrays", "words"), [
    ({"frames": FRAMES}, "labels.npy"),
    ({"labels": LABELS}, "frames.npy"),
    ({"frames": FRAMES, "labels": LABELS[:1]}, "(2,~3) (1,~3)"),
    ({"frames": FRAMES.astype(np.float32), "labels": LABELS}, "float32"),
    ({"frames": FRAMES[0], "labels": LABELS}, "frames (3,~4,~4)"),
    ({"frames": FRAMES, "labels": LABELS.astype(float)}, "labels float64"),
    ({"frames": FRAMES, "labels": LABELS[0]}, "labels (3,)"),
    ({"frames": FRAMES, "labels": np.array([[{}, {}, {}]] * 2, dtype=object)}, "labels"),
    ({"frames": FRAMES[:0], "labels": LABELS[:0]}, "(0,~3)"),
    ({"frames": np.asfortranarray(FRAMES), "labels": LABELS}, "frames.npy"),
])  # fmt: skip
def test_other_arrays_are_errors(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    path = tmp_path / "clips.npz"
    np.savez(path, **arrays)
    expected = [word.replace("~", " ") for word in words.split()]
    assert_short_error(lambda: list(Corpus(path)), path, "not a file of clips", *expected)


def test_damaged_files_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "clips.npz"
    path.write_bytes(b"PK no zip file")
    assert_short_error(lambda: list(Corpus(path)), path, "not a file of clips")
    write_clips(path, FRAMES, LABELS)
    content = path.read_bytes()
    path.write_bytes(content[:-200])
    assert_short_error(lambda: list(Corpus(path)), path, "not a file of clips")
    path.write_bytes(content.replace(FRAMES.tobytes()[:40], bytes(40)))
    assert_short_error(lambda: list(Corpus(path)), path, "not a file of clips")


def test_a_file_that_grows_too_much_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "clips.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (
            ("labels", np.zeros((9, 600), np.int64)),
            ("frames", np.zeros((9, 600, 32, 32), np.uint8)),
        ):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
    assert_short_error(lambda: list(Corpus(path)), path, "frames.npy: 5,529,728 bytes in")
