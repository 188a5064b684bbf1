"""The objective of drawing: predict the codes of an image from its caption (DALL-E, Ramesh et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from qkv.batch import IGNORE_INDEX, Batch, Inputs
from qkv.data.batches.collate import Example
from qkv.data.noise.augmentation import NUM_RANDOM_NUMBERS, ImageAugmentation
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def build_text_to_image_objective(
    vocab: VocabularyInfo,
    *,
    caption_dropout: float = 0.0,
    translate: float = 0.0,
    scale: float = 0.0,
    color_jitter: float = 0.0,
) -> Objective:
    """Causal language modeling of the codes of an image after its caption, which is never a target.

    In training, the caption of a row is replaced by padding with the probability `caption_dropout`, so
    that the model also learns to draw without one: classifier-free guidance (Ho and Salimans 2022).
    `translate`, `scale` and `color_jitter` augment the training images."""
    check_number("objective.caption_dropout", caption_dropout, at_least=0, at_most=1)
    augmentation = ImageAugmentation(translate=translate, scale=scale, color_jitter=color_jitter)
    image_tokenizer = vocab.image_tokenizer
    if image_tokenizer is None:
        raise ValueError(
            "objective text-to-image: the model has no image tokenizer; add the table "
            "image_tokenizer to the recipe, or load a model that has one"
        )
    num_codes = image_tokenizer.num_codes
    side = image_tokenizer.image_size

    def drop_caption(example: Example, rng: np.random.Generator) -> Example:
        """Drop the caption at random, and add random numbers for the augmentation of the image."""
        tokens = example["tokens"].copy()
        if rng.random() < caption_dropout:
            tokens[: len(tokens) - num_codes] = vocab.pad_token_id
        numbers = rng.random(NUM_RANDOM_NUMBERS, dtype=np.float32)
        return {**example, "tokens": tokens, "numbers": numbers}

    def collate(examples: Sequence[Example]) -> Batch:
        tokens = np.stack([example["tokens"] for example in examples]).astype(np.int64)
        if "pixels" in examples[0] and "numbers" in examples[0]:
            pixels = np.stack([example["pixels"] for example in examples]).astype(np.uint8)
            numbers = np.stack([example["numbers"] for example in examples])
            changed = augmentation(pixels.reshape(-1, side, side, 3), numbers)
            tokens[:, -num_codes:] = vocab.vocab_size + image_tokenizer.encode(changed)
        labels = tokens[:, 1:].copy()
        labels[:, :-num_codes] = IGNORE_INDEX
        return Batch(
            decoder=Inputs.create(torch.from_numpy(tokens[:, :-1])),
            labels={"labels": torch.from_numpy(labels)},
        )

    return Objective(
        name="text-to-image",
        train_noise=drop_caption,
        collate=collate,
        is_language_model=True,
        values_per_token=image_tokenizer.codebook.shape[1],
    )
