"""Heads: what they look at, and the loss without them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qkv.batch import Batch, Inputs
from qkv.experiments.measures.heads import (
    HeadPatterns,
    build_word_mask,
    compute_hit_shares,
    remove_head,
    stack_masks,
    summarize_patterns,
)
from qkv.model.build import build
from qkv.nn.attention import Attention
from qkv.text import Tokenizer
from tests.experiments.test_translation import TINY_HEADS, data, list_cells, run_cell

__all__ = ["data"]  # a fixture


@torch.no_grad()
def test_a_removed_head_contributes_nothing() -> None:
    """The same as a head whose values are zero."""
    net = build(
        "transformer", vocab_size=30, width=16, depth=1, heads=4, ffn_width=16, decoder_depth=1,
        decoder_heads=4, decoder_ffn_width=16, device="cpu",
    ).net  # fmt: skip
    ids = torch.randint(30, (2, 7))
    batch = Batch(encoder=Inputs.create(ids), decoder=Inputs.create(ids))
    path = "decoder.layers.0.cross_attention"
    before = net(batch)["logits"]
    with remove_head(net, path, 2):
        removed = net(batch)["logits"]
    assert torch.equal(net(batch)["logits"], before)
    attention = net.get_submodule(path)
    assert isinstance(attention, Attention)
    attention.v.weight[8:12] = 0
    attention.v.bias[8:12] = 0
    torch.testing.assert_close(net(batch)["logits"], removed)
    assert (removed - before).abs().max() > 1e-3


def test_hits_are_counted_where_the_pattern_has_a_key() -> None:
    mask = stack_masks([np.eye(3, k=-1, dtype=bool), np.eye(2, k=-1, dtype=bool)])
    assert mask.shape == (2, 3, 3)
    previous = torch.tensor([[0, 0, 1], [0, 0, 0]])
    wrong = torch.tensor([[2, 2, 2], [1, 1, 1]])
    half = torch.tensor([[0, 0, 2], [0, 1, 0]])
    best = torch.stack([previous, wrong, half], dim=1)  # (B, H, T)
    assert compute_hit_shares(best, mask).tolist() == pytest.approx([1, 0, 1 / 3])


def test_tokens_of_a_word_are_the_same_word() -> None:
    tokenizer = Tokenizer.train(["ab ab c"] * 3, type="char", vocab_size=20, template="seq2seq")
    ids = np.array(tokenizer.encode("ab c"))
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    words = build_word_mask(tokenizer, ids)
    starts = [token.startswith("▁") or token == "</s>" for token in tokens]
    assert np.array_equal(words, words.T)
    assert words.diagonal().all()
    numbers = np.cumsum(starts)
    assert words[0].sum() == (numbers == numbers[0]).sum()
    assert not words[-1, :-1].any(), "the end token is a word of its own"


def test_a_head_looks_at_a_pattern_from_half_of_its_queries_on() -> None:
    heads = [
        HeadPatterns("encoder.layers.0.attention", 0, {"previous token": 0.5, "same word": 0.1}),
        HeadPatterns("encoder.layers.0.attention", 1, {"previous token": 0.4, "same word": 0.2}),
        HeadPatterns("decoder.layers.0.cross_attention", 0, {"aligned word": 0.9}),
    ]
    shares = {point["pattern"]: point["head_share"] for point in summarize_patterns(heads)}
    assert shares == {"previous token": 0.5, "same word": 0.0, "aligned word": 1.0}


def test_every_head_is_a_point(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    cell = next(cell for cell in list_cells("heads", "heads") if cell.coordinates["variant"] == "2")
    measurement = run_cell(cell, data, tmp_path, TINY_HEADS)
    heads = [point for point in measurement.points if "removal_loss" in point]
    assert len(heads) == 3 * 2
    assert {point["part"] for point in heads} == {
        "encoder self-attention", "decoder self-attention", "cross-attention",
    }  # fmt: skip
    assert measurement.metrics["num_heads"] == 2
    names = {path.name for path in (tmp_path / "results").iterdir()}
    patterns = ("previous-token", "same-word", "aligned-word")
    assert names == {f"2-heads-{pattern}.svg" for pattern in patterns}
