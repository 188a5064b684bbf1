"""KV caches: decoding token by token, in chunks, and while rows leave, fork, join and roll back
gives the outputs of one full forward."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import Batch, Inputs
from qkv.nn.cache import KVCache
from qkv.nn.network import Network
from qkv.nn.transformer import LayerCache
from qkv.spec import Banded, Spec, StackSpec
from tests.support import compare, tiny

CASES = pytest.mark.parametrize("name", tiny.CAUSAL)
SOURCE_LENGTHS = (5, 3, 6, 4)  # of what encoder-decoders read


# What a decoder may do with the rows of a cache.


def select_rows(cache: KVCache, rows: Tensor) -> None:
    """Keep these rows, in this order."""
    assert cache.positions is not None
    cache.tensors = {name: x[rows] for name, x in cache.tensors.items()}
    cache.positions = cache.positions[rows]


def keep_last(cache: KVCache, count: int) -> None:
    """Keep the last `count` cached positions."""
    assert cache.positions is not None
    start = max(len(cache) - count, 0)
    cache.tensors = {name: x[:, start:] for name, x in cache.tensors.items()}
    cache.positions = cache.positions[:, start:]


def append_rows(cache: KVCache, other: KVCache) -> None:
    """Append the rows of another cache; the shorter one is padded on the left."""
    assert cache.positions is not None
    assert other.positions is not None
    length = max(len(cache), len(other))

    def join(x: Tensor, y: Tensor, fill: int) -> Tensor:
        parts = []
        for part in (x, y):
            padding = part.new_full((len(part), length - part.shape[1], *part.shape[2:]), fill)
            parts.append(torch.cat([padding, part], dim=1))
        return torch.cat(parts)

    cache.tensors = {name: join(x, other.tensors[name], 0) for name, x in cache.tensors.items()}
    cache.positions = join(cache.positions, other.positions, -1)


def truncate_rows(cache: KVCache, lengths: Tensor) -> None:
    """Roll each row back to its first `lengths` tokens."""
    assert cache.positions is not None
    count = (cache.positions >= 0).cumsum(1)
    cache.positions = cache.positions.masked_fill(count > lengths[:, None], -1)


class Decoder:
    """Rows that are read through caches; each read is compared with a full forward of each row."""

    def __init__(self, name: str, batch_size: int, seed: int = 0) -> None:
        self.family, changes = tiny.CAUSAL[name]
        self.model = tiny.build(self.family, **changes)
        self.caches = tiny.create_caches(self.model, batch_size)
        self.tokens: list[list[int]] = [[] for _ in range(batch_size)]
        self.reads_encoder_states = bool(changes.get("add_cross_attention"))
        self.sources: list[Tensor] = []
        for n in range(batch_size):
            length = SOURCE_LENGTHS[(n + seed) % len(SOURCE_LENGTHS)]
            states = torch.randn(length, tiny.WIDTH, dtype=torch.float64)
            source = (
                states if self.reads_encoder_states else tiny.random_ids(length, seed=10 * seed + n)
            )
            self.sources.append(source)

    def read(self, *tokens: list[int], padding: str = "left") -> None:
        """Read the next tokens of each row; shorter rows are padded. Compare with a full forward."""
        ids, mask = pad_rows([torch.tensor(row, dtype=torch.long) for row in tokens], padding)
        sources = [] if any(self.tokens) else self.sources
        out = self.run(ids, mask, sources, self.caches)
        for n, new in enumerate(tokens):
            self.tokens[n] = self.tokens[n] + new
            if new:
                single = self.run(
                    torch.tensor([self.tokens[n]]), None, self.sources[n : n + 1], None
                )
                actual = {key: out[key][n, mask[n]] for key in ("last_hidden_state", "logits")}
                compare.assert_close(actual, {key: single[key][0, -len(new) :] for key in actual})

    def run(
        self,
        ids: Tensor,
        mask: Tensor | None,
        sources: list[Tensor],
        caches: list[LayerCache] | None,
    ) -> dict[str, Tensor]:
        inputs = Inputs.create(ids, attention_mask=mask)
        is_encoder_decoder = self.family in tiny.ENCODER_DECODERS
        if not sources or not (self.reads_encoder_states or is_encoder_decoder):
            return self.model.net(Batch(decoder=inputs), caches)
        source, source_mask = pad_rows(sources, "right")
        if self.reads_encoder_states:
            states = Inputs.create(inputs_embeds=source, attention_mask=source_mask)
            return self.model.net(Batch(decoder=inputs, encoder_hidden_states=states), caches)
        encoder = Inputs.create(source, attention_mask=source_mask)
        return self.model.net(Batch(encoder=encoder, decoder=inputs), caches)

    def filled_caches(self) -> list[Any]:
        return [cache for layer in self.caches for cache in layer if len(cache)]

    def select(self, *rows: int) -> None:
        for cache in self.filled_caches():
            select_rows(cache, torch.tensor(rows))
        self.tokens = [self.tokens[n] for n in rows]
        self.sources = [self.sources[n] for n in rows]

    def append(self, other: Decoder) -> None:
        for cache, other_cache in zip(self.filled_caches(), other.filled_caches(), strict=True):
            append_rows(cache, other_cache)
        self.tokens = self.tokens + other.tokens
        self.sources = self.sources + other.sources

    def truncate(self, *lengths: int) -> None:
        """The zeros that Transformer-XL's memory starts with count as cached."""
        zeros = self.model.args["mem_len"] if self.family == "transformer-xl" else 0
        for layer in self.caches:
            cache: Any = layer.attention
            truncate_rows(cache, torch.tensor(lengths) + zeros)
        self.tokens = [row[:n] for row, n in zip(self.tokens, lengths, strict=True)]


def pad_rows(rows: list[Tensor], padding: str) -> tuple[Tensor, Tensor]:
    """Return the rows padded to one length, and their mask."""
    out = rows[0].new_zeros(len(rows), max(len(row) for row in rows), *rows[0].shape[1:])
    mask = torch.zeros(out.shape[:2], dtype=torch.bool)
    for n, row in enumerate(rows):
        columns = slice(out.shape[1] - len(row), None) if padding == "left" else slice(len(row))
        out[n, columns] = row
        mask[n, columns] = True
    return out, mask


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return tiny.random_ids(count, seed=100 + seed).tolist()


@CASES
def test_decoding_token_by_token_equals_a_full_forward(name: str) -> None:
    decoder = Decoder(name, 2)
    first = random_tokens(11, 1)
    second = random_tokens(11, 2)
    for t in range(11):
        decoder.read(first[t : t + 1], second[t : t + 1])


@CASES
def test_decoding_in_chunks_equals_a_full_forward(name: str) -> None:
    decoder = Decoder(name, 2)
    for n, count in enumerate((4, 1, 5, 2)):
        decoder.read(random_tokens(count, n), random_tokens(count, n + 10))


@CASES
@pytest.mark.parametrize("padding", ["left", "right"])
def test_prompts_may_have_different_lengths(name: str, padding: str) -> None:
    decoder = Decoder(name, 3)
    decoder.read(random_tokens(6), random_tokens(3, 1), random_tokens(1, 2), padding=padding)
    decoder.read([9], [10], [11])
    decoder.read(random_tokens(2, 3), [], random_tokens(3, 4), padding=padding)
    decoder.read([12], [13], [14])


@CASES
def test_rows_may_leave(name: str) -> None:
    decoder = Decoder(name, 3)
    decoder.read(random_tokens(5), random_tokens(2, 1), random_tokens(4, 2))
    decoder.select(2, 0)
    decoder.read([20], [21])
    decoder.select(1)
    decoder.read([22])
    decoder.read(random_tokens(3, 3))


@CASES
def test_rows_may_fork(name: str) -> None:
    decoder = Decoder(name, 2)
    decoder.read(random_tokens(5), random_tokens(3, 1))
    decoder.select(0, 1, 0, 1, 1)
    decoder.read([20], [21], [22], [23], [24])
    decoder.select(3, 3, 0)
    decoder.read([30], [31], [32])
    decoder.read([33], [34], [35])


@CASES
@pytest.mark.parametrize("lengths", [(7, 3), (2, 6)], ids=["shorter", "longer"])
def test_rows_may_join(name: str, lengths: tuple[int, int]) -> None:
    decoder = Decoder(name, 2)
    other = Decoder(name, 2, seed=1)
    decoder.read(random_tokens(lengths[0]), random_tokens(1, 1))
    other.read(random_tokens(lengths[1], 2), random_tokens(2, 3))
    decoder.append(other)
    decoder.read([20], [21], [22], [23])
    decoder.select(3, 0, 2)
    decoder.read(random_tokens(2, 4), random_tokens(2, 5), random_tokens(2, 6))


@pytest.mark.parametrize("name", [name for name in tiny.CAUSAL if name not in tiny.RECURRENT])
def test_rows_may_roll_back(name: str) -> None:
    decoder = Decoder(name, 2)
    decoder.read(random_tokens(6), random_tokens(4, 1))
    decoder.truncate(2, 4)
    decoder.read(random_tokens(3, 2), random_tokens(3, 3))
    decoder.truncate(5, 0)
    decoder.read([20], [21])
    decoder.read([22], [23])


ALL_OPERATIONS = ["gpt2", "llama", "t5", "sparse-fixed-heads", "transformer-xl", "xlnet-uni"]


@pytest.mark.parametrize("name", ALL_OPERATIONS)
def test_all_operations_work_together(name: str) -> None:
    decoder = Decoder(name, 3)
    other = Decoder(name, 1, seed=1)
    decoder.read(random_tokens(6), random_tokens(3, 1), random_tokens(5, 2))
    decoder.truncate(4, 3, 1)
    decoder.select(2, 1, 0, 0)
    decoder.read([20], [21], [22], [23])
    other.read(random_tokens(9, 3))
    other.truncate(7)
    decoder.append(other)
    decoder.read(random_tokens(2, 4), [24], [25], [26], random_tokens(2, 5))
    decoder.select(4, 0)
    decoder.read([27], [28])


WITH_WEIGHTS = ["gpt2", "bert-decoder", "llama", "t5", "bart", "sparse-strided-heads"]
WITH_WEIGHTS += ["bahdanau", "luong"]


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_attention_weights_of_steps_equal_those_of_a_full_forward(name: str) -> None:
    decoder = Decoder(name, 1)
    tokens = random_tokens(6)
    with qkv.look(decoder.model) as weights:
        decoder.run(torch.tensor([tokens]), None, decoder.sources, None)
    full = dict(weights)

    def is_in_last_stack(path: str) -> bool:
        return "encoder.layers" not in path or name == "bert-decoder"

    for t, token in enumerate(tokens):
        with qkv.look(decoder.model, is_in_last_stack) as weights:
            decoder.run(torch.tensor([[token]]), None, [] if t else decoder.sources, decoder.caches)
        for path, step in weights.items():
            keys = step.shape[-1] if "cross" in path else t + 1
            assert step.shape[-1] == keys
            compare.assert_close({path: step[:, :, 0]}, {path: full[path][:, :, t, :keys]})
            assert full[path][:, :, t, keys:].eq(0).all()


def test_a_banded_pattern_needs_only_the_last_keys() -> None:
    """A model with a window of four tokens may forget all but the last three."""
    model = tiny.build("llama")
    assert isinstance(model.spec, Spec)
    assert isinstance(model.spec.decoder, StackSpec)
    layers = tuple(
        replace(layer, attention=replace(layer.attention, pattern=Banded(4)))
        for layer in model.spec.decoder.layers
    )
    net = Network(replace(model.spec, decoder=replace(model.spec.decoder, layers=layers))).double()
    net.load_state_dict(model.net.state_dict())
    ids = tiny.random_ids(2, 12)
    full = net(Batch(decoder=Inputs.create(ids)))
    caches = net.create_caches(2)
    causal = model.net(Batch(decoder=Inputs.create(ids)))
    assert compare.max_difference(full["logits"], causal["logits"]) > 1e-3
    for t in range(12):
        out = net(Batch(decoder=Inputs.create(ids[:, t : t + 1])), caches)
        compare.assert_close(out, {name: full[name][:, t : t + 1] for name in out})
        for layer in caches:
            cache: Any = layer.attention
            keep_last(cache, 3)
            assert len(cache) == min(t + 1, 3)


@pytest.mark.parametrize("name", ["transformer-xl", "transformer-xl-same", "xlnet-uni"])
def test_the_last_cached_states_are_the_returned_mems(name: str) -> None:
    family, changes = tiny.CAUSAL[name]
    model = tiny.build(family, **changes)
    caches = tiny.create_caches(model, 2)
    mems = None
    for n in range(3):
        ids = tiny.random_ids(2, 4, seed=n)
        cached = model.net(tiny.build_batch(model, ids), caches)
        out = model(ids, mems=mems)
        mems = out["mems"]
        compare.assert_close(cached, {key: out[key] for key in ("last_hidden_state", "logits")})
        for layer, states in zip(caches, mems, strict=True):
            cache: Any = layer.attention
            keep_last(cache, model.args["mem_len"])
            compare.assert_close({"states": cache.read("states")}, {"states": states})


@pytest.mark.parametrize("family", ["gpt2", "llama", "ctrl"])
def test_a_cache_does_not_shift_position_ids(family: str) -> None:
    model = tiny.build(family)
    ids = tiny.random_ids(2, 7)
    position_ids = torch.arange(7).expand(2, -1)
    full = model(ids)["logits"]
    caches = tiny.create_caches(model, 2)
    for low, high in pairwise((0, 4, 5, 7)):
        inputs = Inputs.create(ids[:, low:high], position_ids=position_ids[:, low:high])
        out = model.net(Batch(decoder=inputs), caches)
        compare.assert_close({"logits": out["logits"]}, {"logits": full[:, low:high]})


def build_numbered_cache(*positions: list[int]) -> KVCache:
    """Return a cache whose tensor "x" holds 10 * row + position."""
    cache = KVCache()
    rows = torch.tensor(positions)
    numbers = torch.arange(len(rows))[:, None] * 10 + rows
    cache.update({"x": numbers[..., None].double()}, rows)
    return cache


def read_numbers(cache: KVCache) -> list[list[int | None]]:
    """Return the tensor "x" of each row, None for padding."""
    assert cache.positions is not None
    return [
        [int(x) if position >= 0 else None for x, position in zip(row, positions, strict=True)]
        for row, positions in zip(cache.read("x")[..., 0], cache.positions, strict=True)
    ]


class TestKVCache:
    def test_an_empty_cache_has_length_zero(self) -> None:
        assert len(KVCache()) == 0

    def test_a_cache_is_extended_along_time(self) -> None:
        cache = build_numbered_cache([0, 1], [-1, 0])
        cache.update({"x": torch.tensor([[[2.0]], [[11.0]]])}, torch.tensor([[2], [1]]))
        assert len(cache) == 3
        assert read_numbers(cache) == [[0, 1, 2], [None, 10, 11]]
        assert cache.get_next_positions().tolist() == [[3], [2]]

    def test_forked_rows_are_independent(self) -> None:
        cache = build_numbered_cache([0], [0])
        select_rows(cache, torch.tensor([1, 1]))
        cache.update({"x": torch.tensor([[[1.0]], [[2.0]]])}, torch.tensor([[1], [1]]))
        assert read_numbers(cache) == [[10, 1], [10, 2]]

    def test_a_cache_continues_after_padding(self) -> None:
        cache = build_numbered_cache([0, 1, 2], [0, 1, 2])
        truncate_rows(cache, torch.tensor([1, 3]))
        assert cache.get_next_positions().tolist() == [[1], [3]]
        cache.update({"x": torch.tensor([[[5.0]], [[6.0]]])}, cache.get_next_positions())
        assert read_numbers(cache) == [[0, None, None, 5], [10, 11, 12, 6]]

    def test_key_positions_are_those_cached_then_the_new_ones(self) -> None:
        new = torch.tensor([[2]])
        assert KVCache().get_key_positions(new, 2) is new
        cache = build_numbered_cache([0, 1], [-1, 0])
        assert cache.get_key_positions(new, 2).tolist() == [[0, 1, 2], [-1, 0, 2]]
