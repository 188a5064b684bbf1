"""Objectives of labeled images and clips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.data.encode.images import ImageProcessor
from qkv.train.objectives import VocabularyInfo, build_objective
from tests.support.errors import assert_error

PROCESSOR = ImageProcessor(size=(4, 4), crop_size=None, image_mean=(0.5,), image_std=(0.5,))
VOCAB = VocabularyInfo(
    vocab_size=0, num_labels=3, label_names=("a", "b", "c"), image_size=4, num_image_tokens=5,
    image_processor=PROCESSOR,
)  # fmt: skip
CLIP_VOCAB = VOCAB._replace(num_image_tokens=0)
RNG = np.random.default_rng(0)
IMAGES = [{"image": RNG.integers(0, 256, 16), "label": np.array([label])} for label in (2, 0, 1, 1)]


def test_images_become_pixel_values() -> None:
    batch = build_objective("image-classification", VOCAB).collate(IMAGES)
    assert batch.encoder is not None
    pixel_values = batch.encoder.pixel_values
    assert pixel_values is not None
    assert pixel_values.shape == (4, 1, 4, 4)
    assert batch.encoder.length == 5
    expected = (IMAGES[1]["image"].reshape(4, 4) / 255 - 0.5) / 0.5
    np.testing.assert_allclose(pixel_values[1, 0], expected, atol=1e-6)
    assert batch.labels["labels"].tolist() == [2, 0, 1, 1]


def test_the_loss_is_the_cross_entropy() -> None:
    logits = torch.randn(4, 3)
    labels = torch.tensor([2, 0, 1, 1])
    outputs = {"logits": logits, "labels": labels}
    weights = [1.0, 2.0, 0.5]
    for settings, expected in (
        ({}, F.cross_entropy(logits, labels)),
        ({"label_smoothing": 0.2}, F.cross_entropy(logits, labels, label_smoothing=0.2)),
        ({"class_weights": weights}, F.cross_entropy(logits, labels, weight=torch.tensor(weights))),
    ):
        objective = build_objective("image-classification", VOCAB, **settings)
        torch.testing.assert_close(objective(outputs), expected)


def test_only_training_images_are_augmented() -> None:
    objective = build_objective("image-classification", VOCAB, translate=0.5, scale=0.2)
    assert objective.train_noise is not None
    rng = np.random.default_rng(3)
    augmented = [objective.train_noise(image, rng) for image in IMAGES]
    plain = [objective.noise(image, rng) for image in IMAGES]
    values = []
    for examples in (augmented, plain, IMAGES):
        inputs = objective.collate(examples).encoder
        assert inputs is not None
        values.append(inputs.pixel_values)
    assert not torch.equal(values[0], values[1])  # type: ignore[arg-type]
    assert torch.equal(values[1], values[2])  # type: ignore[arg-type]
    assert build_objective("image-classification", VOCAB).train_noise is None


def test_clips_are_padded() -> None:
    clips: list[dict[str, Any]] = [
        {"frames": RNG.integers(0, 256, 16 * length), "labels": np.arange(length) % 3}
        for length in (2, 4)
    ]
    objective = build_objective("frame-classification", CLIP_VOCAB)
    batch = objective.collate(clips)
    assert batch.encoder is not None
    assert batch.encoder.pixel_values is not None
    assert batch.encoder.attention_mask is not None
    assert batch.encoder.pixel_values.shape == (2, 4, 1, 4, 4)
    assert batch.encoder.attention_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.labels["labels"].tolist() == [[0, 1, -100, -100], [0, 1, 2, 0]]
    assert objective.count_targets(batch) == {"loss": 6}
    logits = torch.randn(2, 4, 3)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.labels["labels"].flatten())
    outputs = {"logits": logits, "labels": batch.labels["labels"]}
    torch.testing.assert_close(objective(outputs), expected)


def make_pictures(count: int = 24) -> list[dict[str, Any]]:
    """Return pictures that are bright on the left or on the right."""
    pictures = []
    for number in range(count):
        image = RNG.integers(0, 60, (8, 8), dtype=np.uint8)
        side = number % 2
        image[:, 4 * side : 4 * side + 4] += 150
        pictures.append({"image": image, "label": ("left", "right")[side]})
    return pictures


def test_fit_and_evaluate_images_in_memory(tmp_path: Path) -> None:
    sizes: dict[str, Any] = dict(image_size=8, patch_size=4, num_channels=1, width=16, depth=1)
    model = qkv.build("vit", heads=2, ffn_width=32, head="image-classification", **sizes)
    pictures = make_pictures()
    report = qkv.fit(
        model, pictures, validation=0.25, steps=30, batch_size=8, lr=3e-3, progress=False
    )
    assert report.objective == "image-classification"
    assert report.metrics["accuracy"] == 1
    assert qkv.evaluate(model, pictures).metrics["accuracy"] == 1
    model.save(tmp_path)
    task = qkv.task("classify", tmp_path)
    assert [task(p["image"]).label for p in pictures[:4]] == ["left", "right", "left", "right"]
    assert not (tmp_path / "tokenizer.json").exists()


def test_bad_data_are_errors() -> None:
    sizes: dict[str, Any] = dict(image_size=8, patch_size=4, num_channels=1, width=16, depth=1)
    model = qkv.build("vit", heads=2, ffn_width=32, head="image-classification", **sizes)
    same = [{**picture, "label": "left"} for picture in make_pictures(4)]
    assert_error(lambda: qkv.fit(model, same, steps=1, progress=False), "only one label, 'left'")
    assert_error(lambda: qkv.fit(model, [], steps=1, progress=False), "no records")
    three = [{**p, "label": str(i)} for i, p in enumerate(make_pictures(3))]
    assert_error(lambda: qkv.fit(model, three, steps=1, progress=False), "3 labels", "num_labels=3")
    bare = qkv.build("vit", heads=2, ffn_width=32, **sizes)
    with pytest.raises(ValueError, match="the head 'none' of this vit model does not determine it"):
        qkv.fit(bare, same, steps=1)
    with pytest.raises(ValueError, match="expected 'image-classification'"):
        qkv.fit(bare, same, steps=1, objective="image-classification")
    model = qkv.build("vit", heads=2, ffn_width=32, head="image-classification", **sizes)
    pictures = make_pictures(4)
    assert_error(lambda: qkv.fit(model, pictures, steps=1, overflow="truncate"), "reads no text")
    bert = qkv.build("bert", "tiny", head="sequence-classification")
    with pytest.raises(ValueError, match="expected 'image-classification'"):
        qkv.fit(bert, same, steps=1, objective="image-classification")
