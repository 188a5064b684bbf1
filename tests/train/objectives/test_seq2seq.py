"""Sequence to sequence, denoising and span corruption: batches, and losses against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf

from qkv.batch import IGNORE_INDEX
from qkv.data.batches.collate import Example
from qkv.data.noise.span_corruption import compute_input_and_target_lengths
from qkv.model.build import build
from qkv.spec import ShiftRight
from qkv.train.objectives import build_objective
from tests.support.objectives import (
    CLS,
    MASK,
    PAD,
    SEP,
    SMALL_BART,
    VOCAB,
    VOCAB_SIZE,
    assert_close,
    assert_reference_loss,
    build_reference_pair,
    get_ids,
    get_mask,
    make_batch,
    make_text,
)


def make_text_pairs() -> list[Example]:
    return [
        {"source": make_text(6), "target": make_text(5, 1)},
        {"source": make_text(3, 2), "target": make_text(8, 3)},
    ]


def test_decoder_reads_the_labels_shifted_right() -> None:
    objective = build_objective("seq2seq", VOCAB, label_smoothing=0.1)
    pairs = make_text_pairs()
    batch = make_batch(objective, pairs)
    targets = batch.labels["labels"]
    assert get_ids(batch.decoder)[1].tolist() == [SEP, *pairs[1]["target"][:-1]]
    assert targets[1].tolist() == pairs[1]["target"].tolist()
    assert targets[0].tolist() == [*pairs[0]["target"], *[IGNORE_INDEX] * 3]
    logits = torch.randn(2, 8, VOCAB_SIZE)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
    assert_close(objective({"logits": logits, **batch.labels}), expected)


def test_r_drop_is_the_divergence_of_two_runs() -> None:
    objective = build_objective("seq2seq", VOCAB, label_smoothing=0.1, r_drop=2.5)
    pairs = make_text_pairs()
    single = make_batch(build_objective("seq2seq", VOCAB), pairs)
    batch = make_batch(objective, pairs)
    assert get_ids(batch.encoder).tolist() == get_ids(single.encoder).tolist() * 2
    assert batch.labels["labels"].tolist() == single.labels["labels"].tolist() * 2
    assert objective.count_targets(batch) == {"loss": 2 * 13, "r_drop": 2 * 13}
    logits = torch.randn(4, 8, VOCAB_SIZE)
    mask = single.labels["labels"] != IGNORE_INDEX
    a, b = (half[mask].log_softmax(-1) for half in logits.chunk(2))
    divergence = F.kl_div(a, b, log_target=True, reduction="batchmean")
    reverse_divergence = F.kl_div(b, a, log_target=True, reduction="batchmean")
    losses = objective.compute_losses({"logits": logits, **batch.labels})
    assert_close(losses["r_drop"], 2.5 * (divergence + reverse_divergence) / 2)
    flat_labels = batch.labels["labels"].flatten()
    expected = F.cross_entropy(logits.flatten(0, 1), flat_labels, label_smoothing=0.1)
    assert_close(losses["loss"], expected)
    equal_logits = logits[:2].repeat(2, 1, 1)
    losses = objective.compute_losses({"logits": equal_logits, **batch.labels})
    assert losses["r_drop"].item() == 0


def test_denoising_loss_equals_bart(tmp_path: Path) -> None:
    objective = build_objective("denoising", VOCAB)
    tokens = make_text(20)
    batch = make_batch(objective, [{"tokens": tokens}, {"tokens": make_text(12, 1)}])
    assert batch.labels["labels"][0].tolist() == [CLS, *tokens, SEP]
    assert get_ids(batch.decoder)[0].tolist() == [SEP, CLS, *tokens]
    source = get_ids(batch.encoder)[0][get_mask(batch.encoder)[0].bool()]
    assert source[0] == CLS
    assert source[-1] == SEP
    rest = source[(source != MASK)][1:-1]
    assert len(rest) == 20 - 6  # 0.3 of them are masked
    assert {*rest.tolist()} <= {*tokens.tolist()}
    reference, net = build_reference_pair(
        hf.BartForConditionalGeneration(hf.BartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


@pytest.mark.parametrize("name", ["denoising", "multilingual-denoising"])
def test_token_deletion_and_document_rotation(name: str) -> None:
    tokens = np.arange(20, 40)
    example: dict[str, Any] = {"tokens": tokens}
    if name == "multilingual-denoising":
        example["code"] = np.array([50])

    def corrupt(**settings: Any) -> list[int]:
        objective = build_objective(name, VOCAB, mask_prob=0.0, permute_sentences=False, **settings)
        ids = get_ids(make_batch(objective, [example]).encoder)[0].tolist()
        return [i for i in ids if 20 <= i < 40]

    assert corrupt() == tokens.tolist()
    rest = corrupt(delete_prob=0.25)
    assert (len(rest), rest) == (15, sorted(rest))
    rotated = corrupt(rotate_document=True)
    start = rotated.index(20)
    assert rotated[start:] + rotated[:start] == tokens.tolist() != rotated
    assert len(corrupt(delete_prob=0.25, rotate_document=True)) == 15


def test_multilingual_denoising_loss_equals_mbart(tmp_path: Path) -> None:
    """A text ends with its language code, and the decoder starts with it."""
    objective = build_objective("multilingual-denoising", VOCAB)
    examples: list[Example] = [
        {"tokens": make_text(20, n), "code": np.array([50 + n])} for n in range(2)
    ]
    batch = make_batch(objective, examples)
    for n in range(2):
        source = get_ids(batch.encoder)[n][get_mask(batch.encoder)[n].bool()]
        tokens = examples[n]["tokens"]
        assert source[-2:].tolist() == [SEP, 50 + n]
        assert batch.labels["labels"][n].tolist() == [*tokens, SEP, 50 + n]
        assert get_ids(batch.decoder)[n].tolist() == [50 + n, *tokens, SEP]
    reference, net = build_reference_pair(
        hf.MBartForConditionalGeneration(hf.MBartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


def test_language_code_at_the_end_of_the_target_starts_the_decoder_of_mbart(tmp_path: Path) -> None:
    objective = build_objective("seq2seq", VOCAB._replace(shift=ShiftRight(0, "wrap")))
    pairs: list[Example] = [
        {"source": make_text(9, n), "target": np.array([6, 7, SEP, 50 + n])} for n in range(2)
    ]
    batch = make_batch(objective, pairs)
    assert get_ids(batch.decoder).tolist() == [[50, 6, 7, SEP], [51, 6, 7, SEP]]
    reference, net = build_reference_pair(
        hf.MBartForConditionalGeneration(hf.MBartConfig(**SMALL_BART)), tmp_path
    )
    assert_reference_loss(objective, net, reference, batch)


SMALL_T5: dict[str, Any] = dict(
    vocab_size=VOCAB_SIZE,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=PAD,
    pad_token_id=PAD,
    eos_token_id=SEP,
)


def test_span_corruption_loss_equals_t5(tmp_path: Path) -> None:
    vocab = VOCAB._replace(decoder_start_token_id=PAD)
    sentinels = vocab.sentinel_token_ids
    objective = build_objective("span-corruption", vocab)
    size, target_length = compute_input_and_target_lengths(32)
    batch = make_batch(objective, [{"tokens": make_text(size, n)} for n in range(3)])
    input_ids = get_ids(batch.encoder)
    targets = batch.labels["labels"]
    assert input_ids.shape == (3, 32)
    assert targets.shape == (3, target_length)
    assert get_ids(batch.decoder)[0].tolist() == [PAD, *targets[0][:-1].tolist()]
    for source, target in zip(input_ids, targets, strict=True):
        source_sentinels = [t for t in source.tolist() if t in sentinels]
        target_sentinels = [t for t in target.tolist() if t in sentinels]
        assert source_sentinels == target_sentinels == [*sentinels[: len(source_sentinels)]]
        assert source[-1] == target[-1] == SEP
    reference, net = build_reference_pair(
        hf.T5ForConditionalGeneration(hf.T5Config(**SMALL_T5)), tmp_path
    )
    assert_close(objective(net(batch)), reference(input_ids, labels=targets).loss)


def test_router_losses() -> None:
    sizes: dict[str, Any] = dict(vocab_size=VOCAB_SIZE, width=16, heads=2, head_dim=8, ffn_width=32)
    net = build(
        "switch",
        depth=2,
        decoder_depth=2,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        router_jitter_noise=0.0,
        dropout=0.0,
        **sizes,
    ).net.eval()
    objective = build_objective(
        "span-corruption", VOCAB, router_aux_loss_coef=0.01, router_z_loss_coef=0.001
    )
    size, _ = compute_input_and_target_lengths(32)
    batch = make_batch(objective, [{"tokens": make_text(size, n)} for n in range(3)])
    outputs = net(batch)
    losses = objective.compute_losses(outputs)
    aux_loss = z_loss = 0.0
    for logits in (outputs["encoder_router_logits"][0], outputs["router_logits"][0]):
        z_loss += torch.logsumexp(logits, -1).square().mean().item()
        for probabilities in logits.softmax(-1):  # eq. 4 of Switch, one row at a time
            chosen = probabilities.argmax(-1)
            fractions = torch.bincount(chosen, minlength=4) / len(probabilities)
            aux_loss += 4 * (fractions * probabilities.mean(0)).sum().item() / 3
    assert losses["balance"].item() == pytest.approx(0.01 * aux_loss, rel=1e-5)
    assert losses["z"].item() == pytest.approx(0.001 * z_loss, rel=1e-5)
    dense = build("t5", depth=1, **sizes).net
    with pytest.raises(ValueError, match="the model has no experts"):
        objective.compute_losses(dense(batch))
