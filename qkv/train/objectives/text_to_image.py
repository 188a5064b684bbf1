"""The objective of drawing: predict the codes of an image from its caption (DALL-E, Ramesh et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.collate import Example
from qkv.data.noise.augmentation import ImageAugmentation
from qkv.train.objectives.causal_lm import build_causal_lm_objective
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

    def label_codes(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"].astype(np.int64)
        labels = tokens[1:].copy()
        labels[: len(labels) - num_codes] = IGNORE_INDEX
        return {"tokens": tokens[:-1], "labels": labels}

    def augment(example: Example, rng: np.random.Generator) -> Example:
        caption, codes = np.split(example["tokens"], [len(example["tokens"]) - num_codes])
        if rng.random() < caption_dropout:
            caption = np.full_like(caption, vocab.pad_token_id)
        if "pixels" in example:
            shape = (image_tokenizer.image_size, image_tokenizer.image_size, 3)
            pixels = augmentation(example["pixels"].astype(np.uint8).reshape(shape), rng)
            codes = vocab.vocab_size + image_tokenizer.encode(pixels[None])[0]
        return label_codes({"tokens": np.concatenate([caption, codes])}, rng)

    return replace(
        build_causal_lm_objective(vocab),
        name="text-to-image",
        noise=label_codes,
        train_noise=augment,
        values_per_token=image_tokenizer.codebook.shape[1],
    )
