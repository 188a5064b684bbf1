"""Objectives of encoder-decoder models: sequence-to-sequence (translation), denoising (BART, mBART)
and span corruption (T5, Switch)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qkv.batch import IGNORE_INDEX, Batch, Inputs
from qkv.data.batches.collate import Example, collate_inputs, pad_sequences
from qkv.data.noise import denoising as noises
from qkv.data.noise.span_corruption import corrupt_spans
from qkv.nn.feed_forward import load_balancing_loss, router_z_loss
from qkv.train.objectives.objective import (
    ForwardOutputs,
    Objective,
    compute_label_loss,
    compute_label_row_losses,
    count_label_targets,
    count_valid_labels,
    cross_entropy,
    masked_mean,
    upcast_to_fp32,
)
from qkv.train.objectives.vocabulary import VocabularyInfo
from qkv.validate import check_number

ROUTER_OUTPUTS = ("encoder_router_logits", "router_logits")
ROUTER_LOSSES = {"balance": load_balancing_loss, "z": router_z_loss}


def collate_seq2seq(
    examples: Sequence[Example], *, vocab: VocabularyInfo, extra_outputs: tuple[str, ...] = ()
) -> Batch:
    """Build a batch of sources and targets; the decoder input is the target shifted right, after a
    start token."""
    decoder, labels = collate_targets(examples, "target", vocab)
    return Batch(
        encoder=collate_inputs(examples, "source", pad_token_id=vocab.pad_token_id),
        decoder=decoder,
        labels={"labels": labels},
        extra_outputs=extra_outputs,
    )


def collate_targets(
    examples: Sequence[Example], name: str, vocab: VocabularyInfo
) -> tuple[Inputs, Tensor]:
    """Return the decoder inputs and labels of the targets with this name.

    The start token is that of the example (a language code), the last token of the target (mBART) or
    the start token of the model."""
    default_start = vocab.decoder_start_token_id
    if default_start is None:
        default_start = vocab.pad_token_id
    wraps_around = vocab.shift is not None and vocab.shift.mode == "wrap"
    shifted = []
    for example in examples:
        target = example[name]
        start = example.get("start", target[-1] if wraps_around else default_start)
        shifted.append({name: np.concatenate([[start], target[:-1]])})
    labels = pad_sequences([example[name] for example in examples], IGNORE_INDEX)
    return collate_inputs(shifted, name, pad_token_id=vocab.pad_token_id), labels


def build_seq2seq_objective(
    vocab: VocabularyInfo, *, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> Objective:
    """Sequence-to-sequence: predict the target from the source, with label smoothing.

    `r_drop` is the weight of R-Drop (Liang et al. 2021; half of its alpha): every row is run twice
    with different dropout, and the divergence of the two outputs is added to the loss."""
    check_number("objective.label_smoothing", label_smoothing, at_least=0, less_than=1)
    check_number("objective.r_drop", r_drop, at_least=0)

    def compute_target_loss(outputs: ForwardOutputs) -> dict[str, Tensor]:
        return {"loss": cross_entropy(outputs["logits"], outputs["labels"], label_smoothing)}

    objective = Objective(
        name="seq2seq",
        compute_losses=compute_target_loss,
        compute_row_losses=partial(compute_label_row_losses, label_smoothing=label_smoothing),
        collate=partial(collate_seq2seq, vocab=vocab),
        is_language_model=not (label_smoothing or r_drop),
    )
    if not r_drop:
        return objective

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        divergence = symmetric_kl_loss(outputs["logits"], outputs["labels"])
        return compute_target_loss(outputs) | {"r_drop": r_drop * divergence}

    def count_targets(batch: Batch) -> dict[str, int]:
        return dict.fromkeys(("loss", "r_drop"), count_valid_labels(batch))

    def collate_twice(examples: Sequence[Example]) -> Batch:
        return objective.collate([*examples, *examples])

    return replace(
        objective,
        compute_losses=compute_losses,
        count_targets=count_targets,
        collate=collate_twice,
    )


def symmetric_kl_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of both KL divergences between the two halves of the rows (2B, T, V)."""
    first, second = upcast_to_fp32(logits).log_softmax(-1).unflatten(0, (2, -1))
    divergence = ((first.exp() - second.exp()) * (first - second)).sum(-1) / 2  # (B, T)
    mask = labels.unflatten(0, (2, -1))[0] != IGNORE_INDEX
    return masked_mean(divergence, mask)


DocumentNoise = Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]]


def build_document_noise(
    objective_name: str,
    vocab: VocabularyInfo,
    mask_prob: float,
    mean_span_length: float,
    *,
    permute_sentences: bool,
    delete_prob: float,
    rotate_document: bool,
) -> DocumentNoise:
    """Return BART's noise function: sentence permutation, document rotation, token deletion and text
    infilling, in this order, as far as they are enabled."""
    if vocab.mask_token_id is None:
        raise ValueError(
            f"objective {objective_name}: the tokenizer has no mask token; "
            'tokenizer.template = "roberta" trains one that has'
        )
    check_number("objective.mask_prob", mask_prob, at_least=0, less_than=1)
    check_number("objective.mean_span_length", mean_span_length, more_than=0)
    check_number("objective.delete_prob", delete_prob, at_least=0, less_than=1)
    noise_functions: list[noises.NoiseFunction] = []
    if permute_sentences:
        noise_functions.append(
            partial(noises.permute_sentences, sentence_end_ids=vocab.sentence_end_ids)
        )
    if rotate_document:
        noise_functions.append(noises.rotate_document)
    if delete_prob:
        noise_functions.append(partial(noises.delete_tokens, delete_prob=delete_prob))
    if mask_prob:
        noise_functions.append(
            partial(
                noises.infill_text,
                mask_token_id=vocab.mask_token_id,
                mask_prob=mask_prob,
                mean_span_length=mean_span_length,
            )
        )
    return partial(noises.apply_noise, noise_functions=noise_functions)


def compute_max_source_length(vocab: VocabularyInfo, num_special_tokens: int) -> int | None:
    """Return the maximum length of a corrupted text, which masks for spans of length 0 can make longer
    than the original."""
    return vocab.max_length - num_special_tokens if vocab.max_length else None


def build_denoising_objective(
    vocab: VocabularyInfo,
    *,
    mask_prob: float = 0.3,
    mean_span_length: float = 3.0,
    permute_sentences: bool = True,
    delete_prob: float = 0.0,
    rotate_document: bool = False,
) -> Objective:
    """Denoising: predict the original text from a corrupted one (BART).

    `permute_sentences` shuffles the sentences; spans whose length has a Poisson distribution with mean
    `mean_span_length`, together a fraction `mask_prob` of the tokens, are each replaced by one mask
    token; `delete_prob` is the fraction of deleted tokens; `rotate_document` starts the text at a
    random token."""
    corrupt = build_document_noise(
        "denoising",
        vocab,
        mask_prob,
        mean_span_length,
        permute_sentences=permute_sentences,
        delete_prob=delete_prob,
        rotate_document=rotate_document,
    )

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        template = vocab.single_template
        max_length = compute_max_source_length(vocab, template.num_special_tokens)
        return {
            "source": template.build_token_ids(corrupt(tokens, rng)[:max_length]),
            "target": template.build_token_ids(tokens),
        }

    return Objective(
        name="denoising",
        noise=noise,
        collate=partial(collate_seq2seq, vocab=vocab),
        is_language_model=True,
    )


def build_multilingual_denoising_objective(
    vocab: VocabularyInfo,
    *,
    mask_prob: float = 0.35,
    mean_span_length: float = 3.5,
    permute_sentences: bool = True,
    delete_prob: float = 0.0,
    rotate_document: bool = False,
) -> Objective:
    """Multilingual denoising: the text ends and the decoder starts with a language code (mBART)."""
    corrupt = build_document_noise(
        "multilingual-denoising",
        vocab,
        mask_prob,
        mean_span_length,
        permute_sentences=permute_sentences,
        delete_prob=delete_prob,
        rotate_document=rotate_document,
    )
    end = [] if vocab.eos_token_id is None else [vocab.eos_token_id]

    def noise(example: Example, rng: np.random.Generator) -> Example:
        tokens = example["tokens"]
        suffix = np.array([*end, *example["code"]], np.int64)
        corrupted = corrupt(tokens, rng)[: compute_max_source_length(vocab, len(suffix))]
        return {
            "source": np.concatenate([corrupted, suffix]),
            "target": np.concatenate([tokens, suffix]),
            "start": int(suffix[-1]),
        }

    return Objective(
        name="multilingual-denoising",
        noise=noise,
        collate=partial(collate_seq2seq, vocab=vocab),
        is_language_model=True,
    )


def build_span_corruption_objective(
    vocab: VocabularyInfo,
    *,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
    router_aux_loss_coef: float = 0.0,
    router_z_loss_coef: float = 0.0,
) -> Objective:
    """Span corruption: predict the removed spans, with a sentinel before each (T5).

    A mixture of experts adds a load balancing loss (`router_aux_loss_coef`, 0.01 in Switch) and a
    router z-loss (`router_z_loss_coef`, 0.001 in ST-MoE)."""
    if not vocab.sentinel_token_ids or vocab.eos_token_id is None:
        raise ValueError(
            "objective span-corruption: the tokenizer has no sentinels or no end token; "
            'tokenizer.template = "t5" with tokenizer.num_sentinels trains one that has'
        )
    check_number("objective.noise_density", noise_density, more_than=0, less_than=1)
    check_number("objective.mean_span_length", mean_span_length, at_least=1)
    eos_token_id = vocab.eos_token_id
    coefficients = {"balance": router_aux_loss_coef, "z": router_z_loss_coef}
    weights = {name: weight for name, weight in coefficients.items() if weight}

    def noise(example: Example, rng: np.random.Generator) -> Example:
        corrupted = corrupt_spans(
            example["tokens"],
            rng,
            first_sentinel_id=vocab.sentinel_token_ids[0],
            eos_token_id=eos_token_id,
            num_sentinels=len(vocab.sentinel_token_ids),
            noise_density=noise_density,
            mean_span_length=mean_span_length,
        )
        return {"source": corrupted.source, "target": corrupted.target}

    def compute_losses(outputs: ForwardOutputs) -> dict[str, Tensor]:
        losses = compute_label_loss(outputs)
        # (layers, B, T, experts) of the encoder and of the decoder
        layers = [layer for name in ROUTER_OUTPUTS if name in outputs for layer in outputs[name]]
        if weights and not layers:
            raise ValueError(
                "objective.router_aux_loss_coef and objective.router_z_loss_coef: "
                "the model has no experts; expected 0, or a model such as switch"
            )
        for name, weight in weights.items():
            layer_losses = [ROUTER_LOSSES[name](upcast_to_fp32(layer)) for layer in layers]
            losses[name] = weight * sum(layer_losses[1:], layer_losses[0])
        return losses

    def count_targets(batch: Batch) -> dict[str, int]:
        # Rows of a batch have the same length, so each has the same weight in a router loss.
        return count_label_targets(batch) | dict.fromkeys(weights, len(batch.labels["labels"]))

    extra_outputs = ("router_logits",) if weights else ()
    return Objective(
        name="span-corruption",
        compute_losses=compute_losses,
        compute_row_losses=compute_label_row_losses,
        count_targets=count_targets,
        noise=noise,
        collate=partial(collate_seq2seq, vocab=vocab, extra_outputs=extra_outputs),
        is_language_model=not weights,
    )
