"""Classification of images, and labels of frames: inputs of every form, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.model.label_names import set_label_names
from qkv.tasks.base import Task
from qkv.tasks.read.classify import Classification
from qkv.tasks.read.classify_image import FrameTagTask, ImageClassifyTask
from tests.support import tiny
from tests.support.errors import assert_error

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (3, 12, 12, 3), dtype=np.uint8)
CLIPS = [RNG.integers(0, 256, (length, 12, 12), dtype=np.uint8) for length in (5, 2, 7)]


@pytest.fixture(scope="module")
def vit() -> qkv.Model:
    model = tiny.build("vit", head="image-classification", num_labels=3, dtype=torch.float32)
    set_label_names(model, ("cat", "dog", "fish"))
    return model


@pytest.fixture(scope="module")
def video() -> qkv.Model:
    model = tiny.build("video-transformer", num_channels=1, num_labels=3, dtype=torch.float32)
    set_label_names(model, ("cat", "dog", "fish"))
    return model


def test_an_image_is_a_path_a_pillow_image_or_an_array(vit: qkv.Model, tmp_path: Path) -> None:
    task = qkv.task("classify", vit)
    assert isinstance(task, ImageClassifyTask)
    path = tmp_path / "picture.png"
    Image.fromarray(PICTURES[0]).save(path)
    results = [task(x) for x in (path, str(path), PICTURES[0], Image.fromarray(PICTURES[0]))]
    assert all(result == results[0] for result in results)
    pixel_values = torch.from_numpy((PICTURES[0] / 255 - 0.5) / 0.5).permute(2, 0, 1)[None].float()
    expected = vit(pixel_values=pixel_values).logits.softmax(-1)[0].detach()
    names = ("cat", "dog", "fish")
    assert results[0].label == names[int(expected.argmax())]
    for candidate in results[0].candidates:
        assert candidate.score == pytest.approx(
            float(expected[names.index(candidate.label)]), abs=1e-5
        )


def test_batches_equal_single_images(vit: qkv.Model) -> None:
    task = qkv.task("classify", vit, top_k=2)
    singles = [task(picture) for picture in PICTURES]
    for batch_tokens in (1, 20, 4096):
        results = task.map(list(PICTURES), batch_tokens=batch_tokens)
        assert [r.label for r in results] == [r.label for r in singles]
        assert all(len(r.candidates) == 2 for r in results)
        assert [r.score for r in results] == pytest.approx([r.score for r in singles], abs=1e-5)


def test_clip_with_a_classifier_classifies() -> None:
    model = tiny.build("clip", head="image-classification", dtype=torch.float32)
    result = qkv.task("classify", model)(PICTURES[0])
    assert len(result.candidates) == 2


def test_errors_of_images(vit: qkv.Model, tmp_path: Path) -> None:
    task = qkv.task("classify", vit)
    (tmp_path / "text.png").write_text("no image")
    path = str(tmp_path / "text.png")
    assert_error(lambda: task(path), "text.png: not a readable image")
    assert_error(lambda: task(7), "an image is a int")  # type: ignore[arg-type]
    assert isinstance(task, ImageClassifyTask)
    outcomes = task.map([PICTURES[0], path, PICTURES[1]], return_exceptions=True)
    assert isinstance(outcomes[1], ValueError)
    for outcome, picture in ((outcomes[0], PICTURES[0]), (outcomes[2], PICTURES[1])):
        assert isinstance(outcome, Classification)
        assert outcome.label == task(picture).label
    assert task.map([]) == []
    assert_error(lambda: qkv.task("classify", vit, candidate_labels=["a"]), "candidate_labels")
    assert_error(lambda: qkv.task("classify", vit, top_k=0), "top_k")
    assert_error(lambda: qkv.task("tag", vit), "frame-classification")
    assert_error(lambda: qkv.task("classify", tiny.build("vit")), "an image-classification head")


def test_every_frame_has_a_label(video: qkv.Model, tmp_path: Path) -> None:
    task: Task[Any, Any] = qkv.task("tag", video)
    assert isinstance(task, FrameTagTask)
    singles = [task(clip) for clip in CLIPS]
    assert [len(frames) for frames in singles] == [5, 2, 7]
    assert [frame.frame for frame in singles[0]] == [0, 1, 2, 3, 4]
    for batch_tokens in (1, 8, 4096):  # padded clips equal single clips
        results = task.map(CLIPS, batch_tokens=batch_tokens)
        for frames, expected in zip(results, singles, strict=True):
            assert [frame.label for frame in frames] == [frame.label for frame in expected]
            scores = [frame.score for frame in expected]
            assert [frame.score for frame in frames] == pytest.approx(scores, abs=1e-5)
    (tmp_path / "clip").mkdir()
    for number, frame in enumerate(CLIPS[0]):
        Image.fromarray(frame).save(tmp_path / "clip" / f"{number}.png")
    assert task(tmp_path / "clip") == singles[0]
    images = [Image.fromarray(frame) for frame in CLIPS[0]]
    images[0].save(tmp_path / "clip.gif", save_all=True, append_images=images[1:])
    assert [frame.label for frame in task(tmp_path / "clip.gif")] == [f.label for f in singles[0]]


@pytest.mark.parametrize(("clip", "words"), [
    (np.zeros((65, 12, 12), np.uint8), "65 frames, expected at most 64"),
    (np.zeros((0, 12, 12), np.uint8), "a clip has no frames"),
    (7, "a clip is of type int"),
    ("none.gif", "none.gif"),
])  # fmt: skip
def test_errors_of_clips(video: qkv.Model, clip: Any, words: str) -> None:
    assert_error(lambda: qkv.task("tag", video)(clip), words)
