"""ModelRunner: runs the network on the rows of a batch and stores keys and values in caches.

The `rows_per_prompt` rows of a prompt (beams, candidates) are adjacent. The encoder runs once per
prompt, and its rows share the cross-attention cache.
B rows, P prompts, T new tokens, V vocabulary size, W width of the hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode.cache import CacheLayout, StaticKVCache
from qkv.decode.cuda_graphs import CUDAGraphCache
from qkv.decode.transfer import copy_to_device
from qkv.nn.attention_record import is_recorded, keep_random_state
from qkv.nn.network import Network
from qkv.nn.transformer import LayerCache
from qkv.spec import And, Full, Local, Or, Pattern, PerHead, Prefix

Prompts = Sequence[Sequence[int]]
Sources = Sequence[Sequence[int] | Tensor | None]
PromptMoves = list[tuple[int, int]]  # (from, to) prompt indices


class RunnerOutput(NamedTuple):
    logits: Tensor  # (N, V), or (B, T, V) after a step of several tokens
    last_hidden_state: Tensor  # (N, T, W)


class Runner(Protocol):
    """The interface between a RunningBatch and a network."""

    rows_per_prompt: int
    device: torch.device
    max_positions: int | None

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput: ...
    def duplicate_prompts(self, prompt_indices: list[int]) -> None: ...
    def step(self, input_ids: Tensor) -> RunnerOutput: ...
    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None: ...
    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None: ...
    def clear_prompts(self, prompt_indices: list[int]) -> None: ...
    def restore_on_error(self) -> AbstractContextManager[None]: ...
    def find_full_rows(self) -> list[int]: ...
    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None: ...


class ModelRunner:
    """Runner with a KV cache; rows of any length may join at any time."""

    def __init__(self, net: Network, rows_per_prompt: int = 1, static_shapes: bool = False) -> None:
        self.device = device = next(net.parameters()).device
        self.net = net
        self.rows_per_prompt = rows_per_prompt
        self.static_shapes = static_shapes
        self.cuda_graphs = CUDAGraphCache()
        self.cache_layout = CacheLayout(device, rows_per_prompt, static_shapes)
        self.source_layout = CacheLayout(device, 1, static_shapes)
        num_layers = len(net.last_stack.layer_order)
        self.attention_caches = [StaticKVCache(self.cache_layout) for _ in range(num_layers)]
        self.cross_attention_caches = [StaticKVCache(self.source_layout) for _ in range(num_layers)]
        self.caches = [
            LayerCache(attention, cross_attention)
            for attention, cross_attention in zip(
                self.attention_caches, self.cross_attention_caches, strict=True
            )
        ]
        self.kernels = [*net.last_stack.get_attention_kernels().values()]
        layers = net.last_stack.spec.layers
        self.has_cross_attention = any(layer.cross_attention for layer in layers)
        self.has_lookahead = any(attends_to_future(layer.attention.pattern) for layer in layers)
        self.max_positions = net.last_stack.spec.max_positions
        self.minimize_copies = device.type == "cpu"
        self.last_input_ids = torch.zeros(0, 1, dtype=torch.long, device=device)  # (B, 1)

    @property
    def replays_graphs(self) -> bool:
        """Whether a step is a CUDA graph."""
        return self.static_shapes and self.device.type == "cuda"

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        """Run the network on new prompts: logits of the next tokens (P, V), and all hidden states.

        Prompts are padded on the right, where a causal network does not attend."""
        rows_per_prompt = self.rows_per_prompt
        first_row = len(self.cache_layout)
        input_ids, lengths = pad_sequences_to_tensor(prompts, self.device)
        num_prompts, max_length = input_ids.shape
        positions = torch.arange(max_length, device=self.device)
        needs_mask = self.has_lookahead and len({*map(len, prompts)}) > 1
        inputs = Inputs(
            input_ids=input_ids,
            position_ids=self.clamp_positions(positions[None]),
            attention_mask=positions < lengths[:, None] if needs_mask else None,
            max_distance=max_length - 1,
        )
        last_indices = torch.arange(num_prompts, device=self.device) * max_length + lengths - 1
        end_row = first_row + num_prompts * rows_per_prompt
        self.cache_layout.begin_prefill(slice(first_row, end_row, rows_per_prompt), max_length)
        self.attention_caches[0].positions = None  # the new rows have no cached tokens
        self.cross_attention_caches[0].positions = None
        output = self.net(self.build_prefill_batch(inputs, sources, last_indices), self.caches)
        new_lengths = [len(prompt) for prompt in prompts for _ in range(rows_per_prompt)]
        self.cache_layout.set_lengths([*self.cache_layout.lengths, *new_lengths])
        copies = [row for row in range(first_row, end_row) if (row - first_row) % rows_per_prompt]
        self.copy_rows([row - (row - first_row) % rows_per_prompt for row in copies], copies)
        return RunnerOutput(output["logits"], output["last_hidden_state"])

    def build_prefill_batch(self, inputs: Inputs, sources: Sources, last_indices: Tensor) -> Batch:
        """Return the batch of a prefill, with the encoder's inputs or the given encoder states."""
        valid_sources = [source for source in sources if source is not None]
        if not self.has_cross_attention or sources[0] is None:
            return Batch(decoder=inputs, logit_positions=last_indices)
        first_row = len(self.source_layout)
        lengths = [len(source) for source in valid_sources]
        self.source_layout.begin_prefill(slice(first_row, first_row + len(lengths)), max(lengths))
        self.source_layout.set_lengths([*self.source_layout.lengths, *lengths])
        return build_source_batch(inputs, valid_sources, last_indices, self.device)

    def step(self, input_ids: Tensor) -> RunnerOutput:
        """Run the network on the next tokens (B, T): logits (B, V) if T is 1, else (B, T, V)."""
        batch_size, num_new_tokens = input_ids.shape
        if self.static_shapes:
            shape = (
                num_new_tokens,
                self.cache_layout.set_static_shape(num_new_tokens),
                self.source_layout.set_static_shape(0),
            )
            padded = F.pad(input_ids, (0, 0, 0, self.cache_layout.static_shape[0] - batch_size))
            buffer_shape = (self.cache_layout.capacity, self.source_layout.capacity)
            if not self.replays_graphs:
                logits, hidden = self.forward(padded)
            else:
                if is_recorded(self.kernels):  # hooks do not run in a graph
                    with keep_random_state(self.device):
                        self.forward(padded)
                logits, hidden = self.cuda_graphs(self.forward, padded, buffer_shape, shape)
        else:
            logits, hidden = self.forward(input_ids)
        self.cache_layout.advance(num_new_tokens)
        self.last_input_ids = input_ids[:, -1:]
        logits = logits[:batch_size, 0] if num_new_tokens == 1 else logits[:batch_size]
        return RunnerOutput(logits, hidden[:batch_size])

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and hidden states of tokens (B, T).

        With static shapes, values that differ between rows are read from device tensors only."""
        positions, key_positions, has_no_padding = self.cache_layout.begin_step(input_ids.shape[1])
        attention_cache = self.attention_caches[0]
        attention_cache.positions = key_positions
        attention_cache.has_no_padding = has_no_padding
        if self.source_layout:
            cross_attention_cache = self.cross_attention_caches[0]
            _, source_positions, source_has_no_padding = self.source_layout.begin_step(0)
            cross_attention_cache.positions = source_positions
            cross_attention_cache.has_no_padding = source_has_no_padding
        inputs = Inputs(
            input_ids=input_ids,
            position_ids=self.clamp_positions(positions),
            offset_by_cache=False,
            contiguous=False,
        )
        output = self.net(Batch(decoder=inputs), self.caches)
        return output["logits"], output["last_hidden_state"]

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        """Append copies of the cached rows of these prompts."""
        first_row = len(self.cache_layout)
        lengths = self.cache_layout.lengths
        rows = expand_prompt_indices(prompt_indices, self.rows_per_prompt)
        self.cache_layout.append_rows([lengths[row] for row in rows])
        self.copy_rows(rows, [*range(first_row, first_row + len(rows))])
        if self.source_layout:
            first_row = len(self.source_layout)
            lengths = self.source_layout.lengths
            self.source_layout.append_rows([lengths[index] for index in prompt_indices])
            self.copy_source_rows(
                prompt_indices, [*range(first_row, first_row + len(prompt_indices))]
            )

    def copy_rows(self, source_rows: list[int], target_rows: list[int]) -> None:
        """Copy rows of the self-attention caches to other rows."""
        _copy_cache_rows(self.cache_layout, self.attention_caches, source_rows, target_rows)

    def copy_source_rows(self, source_rows: list[int], target_rows: list[int]) -> None:
        """Copy rows of the cross-attention caches, one per prompt, to other rows."""
        _copy_cache_rows(self.source_layout, self.cross_attention_caches, source_rows, target_rows)

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        """Replace the cache of row i by that of row parents[i] (B,).

        Row and parent have their first `shared_length` tokens in common. On a CPU only the columns
        with different tokens are copied, by comparing `token_ids` (B, L); the last input may not be
        among them. On a GPU copying all columns is faster than comparing."""
        if not self.minimize_copies:
            for cache in self.attention_caches:
                cache.reorder_rows(parents, shared_length, self.cache_layout.max_length)
            return
        num_columns = self.cache_layout.capacity[1]
        lengths = self.cache_layout.device_lengths[: len(parents), None]
        token_ids = F.pad(token_ids, (0, 1)).scatter(1, lengths - 1, self.last_input_ids)
        # True from the first different token on.
        differs = (token_ids != token_ids[parents]).cumsum(1) > 0
        positions = torch.arange(token_ids.shape[1], device=self.device)
        row, column = (differs & (positions < lengths)).nonzero().unbind(1)
        if len(row):
            for cache in self.attention_caches:
                cache.copy_flat(parents[row] * num_columns + column, row * num_columns + column)

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        """Move prompts to the indices of removed ones and keep the first `num_remaining`.

        The rows after these are set to 0: a NaN that they hold would reach the rows that reuse them."""
        old = [source for source, _ in moves]
        new = [target for _, target in moves]
        old_rows = expand_prompt_indices(old, self.rows_per_prompt)
        new_rows = expand_prompt_indices(new, self.rows_per_prompt)
        num_rows = num_remaining * self.rows_per_prompt
        self.copy_rows(old_rows, new_rows)
        for cache in self.attention_caches:
            cache.clear_rows(slice(num_rows, len(self.cache_layout)), self.cache_layout.max_length)
        self.cache_layout.set_lengths(
            move_and_truncate(self.cache_layout.lengths, old_rows, new_rows, num_rows)
        )
        if self.source_layout:
            self.copy_source_rows(old, new)
            free_sources = slice(num_remaining, len(self.source_layout))
            for cache in self.cross_attention_caches:
                cache.clear_rows(free_sources, self.source_layout.max_length)
            self.source_layout.set_lengths(
                move_and_truncate(self.source_layout.lengths, old, new, num_remaining)
            )

    def clear_prompts(self, prompt_indices: list[int]) -> None:
        """Set the cached values of prompts to 0: they may be NaN, and later rows reuse the memory."""
        rows = expand_prompt_indices(prompt_indices, self.rows_per_prompt)
        for cache in self.attention_caches:
            cache.clear_rows(rows)
        for cache in self.cross_attention_caches:
            cache.clear_rows(prompt_indices)

    @contextmanager
    def restore_on_error(self) -> Iterator[None]:
        """Restore rows and sizes of the caches if a prefill fails, such as for lack of memory."""
        layouts = (self.cache_layout, self.source_layout)
        sizes = [(layout, layout.lengths, layout.capacity) for layout in layouts]
        try:
            yield
        except BaseException:
            self.cuda_graphs = CUDAGraphCache()  # they use the memory of buffers that have moved
            for layout, lengths, capacity in sizes:
                layout.restore(lengths, capacity)
            for cache in (*self.attention_caches, *self.cross_attention_caches):
                cache.clear_rows(slice(len(cache.layout), None))
            raise

    def truncate(self, lengths: list[int]) -> None:
        """Truncate the cached rows to these lengths."""
        self.cache_layout.set_lengths(lengths)

    def clamp_positions(self, positions: Tensor) -> Tensor:
        """Return valid positions: draft tokens may go beyond the last one."""
        return (
            positions if self.max_positions is None else positions.clamp(max=self.max_positions - 1)
        )

    def find_full_rows(self) -> list[int]:
        """Return the rows whose cached tokens use all positions of the network."""
        if self.max_positions is None or self.cache_layout.max_length < self.max_positions:
            return []
        lengths = enumerate(self.cache_layout.lengths)
        return [row for row, length in lengths if length >= self.max_positions]

    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None:
        """Replace the cached tokens of these rows by others (N, T), which are processed from position 0.

        The rows of a prompt are replaced together; the encoder does not run again."""
        num_tokens = token_ids.shape[1]
        self.cache_layout.begin_prefill(copy_to_device(rows, self.device), num_tokens)
        self.attention_caches[0].positions = None
        if self.source_layout:
            prompt_indices = [row // self.rows_per_prompt for row in rows[:: self.rows_per_prompt]]
            source_rows = copy_to_device(prompt_indices, self.device)
            cross_attention_cache = self.cross_attention_caches[0]
            cross_attention_cache.positions = self.source_layout.begin_read(source_rows)
            cross_attention_cache.has_no_padding = False
        inputs = Inputs(
            input_ids=token_ids,
            position_ids=self.clamp_positions(torch.arange(num_tokens, device=self.device)[None]),
            max_distance=num_tokens - 1,
        )
        no_logits = torch.zeros(1, dtype=torch.long, device=self.device)  # only those of one token
        self.net(Batch(decoder=inputs, logit_positions=no_logits), self.caches)
        lengths = self.cache_layout.lengths
        for row in rows:
            lengths[row] = num_tokens
        self.cache_layout.set_lengths(lengths)


def _copy_cache_rows(
    layout: CacheLayout, caches: list[StaticKVCache], source_rows: list[int], target_rows: list[int]
) -> None:
    if not source_rows:
        return
    source_index = layout.get_flat_indices(source_rows, layout.max_length)
    target_index = layout.get_flat_indices(target_rows, layout.max_length)
    for cache in caches:
        cache.copy_flat(source_index, target_index)


def attends_to_future(pattern: Pattern) -> bool:
    """Return whether a token may attend to later tokens."""
    match pattern:
        case Full() | Local() | Prefix():
            return True
        case And(first, second):
            return attends_to_future(first) and attends_to_future(second)
        case Or(first, second):
            return attends_to_future(first) or attends_to_future(second)
        case PerHead(patterns):
            return any(map(attends_to_future, patterns))
    return False


def build_source_batch(
    inputs: Inputs,
    sources: Sequence[Sequence[int] | Tensor],
    last_indices: Tensor,
    device: torch.device,
) -> Batch:
    """Return the batch of a decoder and its sources: token ids, or encoder states (S, W)."""
    lengths = [len(source) for source in sources]
    columns = torch.arange(max(lengths), device=device)
    mask = columns < copy_to_device(lengths, device)[:, None]
    states = [source for source in sources if isinstance(source, Tensor)]
    if not states:
        source_ids, _ = pad_sequences_to_tensor([[*source] for source in sources], device)
        encoder_inputs = Inputs.create(source_ids, attention_mask=mask)
        return Batch(encoder=encoder_inputs, decoder=inputs, logit_positions=last_indices)
    padded_states = torch.nn.utils.rnn.pad_sequence(states, True).to(device)
    encoder_states = Inputs.create(inputs_embeds=padded_states, attention_mask=mask)
    return Batch(decoder=inputs, encoder_hidden_states=encoder_states, logit_positions=last_indices)


def pad_sequences_to_tensor(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return sequences padded on the right (P, T), and their lengths (P,).

    A row is padded with its last token: another token may have a NaN embedding, which would spread."""
    max_length = max(map(len, sequences))
    padded = [[*sequence, *[sequence[-1]] * (max_length - len(sequence))] for sequence in sequences]
    return copy_to_device(padded, device), copy_to_device(
        [len(sequence) for sequence in sequences], device
    )


def expand_prompt_indices(prompt_indices: list[int], rows_per_prompt: int) -> list[int]:
    """Return the row indices of prompts."""
    return [index * rows_per_prompt + k for index in prompt_indices for k in range(rows_per_prompt)]


def move_and_truncate(
    values: list[int], source_indices: list[int], target_indices: list[int], count: int
) -> list[int]:
    """Copy values from source to target indices and return the first `count`."""
    output = list(values)
    for source, target in zip(source_indices, target_indices, strict=True):
        output[target] = values[source]
    return output[:count]
