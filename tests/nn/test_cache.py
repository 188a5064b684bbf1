"""Slots: token by token, in chunks, while rows leave, fork, join and go back, all is as if said at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Rows
from qkv.nn.cache import Slot
from qkv.nn.transformer import Transformer
from qkv.spec import Banded, Spec
from tests.support import tiny

CASES = pytest.mark.parametrize("name", tiny.CAUSAL)
SOURCES = (5, 3, 6, 4)  # lengths of what the decoders of pairs read


class Rowed:
    """Rows that read through Slots. Every read is held against each row alone, from its first token on."""

    def __init__(self, name: str, rows: int, seed: int = 0) -> None:
        self.family, changes = tiny.CAUSAL[name]
        self.made = tiny.model(self.family, **changes)
        self.memory = tiny.memory(self.made, rows)
        self.said: list[list[int]] = [[] for _ in range(rows)]
        self.crosses = bool(changes.get("cross"))
        self.source: list[Tensor] = []
        for n in range(rows):
            length = SOURCES[(n + seed) % len(SOURCES)]
            states = torch.randn(length, tiny.WIDTH, dtype=torch.float64)
            self.source.append(states if self.crosses else tiny.ids(length, seed=10 * seed + n))

    def read(self, *tokens: list[int], pads: str = "left") -> None:
        """Row by row the tokens that come next; shorter ones are padded."""
        ids, mask = padded([torch.tensor(row, dtype=torch.long) for row in tokens], pads)
        begun = any(self.said)
        out = self.run(ids, mask, [] if begun else self.source, self.memory)
        for n, new in enumerate(tokens):
            self.said[n] = self.said[n] + new
            if new:
                alone = self.run(torch.tensor([self.said[n]]), None, self.source[n : n + 1], None)
                ours = {k: out[k][n, mask[n]] for k in ("hidden", "logits")}
                tiny.close(ours, {k: alone[k][0, -len(new) :] for k in ours})

    def run(self, ids: Tensor, mask: Tensor | None, source: list[Tensor], memory: Any) -> dict[str, Tensor]:
        rows = Rows.of(ids, mask=mask)
        if not source or not (self.crosses or self.family in tiny.PAIRS):
            pair = self.family in tiny.PAIRS
            return self.made.net(Batch(target=rows) if pair else Batch(rows=rows), memory)
        given, seats = padded(source, "right")
        if self.crosses:
            side = Rows.of(embeds=given, mask=seats)
            return self.made.net(Batch(rows=rows, source=side), memory)
        return self.made.net(Batch(rows=Rows.of(given, mask=seats), target=rows), memory)

    def slots(self) -> list[Slot]:
        return [slot for part in self.memory for slot in part if len(slot)]

    def select(self, *rows: int) -> None:
        for slot in self.slots():
            slot.select(torch.tensor(rows))
        self.said, self.source = [self.said[n] for n in rows], [self.source[n] for n in rows]

    def admit(self, other: Rowed) -> None:
        for mine, theirs in zip(self.slots(), other.slots(), strict=True):
            mine.admit(theirs)
        self.said, self.source = self.said + other.said, self.source + other.source

    def cut(self, *lengths: int) -> None:
        """What a recurrence begins with counts as remembered."""
        before = self.made.args["memory"] if self.family == "transformer-xl" else 0
        for part in self.memory:
            part.attend.cut(torch.tensor(lengths) + before)
        self.said = [row[:n] for row, n in zip(self.said, lengths, strict=True)]


def padded(rows: list[Tensor], pads: str) -> tuple[Tensor, Tensor]:
    """Rows of one length, and where their tokens stand."""
    out = rows[0].new_zeros(len(rows), max(len(row) for row in rows), *rows[0].shape[1:])
    mask = torch.zeros(out.shape[:2], dtype=torch.bool)
    for n, row in enumerate(rows):
        place = slice(out.shape[1] - len(row), None) if pads == "left" else slice(len(row))
        out[n, place], mask[n, place] = row, True
    return out, mask


def words(count: int, seed: int = 0) -> list[int]:
    return tiny.ids(count, seed=100 + seed).tolist()


@CASES
def test_one_at_a_time(name: str) -> None:
    rows = Rowed(name, 2)
    one, two = words(11, 1), words(11, 2)
    for t in range(11):
        rows.read(one[t : t + 1], two[t : t + 1])


@CASES
def test_in_chunks(name: str) -> None:
    rows = Rowed(name, 2)
    for n, count in enumerate((4, 1, 5, 2)):
        rows.read(words(count, n), words(count, n + 10))


@CASES
@pytest.mark.parametrize("pads", ["left", "right"])
def test_ragged_prompts(name: str, pads: str) -> None:
    rows = Rowed(name, 3)
    rows.read(words(6), words(3, 1), words(1, 2), pads=pads)
    rows.read([9], [10], [11])
    rows.read(words(2, 3), [], words(3, 4), pads=pads)
    rows.read([12], [13], [14])


@CASES
def test_rows_leave(name: str) -> None:
    rows = Rowed(name, 3)
    rows.read(words(5), words(2, 1), words(4, 2))
    rows.select(2, 0)
    rows.read([20], [21])
    rows.select(1)
    rows.read([22])
    rows.read(words(3, 3))


@CASES
def test_rows_fork(name: str) -> None:
    rows = Rowed(name, 2)
    rows.read(words(5), words(3, 1))
    rows.select(0, 1, 0, 1, 1)
    rows.read([20], [21], [22], [23], [24])
    rows.select(3, 3, 0)
    rows.read([30], [31], [32])
    rows.read([33], [34], [35])


@CASES
@pytest.mark.parametrize("lengths", [(7, 3), (2, 6)], ids=["shorter", "longer"])
def test_rows_join(name: str, lengths: tuple[int, int]) -> None:
    rows, others = Rowed(name, 2), Rowed(name, 2, seed=1)
    rows.read(words(lengths[0]), words(1, 1))
    others.read(words(lengths[1], 2), words(2, 3))
    rows.admit(others)
    rows.read([20], [21], [22], [23])
    rows.select(3, 0, 2)
    rows.read(words(2, 4), words(2, 5), words(2, 6))


@CASES
def test_rows_go_back(name: str) -> None:
    rows = Rowed(name, 2)
    rows.read(words(6), words(4, 1))
    rows.cut(2, 4)
    rows.read(words(3, 2), words(3, 3))
    rows.cut(5, 0)
    rows.read([20], [21])
    rows.read([22], [23])


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "sparse-fixed-heads", "transformer-xl", "xlnet-uni"])
def test_everything_in_turn(name: str) -> None:
    rows, others = Rowed(name, 3), Rowed(name, 1, seed=1)
    rows.read(words(6), words(3, 1), words(5, 2))
    rows.cut(4, 3, 1)
    rows.select(2, 1, 0, 0)
    rows.read([20], [21], [22], [23])
    others.read(words(9, 3))
    others.cut(7)
    rows.admit(others)
    rows.read(words(2, 4), [24], [25], [26], words(2, 5))
    rows.select(4, 0)
    rows.read([27], [28])


@pytest.mark.parametrize("name", ["gpt2", "bert-decoder", "llama", "t5", "bart", "sparse-strided-heads"])
def test_looked_at_step_by_step(name: str) -> None:
    rows = Rowed(name, 1)
    tokens = words(6)
    with qkv.look(rows.made) as seen:
        rows.run(torch.tensor([tokens]), None, rows.source, None)
    full = dict(seen)
    for t, token in enumerate(tokens):
        with qkv.look(rows.made, lambda path: "encoder.layers" not in path or name == "bert-decoder") as seen:
            rows.run(torch.tensor([[token]]), None, [] if t else rows.source, rows.memory)
        for path, weights in seen.items():
            keys = weights.shape[-1] if "cross" in path else t + 1
            assert weights.shape[-1] == keys
            tiny.close({path: weights[:, :, 0]}, {path: full[path][:, :, t, :keys]})
            assert full[path][:, :, t, keys:].eq(0).all()


def test_the_last_seats_are_enough_for_a_band() -> None:
    """A model that sees four tokens need not remember more than three."""
    made = tiny.model("llama")
    assert isinstance(made.spec, Spec)
    assert made.spec.decoder is not None
    near = [replace(x, attend=replace(x.attend, pattern=Banded(4))) for x in made.spec.decoder.layers]
    net = Transformer(replace(made.spec, decoder=replace(made.spec.decoder, layers=tuple(near)))).double()
    net.load_state_dict(made.net.state_dict())
    ids = tiny.ids(2, 12)
    full, memory = net(Batch(rows=Rows.of(ids))), net.memory(2)
    assert tiny.apart(full["logits"], made.net(Batch(rows=Rows.of(ids)))["logits"]) > 1e-3
    for t in range(12):
        out = net(Batch(rows=Rows.of(ids[:, t : t + 1])), memory)
        tiny.close(out, {name: full[name][:, t : t + 1] for name in out})
        for part in memory:
            part.attend.keep(3)
            assert len(part.attend) == min(t + 1, 3)


@pytest.mark.parametrize("name", ["transformer-xl", "transformer-xl-same", "xlnet-uni"])
def test_a_recurrence_keeps_its_last_states(name: str) -> None:
    """Slots cut to the memory's length are the memory that a call returns."""
    family, changes = tiny.CAUSAL[name]
    made = tiny.model(family, **changes)
    slots, given = tiny.memory(made, 2), None
    for n in range(3):
        ids = tiny.ids(2, 4, seed=n)
        ours = made.net(Batch(rows=Rows.of(ids)), slots)
        theirs = made.run(ids, memory=given)
        given = theirs["memory"]
        tiny.close(ours, {name: theirs[name] for name in ("hidden", "logits")})
        for part, states in zip(slots, given, strict=True):
            part.attend.keep(made.args["memory"])
            tiny.close({"hidden": part.attend.read("hidden")}, {"hidden": states})


def slot(*rows: list[int]) -> Slot:
    """Seats whose tensor holds 10 times the row plus the position."""
    made = Slot()
    positions = torch.tensor(rows)
    numbers = torch.arange(len(rows))[:, None] * 10 + positions
    made.extend({"x": numbers[..., None].double()}, positions)
    return made


def held(made: Slot) -> list[list[int | None]]:
    """Row by row what stands in the seats, None in an empty one."""
    assert made.positions is not None
    return [
        [int(x) if p >= 0 else None for x, p in zip(xs, ps, strict=True)]
        for xs, ps in zip(made.read("x")[..., 0], made.positions, strict=True)
    ]


class TestSlot:
    def test_an_empty_one_has_no_length(self) -> None:
        assert len(Slot()) == 0

    def test_extends_along_time(self) -> None:
        made = slot([0, 1], [-1, 0])
        made.extend({"x": torch.tensor([[[2.0]], [[11.0]]])}, torch.tensor([[2], [1]]))
        assert len(made) == 3
        assert held(made) == [[0, 1, 2], [None, 10, 11]]
        assert made.next().tolist() == [[3], [2]]

    def test_selects_rows_in_any_order_and_number(self) -> None:
        made = slot([0, 1], [-1, 0], [0, 1])
        made.select(torch.tensor([2, 1, 2]))
        assert held(made) == [[20, 21], [None, 10], [20, 21]]

    def test_forked_rows_go_their_own_ways(self) -> None:
        made = slot([0], [0])
        made.select(torch.tensor([1, 1]))
        made.extend({"x": torch.tensor([[[1.0]], [[2.0]]])}, torch.tensor([[1], [1]]))
        assert held(made) == [[10, 1], [10, 2]]

    @pytest.mark.parametrize(
        ("count", "left"), [(2, [[1, 2], [10, 11]]), (0, [[], []]), (9, [[0, 1, 2], [None, 10, 11]])]
    )
    def test_keeps_the_last_seats(self, count: int, left: list[list[int | None]]) -> None:
        made = slot([0, 1, 2], [-1, 0, 1])
        made.keep(count)
        assert held(made) == left
        assert len(made) == len(left[0])

    def test_admits_rows_below(self) -> None:
        made = slot([0, 1, 2])
        made.admit(slot([0], [0]))
        assert held(made) == [[0, 1, 2], [None, None, 0], [None, None, 10]]
        made = slot([0])
        made.admit(slot([0, 1, 2], [-1, 0, 1]))
        assert held(made) == [[None, None, 0], [0, 1, 2], [None, 10, 11]]

    def test_an_empty_one_admits(self) -> None:
        made, other = Slot(), slot([0, 1], [-1, 0])
        made.admit(other)
        assert held(made) == [[0, 1], [None, 10]]
        made.select(torch.tensor([1]))
        assert held(other) == [[0, 1], [None, 10]]

    def test_rows_are_not_lost_to_an_empty_one(self) -> None:
        made = slot([0, 1], [-1, 0])
        with suppress(AssertionError, ValueError):
            made.admit(Slot())
        assert held(made) == [[0, 1], [None, 10]]

    def test_cuts_each_row_to_a_length(self) -> None:
        made = slot([0, 1, 2], [-1, 0, 1], [0, 1, 2])
        made.cut(torch.tensor([1, 2, 0]))
        assert held(made) == [[0, None, None], [None, 10, 11], [None, None, None]]
        assert made.next().tolist() == [[1], [2], [0]]

    def test_goes_on_from_where_it_was_cut(self) -> None:
        made = slot([0, 1, 2], [0, 1, 2])
        made.cut(torch.tensor([1, 3]))
        made.extend({"x": torch.tensor([[[5.0]], [[6.0]]])}, made.next())
        assert held(made) == [[0, None, None, 5], [10, 11, 12, 6]]
        made.cut(torch.tensor([2, 2]))
        assert held(made) == [[0, None, None, 5], [10, 11, None, None]]
