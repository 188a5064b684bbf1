"""Contrastive search (Su et al. 2022): of the likeliest ids, one whose state is unlike those before it.

The rows of a prompt read one candidate each; one of them is chosen, and all go on from there.
P prompts, K candidates of each, V words, W width of the states, C states kept."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.logits.processors import Seen
from qkv.decode.request import Choice, Group, See
from qkv.decode.runner import Read
from qkv.decode.search.greedy import said, say, weighed


def contrast(group: Group, read: Read, see: See) -> Choice:
    """Chooses among the candidates that were read, and proposes the next."""
    how, state, size, seen = group.how, group.state, len(group.entries), see().part(slice(0, 1))
    if group.fresh:
        lengths = [entry.length for entry in group.entries]
        stands = torch.arange(read.hidden.shape[1], device=group.device) < group.tensor(lengths)[:, None]
        state["context"] = directions(read.hidden) * stands[..., None]
        state["count"] = group.tensor(lengths)
        return Choice(propose(group, read.logits, seen))
    hidden = directions(read.hidden[:, -1]).unflatten(0, (size, -1))  # (P, K, W)
    alike = hidden @ state["context"].transpose(1, 2)  # (P, K, C)
    stands = torch.arange(alike.shape[2], device=group.device) < state["count"][:, None]
    far = alike.masked_fill(~stands[:, None], -torch.inf).amax(2)
    worth = (1 - how.contrast) * state["share"] - how.contrast * far
    chosen = worth.masked_fill(state["share"] == 0, -torch.inf).argmax(1, keepdim=True)  # (P, 1)
    word, score = (state[name].gather(1, chosen)[:, 0] for name in ("word", "share"))
    told = said(word, score.double().log())
    remember(group, hidden.gather(1, chosen[..., None].expand(-1, -1, hidden.shape[2])))
    rows = torch.arange(0, size * how.top_k, how.top_k, device=group.device) + chosen[:, 0]
    feed = propose(group, read.logits[rows], seen.with_one_more(word))
    said_by_all, parents = (x.repeat_interleave(how.top_k) for x in (word, rows))
    return Choice(feed, said_by_all, parents, partial(say, group.entries, told))


def propose(group: Group, logits: Tensor, seen: Seen) -> Tensor:
    """The likeliest ids of each prompt, one for every row of it: (P*K,)."""
    shares = weighed(group, logits, seen).softmax(-1).topk(group.how.top_k, dim=1)
    group.state["share"], group.state["word"] = shares.values, shares.indices
    return shares.indices.flatten()


def remember(group: Group, chosen: Tensor) -> None:
    """The state (P, 1, W) of the chosen id joins those before it."""
    state = group.state
    if max(entry.length for entry in group.entries) >= state["context"].shape[1]:
        state["context"] = F.pad(state["context"], (0, 0, 0, state["context"].shape[1]))
    where = state["count"][:, None, None].expand(-1, 1, chosen.shape[2])
    state["context"] = state["context"].scatter(1, where, chosen)
    state["count"] = state["count"] + 1


def directions(hidden: Tensor) -> Tensor:
    return hidden.float() / hidden.float().norm(dim=-1, keepdim=True)
