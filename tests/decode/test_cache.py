"""The static KV cache: rows of different lengths are written, grow, move and are truncated."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkv.decode.cache import CacheLayout, StaticKVCache
from qkv.nn.cache import KVCache
from tests.support import compare

CPU = torch.device("cpu")


def build_cache(static_shapes: bool = False) -> tuple[CacheLayout, StaticKVCache]:
    layout = CacheLayout(CPU, static_shapes=static_shapes)
    return layout, StaticKVCache(layout)


def make_tensors(rows: int, count: int, start: float) -> dict[str, Tensor]:
    return {"x": start + torch.arange(rows * count, dtype=torch.float32).view(rows, count, 1)}


def prefill(
    layout: CacheLayout, cache: StaticKVCache, new: dict[str, Tensor], lengths: list[int]
) -> None:
    first_row = len(layout.lengths)
    num_rows, length, _ = new["x"].shape
    layout.begin_prefill(slice(first_row, first_row + num_rows), length)
    cache.update(new, torch.zeros(0))
    layout.append_rows(lengths)


def step(
    layout: CacheLayout, cache: StaticKVCache, new: dict[str, Tensor]
) -> tuple[Tensor, Tensor, bool]:
    num_rows, num_new_tokens, _ = new["x"].shape
    if layout.static_shapes:
        layout.set_static_shape(num_new_tokens)
    positions, key_positions, has_no_padding = layout.begin_step(num_new_tokens)
    padded_rows = len(positions) if layout.write_index is not None else num_rows
    padded = torch.nn.functional.pad(new["x"], (0, 0, 0, 0, 0, padded_rows - num_rows))
    cache.update({"x": padded}, positions)
    layout.advance(num_new_tokens)
    return positions, key_positions, has_no_padding


def test_rows_of_equal_length_need_no_copy_and_no_mask() -> None:
    layout, cache = build_cache()
    prefill(layout, cache, make_tensors(2, 3, 0), [3, 3])
    positions, key_positions, has_no_padding = step(layout, cache, make_tensors(2, 1, 100))
    assert has_no_padding
    assert positions.tolist() == [[3]]
    assert key_positions.tolist() == [[0, 1, 2, 3]]
    assert cache.read("x")[..., 0].tolist() == [[0, 1, 2, 100], [3, 4, 5, 101]]
    assert cache.read("x").data_ptr() == cache.tensors["x"].data_ptr()


def test_rows_of_different_lengths() -> None:
    for static_shapes in (False, True):
        layout, cache = build_cache(static_shapes)
        prefill(layout, cache, make_tensors(2, 3, 0), [3, 1])
        positions, key_positions, has_no_padding = step(layout, cache, make_tensors(2, 2, 100))
        assert not has_no_padding
        assert positions[:2].tolist() == [[3, 4], [1, 2]]
        assert key_positions[:2, :6].tolist()[0][:5] == [0, 1, 2, 3, 4]
        assert key_positions[1, :5].tolist() == [0, 1, 2, -1, -1]
        assert cache.read("x")[0, :5, 0].tolist() == [0, 1, 2, 100, 101]
        assert cache.read("x")[1, :3, 0].tolist() == [3, 102, 103]
        assert cache.read("x").isfinite().all()
        assert layout.lengths == [5, 3]
        assert layout.device_lengths[:2].tolist() == [5, 3]


def test_unwritten_columns_are_finite() -> None:
    layout, cache = build_cache()
    layout.begin_prefill(slice(0, 1), 2)
    cache.update(make_tensors(1, 2, 0), torch.zeros(0))
    cache.tensors["x"][:, 2:] = torch.nan  # as uninitialized memory may be
    cache.tensors["x"][1:] = torch.nan
    layout.append_rows([2])
    prefill(layout, cache, make_tensors(1, 5, 10), [5])
    step(layout, cache, make_tensors(2, 1, 100))
    assert cache.read("x").isfinite().all()


def test_buffers_grow_by_doubling() -> None:
    layout, cache = build_cache()
    prefill(layout, cache, make_tensors(1, 60, 0), [60])
    for n in range(10):
        step(layout, cache, make_tensors(1, 1, 1000 + n))
    assert cache.tensors["x"].shape[:2] == layout.capacity == (1, 128)
    assert cache.read("x")[0, :, 0].tolist() == [*range(60), *range(1000, 1010)]
    prefill(layout, cache, make_tensors(2, 3, 0), [3, 3])
    assert layout.capacity == (4, 128)
    step(layout, cache, make_tensors(3, 1, 7))
    assert cache.read("x")[0, :60, 0].tolist() == [*range(60)]


def test_copy_flat() -> None:
    layout, cache = build_cache()
    prefill(layout, cache, make_tensors(3, 2, 0), [2, 2, 2])
    cache.copy_flat(layout.get_flat_indices([2, 0], 2), layout.get_flat_indices([0, 1], 2))
    layout.active_rows, layout.stop = slice(0, 3), 2
    assert cache.read("x")[..., 0].tolist() == [[4, 5], [0, 1], [4, 5]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("start", "length"), [(0, 5), (1, 8), (20, 60)])
def test_reorder_rows(dtype: torch.dtype, start: int, length: int) -> None:
    layout, cache = build_cache()
    new = torch.randn(3, length, 3, 5).to(dtype)  # a column is not a multiple of 8 bytes
    layout.begin_prefill(slice(0, 3), length)
    cache.update({"x": new}, torch.zeros(0))
    layout.append_rows([length] * 3)
    cache.reorder_rows(torch.tensor([2, 0, 2]), start, length)
    layout.active_rows, layout.stop = slice(0, 3), length
    compare.assert_bitwise_equal(
        cache.read("x")[:, start:], new[[2, 0, 2], start:], because=compare.COPIED
    )
    first = start // 8 * 8  # earlier columns are not copied
    compare.assert_bitwise_equal(
        cache.read("x")[:, :first], new[:, :first], because=compare.UNWRITTEN
    )


def test_truncated_row() -> None:
    layout, cache = build_cache()
    prefill(layout, cache, make_tensors(2, 4, 0), [4, 4])
    layout.set_lengths([2, 4])
    _, key_positions, _ = step(layout, cache, make_tensors(2, 1, 100))
    assert cache.read("x")[0, :3, 0].tolist() == [0, 1, 100]
    assert key_positions[0].tolist() == [0, 1, 2, -1, -1]


def test_key_positions_of_a_growing_cache() -> None:
    cache = KVCache()
    new = torch.tensor([[0, 1]])
    assert cache.get_key_positions(new, 2) is new
    cache.update({"x": torch.zeros(2, 2, 1)}, new.expand(2, -1))
    assert cache.get_key_positions(torch.tensor([[2]]), 2).tolist() == [[0, 1, 2], [0, 1, 2]]
