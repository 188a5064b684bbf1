"""Greedy search and sampling: one row per prompt, one token per step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from qkv.decode.logits.sampling import hash_uniform, sample_tokens
from qkv.decode.request import (
    ContextFn,
    HostStepOutput,
    Request,
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
    host_copy = copy_tokens_to_host(token_ids, log_probs)
    return StepOutput(
        token_ids, token_ids, None, partial(append_new_tokens, group.requests, host_copy)
    )


def copy_tokens_to_host(token_ids: Tensor, log_probs: Tensor) -> HostCopy:
    """Start copying token ids and log-probabilities to the host, as float64, exact for both."""
    return HostCopy(torch.stack([token_ids.double(), log_probs.double()]))


def append_new_tokens(requests: list[Request], host_copy: HostCopy) -> HostStepOutput:
    """Append the new token of every request and return outputs and results."""
    outputs: list[RequestOutput] = []
    finished: dict[int, list[Result]] = {}
    token_ids, log_probs = host_copy.tolist()
    rows = zip(requests, map(int, token_ids), log_probs, strict=True)
    for i, (request, token_id, log_prob) in enumerate(rows):
        reason = request.append_token(token_id, log_prob)
        new_token_ids = [] if reason == "nothing" else [token_id]
        outputs.append(RequestOutput(request.request_id, new_token_ids, request.sample_index))
        if reason is not None:
            finished[i] = [request.build_result(reason)]
    return HostStepOutput(outputs, finished)
