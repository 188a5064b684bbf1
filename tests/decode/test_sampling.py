"""Filters leave the distribution that the original's leave, and draws follow it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import generation

from qkv.decode.config import How
from qkv.decode.engine import generate
from qkv.decode.generation_config import read_how
from qkv.decode.logits.sampling import draw, draw_several, filters_of, uniform
from tests.support import decode_oracle as oracle

FILTERS: list[dict[str, Any]] = [
    dict(temperature=0.7), dict(temperature=3.0), dict(top_k=5), dict(top_k=1), dict(top_k=400),
    dict(top_p=0.8), dict(top_p=0.05), dict(top_p=0.0), dict(min_p=0.1), dict(min_p=1.0),
    dict(typical_p=0.3), dict(typical_p=0.95), dict(epsilon_cutoff=0.02), dict(eta_cutoff=0.03),
    dict(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.8),
]  # fmt: skip


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_filters_leave_what_the_originals_leave(settings: dict[str, Any], beams: int) -> None:
    model = oracle.built("gpt2")[0]
    settings = dict(do_sample=True, top_k=0, eos_token_id=[3, 4], num_beams=beams) | settings
    config = generation.GenerationConfig(**settings, pad_token_id=0)
    model._prepare_special_tokens(config)
    theirs = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    scores = 3 * torch.randn(200, 97)
    scores[::5, 20:60] = -torch.inf  # as rules leave them
    ours = scores
    for filter_ in filters_of(read_how(settings)):
        ours = filter_(ours)
    assert torch.equal(ours, theirs(torch.zeros(200, 1, dtype=torch.long), scores))


def test_a_file_that_draws_and_says_no_more_means_the_best_fifty() -> None:
    assert read_how(dict(do_sample=True)).top_k == 50
    assert read_how(dict(do_sample=True, top_k=0)).top_k == 0
    assert read_how(dict(top_k=50)).top_k == 0


def chi_square(counts: Tensor, shares: Tensor) -> float:
    """How far counts are from what is expected, in deviations of the chi-square distribution."""
    expected = shares * counts.sum()
    some = expected > 5
    value, freedom = ((counts - expected) ** 2 / expected)[some].sum(), int(some.sum()) - 1
    return float((value - freedom) / (2 * freedom) ** 0.5)


def test_uniform_numbers_are_uniform() -> None:
    seeds, steps = torch.arange(500)[:, None].expand(500, 400), torch.arange(400).expand(500, 400)
    for stream in range(3):
        found = uniform(seeds.flatten(), steps.flatten(), stream)
        assert float(found.min()) >= 0
        assert float(found.max()) < 1
        tenths = torch.bincount((found * 1000).long(), minlength=1000).double()
        assert abs(chi_square(tenths, torch.full((1000,), 1e-3))) < 4
        table = found.view(500, 400)
        for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
            assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.01


def test_draws_follow_the_distribution() -> None:
    scores = torch.tensor([0.5, 2.0, -torch.inf, 0.0, 1.0, -torch.inf, -3.0])
    seeds = torch.arange(40_000)
    found = draw(scores.expand(40_000, -1), uniform(seeds, torch.zeros_like(seeds)))
    counts = torch.bincount(found, minlength=7).double()
    assert counts[[2, 5]].sum() == 0
    assert chi_square(counts, scores.softmax(-1)) < 4


def test_several_draws_are_different_words_in_the_order_of_drawing() -> None:
    scores = torch.tensor([0.5, 2.0, -torch.inf, 0.0, 1.0])
    seeds = torch.arange(40_000)
    found = draw_several(scores.expand(40_000, -1), seeds, torch.zeros_like(seeds), 2)
    assert (found[:, 0] != found[:, 1]).all()
    p = scores.softmax(-1)
    pairs = p[:, None] * p / (1 - p[:, None])
    pairs.fill_diagonal_(0)
    counts = torch.bincount(found[:, 0] * 5 + found[:, 1], minlength=25).double()
    assert chi_square(counts, pairs.flatten()) < 4


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_what_a_net_draws_follows_what_it_scores(kind: str) -> None:
    """The second id, given the first: all draws of one prompt."""
    net, prompt = oracle.pair(kind, 3).ours, [5, 9, 4]
    side: dict[str, Any] = {"sources": [prompt]} if kind == "t5" else {"prompts": [prompt]}
    how = How(sample=True, max_new=2, results=1000, start=2)
    (found,) = generate(net, **side, how=how, seed=7)
    first = max({one.ids[0] for one in found}, key=lambda id_: sum(one.ids[0] == id_ for one in found))
    after = [one for one in found if one.ids[0] == first]
    shares = torch.zeros(oracle.VOCAB)
    for one in after:
        shares[one.ids[1]] = torch.tensor(one.scores[1]).exp()
    counts = torch.bincount(torch.tensor([one.ids[1] for one in after]), minlength=oracle.VOCAB).double()
    assert len(after) > 100
    assert chi_square(counts, shares.double() / shares.sum()) < 4


def test_seeds_tell_draws_apart() -> None:
    net = oracle.pair("gpt2", 3).ours
    how = How(sample=True, temperature=3.0, max_new=12)
    one = generate(net, [[5, 6]] * 3, how=how, seed=5)
    assert len({tuple(row[0].ids) for row in one}) == 3
    assert one == generate(net, [[5, 6]] * 3, how=how, seed=5)
    (alone,) = generate(net, [[5, 6]], how=how, seed=7)
    assert alone[0].ids == one[2][0].ids


def test_the_best_of_several_draws() -> None:
    net = oracle.pair("gpt2", 3).ours
    how = How(sample=True, temperature=3.0, max_new=6, results=8)
    (every,) = generate(net, [[5, 6]], how=how)
    (best,) = generate(net, [[5, 6]], how=How(sample=True, temperature=3.0, max_new=6, best_of=8, results=2))
    ranked = sorted(every, key=lambda one: -one.score)
    assert [one.ids for one in best] == [one.ids for one in ranked[:2]]
    assert best[0].score == pytest.approx(sum(best[0].scores) / 6)
