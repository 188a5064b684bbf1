"""Image captioning: predict the caption of an image, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import Example
from qkv.data.noise.augmentation import ImageAugmentation
from qkv.train.objectives.images import ImageReader
from qkv.train.objectives.objective import ForwardOutputs, Objective, cross_entropy
from qkv.train.objectives.seq2seq import collate_targets
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def build_image_captioning_objective(
    vocab: VocabularyInfo,
    *,
    label_smoothing: float = 0.0,
    translate: float = 0.0,
    scale: float = 0.0,
    color_jitter: float = 0.0,
    erase_prob: float = 0.0,
) -> Objective:
    """Image captioning: predict the caption of an image, with label smoothing.

    `translate`, `scale`, `color_jitter` and `erase_prob` augment the training images."""
    check_number("objective.label_smoothing", label_smoothing, at_least=0, less_than=1)
    images = ImageReader(
        vocab,
        ImageAugmentation(
            translate=translate, scale=scale, color_jitter=color_jitter, erase_prob=erase_prob
        ),
    )

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        return {"loss": cross_entropy(outputs["logits"], outputs["labels"], label_smoothing)}

    def collate(examples: Sequence[Example]) -> Batch:
        decoder, labels = collate_targets(examples, "tokens", vocab)
        return Batch(encoder=images.collate(examples), decoder=decoder, labels={"labels": labels})

    return Objective(
        name="image-captioning",
        compute_losses=compute_losses,
        noise=images.read,
        train_noise=images.read_augmented,
        collate=collate,
        is_language_model=not label_smoothing,
    )
