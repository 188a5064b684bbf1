"""Beam search of an encoder-decoder; a beam of one is greedy. Knows ids, no text.

B rows, K beams each, V words. A row that is done leaves the batch; its source was encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.nn.stack import Memory, Transformer


class Found(NamedTuple):
    """One result: its ids, the end among them, and its score."""

    ids: list[int]
    score: float


@torch.no_grad()
def beam_search(
    net: Transformer, source: Rows, *, start: int, end: int, beams: int = 4, penalty: float = 1.0,
    longest: int = 200, banned: tuple[int, ...] = (),
) -> list[Found]:  # fmt: skip
    """The best result of every row, by the sum of its log-probabilities over its length ** penalty."""
    assert net.encoder is not None
    device, size = source.positions.device, source.size
    encoded = net.encoder(source, Batch(rows=source))["hidden"]
    rows = torch.arange(size, device=device).repeat_interleave(beams)  # (R*K,) whose beams these are
    given: Rows | None = picked(replace(source, embeds=encoded, ids=None, types=None), rows)
    memory = net.memory(len(rows))
    ids = torch.full((len(rows), 1), start, device=device)
    scores = torch.zeros(size, beams, device=device)
    scores[:, 1:] = -torch.inf  # beams are alike at first: one of them counts
    done: list[list[Found]] = [[] for _ in range(size)]
    alive = list(range(size))
    for step in range(1, longest + 1):
        out = net(Batch(target=Rows.of(ids[:, -1:]), source=given), memory)
        given = None  # remembered from now on
        logs = out["logits"][:, -1].float().log_softmax(-1)  # (R*K, V)
        logs[:, list(banned)] = -torch.inf
        words = logs.shape[-1]
        total = (scores.flatten()[:, None] + logs).unflatten(0, (-1, beams))  # (R, K, V)
        best = total.flatten(1).topk(2 * beams, dim=-1)  # half of them could be ends
        beam, word = best.indices // words, best.indices % words
        ended = word == end
        top = [x[:, :beams].tolist() for x in (best.values, beam, word)]
        for r, row in enumerate(alive):
            for score, k, w in zip(*(x[r] for x in top), strict=True):
                if (w == end or step == longest) and score > -torch.inf:
                    done[row].append(Found([*ids[r * beams + k, 1:].tolist(), w], score / step**penalty))
        kept = best.values.masked_fill(ended, -torch.inf).topk(beams, dim=-1)
        scores, order = kept.values, kept.indices
        beam, word = beam.gather(1, order), word.gather(1, order)
        stays = [
            r for r, row in enumerate(alive) if open_(done[row], beams, scores[r, 0].item(), step, penalty)
        ]
        if not stays:
            break
        alive, keep = [alive[r] for r in stays], torch.tensor(stays, device=device)
        parents = (keep[:, None] * beams + beam[keep]).flatten()
        scores, ids = scores[keep], torch.cat([ids[parents], word[keep].flatten()[:, None]], dim=1)
        select(memory, parents)
    return [max(found, key=lambda each: each.score) for found in done]


def beam_all(
    net: Transformer, sources: Sequence[Sequence[int]], *, pad: int, batch: int = 64, **how: Any
) -> list[Found]:
    """The best result of every source, in their order; rows of like length are searched together."""
    device = next(net.parameters()).device
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: dict[int, Found] = {}
    for some in (order[i : i + batch] for i in range(0, len(order), batch)):
        longest = max(1, max(len(sources[i]) for i in some))
        ids = torch.tensor([[*sources[i], *[pad] * (longest - len(sources[i]))] for i in some], device=device)
        lengths = torch.tensor([max(1, len(sources[i])) for i in some], device=device)
        mask = torch.arange(longest, device=device) < lengths[:, None]
        found |= zip(some, beam_search(net, Rows.of(ids, mask=mask), **how), strict=True)
    return [found[i] for i in range(len(sources))]


def open_(found: list[Found], beams: int, best: float, step: int, penalty: float) -> bool:
    """Could a beam that goes on still be among the best of its row?"""
    if len(found) < beams:
        return True
    return best / step**penalty > sorted((each.score for each in found), reverse=True)[beams - 1]


def picked(rows: Rows, index: Tensor) -> Rows:
    """These rows, in this order."""

    def pick(x: Tensor | None) -> Tensor | None:
        return x if x is None or len(x) == 1 else x[index]

    embeds = None if rows.embeds is None else rows.embeds[index]
    positions = rows.positions if len(rows.positions) == 1 else rows.positions[index]
    return replace(rows, embeds=embeds, positions=positions, seat=pick(rows.seat))


def select(memory: list[Memory], index: Tensor) -> None:
    for layer in memory:
        for slot in layer:
            if slot.positions is not None:
                slot.select(index)
