"""Contrastive search (Su et al. 2022): likely tokens whose hidden states differ from earlier ones.

The rows of a prompt run one candidate each; one of them is selected, and all rows continue from it.
P prompts, K candidates per prompt, V vocabulary size, W width, C context states."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.logits.processors import LogitsContext
from qkv.decode.request import ContextFn, RequestGroup, StepOutput
from qkv.decode.runner import RunnerOutput
from qkv.decode.search.greedy import append_new_tokens, copy_tokens_to_host


def contrastive_search_step(
    group: RequestGroup, output: RunnerOutput, get_context: ContextFn
) -> StepOutput:
    """Select one of the candidates that were run, and propose the next ones."""
    state = group.state
    alpha = group.config.penalty_alpha
    num_prompts = len(group.requests)
    num_candidates = group.config.top_k
    context = get_context().select_beam_group(slice(0, 1))
    if group.is_new:
        lengths = group.to_tensor([request.length for request in group.requests])
        positions = torch.arange(output.last_hidden_state.shape[1], device=group.device)
        is_valid = positions < lengths[:, None]
        state["context_states"] = (
            normalize_hidden_states(output.last_hidden_state) * is_valid[..., None]
        )
        state["num_context_states"] = lengths
        return StepOutput(propose_contrastive_candidates(group, output.logits, context))
    hidden = normalize_hidden_states(output.last_hidden_state[:, -1])
    hidden = hidden.unflatten(0, (num_prompts, -1))  # (P, K, W)
    similarity = hidden @ state["context_states"].transpose(1, 2)  # (P, K, C)
    positions = torch.arange(similarity.shape[2], device=group.device)
    is_valid = positions < state["num_context_states"][:, None]
    penalty = similarity.masked_fill(~is_valid[:, None], -torch.inf).amax(2)
    is_banned = state["candidate_probs"] == 0
    group.record_invalid_scores(penalty.masked_fill(is_banned, -torch.inf))
    scores = (1 - alpha) * state["candidate_probs"] - alpha * penalty
    scores = scores.masked_fill(is_banned, -torch.inf)
    selected = scores.argmax(1, keepdim=True)  # (P, 1)
    token_ids = state["candidate_ids"].gather(1, selected)[:, 0]
    probs = state["candidate_probs"].gather(1, selected)[:, 0]
    host_copy = copy_tokens_to_host(group, token_ids, probs.double().log())
    append_context_states(
        group, hidden.gather(1, selected[..., None].expand(-1, -1, hidden.shape[2]))
    )
    first_rows = torch.arange(0, num_prompts * num_candidates, num_candidates, device=group.device)
    rows = first_rows + selected[:, 0]
    next_input_ids = propose_contrastive_candidates(
        group, output.logits[rows], context.append_tokens(token_ids)
    )
    return StepOutput(
        next_input_ids,
        token_ids.repeat_interleave(num_candidates),
        rows.repeat_interleave(num_candidates),
        partial(append_new_tokens, group, host_copy),
    )


def propose_contrastive_candidates(
    group: RequestGroup, logits: Tensor, context: LogitsContext
) -> Tensor:
    """Return the most likely tokens of each prompt, one per row: (P*K,)."""
    candidates = group.process_logits(logits, context).softmax(-1).topk(group.config.top_k, dim=1)
    group.state["candidate_probs"] = candidates.values
    group.state["candidate_ids"] = candidates.indices
    return candidates.indices.flatten()


def append_context_states(group: RequestGroup, hidden_states: Tensor) -> None:
    """Append the hidden states (P, 1, W) of the selected tokens to the context."""
    state = group.state
    capacity = state["context_states"].shape[1]
    if max(request.length for request in group.requests) >= capacity:
        state["context_states"] = F.pad(state["context_states"], (0, 0, 0, capacity))
    index = state["num_context_states"][:, None, None].expand(-1, 1, hidden_states.shape[2])
    state["context_states"] = state["context_states"].scatter(1, index, hidden_states)
    state["num_context_states"] = state["num_context_states"] + 1


def normalize_hidden_states(hidden_states: Tensor) -> Tensor:
    """Scale hidden states to unit length, in float32."""
    return hidden_states.float() / hidden_states.float().norm(dim=-1, keepdim=True)
