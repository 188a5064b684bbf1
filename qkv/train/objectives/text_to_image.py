"""The objective of drawing: predict the codes of an image from its caption (DALL-E, Ramesh et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.collate import Example
from qkv.train.objectives.causal_lm import build_causal_lm_objective
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def build_text_to_image_objective(
    vocab: VocabularyInfo, *, caption_dropout: float = 0.0
) -> Objective:
    """Causal language modeling of the codes of an image after its caption, which is never a target.

    The caption of a row is replaced by padding with the probability `caption_dropout`, so that the
    model also learns to draw without one: classifier-free guidance (Ho and Salimans 2022)."""
    check_number("objective.caption_dropout", caption_dropout, at_least=0, at_most=1)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        num_text_tokens = len(tokens) - vocab.num_image_codes
        if rng.random() < caption_dropout:
            padding = np.full(num_text_tokens, vocab.pad_token_id, tokens.dtype)
            tokens = np.concatenate([padding, tokens[num_text_tokens:]])
        labels = tokens[1:].astype(np.int64)
        labels[: num_text_tokens - 1] = IGNORE_INDEX
        return {"tokens": tokens[:-1], "labels": labels}

    return replace(
        build_causal_lm_objective(vocab),
        name="text-to-image",
        noise=noise,
        values_per_token=vocab.values_per_image_code,
    )
