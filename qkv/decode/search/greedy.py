"""Greedy search and sampling: one row per prompt, one token per step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from qkv.decode.logits.sampling import hash_uniform, sample_tokens
from qkv.decode.request import (
    ContextFn,
    HostStepOutput,
    RequestGroup,
    RequestOutput,
    Result,
    StepOutput,
)
from qkv.decode.runner import RunnerOutput
from qkv.decode.transfer import HostCopy


def greedy_search_step(
    group: RequestGroup, output: RunnerOutput, get_context: ContextFn
) -> StepOutput:
    """Select the most likely token of every row, or sample one."""
    scores = group.process_logits(output.logits, get_context)
    if group.config.do_sample:
        context = get_context()
        step = context.lengths - context.prompt_lengths
        token_ids = sample_tokens(scores, hash_uniform(group.state["seed"], step))
    else:
        token_ids = scores.argmax(-1)
    log_probs = scores.gather(1, token_ids[:, None])[:, 0] - scores.logsumexp(-1)
    host_copy = copy_tokens_to_host(group, token_ids, log_probs)
    return StepOutput(token_ids, token_ids, None, partial(append_new_tokens, group, host_copy))


def copy_tokens_to_host(group: RequestGroup, token_ids: Tensor, log_probs: Tensor) -> HostCopy:
    """Start copying tokens, log-probabilities and flags to the host, as float64, exact for all."""
    rows = (token_ids, log_probs, group.state["is_invalid"])
    return HostCopy(torch.stack([row.double() for row in rows]))


def append_new_tokens(group: RequestGroup, host_copy: HostCopy) -> HostStepOutput:
    """Append the new token of every request and return outputs and results."""
    outputs: list[RequestOutput] = []
    finished: dict[int, list[Result]] = {}
    token_ids, log_probs, is_invalid = host_copy.tolist()
    group.fail_invalid_requests(is_invalid)
    rows = zip(group.requests, map(int, token_ids), log_probs, strict=True)
    for i, (request, token_id, log_prob) in enumerate(rows):
        if request.error is not None:
            continue
        reason = request.append_token(token_id, log_prob)
        outputs.append(request.build_output(0 if reason == "nothing" else 1))
        if reason is not None:
            finished[i] = [request.build_result(reason)]
    return HostStepOutput(outputs, finished)
