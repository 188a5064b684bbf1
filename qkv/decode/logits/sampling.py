"""Filters of a distribution, and draws from it that depend on a row's seed and step, not on its company.

N rows, V words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from qkv.decode.config import How

Filter = Callable[[Tensor], Tensor]  # scores (N, V) -> scores, -inf where nothing is drawn
NEVER = -torch.inf


def filters_of(how: How) -> list[Filter]:
    """The filters that settings ask for, in their order; beams keep more: they need a word that is no end."""
    keep = 1 if how.beams == 1 else max(2, 1 + len(how.ends))
    return list(_filters(how, keep))


def _filters(how: How, keep: int) -> Iterator[Filter]:
    if how.temperature != 1:
        yield lambda scores: scores / how.temperature
    if how.top_k:
        yield partial(top_k, count=max(how.top_k, keep))
    if how.top_p < 1:
        yield partial(top_p, mass=how.top_p, keep=keep)
    if how.min_p:
        yield partial(min_p, share=how.min_p, keep=keep)
    if how.typical < 1:
        yield partial(typical, mass=how.typical, keep=keep)
    if 0 < how.epsilon < 1:
        yield partial(epsilon, least=how.epsilon, keep=keep)
    if 0 < how.eta < 1:
        yield partial(eta, least=how.eta, keep=keep)


def best_of(scores: Tensor, count: int) -> Tensor:
    """(N, V) true for the best `count`, and what equals the last of them."""
    return scores >= scores.topk(min(count, scores.shape[-1])).values[:, -1:]


def top_k(scores: Tensor, count: int) -> Tensor:
    return scores.masked_fill(~best_of(scores, count), NEVER)


def top_p(scores: Tensor, mass: float, keep: int) -> Tensor:
    """The likeliest words that together have this mass (Holtzman et al. 2019)."""
    rising, index = scores.sort(dim=-1)
    out = rising.softmax(-1).cumsum(-1) <= 1 - mass
    out[:, -keep:] = False
    return scores.masked_fill(out.scatter(1, index, out), NEVER)


def min_p(scores: Tensor, share: float, keep: int) -> Tensor:
    """Words no less likely than this share of the likeliest."""
    p = scores.softmax(-1)
    out = p < share * p.amax(-1, keepdim=True)
    out.scatter_(1, p.topk(min(keep, p.shape[-1])).indices, False)
    return scores.masked_fill(out, NEVER)


def typical(scores: Tensor, mass: float, keep: int) -> Tensor:
    """Words whose surprise is nearest to what is expected, up to this mass (Meister et al. 2022)."""
    logs = scores.log_softmax(-1)
    odd = (-logs + (logs * logs.exp()).nansum(-1, keepdim=True)).abs()
    rising, index = odd.sort(dim=-1)
    total = scores.gather(1, index).softmax(-1).cumsum(-1)
    last = (total < mass).sum(1, keepdim=True).clamp(max=scores.shape[-1] - 1)
    out = rising > rising.gather(1, last)
    out[:, :keep] = False
    return scores.masked_fill(out.scatter(1, index, out), NEVER)


def epsilon(scores: Tensor, least: float | Tensor, keep: int) -> Tensor:
    """Words no less likely than this (Hewitt et al. 2022)."""
    out = (scores.softmax(-1) < least) & ~best_of(scores, keep)
    return scores.masked_fill(out, NEVER)


def eta(scores: Tensor, least: float, keep: int) -> Tensor:
    """The same, with less asked of a word where many are likely."""
    logs = scores.log_softmax(-1)
    spread = -(logs.clamp(min=torch.finfo(logs.dtype).min) * logs.exp()).sum(-1, keepdim=True)
    return epsilon(scores, (least**0.5 * (-spread).exp()).clamp(max=least), keep)


def uniform(seed: Tensor, step: Tensor, stream: int = 0) -> Tensor:
    """A number in [0, 1) for every seed (N,) and step (N,): splitmix64 of the two, the same on any device."""
    x = _mixed(_mixed(seed) + step * 0x632BE59BD9B4E019 + stream)
    return ((x >> 24) & ((1 << 40) - 1)).double() * 2.0**-40


def _mixed(x: Tensor) -> Tensor:
    """Scatters the bits of whole numbers; products wrap."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _right(x, 31)


def _right(x: Tensor, count: int) -> Tensor:
    """A shift that brings in zeros."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def draw(scores: Tensor, at: Tensor) -> Tensor:
    """The word (N,) at which the sum of probabilities passes `at` (N,) in [0, 1)."""
    total = scores.double().softmax(-1).cumsum(-1)
    found = torch.searchsorted(total, (at * total[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=scores.shape[-1] - 1)


def draw_several(scores: Tensor, seed: Tensor, step: Tensor, count: int) -> Tensor:
    """(N, count) different words, one drawn after another."""
    found: list[Tensor] = []
    for stream in range(count):
        found.append(draw(scores, uniform(seed, step, stream)))
        scores = scores.scatter(1, found[-1][:, None], NEVER)
    return torch.stack(found, dim=1)
