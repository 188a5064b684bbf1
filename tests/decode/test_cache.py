"""Slots written in place hold what plain ones hold, however rows differ in length, join, fork and leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.decode.cache import Columns, Kept
from qkv.nn.cache import Slot

CPU = torch.device("cpu")


def filled(rows: int, static: bool = False) -> tuple[Columns, Kept]:
    columns = Columns(CPU, static=static)
    return columns, Kept(columns)


def values(rows: int, count: int, start: float) -> dict[str, Tensor]:
    return {"x": start + torch.arange(rows * count, dtype=torch.float32).view(rows, count, 1)}


def enter(columns: Columns, slot: Kept, new: dict[str, Tensor], lengths: list[int]) -> None:
    first, (rows, length, _) = len(columns.filled), new["x"].shape
    columns.begin(slice(first, first + rows), length)
    slot.extend(new, torch.zeros(0))
    columns.add(lengths)


def step(columns: Columns, slot: Kept, new: dict[str, Tensor]) -> tuple[Tensor, Tensor, bool]:
    if columns.static:
        columns.settle(new["x"].shape[1])
    at, keys, full = columns.go_on(new["x"].shape[1])
    rows = len(at) if columns.index is not None else len(new["x"])
    padded = torch.nn.functional.pad(new["x"], (0, 0, 0, 0, 0, rows - len(new["x"])))
    slot.extend({"x": padded}, at)
    columns.written(new["x"].shape[1])
    return at, keys, full


def test_rows_of_one_length_are_a_view_without_a_mask() -> None:
    columns, slot = filled(2)
    enter(columns, slot, values(2, 3, 0), [3, 3])
    at, keys, full = step(columns, slot, values(2, 1, 100))
    assert full
    assert at.tolist() == [[3]]
    assert keys.tolist() == [[0, 1, 2, 3]]
    assert slot.read("x")[..., 0].tolist() == [[0, 1, 2, 100], [3, 4, 5, 101]]
    assert slot.read("x").data_ptr() == slot.tensors["x"].data_ptr()


def test_rows_of_several_lengths_write_each_at_their_end() -> None:
    for static in (False, True):
        columns, slot = filled(2, static)
        enter(columns, slot, values(2, 3, 0), [3, 1])
        at, keys, full = step(columns, slot, values(2, 2, 100))
        assert not full
        assert at[:2].tolist() == [[3, 4], [1, 2]]
        assert keys[:2, :6].tolist()[0][:5] == [0, 1, 2, 3, 4]
        assert keys[1, :5].tolist() == [0, 1, 2, -1, -1]
        assert slot.read("x")[0, :5, 0].tolist() == [0, 1, 2, 100, 101]
        assert slot.read("x")[1, :3, 0].tolist() == [3, 102, 103]
        assert slot.read("x").isfinite().all()
        assert columns.filled == [5, 3]
        assert columns.count[:2].tolist() == [5, 3]


def test_what_was_never_written_is_a_number(monkeypatch: object) -> None:
    columns, slot = filled(1)
    columns.begin(slice(0, 1), 2)
    slot.extend(values(1, 2, 0), torch.zeros(0))
    slot.tensors["x"][:, 2:] = torch.nan  # as memory may be
    slot.tensors["x"][1:] = torch.nan
    columns.add([2])
    enter(columns, slot, values(1, 5, 10), [5])
    step(columns, slot, values(2, 1, 100))
    assert slot.read("x").isfinite().all()


def test_buffers_grow_by_doubling() -> None:
    columns, slot = filled(1)
    enter(columns, slot, values(1, 60, 0), [60])
    for n in range(10):
        step(columns, slot, values(1, 1, 1000 + n))
    assert slot.tensors["x"].shape[:2] == columns.room == (1, 128)
    assert slot.read("x")[0, :, 0].tolist() == [*range(60), *range(1000, 1010)]
    enter(columns, slot, values(2, 3, 0), [3, 3])
    assert columns.room == (4, 128)
    step(columns, slot, values(3, 1, 7))
    assert slot.read("x")[0, :60, 0].tolist() == [*range(60)]


def test_rows_move() -> None:
    columns, slot = filled(3)
    enter(columns, slot, values(3, 2, 0), [2, 2, 2])
    slot.move(columns.places([2, 0], 2), columns.places([0, 1], 2))
    columns.rows, columns.stop = slice(0, 3), 2
    assert slot.read("x")[..., 0].tolist() == [[4, 5], [0, 1], [4, 5]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("start", "filled_to"), [(0, 5), (1, 8), (20, 60)])
def test_rows_take_over_what_others_are(dtype: torch.dtype, start: int, filled_to: int) -> None:
    columns, slot = filled(3)
    new = torch.randn(3, filled_to, 3, 5).to(dtype)  # no multiple of 8 bytes in a column
    columns.begin(slice(0, 3), filled_to)
    slot.extend({"x": new}, torch.zeros(0))
    columns.add([filled_to] * 3)
    slot.take(torch.tensor([2, 0, 2]), start, filled_to)
    columns.rows, columns.stop = slice(0, 3), filled_to
    assert torch.equal(slot.read("x")[:, start:], new[[2, 0, 2], start:])
    first = start // 8 * 8  # what both have in common is left as it is
    assert torch.equal(slot.read("x")[:, :first], new[:, :first])


def test_a_row_goes_back() -> None:
    columns, slot = filled(2)
    enter(columns, slot, values(2, 4, 0), [4, 4])
    columns.set([2, 4])
    _, keys, _ = step(columns, slot, values(2, 1, 100))
    assert slot.read("x")[0, :3, 0].tolist() == [0, 1, 100]
    assert keys[0].tolist() == [0, 1, 2, -1, -1]


def test_a_plain_slot_says_what_its_keys_will_be() -> None:
    slot = Slot()
    new = torch.tensor([[0, 1]])
    assert slot.joined(new, 2) is new
    slot.extend({"x": torch.zeros(2, 2, 1)}, new.expand(2, -1))
    assert slot.joined(torch.tensor([[2]]), 2).tolist() == [[0, 1, 2], [0, 1, 2]]
