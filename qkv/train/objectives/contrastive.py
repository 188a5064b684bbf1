"""Contrastive objectives: the matching pairs of a batch should have the highest scores of all pairs.

The other pairs are negatives, so the losses need the embeddings of the full batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import Example, collate_inputs
from qkv.data.noise.augmentation import ImageAugmentation
from qkv.train.objectives.images import ImageReader
from qkv.train.objectives.objective import ForwardOutputs, Objective, upcast_to_fp32
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def count_pairs(batch: Batch) -> dict[str, int]:
    """Return the number of pairs in the batch."""
    return {"loss": int(batch.labels["num_pairs"])}


def build_sentence_contrastive_objective(
    vocab: VocabularyInfo, *, temperature: float = 0.05
) -> Objective:
    """Sentence embeddings: each source should be closest to its target among those of the batch."""
    check_number("objective.temperature", temperature, more_than=0)

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        if "sentence_embedding" not in outputs:
            raise ValueError(
                "objective sentence-contrastive: the model returns no sentence embedding; "
                'model.pooling = "mean" adds one'
            )
        embeddings = F.normalize(upcast_to_fp32(outputs["sentence_embedding"]), dim=-1)  # (2B, W)
        sources, targets = embeddings.unflatten(0, (-1, 2)).unbind(1)  # (B, W) each
        scores = sources @ targets.T / temperature
        return {"loss": F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))}

    def collate(examples: Sequence[Example]) -> Batch:
        texts = [{"tokens": example[side]} for example in examples for side in ("source", "target")]
        inputs = collate_inputs(texts, pad_token_id=vocab.pad_token_id, pad_left=vocab.pad_left)
        return Batch(encoder=inputs, labels={"num_pairs": torch.tensor(len(examples))})

    return Objective(
        name="sentence-contrastive",
        compute_losses=compute_losses,
        count_targets=count_pairs,
        collate=collate,
        full_batch_outputs=("sentence_embedding",),
    )


def build_image_text_contrastive_objective(
    vocab: VocabularyInfo,
    *,
    translate: float = 0.0,
    scale: float = 0.0,
    color_jitter: float = 0.0,
    erase_prob: float = 0.0,
) -> Objective:
    """Image-text matching: predict the text of each image and the image of each text (CLIP).

    The settings augment the training images."""
    images = ImageReader(
        vocab,
        ImageAugmentation(
            translate=translate, scale=scale, color_jitter=color_jitter, erase_prob=erase_prob
        ),
    )

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        embeds = upcast_to_fp32(outputs["scaled_image_embeds"])
        scores = embeds @ upcast_to_fp32(outputs["text_embeds"]).T  # (B, B): images, texts
        targets = torch.arange(len(scores), device=scores.device)
        return {"loss": (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2}

    def collate(examples: Sequence[Example]) -> Batch:
        hashes = [hash_tokens(example["tokens"]) for example in examples]
        return Batch(
            encoder=collate_inputs(
                examples, pad_token_id=vocab.pad_token_id, pad_left=vocab.pad_left
            ),
            image=images.collate(examples),
            labels={
                "num_pairs": torch.tensor(len(examples)),
                "text_hashes": torch.tensor(hashes, dtype=torch.long),
            },
        )

    return Objective(
        name="image-text-contrastive",
        compute_losses=compute_losses,
        count_targets=count_pairs,
        noise=images.read,
        train_noise=images.read_to_augment,
        collate=collate,
        full_batch_outputs=("scaled_image_embeds", "text_embeds"),
    )


def hash_tokens(tokens: NDArray[np.int64]) -> int:
    """Return a number that equal texts have in common."""
    return int.from_bytes(hashlib.sha256(tokens.astype("<i8").tobytes()).digest()[:7], "little")
