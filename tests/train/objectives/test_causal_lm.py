"""Objectives of running text: labels, control codes, segments, permutations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.collate import Example
from qkv.model.build import build
from qkv.train.objectives import build_objective
from tests.support.objectives import (
    FIRST_WORD,
    PAD,
    VOCAB,
    VOCAB_SIZE,
    assert_close,
    build_reference_pair,
    get_ids,
    make_batch,
    make_row,
    make_text,
    rng,
)


def test_next_token_labels_stay_within_a_document() -> None:
    objective = build_objective("causal-lm", VOCAB)
    example = {"tokens": np.array([7, 8, 9, 10]), "document_ids": np.array([0, 0, 1, 1])}
    noisy = objective.noise(example, rng())
    assert noisy["tokens"].tolist() == [7, 8, 9]
    assert noisy["labels"].tolist() == [8, IGNORE_INDEX, 10]


def test_control_code_is_an_input_and_no_target(tmp_path: Path) -> None:
    objective = build_objective("control-code-lm", VOCAB)
    code = 50
    tokens = make_text(12)
    examples: list[Example] = [
        {"tokens": tokens, "code": np.array([code])},
        {"tokens": make_text(7, 1), "code": np.array([51])},
    ]
    batch = make_batch(objective, examples)
    input_ids = get_ids(batch.decoder)
    targets = batch.labels["labels"]
    assert input_ids[0].tolist() == [code, *tokens[:-1].tolist()]
    assert targets[0].tolist() == tokens.tolist()
    config = hf.CTRLConfig(
        vocab_size=VOCAB_SIZE, n_positions=64, n_embd=16, dff=32, n_layer=2, n_head=2
    )
    reference, net = build_reference_pair(hf.CTRLLMHeadModel(config), tmp_path)
    # transformers shifts the labels itself
    longer_ids = torch.cat([input_ids, input_ids[:, -1:]], 1)
    longer_targets = torch.cat([torch.full((2, 1), IGNORE_INDEX), targets], 1)
    assert_close(objective(net(batch)), reference(longer_ids, labels=longer_targets).loss)


def test_segment_recurrent_lm_reads_the_mems_of_the_previous_segment() -> None:
    net = build(
        "transformer-xl",
        vocab_size=VOCAB_SIZE,
        width=16,
        embedding_width=16,
        depth=2,
        heads=2,
        head_dim=8,
        ffn_width=32,
        mem_len=8,
        cutoffs=(20,),
        dropout=0.0,
        init_std=0.3,
        proj_init_std=0.3,
    ).net.eval()
    objective = build_objective("segment-recurrent-lm", VOCAB)
    assert objective.is_recurrent
    first, second = (make_batch(objective, [{"tokens": make_text(9, s)}]) for s in (0, 1))
    outputs = net(replace(second, mems=net(first)["mems"]))
    log_probabilities = outputs["logits"]
    expected = -log_probabilities.gather(-1, second.labels["labels"][..., None]).mean()
    assert_close(objective(outputs), expected)
    assert_close(log_probabilities.exp().sum(-1), torch.ones(1, 8))
    assert not torch.allclose(objective(net(second)), expected)


@pytest.mark.parametrize("pad_left", [False, True])
def test_permutation_lm_loss_equals_xlnet(tmp_path: Path, pad_left: bool) -> None:
    config = hf.XLNetConfig(
        vocab_size=VOCAB_SIZE, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=PAD
    )
    reference, net = build_reference_pair(hf.XLNetLMHeadModel(config), tmp_path)
    objective = build_objective("permutation-lm", VOCAB._replace(pad_left=pad_left))
    rows = [make_row(24), make_row(24, 1)] if pad_left else [make_row(24)]
    examples = [objective.noise(row, rng(i)) for i, row in enumerate(rows)]
    batch = objective.collate(examples)
    perm_mask = torch.stack([torch.from_numpy(example["perm_mask"]) for example in examples])
    positions = torch.stack([torch.from_numpy(example["target_positions"]) for example in examples])
    expected = reference(
        get_ids(batch.encoder),
        perm_mask=perm_mask.float(),
        target_mapping=F.one_hot(positions, 26).float(),
        labels=batch.labels["labels"],
    ).loss
    assert_close(objective(net(batch)), expected)
    assert objective.count_targets(batch)["loss"] == len(rows) * round(26 / 6)


SMALL_XLNET: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE, width=16, depth=2, heads=2, head_dim=8, ffn_width=32, init_std=0.3
)


def test_target_depends_neither_on_itself_nor_on_later_targets() -> None:
    net = build("xlnet", **SMALL_XLNET).net.eval()
    objective = build_objective("permutation-lm", VOCAB)
    noisy = objective.noise(make_row(30), rng())
    positions = noisy["target_positions"]
    logits = net(objective.collate([noisy]))["logits"][0]
    is_hidden = torch.from_numpy(noisy["perm_mask"])[positions][:, positions]  # (P, P)
    num_changed = 0
    for i, position in enumerate(positions):
        changed = {**noisy, "tokens": noisy["tokens"].copy()}
        changed["tokens"][position] = FIRST_WORD
        changed_logits = net(objective.collate([changed]))["logits"][0]
        is_changed = (changed_logits - logits).abs().amax(-1) > 1e-6
        assert not is_changed[is_hidden[:, i]].any()
        num_changed += int(is_changed.sum())
    assert num_changed > 0


def test_permutation_lm_rows_of_different_lengths_are_independent() -> None:
    net = build("xlnet", **SMALL_XLNET).net.eval()
    for pad_left in (False, True):
        objective = build_objective("permutation-lm", VOCAB._replace(pad_left=pad_left))
        examples = [objective.noise(make_row(n, n), rng(n)) for n in (24, 11)]
        single_batches = [objective.collate([example]) for example in examples]
        counts = [objective.count_targets(batch)["loss"] for batch in single_batches]
        losses = [objective(net(batch)).item() for batch in single_batches]
        total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
        batch = objective.collate(examples)
        assert objective.count_targets(batch)["loss"] == sum(counts)
        assert objective(net(batch)).item() == pytest.approx(total / sum(counts), abs=1e-5)
