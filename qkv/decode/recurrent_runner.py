"""RecurrentRunner: decoding with a recurrent decoder, whose state has a fixed size.

Rows may join and leave at any time. The source of a prompt is encoded once, and its rows (beams) share
its keys and values. B rows, P prompts, T tokens, S source tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode.runner import (
    PromptMoves,
    Prompts,
    RunnerOutput,
    Sources,
    build_source_batch,
    expand_prompt_indices,
    move_and_truncate,
    pad_sequences_to_tensor,
)
from qkv.decode.transfer import copy_to_device
from qkv.nn.cache import KVCache
from qkv.nn.network import Network
from qkv.nn.transformer import LayerCache


class RecurrentRunner:
    """Runner that keeps the state of every row after its last token."""

    max_positions: int | None = None

    def __init__(self, net: Network, rows_per_prompt: int = 1) -> None:
        self.net = net
        self.rows_per_prompt = rows_per_prompt
        self.device = next(net.parameters()).device
        self.num_prompts = 0
        self.states: list[KVCache] = []  # of each layer, B rows
        self.sources: list[KVCache] = []  # of each layer, P rows

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        """Run the network on new prompts: logits of the next tokens (P, V), and all hidden states."""
        inputs, last_indices = self.build_inputs(prompts)
        caches = self.net.create_caches(len(prompts))
        valid_sources = [source for source in sources if source is not None]
        batch = build_source_batch(inputs, valid_sources, last_indices, self.device)
        output = self.net(batch, caches)
        rows = [i for i in range(len(prompts)) for _ in range(self.rows_per_prompt)]
        index = copy_to_device(rows, self.device)
        states = [select_cache_rows(as_kv_cache(cache.attention), index) for cache in caches]
        new_sources = [as_kv_cache(cache.cross_attention) for cache in caches]
        self.append(states, new_sources, len(prompts))
        return RunnerOutput(output["logits"], output["last_hidden_state"])

    def build_inputs(self, prompts: Prompts) -> tuple[Inputs, Tensor]:
        """Return the inputs of the decoder, and the indices of the last tokens among all (P,)."""
        input_ids, lengths = pad_sequences_to_tensor(prompts, self.device)
        columns = torch.arange(input_ids.shape[1], device=self.device)
        mask = columns < lengths[:, None] if len({*map(len, prompts)}) > 1 else None
        inputs = Inputs(input_ids=input_ids, position_ids=columns[None], attention_mask=mask)
        first = torch.arange(len(prompts), device=self.device) * input_ids.shape[1]
        return inputs, first + lengths - 1

    def step(self, input_ids: Tensor) -> RunnerOutput:
        """Run the network on the next token (B, 1) of all rows."""
        caches = [LayerCache(*pair) for pair in zip(self.states, self.sources, strict=True)]
        positions = torch.zeros(1, 1, dtype=torch.long, device=self.device)  # the caches count
        output = self.net(
            Batch(decoder=Inputs(input_ids=input_ids, position_ids=positions)), caches
        )
        return RunnerOutput(output["logits"][:, 0], output["last_hidden_state"])

    def append(self, states: list[KVCache], sources: list[KVCache], num_prompts: int) -> None:
        """Append rows of states and of sources."""
        if self.num_prompts:
            states = [append_cache_rows(*pair) for pair in zip(self.states, states, strict=True)]
            sources = [append_cache_rows(*pair) for pair in zip(self.sources, sources, strict=True)]
        self.states = states
        self.sources = sources
        self.num_prompts += num_prompts

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        """Append copies of the rows of these prompts."""
        rows = expand_prompt_indices(prompt_indices, self.rows_per_prompt)
        states = [
            select_cache_rows(cache, copy_to_device(rows, self.device)) for cache in self.states
        ]
        index = copy_to_device(prompt_indices, self.device)
        sources = [select_cache_rows(cache, index) for cache in self.sources]
        self.append(states, sources, len(prompt_indices))

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        """Replace row i by row parents[i] (B,), a row of the same prompt."""
        self.states = [select_cache_rows(cache, parents) for cache in self.states]

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        """Move prompts to the indices of removed ones and keep the first `num_remaining`."""
        old = [source for source, _ in moves]
        new = [target for _, target in moves]
        order = move_and_truncate([*range(self.num_prompts)], old, new, num_remaining)
        rows = copy_to_device(expand_prompt_indices(order, self.rows_per_prompt), self.device)
        self.states = [select_cache_rows(cache, rows) for cache in self.states]
        index = copy_to_device(order, self.device)
        self.sources = [select_cache_rows(cache, index) for cache in self.sources]
        self.num_prompts = num_remaining

    def clear_prompts(self, prompt_indices: list[int]) -> None:
        """Do nothing: no other row reuses the memory of a row."""

    @contextmanager
    def restore_on_error(self) -> Iterator[None]:
        """Restore the rows if a prefill fails, such as for lack of memory."""
        states, sources, num_prompts = self.states, self.sources, self.num_prompts
        try:
            yield
        except BaseException:
            self.states, self.sources, self.num_prompts = states, sources, num_prompts
            raise

    def find_full_rows(self) -> list[int]:
        """Return no rows: there is no maximum length."""
        return []

    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None:
        raise NotImplementedError("no row of a recurrent decoder is full")


def as_kv_cache(cache: object) -> KVCache:
    assert isinstance(cache, KVCache)
    return cache


def select_cache_rows(cache: KVCache, index: Tensor) -> KVCache:
    """Return a cache with these rows, in this order."""
    selected = type(cache)()
    selected.tensors = {name: x[index] for name, x in cache.tensors.items()}
    selected.positions = None if cache.positions is None else cache.positions[index]
    return selected


def append_cache_rows(cache: KVCache, other: KVCache) -> KVCache:
    """Return a cache with the rows of both; the shorter ones are padded on the right."""
    merged = type(cache)()
    if cache.positions is None or other.positions is None:  # layers without a source
        return merged
    length = max(len(cache), len(other))

    def join(x: Tensor, y: Tensor, value: int) -> Tensor:
        parts = [
            torch.cat([z, z.new_full((len(z), length - z.shape[1], *z.shape[2:]), value)], dim=1)
            for z in (x, y)
        ]
        return torch.cat(parts)

    merged.tensors = {name: join(x, other.tensors[name], 0) for name, x in cache.tensors.items()}
    merged.positions = join(cache.positions, other.positions, -1)
    return merged
