"""Sampling filters give the scores of transformers, and samples follow the distribution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from qkv.decode.config import GenerationConfig
from qkv.decode.config_file import read_generation_config
from qkv.decode.generation import generate
from qkv.decode.logits.sampling import (
    build_sampling_filters,
    hash_uniform,
    sample_tokens,
    sample_without_replacement,
)
from tests.support import compare
from tests.support import decode_oracle as oracle

FILTERS: list[dict[str, Any]] = [
    dict(temperature=0.7), dict(temperature=3.0), dict(top_k=5), dict(top_k=1), dict(top_k=400),
    dict(top_p=0.8), dict(top_p=0.05), dict(top_p=0.0), dict(min_p=0.1), dict(min_p=1.0),
    dict(typical_p=0.3), dict(typical_p=0.95), dict(epsilon_cutoff=0.02), dict(eta_cutoff=0.03),
    dict(temperature=1.5, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.8),
]  # fmt: skip


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("settings", FILTERS, ids=str)
def test_filters_equal_those_of_transformers(settings: dict[str, Any], num_beams: int) -> None:
    model = oracle.build_pair("gpt2")[0]
    settings = dict(do_sample=True, top_k=0, eos_token_id=[3, 4], num_beams=num_beams) | settings
    config = transformers.GenerationConfig(**settings, pad_token_id=0)
    model._prepare_special_tokens(config)
    reference = model._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    scores = 3 * torch.randn(200, 97)
    scores[::5, 20:60] = -torch.inf  # as logits processors leave them
    filtered = scores
    for sampling_filter in build_sampling_filters(read_generation_config(settings)):
        filtered = sampling_filter(filtered)
    compare.assert_bitwise_equal(
        filtered,
        reference(torch.zeros(200, 1, dtype=torch.long), scores),
        because="a score is divided by the temperature, then kept or set to -inf",
    )


def test_default_top_k_of_a_file() -> None:
    assert read_generation_config(dict(do_sample=True)).top_k == 50
    assert read_generation_config(dict(do_sample=True, top_k=0)).top_k == 0
    assert read_generation_config(dict(top_k=50)).top_k == 0


def chi_square(counts: Tensor, probs: Tensor) -> float:
    """Return the deviation of counts from a distribution, in standard deviations of chi-square."""
    expected = probs * counts.sum()
    is_frequent = expected > 5
    value = ((counts - expected) ** 2 / expected)[is_frequent].sum()
    degrees_of_freedom = int(is_frequent.sum()) - 1
    return float((value - degrees_of_freedom) / (2 * degrees_of_freedom) ** 0.5)


def test_hash_uniform_is_uniform_and_uncorrelated() -> None:
    seeds = torch.arange(500)[:, None].expand(500, 400)
    steps = torch.arange(400).expand(500, 400)
    for stream in range(3):
        values = hash_uniform(seeds.flatten(), steps.flatten(), stream)
        assert float(values.min()) >= 0
        assert float(values.max()) < 1
        counts = torch.bincount((values * 1000).long(), minlength=1000).double()
        assert abs(chi_square(counts, torch.full((1000,), 1e-3))) < 4
        table = values.view(500, 400)
        for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
            assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.01


def test_samples_follow_the_distribution() -> None:
    scores = torch.tensor([0.5, 2.0, -torch.inf, 0.0, 1.0, -torch.inf, -3.0])
    seeds = torch.arange(40_000)
    token_ids = sample_tokens(
        scores.expand(40_000, -1), hash_uniform(seeds, torch.zeros_like(seeds))
    )
    counts = torch.bincount(token_ids, minlength=7).double()
    assert counts[[2, 5]].sum() == 0
    assert chi_square(counts, scores.softmax(-1)) < 4


def test_samples_without_replacement_follow_the_distribution() -> None:
    scores = torch.tensor([0.5, 2.0, -torch.inf, 0.0, 1.0])
    seeds = torch.arange(40_000)
    token_ids = sample_without_replacement(
        scores.expand(40_000, -1), seeds, torch.zeros_like(seeds), 2
    )
    assert (token_ids[:, 0] != token_ids[:, 1]).all()
    p = scores.softmax(-1)
    pair_probs = p[:, None] * p / (1 - p[:, None])
    pair_probs.fill_diagonal_(0)
    counts = torch.bincount(token_ids[:, 0] * 5 + token_ids[:, 1], minlength=25).double()
    assert chi_square(counts, pair_probs.flatten()) < 4


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_generated_samples_follow_the_log_probs(kind: str) -> None:
    """The second token given the first, among all samples of one prompt."""
    net = oracle.randomize_pair(kind, 3).net
    prompt = [5, 9, 4]
    inputs: dict[str, Any] = {"sources": [prompt]} if kind == "t5" else {"prompts": [prompt]}
    config = GenerationConfig(
        do_sample=True, max_new_tokens=2, num_return_sequences=1000, decoder_start_token_id=2
    )
    (results,) = generate(net, **inputs, generation_config=config, seed=7)
    first_token_ids = [result.token_ids[0] for result in results]
    most_frequent = max({*first_token_ids}, key=first_token_ids.count)
    samples = [result for result in results if result.token_ids[0] == most_frequent]
    probs = torch.zeros(oracle.VOCAB)
    for result in samples:
        probs[result.token_ids[1]] = torch.tensor(result.log_probs[1]).exp()
    second_token_ids = torch.tensor([result.token_ids[1] for result in samples])
    counts = torch.bincount(second_token_ids, minlength=oracle.VOCAB).double()
    assert len(samples) > 100
    assert chi_square(counts, probs.double() / probs.sum()) < 4


def test_samples_depend_on_the_seed_only() -> None:
    net = oracle.randomize_pair("gpt2", 3).net
    config = GenerationConfig(do_sample=True, temperature=3.0, max_new_tokens=12)
    results = generate(net, [[5, 6]] * 3, generation_config=config, seed=5)
    assert len({tuple(row[0].token_ids) for row in results}) == 3
    # Equal to the bit: the same kernels run on the same shapes.
    assert results == generate(net, [[5, 6]] * 3, generation_config=config, seed=5)
    (single,) = generate(net, [[5, 6]], generation_config=config, seed=7)
    assert single[0].token_ids == results[2][0].token_ids


def test_best_of() -> None:
    net = oracle.randomize_pair("gpt2", 3).net
    settings: dict[str, Any] = dict(do_sample=True, temperature=3.0, max_new_tokens=6)
    all_config = GenerationConfig(**settings, num_return_sequences=8)
    best_config = GenerationConfig(**settings, best_of=8, num_return_sequences=2)
    (samples,) = generate(net, [[5, 6]], generation_config=all_config)
    (best,) = generate(net, [[5, 6]], generation_config=best_config)
    ranked = sorted(samples, key=lambda result: -result.score)
    assert [result.token_ids for result in best] == [result.token_ids for result in ranked[:2]]
    assert best[0].score == pytest.approx(sum(best[0].log_probs) / 6)
