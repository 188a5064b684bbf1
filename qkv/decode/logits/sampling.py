"""Sampling: filters of the distribution, and samples that depend only on the seed and step of a row.

A row gives the same sample alone and in a batch. N rows, V vocabulary size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from qkv.decode.config import GenerationConfig

SamplingFilter = Callable[[Tensor], Tensor]  # scores (N, V) -> scores, -inf for removed tokens
FILTER_VALUE = -torch.inf


def build_sampling_filters(config: GenerationConfig) -> list[SamplingFilter]:
    """Return the filters of a config in the order of application.

    Beam search keeps more tokens, so that one of them is not EOS."""
    min_tokens_to_keep = 1 if config.num_beams == 1 else max(2, 1 + len(config.eos_token_id))
    return list(_iter_sampling_filters(config, min_tokens_to_keep))


def _iter_sampling_filters(
    config: GenerationConfig, min_tokens_to_keep: int
) -> Iterator[SamplingFilter]:
    if config.temperature != 1:
        yield lambda scores: scores / config.temperature
    if config.top_k:
        yield partial(filter_top_k, top_k=max(config.top_k, min_tokens_to_keep))
    if config.top_p < 1:
        yield partial(filter_top_p, top_p=config.top_p, min_tokens_to_keep=min_tokens_to_keep)
    if config.min_p:
        yield partial(filter_min_p, min_p=config.min_p, min_tokens_to_keep=min_tokens_to_keep)
    if config.typical_p < 1:
        yield partial(
            filter_typical_p, typical_p=config.typical_p, min_tokens_to_keep=min_tokens_to_keep
        )
    if 0 < config.epsilon_cutoff < 1:
        yield partial(
            filter_epsilon,
            epsilon_cutoff=config.epsilon_cutoff,
            min_tokens_to_keep=min_tokens_to_keep,
        )
    if 0 < config.eta_cutoff < 1:
        yield partial(
            filter_eta, eta_cutoff=config.eta_cutoff, min_tokens_to_keep=min_tokens_to_keep
        )


def get_top_k_mask(scores: Tensor, count: int) -> Tensor:
    """Return (N, V) true for the `count` largest scores and those equal to the last of them."""
    return scores >= scores.topk(min(count, scores.shape[-1])).values[:, -1:]


def filter_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Keep the k most likely tokens (Fan et al. 2018)."""
    return scores.masked_fill(~get_top_k_mask(scores, top_k), FILTER_VALUE)


def filter_top_p(scores: Tensor, top_p: float, min_tokens_to_keep: int) -> Tensor:
    """Nucleus sampling: keep the most likely tokens of this total mass (Holtzman et al. 2019)."""
    ascending, index = scores.sort(dim=-1)
    is_removed = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
    is_removed[:, -min_tokens_to_keep:] = False
    return scores.masked_fill(is_removed.scatter(1, index, is_removed), FILTER_VALUE)


def filter_min_p(scores: Tensor, min_p: float, min_tokens_to_keep: int) -> Tensor:
    """Keep tokens with at least this fraction of the largest probability (Nguyen et al. 2024)."""
    probs = scores.softmax(-1)
    is_removed = probs < min_p * probs.amax(-1, keepdim=True)
    is_removed.scatter_(1, probs.topk(min(min_tokens_to_keep, probs.shape[-1])).indices, False)
    return scores.masked_fill(is_removed, FILTER_VALUE)


def filter_typical_p(scores: Tensor, typical_p: float, min_tokens_to_keep: int) -> Tensor:
    """Locally typical sampling (Meister et al. 2022).

    Keep the tokens of this total mass whose information is nearest to the entropy."""
    log_probs = scores.log_softmax(-1)
    negative_entropy = (log_probs * log_probs.exp()).nansum(-1, keepdim=True)
    deviation = (-log_probs + negative_entropy).abs()
    ascending, index = deviation.sort(dim=-1)
    cumulative = scores.gather(1, index).softmax(-1).cumsum(-1)
    last = (cumulative < typical_p).sum(1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    is_removed = ascending > ascending.gather(1, last)
    is_removed[:, :min_tokens_to_keep] = False
    return scores.masked_fill(is_removed.scatter(1, index, is_removed), FILTER_VALUE)


def filter_epsilon(
    scores: Tensor, epsilon_cutoff: float | Tensor, min_tokens_to_keep: int
) -> Tensor:
    """Epsilon sampling: keep tokens with at least this probability (Hewitt et al. 2022)."""
    is_removed = (scores.softmax(-1) < epsilon_cutoff) & ~get_top_k_mask(scores, min_tokens_to_keep)
    return scores.masked_fill(is_removed, FILTER_VALUE)


def filter_eta(scores: Tensor, eta_cutoff: float, min_tokens_to_keep: int) -> Tensor:
    """Eta sampling: a cutoff that decreases with the entropy (Hewitt et al. 2022)."""
    log_probs = scores.log_softmax(-1)
    finite_log_probs = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    entropy = -(finite_log_probs * log_probs.exp()).sum(-1, keepdim=True)
    cutoff = (eta_cutoff**0.5 * (-entropy).exp()).clamp(max=eta_cutoff)
    return filter_epsilon(scores, cutoff, min_tokens_to_keep)


def hash_uniform(seed: Tensor, step: Tensor, stream: int = 0) -> Tensor:
    """Return a uniform number in [0, 1) for every seed (N,) and step (N,), the same on any device.

    It is a splitmix64 hash; streams are independent of each other."""
    x = _mix_bits(_mix_bits(seed) + step * 0x632BE59BD9B4E019 + stream)
    return ((x >> 24) & ((1 << 40) - 1)).double() * 2.0**-40


def _mix_bits(x: Tensor) -> Tensor:
    """Apply splitmix64 to int64 values; products wrap around."""
    x = x + _to_signed_int64(0x9E3779B97F4A7C15)
    x = (x ^ _shift_right_logical(x, 30)) * _to_signed_int64(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right_logical(x, 27)) * _to_signed_int64(0x94D049BB133111EB)
    return x ^ _shift_right_logical(x, 31)


def _shift_right_logical(x: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros, where >> copies the sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _to_signed_int64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def sample_tokens(scores: Tensor, uniform_values: Tensor) -> Tensor:
    """Sample a token per row: the inverse cumulative distribution at values (N,) in [0, 1)."""
    cumulative = scores.double().softmax(-1).cumsum(-1)
    thresholds = uniform_values * cumulative[:, -1]
    token_ids = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0]
    return token_ids.clamp(max=scores.shape[-1] - 1)


def sample_without_replacement(
    scores: Tensor, seed: Tensor, step: Tensor, num_samples: int
) -> Tensor:
    """Sample different tokens (N, num_samples) one after another."""
    samples: list[Tensor] = []
    for stream in range(num_samples):
        samples.append(sample_tokens(scores, hash_uniform(seed, step, stream)))
        scores = scores.scatter(1, samples[-1][:, None], FILTER_VALUE)
    return torch.stack(samples, dim=1)
