"""Image captioning: predict the caption of an image, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import Example
from qkv.data.noise.augmentation import ImageAugmentation
from qkv.train.objectives.images import ImageReader
from qkv.train.objectives.objective import (
    ForwardOutputs,
    Objective,
    compute_label_row_losses,
    count_valid_labels,
    cross_entropy,
    upcast_to_fp32,
)
from qkv.train.objectives.seq2seq import collate_targets
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def build_image_captioning_objective(
    vocab: VocabularyInfo,
    *,
    label_smoothing: float = 0.0,
    coverage_weight: float = 0.0,
    translate: float = 0.0,
    scale: float = 0.0,
    color_jitter: float = 0.0,
    erase_prob: float = 0.0,
) -> Objective:
    """Image captioning: predict the caption of an image, with label smoothing.

    `coverage_weight` is the λ of doubly stochastic attention (Xu et al. 2015, equation 14), for a recurrent
    decoder: the weights of a place of the image, summed over the words, should be one.
    `translate`, `scale`, `color_jitter` and `erase_prob` augment the training images."""
    check_number("objective.label_smoothing", label_smoothing, at_least=0, less_than=1)
    check_number("objective.coverage_weight", coverage_weight, at_least=0)
    images = ImageReader(
        vocab,
        ImageAugmentation(
            translate=translate, scale=scale, color_jitter=color_jitter, erase_prob=erase_prob
        ),
    )

    extra_outputs = ("attention_coverage",) if coverage_weight else ()

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        losses = {"loss": cross_entropy(outputs["logits"], outputs["labels"], label_smoothing)}
        if not coverage_weight:
            return losses
        if "attention_coverage" not in outputs:
            raise ValueError(
                f"objective.coverage_weight {coverage_weight}: the decoder is not recurrent, expected "
                "show-attend-tell; remove it"
            )
        coverage = upcast_to_fp32(outputs["attention_coverage"])  # (B, S)
        return losses | {"coverage": coverage_weight * (1 - coverage).square().mean()}

    def count_targets(batch: Batch) -> dict[str, int]:
        counts = {"loss": count_valid_labels(batch)}
        return counts | ({"coverage": len(batch.labels["labels"])} if coverage_weight else {})

    def collate(examples: Sequence[Example]) -> Batch:
        decoder, labels = collate_targets(examples, "tokens", vocab)
        return Batch(
            encoder=images.collate(examples),
            decoder=decoder,
            labels={"labels": labels},
            extra_outputs=extra_outputs,
        )

    return Objective(
        name="image-captioning",
        compute_losses=compute_losses,
        compute_row_losses=partial(compute_label_row_losses, label_smoothing=label_smoothing),
        count_targets=count_targets,
        noise=images.read,
        train_noise=images.read_to_augment,
        collate=collate,
        is_language_model=not label_smoothing and not coverage_weight,
    )
