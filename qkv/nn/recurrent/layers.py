"""Recurrent layers, which read a token at a time: RNN, GRU, LSTM and LSTMN.

N rows, E input width, W width, G gates * W, M entries of a tape, t new tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.nn.attention_record import KeyProducts
from qkv.nn.cache import Cache, KVCache, RecurrentState
from qkv.nn.recurrent.attention import WeightsRecorder
from qkv.nn.recurrent.cells import RecurrentCell, State
from qkv.nn.recurrent.rows import gather_last
from qkv.nn.scores import build_score
from qkv.nn.selections import build_selection


class History:
    """The states of a layer after each token; the first is the initial state."""

    def __init__(self, state: State) -> None:
        self.states = [state]

    @property
    def hidden(self) -> Tensor:
        """The hidden state after the last token: (N, W)."""
        return self.states[-1][0]

    def finish(self, lengths: Tensor | None) -> State:
        """Return the states after the last token of each row: (N, 1, W)."""
        parts = [torch.stack(part, dim=1) for part in zip(*self.states, strict=True)]
        return tuple(gather_last(part, lengths)[:, None] for part in parts)


class RecurrentLayer(nn.Module):
    """An RNN, GRU or LSTM."""

    def __init__(self, cell: str, input_width: int, width: int, bidirectional: bool) -> None:
        super().__init__()
        self.cell = RecurrentCell(cell, input_width, width, bidirectional)

    def create_cache(self) -> Cache:
        return RecurrentState()

    def start(self, state: State) -> History:
        return History(state)

    def resume(self, cache: Cache) -> History:
        names = ("hidden", "cell")[: self.cell.cell_type.num_states]
        return History(tuple(cache.read(name)[:, 0] for name in names))

    def step(self, x: Tensor, input_gates: Tensor, history: History) -> Tensor:
        """Read a token: its gates (N, G) -> hidden (N, W)."""
        history.states.append(self.cell.step(input_gates, history.states[-1]))
        return history.hidden


class Tape:
    """The past of an LSTMN layer, oldest first: its tensors (N, M, W) and those of new tokens."""

    def __init__(self, past: dict[str, Tensor], mask: Tensor | None) -> None:
        self.past = past
        self.mask = mask  # (N, M), true where a past state may be attended to; None: all
        self.new: dict[str, list[Tensor]] = {name: [] for name in past}  # (N, W) each
        self.queries: list[Tensor] = []  # (N, E + W) of each token
        self.weights: list[Tensor] = []  # (N, M + t) of each token

    def read(self, name: str) -> Tensor:
        """Return a tensor with its new entries: (N, M + t, W)."""
        new = self.new[name]
        return torch.cat([self.past[name], torch.stack(new, 1)], dim=1) if new else self.past[name]

    def read_last(self, name: str) -> Tensor:
        """Return the latest entry of each row: (N, W)."""
        return self.new[name][-1] if self.new[name] else self.read_last_past(name)

    def read_last_past(self, name: str) -> Tensor:
        """Return the latest entry of each row before the new ones: (N, W)."""
        if self.mask is None:
            return self.past[name][:, -1]
        columns = torch.arange(self.mask.shape[1], device=self.mask.device)
        last = (columns * self.mask).argmax(1)
        return self.past[name][torch.arange(len(last), device=last.device), last]

    @property
    def hidden(self) -> Tensor:
        """The hidden state after the last token: (N, W)."""
        return self.read_last("hidden")

    def finish(self, lengths: Tensor | None) -> State:
        """Return the states after the last token of each row: (N, 1, W)."""
        return tuple(
            gather_last(torch.stack([self.read_last_past(name), *self.new[name]], 1), lengths)[
                :, None
            ]
            for name in ("hidden", "cell")
        )

    def stack_new(self) -> dict[str, Tensor]:
        """Return the new entries: (N, t, W) each."""
        return {name: torch.stack(entries, dim=1) for name, entries in self.new.items()}

    def stack_weights(self) -> Tensor:
        """Return the weights of the new tokens, which have columns of their own: (N, t, M + t)."""
        width = self.weights[-1].shape[1] + 1
        padded = [F.pad(weights, (0, width - weights.shape[1])) for weights in self.weights]
        return torch.stack(padded, dim=1)

    def build_mask(self, hides_first: bool) -> Tensor | None:
        """Return which entries the next token attends to: (N, 1, M + t). With `hides_first`, the
        initial state is one of them only if it is the only one."""
        count = len(self.new["hidden"])
        if self.mask is None and not (hides_first and count):
            return None
        past = self.past["hidden"]
        mask = past.new_ones(past.shape[:2], dtype=torch.bool) if self.mask is None else self.mask
        mask = torch.cat([mask, mask.new_ones(len(mask), count)], dim=1)[:, None]
        if hides_first and mask.shape[2] > 1:
            mask = torch.cat([torch.zeros_like(mask[..., :1]), mask[..., 1:]], dim=2)
        return mask


class IntraAttentionLayer(nn.Module):
    """LSTM whose hidden state and memory cell are weighted sums of all earlier ones, by attention
    (LSTMN, Cheng et al. 2016)."""

    def __init__(self, input_width: int, feed_width: int, width: int, hides_first: bool) -> None:
        super().__init__()
        self.cell = RecurrentCell("lstm", input_width + feed_width, width)
        self.score = build_score(
            "additive", query_width=input_width + width, key_width=width, width=width
        )
        self.selection = build_selection("softmax", query_width=input_width + width)
        self.hides_first = hides_first  # a stack that starts from zeros
        self.kernel = WeightsRecorder()

    def create_cache(self) -> Cache:
        return KVCache()

    def start(self, state: State) -> Tape:
        """Return a tape with the initial state (N, W) as its only entry."""
        hidden, cell = (part[:, None] for part in state)
        past = {"hidden": hidden, "cell": cell, "keys": self.score.prepare_keys(hidden)}
        return Tape(past | {"summary": torch.zeros_like(hidden)}, None)

    def resume(self, cache: Cache) -> Tape:
        assert cache.positions is not None
        names = ("hidden", "cell", "keys", "summary")
        return Tape({name: cache.read(name) for name in names}, cache.positions >= 0)

    def step(self, x: Tensor, input_gates: Tensor, tape: Tape) -> Tensor:
        """Read a token: x (N, E), its gates (N, G) -> hidden (N, W)."""
        query = torch.cat([x, tape.read_last("summary")], dim=-1)[:, None]
        scores = self.score(query, tape.read("keys"))
        weights = self.selection(scores, tape.build_mask(self.hides_first), query)  # (N, 1, M + t)
        summary = (weights @ tape.read("hidden"))[:, 0]
        memory = (weights @ tape.read("cell"))[:, 0]
        hidden, cell = self.cell.step(input_gates, (summary, memory))
        new = {"hidden": hidden, "cell": cell, "summary": summary}
        new["keys"] = self.score.prepare_keys(hidden[:, None])[:, 0]
        for name, tensor in new.items():
            tape.new[name].append(tensor)
        tape.queries.append(query[:, 0])
        tape.weights.append(weights[:, 0])
        return hidden

    def get_products(self, tape: Tape, batch_index: int, head: int, row: int) -> KeyProducts:
        """Return a query, all keys and the products of their score; later keys are masked."""
        query, keys = tape.queries[row][batch_index], tape.read("keys")[batch_index]
        return KeyProducts(query, keys, self.score.compute_products(query[None], keys)[0])


AnyLayer = RecurrentLayer | IntraAttentionLayer
