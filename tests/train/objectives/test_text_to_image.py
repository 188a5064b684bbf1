"""The objective text-to-image: labels, caption dropout, augmentation, rows of the encoder, errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv
from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.encode.text_to_image import TextToImageEncoder
from qkv.data.read.record import Record
from qkv.image_tokenizer import ImageTokenizer
from qkv.train.evaluate.evaluation_loop import compute_language_model_metrics
from qkv.train.objectives import build_objective
from qkv.train.objectives.objective import Objective
from tests.support.errors import assert_error
from tests.support.objectives import PAD, VOCAB, VOCAB_SIZE

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(5, 8, 8, 3), dtype=np.uint8)
IMAGE_TOKENIZER = ImageTokenizer.train(IMAGES, patch_size=4, vocab_size=12)
IMAGE_VOCAB = VOCAB._replace(image_tokenizer=IMAGE_TOKENIZER)
CAPTION = [7, 8, 9, PAD, PAD]


def build_example(**fields: Any) -> dict[str, Any]:
    codes = VOCAB_SIZE + IMAGE_TOKENIZER.encode(IMAGES[:1])[0]
    return {"tokens": np.array([*CAPTION, *codes], np.uint16), **fields}


def collate_training(objective: Objective, example: dict[str, Any], seed: int) -> Batch:
    """Return the batch of one example with the noise of training."""
    assert objective.train_noise is not None
    return objective.collate([objective.train_noise(example, np.random.default_rng(seed))])


def get_rows(batch: Batch) -> tuple[list[int], list[int]]:
    """Return the tokens and the labels of the first row."""
    assert batch.decoder is not None
    assert batch.decoder.input_ids is not None
    return batch.decoder.input_ids[0].tolist(), batch.labels["labels"][0].tolist()


def test_only_codes_are_targets() -> None:
    objective = build_objective("text-to-image", IMAGE_VOCAB, caption_dropout=1.0)
    example = build_example()
    tokens = example["tokens"].tolist()
    row = objective.noise(example, RNG)  # of evaluation: no caption is dropped
    batch = objective.collate([row, row])
    assert get_rows(batch) == (tokens[:-1], [IGNORE_INDEX] * 4 + tokens[5:])
    assert objective.count_targets(batch) == {"loss": 8}
    model = qkv.build(
        "gpt2", vocab_size=VOCAB_SIZE + 12, width=16, depth=1, heads=2, max_positions=9
    )
    outputs = model.net.eval()(batch)
    assert outputs["logits"].shape == (2, 8, VOCAB_SIZE + 12)
    expected = F.cross_entropy(outputs["logits"][0, 4:], torch.tensor(tokens[5:]))
    assert torch.allclose(objective(outputs), expected)


def test_captions_are_dropped_in_training() -> None:
    objective = build_objective("text-to-image", IMAGE_VOCAB, caption_dropout=0.25)
    rows = [get_rows(collate_training(objective, build_example(), seed)) for seed in range(400)]
    captions = [tuple(tokens[:5]) for tokens, _ in rows]
    assert 70 < captions.count((PAD,) * 5) < 130
    assert {*captions} == {tuple(CAPTION), (PAD,) * 5}
    assert len({tuple(labels) for _, labels in rows}) == 1


def test_augmented_images_are_encoded_again() -> None:
    example = build_example(pixels=IMAGES[0].ravel())
    objective = build_objective("text-to-image", IMAGE_VOCAB, translate=0.5)
    rows = [get_rows(collate_training(objective, example, seed)) for seed in (1, 2, 2)]
    labels = [row_labels[4:] for _, row_labels in rows]
    assert labels[0] != labels[1] == labels[2]
    assert all(VOCAB_SIZE <= label < VOCAB_SIZE + 12 for row in labels for label in row)
    assert [tokens[5:] for tokens, _ in rows] == [row[:-1] for row in labels]
    codes = example["tokens"][5:].tolist()
    evaluated = objective.collate([objective.noise(example, RNG)])
    assert get_rows(evaluated)[1][4:] == codes
    unchanged = build_objective("text-to-image", IMAGE_VOCAB)
    assert get_rows(collate_training(unchanged, example, 1))[1][4:] == codes


def test_bits_per_dimension() -> None:
    objective = build_objective("text-to-image", IMAGE_VOCAB)
    metrics = compute_language_model_metrics({"loss": 3.0 * np.log(2)}, objective)
    assert metrics["bits_per_token"] == pytest.approx(3.0)
    assert metrics["bits_per_dim"] == pytest.approx(3.0 / 48)  # of a patch: 4 × 4 pixels, RGB
    text = build_objective("causal-lm", VOCAB)
    assert "bits_per_dim" not in compute_language_model_metrics({"loss": 1.0}, text)


def test_rows_of_the_encoder(tmp_path: Path) -> None:
    tokenizer = qkv.Tokenizer.train(
        ["red square", "blue"], type="word", vocab_size=20, template="plain"
    )
    tokenizer.save(tmp_path)
    IMAGE_TOKENIZER.save(tmp_path)
    records = [
        Record({"image": image, "caption": caption}, f"row {number}")
        for number, (image, caption) in enumerate(zip(IMAGES, ["red square", "blue"], strict=False))
    ]
    encoder = TextToImageEncoder(tokenizer_folder=str(tmp_path), max_length=7, keep_pixels=True)
    rows = encoder(records)
    pad = tokenizer.pad_token_id
    assert [row["tokens"][:3] for row in rows] == [
        [*tokenizer.encode("red square", add_special_tokens=False), pad],
        [*tokenizer.encode("blue", add_special_tokens=False), pad, pad],
    ]
    codes = np.array([row["tokens"][3:] for row in rows]) - len(tokenizer)
    assert (codes == IMAGE_TOKENIZER.encode(IMAGES[:2])).all()
    assert (np.array([row["pixels"] for row in rows]) == IMAGES[:2].reshape(2, -1)).all()
    assert encoder.field_sizes() == {"tokens": len(tokenizer) + 12, "pixels": 256}
    short = TextToImageEncoder(tokenizer_folder=str(tmp_path), max_length=5)
    assert_error(lambda: short(records), "row 0", "2 tokens, expected at most 1")
    assert "pixels" not in short(records[1:])[0]
    for image, problem in ((None, "image"), ("missing.png", "not a readable image"), (3, "image")):
        record = Record({"image": image, "caption": "red"}, "row 9")
        assert_error(partial(encoder, [record]), "row 9", problem)


def test_errors() -> None:
    assert_error(
        lambda: build_objective("text-to-image", VOCAB._replace(image_tokenizer=None)),
        "the model has no image tokenizer; add the table image_tokenizer",
    )
    for name, value in (("caption_dropout", 1.5), ("translate", -0.1)):
        build = partial(build_objective, "text-to-image", IMAGE_VOCAB, **{name: value})
        assert_error(build, f"objective.{name}")
