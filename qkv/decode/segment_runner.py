"""SegmentRunner: decoding with the segment-level recurrence of Transformer-XL and XLNet.

All rows start in the same step with prompts of equal length, so their memories are equally long.
B rows, M remembered states, T tokens, W width."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.decode.runner import (
    PromptMoves,
    Prompts,
    RunnerOutput,
    Sources,
    expand_prompt_indices,
    move_and_truncate,
)
from qkv.decode.transfer import copy_to_device
from qkv.nn.network import Network

MAX_PREFILL_TOKENS = 8192  # a longer prompt is processed in segments
SEGMENT_LENGTH = 1024


class SegmentRunner:
    """Runner that keeps the hidden states of earlier tokens as memory."""

    max_positions: int | None = None  # positions are relative

    def __init__(self, net: Network, rows_per_prompt: int = 1) -> None:
        self.net = net
        self.rows_per_prompt = rows_per_prompt
        self.device = next(net.parameters()).device
        self.mems: Tensor | None = None  # (layers, B, M, W)
        self.token_ids = torch.zeros(0, 0, dtype=torch.long, device=self.device)  # (B, L) so far
        self.has_query_stream = net.last_stack.spec.embedding.query_stream  # XLNet
        recurrence = net.last_stack.spec.recurrence
        assert recurrence is not None
        # Tokens of earlier segments to process again; None: all, for a network without memory.
        # XLNet's states are bidirectional, so the last token is processed again with its successor.
        self.num_reread_tokens: int | None
        if recurrence.starts_with_zeros and not recurrence.memory_length:
            self.num_reread_tokens = None
        else:
            self.num_reread_tokens = 1 if self.has_query_stream else 0

    def prefill(self, prompts: Prompts, sources: Sources) -> RunnerOutput:
        """Run the network on all prompts, in segments if they are long."""
        self.token_ids = copy_to_device([[*prompt] for prompt in prompts], self.device)
        length = self.token_ids.shape[1]
        num_reread = self.num_reread_tokens or 0
        is_single_segment = length <= MAX_PREFILL_TOKENS or self.num_reread_tokens is None
        segment_length = length if is_single_segment else SEGMENT_LENGTH
        for start in range(0, length, segment_length):
            output = self.run_segment(
                self.token_ids[:, max(start - num_reread, 0) : start + segment_length]
            )
        rows = [index for index in range(len(prompts)) for _ in range(self.rows_per_prompt)]
        self.select_rows(copy_to_device(rows, self.device))
        return output

    def step(self, input_ids: Tensor) -> RunnerOutput:
        """Run the network on the next token (B, 1) of all rows."""
        self.token_ids = torch.cat([self.token_ids, input_ids], dim=1)
        if self.num_reread_tokens is None:
            return self.run_segment(self.token_ids)
        return self.run_segment(self.token_ids[:, -1 - self.num_reread_tokens :])

    def run_segment(self, input_ids: Tensor) -> RunnerOutput:
        """Return the logits after the last of the tokens (B, T) and update the memory."""
        batch_size, length = input_ids.shape
        device = input_ids.device
        if not self.has_query_stream:
            last_indices = torch.arange(1, batch_size + 1, device=device) * length - 1
            output = self.net(
                Batch(
                    decoder=Inputs.create(input_ids), mems=self.mems, logit_positions=last_indices
                )
            )
            self.mems = output["mems"]
            return RunnerOutput(output["logits"], output["last_hidden_state"])
        # The query stream predicts an additional token that no other token attends to.
        is_target = torch.arange(length + 1, device=device) == length
        is_self = torch.eye(length + 1, dtype=torch.bool, device=device)
        mask = torch.cat([~is_target | is_self, ~is_target[None]]).expand(batch_size, -1, -1)
        target_positions = torch.full((batch_size, 1), length, device=device)
        output = self.net(
            Batch(
                encoder=Inputs.create(F.pad(input_ids, (0, 1))),
                mems=self.mems,
                permutation_mask=mask,
                target_positions=target_positions,
            )
        )
        self.mems = output["mems"][:, :, :-2]  # without the last token and the predicted one
        return RunnerOutput(output["logits"][:, -1], output["last_hidden_state"])

    def duplicate_prompts(self, prompt_indices: list[int]) -> None:
        """Append copies of the rows of these prompts."""
        copies = expand_prompt_indices(prompt_indices, self.rows_per_prompt)
        self.select_rows(copy_to_device([*range(len(self.token_ids)), *copies], self.device))

    def reorder_rows(self, parents: Tensor, token_ids: Tensor, shared_length: int) -> None:
        """Replace row i by row parents[i] (B,)."""
        self.select_rows(parents)

    def remove_prompts(self, moves: PromptMoves, num_remaining: int) -> None:
        """Move prompts to the indices of removed ones and keep the first `num_remaining`."""
        old = [source for source, _ in moves]
        new = [target for _, target in moves]
        num_prompts = len(self.token_ids) // self.rows_per_prompt
        order = move_and_truncate([*range(num_prompts)], old, new, num_remaining)
        self.select_rows(
            copy_to_device(expand_prompt_indices(order, self.rows_per_prompt), self.device)
        )

    def clear_prompts(self, prompt_indices: list[int]) -> None:
        """Do nothing: no other row reuses the memory of a row."""

    def restore_on_error(self) -> AbstractContextManager[None]:
        """Do nothing: all prompts of a batch are processed together, and an error ends the batch."""
        return nullcontext()

    def find_full_rows(self) -> list[int]:
        """Return no rows: the memory has a limited length, and positions have no limit."""
        return []

    def replace_rows(self, rows: list[int], token_ids: Tensor) -> None:
        raise NotImplementedError("no row of a segment memory is full")

    def select_rows(self, row_indices: Tensor) -> None:
        """Keep the rows at these indices, in this order."""
        assert self.mems is not None
        self.mems = self.mems[:, row_indices]
        self.token_ids = self.token_ids[row_indices]
