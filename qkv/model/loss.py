"""The loss of a model given its outputs and `labels`, as in Hugging Face's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import IGNORE_INDEX
from qkv.nn.heads import last_true_index
from qkv.spec import ShiftRight, Spec

LM_HEADS = ("lm", "causal-lm", "double-heads")
PER_TOKEN_HEADS = ("masked-lm", "pretraining", "token-classification")


def compute_loss(
    spec: Spec, head: str, config: Mapping[str, Any], outputs: Mapping[str, Tensor], labels: Tensor
) -> Tensor:
    """Return the loss of a head; labels of -100 are ignored.

    Causal language models predict the next token, so that their labels are shifted here."""
    if head in LM_HEADS:
        logits = outputs["logits"]
        if spec.encoder is None:  # decoder-only
            logits = logits[..., :-1, :]
            labels = labels[..., 1:]
        return _cross_entropy(logits, labels)
    if head in PER_TOKEN_HEADS:
        return _cross_entropy(outputs["logits"], labels)
    if head == "replaced-token-detection":
        return F.binary_cross_entropy_with_logits(outputs["logits"].float(), labels.float())
    if head == "multiple-choice":
        return _cross_entropy(outputs["mc_logits"], labels)
    if head == "sequence-classification":
        return _classification_loss(outputs["logits"].float(), labels, config)
    raise ValueError(
        f"labels: a model with the head {head!r} has no loss; expected one of "
        f"{', '.join((*LM_HEADS, *PER_TOKEN_HEADS))}, replaced-token-detection, multiple-choice, "
        "sequence-classification"
    )


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, -2).float(), labels.flatten(), ignore_index=IGNORE_INDEX
    )


def regression_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error, in the wider of the two dtypes.

    torch 2.11 has no backward pass for inputs of two dtypes."""
    dtype = torch.promote_types(scores.dtype, labels.dtype)
    return F.mse_loss(scores.to(dtype), labels.to(dtype))


def _classification_loss(logits: Tensor, labels: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Return the loss of `problem_type` in config.json, by default determined by the number of labels
    and their dtype."""
    problem = config.get("problem_type")
    if problem is None:
        is_integer = not labels.is_floating_point()
        if logits.shape[-1] == 1:
            problem = "regression"
        else:
            problem = "single_label_classification" if is_integer else "multi_label_classification"
    if problem == "regression":
        return regression_loss(logits.squeeze(), labels.float().squeeze())
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    return F.cross_entropy(logits, labels.view(-1))


def shift_labels_right(labels: Tensor, shift: ShiftRight, pad_token_id: int) -> Tensor:
    """Return decoder_input_ids: labels shifted one position to the right, -100 replaced by padding."""
    tokens = labels.masked_fill(labels == IGNORE_INDEX, pad_token_id)
    shifted = tokens.roll(1, dims=-1)
    if shift.mode == "wrap":  # mBART: the last token, the language code, comes first
        is_token = tokens != pad_token_id
        shifted[:, 0] = tokens.gather(1, last_true_index(is_token)[:, None])[:, 0]
    else:
        shifted[:, 0] = shift.start_token_id
    return shifted
