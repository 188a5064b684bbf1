"""Recurrence: Transformer-XL and XLNet read on from the states of what they have read.

Rows begin together, with prompts of one length, and so have as many states ever after.
B rows, M states remembered, T tokens, W width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.decode.runner import Moves, Prompts, Read, Sources, held, of_places
from qkv.decode.transfer import sent
from qkv.nn.transformer import Transformer

MOST = 8192  # tokens of a prompt that are read at once
SEGMENT = 1024  # tokens at a time of a longer one, each with the states that are kept of those before it


class Recurrence:
    def __init__(self, net: Transformer, width: int = 1) -> None:
        self.net, self.width = net, width
        self.device = next(net.parameters()).device
        self.states: Tensor | None = None  # (layers, B, M, W)
        self.said = torch.zeros(0, 0, dtype=torch.long, device=self.device)  # (B, L) all ids so far
        self.asks = net.tower.stack.embed.query  # a second stream predicts a token that nobody sees
        recall = net.tower.stack.recall
        assert recall is not None
        # XLNet's states look both ways, so that the last token is read once more with what follows it;
        # a net that keeps no states reads all again.
        self.again = None if recall.zeros and not recall.length else 1 if self.asks else 0

    def enter(self, prompts: Prompts, sources: Sources) -> Read:
        self.said = sent([[*each] for each in prompts], self.device)
        length, again = self.said.shape[1], self.again or 0
        size = length if length <= MOST or self.again is None else SEGMENT
        for start in range(0, length, size):
            found = self.read(self.said[:, max(start - again, 0) : start + size])
        self.pick(sent([place for place in range(len(prompts)) for _ in range(self.width)], self.device))
        return found

    def step(self, ids: Tensor) -> Read:
        self.said = torch.cat([self.said, ids], dim=1)
        return self.read(self.said if self.again is None else self.said[:, -1 - self.again :])

    def read(self, ids: Tensor) -> Read:
        (size, length), device = ids.shape, ids.device
        if not self.asks:
            last = torch.arange(1, size + 1, device=device) * length - 1
            out = self.net(Batch(rows=Rows.of(ids), memory=self.states, read=last))
            self.states = out["memory"]
            return Read(out["logits"], out["hidden"])
        unseen = torch.arange(length + 1, device=device) == length
        itself = torch.eye(length + 1, dtype=torch.bool, device=device)
        allowed = torch.cat([~unseen | itself, ~unseen[None]]).expand(size, -1, -1)
        targets = torch.full((size, 1), length, device=device)
        rows = Rows.of(F.pad(ids, (0, 1)))
        out = self.net(Batch(rows=rows, memory=self.states, allowed=allowed, targets=targets))
        self.states = out["memory"][:, :, :-2]  # without the last token, and the one that nobody sees
        return Read(out["logits"][:, -1], out["hidden"])

    def repeat(self, places: list[int]) -> None:
        self.pick(sent([*range(len(self.said)), *of_places(places, self.width)], self.device))

    def select(self, parents: Tensor, ids: Tensor, alike: int) -> None:
        self.pick(parents)

    def leave(self, moves: Moves, count: int) -> None:
        old, new = [place for place, _ in moves], [place for _, place in moves]
        places = held([*range(len(self.said) // self.width)], old, new, count)
        self.pick(sent(of_places(places, self.width), self.device))

    def pick(self, index: Tensor) -> None:
        """These rows, in this order."""
        assert self.states is not None
        self.states, self.said = self.states[:, index], self.said[index]
