"""RunningBatch: prompts that are decoded together, with `rows_per_prompt` rows each.

Rows of a prompt are its beams or candidates. Requests join and leave between steps.
N rows of the batch, P prompts, L capacity in tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.config import GenerationConfig
from qkv.decode.context_window import select_window_tokens, slide_windows
from qkv.decode.logits.processors import LogitsContext
from qkv.decode.request import (
    ContextFn,
    Request,
    RequestGroup,
    RequestOutput,
    Result,
    StepOutput,
    concat_padded,
)
from qkv.decode.runner import (
    Runner,
    RunnerOutput,
    expand_prompt_indices,
    move_and_truncate,
    pad_sequences_to_tensor,
)
from qkv.decode.search.beam import beam_search_step
from qkv.decode.search.contrastive import contrastive_search_step
from qkv.decode.search.greedy import greedy_search_step
from qkv.decode.transfer import copy_to_device

SearchMethod = Callable[[RequestGroup, RunnerOutput, ContextFn], StepOutput]
# A group, its row indices (None: all rows), and its next tokens.
GroupStepOutput = tuple[RequestGroup, Tensor | None, StepOutput]


class BatchOutcome(NamedTuple):
    """What a step gives: outputs, and the requests that finished or failed and left the batch."""

    request_outputs: list[RequestOutput]
    finished: list[tuple[Request, list[Result]]]
    failed: list[Request]  # with their error


class Prefill(NamedTuple):
    """Requests whose prompts are cached, and the logits of their first new tokens."""

    requests: list[Request]
    indices: list[int]  # of the logits of each request; samples of a prompt share them
    output: RunnerOutput


def get_search_method(config: GenerationConfig) -> SearchMethod:
    """Return the search method of a config."""
    if config.num_beams > 1:
        return beam_search_step
    return contrastive_search_step if config.penalty_alpha else greedy_search_step


class RunningBatch:
    """Prompts of one runner; requests with equal settings form a group with one search method."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.rows_per_prompt = runner.rows_per_prompt
        self.requests: list[Request] = []  # by batch_index
        self.groups: dict[GenerationConfig, RequestGroup] = {}
        # token_ids (N, L); length, prompt_length, max_length, next_input_ids (N,)
        self.row_tensors: dict[str, Tensor] = {}
        self.is_used = False  # whether it has cached prompts and has buffers for them

    def prefill(self, requests: list[Request]) -> Prefill:
        """Run the network on new prompts; samples of one prompt share its prefill.

        If this raises an error, the running requests are as before."""
        first_by_id = {request.request_id: request for request in reversed(requests)}
        first_samples = {*first_by_id.values()}
        prefilled = [request for request in requests if request in first_samples]
        duplicates = [request for request in requests if request not in first_samples]
        prefill_index = {request.request_id: i for i, request in enumerate(prefilled)}
        ordered = [*prefilled, *duplicates]
        indices = [prefill_index[request.request_id] for request in ordered]
        start = len(self.requests)
        with self.runner.restore_on_error():
            output = self.runner.prefill(
                [request.prompt for request in prefilled],
                [request.second_input for request in prefilled],
            )
            if duplicates:
                self.runner.duplicate_prompts([start + i for i in indices[len(prefilled) :]])
        self.is_used = True
        return Prefill(ordered, indices, output)

    def add_requests(self, prefill: Prefill) -> BatchOutcome:
        """Add requests and take their first step."""
        self.append_rows(prefill.requests)
        prefill_index = dict(zip(prefill.requests, prefill.indices, strict=True))
        requests_by_config: dict[GenerationConfig, list[Request]] = {}
        for request in prefill.requests:
            requests_by_config.setdefault(request.config, []).append(request)
        step_outputs = []
        for config, group_requests in requests_by_config.items():
            group = RequestGroup(config, group_requests, self.runner.device)
            index = group.to_tensor([prefill_index[request] for request in group_requests])
            output = prefill.output
            group_output = RunnerOutput(output.logits[index], output.last_hidden_state[index])
            step_outputs.append(
                self.select_next_tokens(group, self.get_row_indices(group), group_output)
            )
        return self.apply_step_outputs(step_outputs)

    def step(self) -> BatchOutcome:
        """Run the network on the next token of all rows, and select the next tokens per group."""
        slide_windows(self.runner, self.requests, self.row_tensors["token_ids"])
        output = self.runner.step(self.row_tensors["next_input_ids"][:, None])
        if len(self.groups) == 1:
            (group,) = self.groups.values()
            return self.apply_step_outputs([self.select_next_tokens(group, None, output)])
        step_outputs = []
        for group in self.groups.values():
            rows = self.get_row_indices(group)
            group_output = RunnerOutput(output.logits[rows], output.last_hidden_state[rows])
            step_outputs.append(self.select_next_tokens(group, rows, group_output))
        return self.apply_step_outputs(step_outputs)

    def append_rows(self, requests: list[Request]) -> None:
        """Append the rows of these requests to the batch."""
        device = self.runner.device
        row_requests = [request for request in requests for _ in range(self.rows_per_prompt)]
        token_ids, length = pad_sequences_to_tensor(
            [request.prompt for request in row_requests], device
        )
        new = {
            "token_ids": token_ids,
            "length": length,
            "prompt_length": length.clone(),
            "max_length": copy_to_device([request.max_length for request in row_requests], device),
            "next_input_ids": length.clone(),  # a placeholder until the first step is applied
        }
        self.row_tensors = {
            name: concat_padded(self.row_tensors[name], x) if self.row_tensors else x
            for name, x in new.items()
        }
        for request in requests:
            request.batch_index = len(self.requests)
            self.requests.append(request)

    def get_row_indices(self, group: RequestGroup) -> Tensor:
        """Return the row indices of a group, prompt by prompt."""
        prompt_indices = [request.batch_index for request in group.requests]
        return group.to_tensor(expand_prompt_indices(prompt_indices, self.rows_per_prompt))

    def select_next_tokens(
        self, group: RequestGroup, row_indices: Tensor | None, output: RunnerOutput
    ) -> GroupStepOutput:
        """Run the search method of a group on its rows; None: all rows of the batch."""
        method = get_search_method(group.config)
        get_context = cache(partial(self.build_context, group, row_indices))
        return group, row_indices, method(group, output, get_context)

    def build_context(self, group: RequestGroup, row_indices: Tensor | None) -> LogitsContext:
        """Return the context of the logits processors for these rows."""
        longest = max(request.length for request in group.requests)
        token_ids, length, prompt_length, max_length = (
            self.row_tensors[name] if row_indices is None else self.row_tensors[name][row_indices]
            for name in ("token_ids", "length", "prompt_length", "max_length")
        )
        source_ids = group.state.get("source_ids")
        if source_ids is not None:
            source_ids = source_ids.repeat_interleave(self.rows_per_prompt, dim=0) - 1
        allowed_tokens_fns = tuple(
            request.find_allowed_tokens if request.prefix_allowed_tokens_fn else None
            for request in group.requests
            for _ in range(self.rows_per_prompt)
        )
        return LogitsContext(
            input_ids=token_ids[:, :longest],
            lengths=length,
            prompt_lengths=prompt_length,
            max_lengths=max_length,
            source_ids=source_ids,
            prefix_allowed_tokens_fns=allowed_tokens_fns if any(allowed_tokens_fns) else (),
            rows_per_prompt=self.rows_per_prompt,
        )

    def apply_step_outputs(self, step_outputs: list[GroupStepOutput]) -> BatchOutcome:
        """Reorder rows by their parents, append the new tokens, and remove requests that ended."""
        self.reorder_rows(step_outputs)
        longest = max(request.length for request in self.requests) + 1
        if longest > self.row_tensors["token_ids"].shape[1]:
            self.row_tensors["token_ids"] = F.pad(self.row_tensors["token_ids"], (0, longest))
        token_ids = self.row_tensors["token_ids"]
        length = self.row_tensors["length"]
        next_input_ids = self.row_tensors["next_input_ids"]
        for _, rows, step_output in step_outputs:
            if rows is None:
                next_input_ids.copy_(step_output.next_input_ids)
                if step_output.new_token_ids is not None:
                    token_ids.scatter_(1, length[:, None], step_output.new_token_ids[:, None])
                    length += 1
                continue
            next_input_ids[rows] = step_output.next_input_ids
            if step_output.new_token_ids is not None:
                token_ids[rows, length[rows]] = step_output.new_token_ids
                length[rows] += 1
        host_outputs = [
            (group, step_output.get_host_output()) for group, _, step_output in step_outputs
        ]
        request_outputs = [
            output for _, host_output in host_outputs for output in host_output.request_outputs
        ]
        finished = [
            (group.requests[i], results)
            for group, host_output in host_outputs
            for i, results in host_output.finished_results.items()
        ]
        for group in [group for group, *_ in step_outputs if group.is_new]:
            group.is_new = False
            if self.groups.setdefault(group.config, group) is not group:
                self.groups[group.config].merge(group)
        return self.end_step(request_outputs, finished)

    def end_step(
        self, outputs: list[RequestOutput], finished: list[tuple[Request, list[Result]]]
    ) -> BatchOutcome:
        """Remove the requests that finished or failed; a request with an error has no results."""
        failed = [request for request in self.requests if request.error is not None]
        finished = [(request, results) for request, results in finished if request.error is None]
        ended = {*failed, *(request for request, _ in finished)}
        if ended:
            self.remove_requests(ended)
        return BatchOutcome(outputs, finished, failed)

    def reorder_rows(self, step_outputs: list[GroupStepOutput]) -> None:
        """Copy cache and tokens of parent rows; the rows of a new prompt are still equal."""
        parents = None
        for group, rows, step_output in step_outputs:
            if step_output.parents is None or group.is_new:
                continue
            if rows is None:
                parents = step_output.parents
                continue
            if parents is None:
                parents = torch.arange(
                    len(self.requests) * self.rows_per_prompt, device=self.runner.device
                )
            parents[rows] = rows[step_output.parents]
        if parents is not None:
            has_dropped = any(request.num_dropped for request in self.requests)
            shared = 0 if has_dropped else min(len(request.prompt) for request in self.requests)
            token_ids = self.row_tensors["token_ids"]
            window_ids = select_window_tokens(token_ids, self.requests, self.rows_per_prompt)
            self.runner.reorder_rows(parents, window_ids, shared)
            self.row_tensors["token_ids"] = token_ids.index_select(0, parents)

    def drop_requests(self, requests: set[Request]) -> BatchOutcome:
        """Remove requests without results, in any state."""
        self.runner.clear_prompts([request.batch_index for request in requests])
        self.remove_requests(requests)
        return BatchOutcome([], [], [])

    def remove_requests(self, requests: set[Request]) -> None:
        """Remove requests; the last requests of the batch move to the free indices."""
        self.runner.clear_prompts(
            [request.batch_index for request in requests if request.may_have_invalid_cache]
        )
        removed = {request.batch_index for request in requests}
        num_remaining = len(self.requests) - len(removed)
        free = sorted(index for index in removed if index < num_remaining)
        moved = [
            index for index in range(num_remaining, len(self.requests)) if index not in removed
        ]
        self.runner.remove_prompts([*zip(moved, free, strict=True)], num_remaining)
        order = move_and_truncate([*range(len(self.requests))], moved, free, num_remaining)
        row_index = copy_to_device(
            expand_prompt_indices(order, self.rows_per_prompt), self.runner.device
        )
        self.row_tensors = {
            name: x.index_select(0, row_index) for name, x in self.row_tensors.items()
        }
        self.requests = [self.requests[index] for index in order]
        for index, request in enumerate(self.requests):
            request.batch_index = index
        for config, group in [*self.groups.items()]:
            remaining = [i for i, request in enumerate(group.requests) if request not in requests]
            group.select_requests(sorted(remaining, key=lambda i: group.requests[i].batch_index))
            if not group.requests:
                del self.groups[config]
