"""Objectives of running text: causal (GPT), segment-recurrent (Transformer-XL), control-code (CTRL)
and permutation language modeling (XLNet)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from qkv.batch import IGNORE_INDEX, Batch
from qkv.data.batches.collate import Example, collate_inputs, pad_sequences
from qkv.data.noise.permutation import sample_factorization_order
from qkv.model.inputs import build_permutation_mask
from qkv.train.objectives.objective import (
    Objective,
)
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number


def shift_labels(example: Example, rng: np.random.Generator) -> Example:
    """Label every token with the next token; the example has one token more than the input."""
    tokens = example["tokens"]
    document_ids = example.get("document_ids")
    if document_ids is None:
        return {"tokens": tokens[:-1], "labels": tokens[1:]}
    # The last token of a document does not predict the first token of the next document.
    labels = np.where(document_ids[1:] == document_ids[:-1], tokens[1:], IGNORE_INDEX)
    return {"tokens": tokens[:-1], "labels": labels, "document_ids": document_ids[:-1]}


def build_causal_lm_objective(vocab: VocabularyInfo) -> Objective:
    """Causal language modeling: predict every token from the tokens before it (GPT)."""

    def collate(examples: Sequence[Example]) -> Batch:
        inputs = collate_inputs(examples, pad_token_id=vocab.pad_token_id)
        labels = pad_sequences([example["labels"] for example in examples], IGNORE_INDEX)
        return Batch(decoder=inputs, labels={"labels": labels})

    return Objective(
        name="causal-lm",
        noise=shift_labels,
        collate=collate,
        is_language_model=True,
    )


def build_segment_recurrent_lm_objective(vocab: VocabularyInfo) -> Objective:
    """Causal language modeling over consecutive segments, each of which attends to the states of
    earlier segments (Transformer-XL).

    An adaptive softmax returns log-probabilities, which the softmax of the loss does not change."""
    return replace(build_causal_lm_objective(vocab), name="segment-recurrent-lm", is_recurrent=True)


def build_control_code_lm_objective(vocab: VocabularyInfo) -> Objective:
    """Causal language modeling after a control code, which is never a target (CTRL)."""

    def noise(example: Example, rng: np.random.Generator) -> Example:
        return shift_labels({"tokens": np.concatenate([example["code"], example["tokens"]])}, rng)

    return replace(build_causal_lm_objective(vocab), name="control-code-lm", noise=noise)


def build_permutation_lm_objective(
    vocab: VocabularyInfo, *, mask_alpha: int = 6, max_span_length: int = 5, use_mems: bool = False
) -> Objective:
    """Permutation language modeling: predict one token in `mask_alpha`, in a random order, each from
    the tokens before it in that order (XLNet).

    The query stream contains the position of a target but not its token. All rows of a batch have the
    same number of targets; a short row is padded with IGNORE_INDEX. With `use_mems`, a row attends to
    the mems of the previous batch."""
    check_number("objective.mask_alpha", mask_alpha, at_least=1)
    check_number("objective.max_span_length", max_span_length, at_least=1)

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        special = np.isin(tokens, vocab.special_token_ids)
        num_targets = min(max(1, round(len(tokens) / mask_alpha)), len(tokens) - int(special.sum()))
        order = sample_factorization_order(
            special,
            rng,
            tokens_per_target=mask_alpha,
            max_span_length=max_span_length,
            num_targets=num_targets,
        )
        return {
            **example,
            "perm_mask": order.perm_mask,
            "target_positions": order.target_positions,
            "labels": tokens[order.target_positions],
        }

    def collate(examples: Sequence[Example]) -> Batch:
        inputs = collate_inputs(examples, pad_token_id=vocab.pad_token_id, pad_left=vocab.pad_left)
        perm_mask = torch.zeros(inputs.batch_size, inputs.length, inputs.length, dtype=torch.bool)
        positions = []
        for i, example in enumerate(examples):
            length = len(example["tokens"])
            start = inputs.length - length if vocab.pad_left else 0
            row = slice(start, start + length)
            perm_mask[i, row, row] = torch.from_numpy(example["perm_mask"])
            positions.append(example["target_positions"] + start)
        target_mapping = F.one_hot(pad_sequences(positions, 0), inputs.length)  # (B, P, T)
        permutation_mask, target_positions = build_permutation_mask(
            inputs, perm_mask, target_mapping
        )
        labels = pad_sequences([example["labels"] for example in examples], IGNORE_INDEX)
        return Batch(
            encoder=inputs,
            permutation_mask=permutation_mask,
            target_positions=target_positions,
            labels={"labels": labels},
        )

    return Objective(
        name="permutation-lm",
        noise=noise,
        collate=collate,
        is_recurrent=use_mems,
        is_language_model=True,
    )
