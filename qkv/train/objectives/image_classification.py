"""Objectives of labeled pixels: one label per image, or one per frame of a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch, Inputs
from qkv.data.batches.collate import Example, pad_sequences
from qkv.data.encode.images import ImageProcessor
from qkv.data.noise.augmentation import NUM_RANDOM_NUMBERS, ImageAugmentation
from qkv.train.objectives.classification import parse_class_weights, sum_label_weights
from qkv.train.objectives.objective import (
    ExampleNoise,
    ForwardOutputs,
    Objective,
    compute_label_row_losses,
    count_label_targets,
    cross_entropy,
)
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def build_image_classification_objective(
    vocab: VocabularyInfo,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | Mapping[str, float] = (),
    translate: float = 0.0,
    scale: float = 0.0,
    color_jitter: float = 0.0,
    erase_prob: float = 0.0,
) -> Objective:
    """Image classification: one label per image (ViT). The last four settings augment the training
    images."""
    augmentation = ImageAugmentation(
        translate=translate, scale=scale, color_jitter=color_jitter, erase_prob=erase_prob
    )

    def draw_numbers(example: Example, rng: np.random.Generator) -> Example:
        return {**example, "augmentation": rng.random(NUM_RANDOM_NUMBERS, dtype=np.float32)}

    def collate(examples: Sequence[Example]) -> Batch:
        pixels = np.stack([shape_pixels(example["image"], vocab) for example in examples])
        if "augmentation" in examples[0]:
            pixels = augmentation(pixels, np.stack([x["augmentation"] for x in examples]))
        inputs = Inputs.create(
            pixel_values=torch.from_numpy(get_processor(vocab).normalize(pixels)),
            num_patches=vocab.num_image_tokens,
        )
        labels = torch.tensor([int(example["label"][0]) for example in examples])
        return Batch(encoder=inputs, labels={"labels": labels})

    return build_label_objective(
        "image-classification",
        vocab,
        collate,
        label_smoothing=label_smoothing,
        class_weights=class_weights,
        train_noise=draw_numbers if augmentation != ImageAugmentation() else None,
    )


def build_frame_classification_objective(
    vocab: VocabularyInfo,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | Mapping[str, float] = (),
) -> Objective:
    """Frame classification: one label for every frame of a clip."""

    def collate(examples: Sequence[Example]) -> Batch:
        clips = [shape_pixels(example["frames"], vocab) for example in examples]
        length = max(map(len, clips))
        pixels = np.zeros((len(clips), length, *clips[0].shape[1:]), np.uint8)
        for row, clip in zip(pixels, clips, strict=True):
            row[: len(clip)] = clip
        lengths = torch.tensor([len(clip) for clip in clips])
        inputs = Inputs.create(
            pixel_values=torch.from_numpy(get_processor(vocab).normalize(pixels)),
            attention_mask=torch.arange(length) < lengths[:, None],
        )
        labels = pad_sequences([example["labels"] for example in examples], IGNORE_INDEX)
        return Batch(encoder=inputs, labels={"labels": labels})

    return build_label_objective(
        "frame-classification",
        vocab,
        collate,
        label_smoothing=label_smoothing,
        class_weights=class_weights,
    )


def build_label_objective(
    name: str,
    vocab: VocabularyInfo,
    collate: Any,
    *,
    label_smoothing: float,
    class_weights: Sequence[float] | Mapping[str, float],
    train_noise: ExampleNoise | None = None,
) -> Objective:
    """Return the objective of the cross-entropy of labels."""
    check_number("objective.label_smoothing", label_smoothing, at_least=0, less_than=1)
    weights = parse_class_weights(class_weights, vocab)

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        loss = cross_entropy(outputs["logits"], outputs["labels"], label_smoothing, weights)
        return {"loss": loss}

    return Objective(
        name=name,
        compute_losses=compute_losses,
        compute_row_losses=partial(compute_label_row_losses, label_smoothing=label_smoothing)
        if weights is None
        else None,
        count_targets=count_label_targets
        if weights is None
        else partial(sum_label_weights, class_weights=weights),
        train_noise=train_noise,
        collate=collate,
    )


def shape_pixels(values: NDArray[Any], vocab: VocabularyInfo) -> NDArray[np.uint8]:
    """Return stored values as pixels: (height, width, channels), or those of every frame."""
    shape = (vocab.image_size, vocab.image_size, get_processor(vocab).channels)
    pixels = values.astype(np.uint8).reshape(-1, *shape)
    return pixels[0] if vocab.num_image_tokens else pixels


def get_processor(vocab: VocabularyInfo) -> ImageProcessor:
    assert vocab.image_processor is not None
    return vocab.image_processor
