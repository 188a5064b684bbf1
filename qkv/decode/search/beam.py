"""Beam search: in one group or several (diverse), with sampling, or with forced words.

Absent beams have the score ABSENT_BEAM_SCORE; scores and their order are those of transformers.
P prompts, K beams per prompt in groups of k, V vocabulary size, m candidates, L longest row.

State of a group of requests, besides the seed:
    beam_score (P, K)           sum of the log-probabilities of each running beam
    log_probs (P, K, T)         log-probability of each of its new tokens
    best_score (P, K)           scores of the best hypotheses so far
    best_token_ids (P, K, L)    their tokens, prompt included
    best_log_probs (P, K, T)    log-probability of each of their new tokens
    best_length (P, K)          their lengths, prompt included
    is_finished (P, K)          whether the entry is a finished hypothesis
    can_improve (P, groups)     whether a running beam may become a better hypothesis
    is_done (P, groups)         whether the search of a beam group is over"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.logits.forced_words import Candidates, constrain_candidates
from qkv.decode.logits.processors import LogitsContext
from qkv.decode.logits.sampling import sample_without_replacement
from qkv.decode.logits.top_k import select_top_k
from qkv.decode.request import (
    BeamCandidate,
    ContextFn,
    HostStepOutput,
    Request,
    RequestGroup,
    RequestOutput,
    Result,
    StepOutput,
)
from qkv.decode.runner import RunnerOutput
from qkv.decode.transfer import HostCopy, is_known_all_false

ABSENT_BEAM_SCORE = -1.0e9
MIN_VALID_SCORE = ABSENT_BEAM_SCORE / 1e3  # a lower score comes from an absent beam
INITIAL_RESULT_LENGTH = 16  # tokens of the first buffers


def beam_search_step(
    group: RequestGroup, output: RunnerOutput, get_context: ContextFn
) -> StepOutput:
    """Select the next tokens of all beams and collect finished hypotheses."""
    config = group.config
    state = group.state
    num_prompts = len(group.requests)
    context = get_context()
    log_probs = output.logits.log_softmax(-1, dtype=torch.float)
    if group.is_new:
        initialize_beams(group)
        log_probs = log_probs.repeat_interleave(config.num_beams, dim=0)
    grow_beam_buffers(group, context)
    log_probs = log_probs.unflatten(0, (num_prompts, -1))  # (P, K, V)
    k = config.num_beams // config.num_beam_groups
    earlier_token_ids: list[Tensor] = []  # (P, k) of each earlier beam group
    selections: list[tuple[Tensor, Tensor, Tensor]] = []  # token ids, parents, log-probs (P, k)
    for g in range(config.num_beam_groups):
        beam_slice = slice(g * k, (g + 1) * k)
        group_context = context
        if config.num_beam_groups > 1:
            earlier = torch.cat(earlier_token_ids, 1) if earlier_token_ids else None
            group_context = context.select_beam_group(beam_slice, earlier)
        scores = group.process_logits(log_probs[:, beam_slice].flatten(0, 1), group_context)
        scores = scores.unflatten(0, (num_prompts, -1))  # (P, k, V)
        candidates = propose_beam_candidates(
            group, scores, state["beam_score"][:, beam_slice], group_context
        )
        is_finished = find_finished_candidates(group, candidates, group_context)
        index, state["beam_score"][:, beam_slice] = select_running_beams(candidates, is_finished, k)
        beams = candidates.beam_index.gather(1, index)
        token_ids = candidates.token_id.gather(1, index)
        parents = beams + beam_slice.start if g else beams
        selections.append((token_ids, parents, gather_scores(scores, beams, token_ids)))
        if config.num_beam_groups > 1:
            is_done = state["is_done"][:, g, None]
            earlier_token_ids.append(token_ids.masked_fill(is_done, get_group_pad_token_id(group)))
        is_finished = add_max_length_candidates(group, candidates, is_finished, group_context)
        report_candidates(group, candidates, index, is_finished, beam_slice)
        if is_finished is not None:
            candidate_log_probs = gather_scores(scores, candidates.beam_index, candidates.token_id)
            update_best_hypotheses(
                group, beam_slice, candidates, is_finished, group_context, candidate_log_probs
            )
        update_search_status(group, g, beam_slice, candidates, is_finished, group_context)
    if config.num_beam_groups == 1:
        return advance_beams(group, context, *selections[0])
    return advance_beams(
        group, context, *(torch.cat(parts, 1) for parts in zip(*selections, strict=True))
    )


def initialize_beams(group: RequestGroup) -> None:
    """Create the state of new prompts."""
    config = group.config
    device = group.device
    beam_shape = (len(group.requests), config.num_beams)
    time_shape = (*beam_shape, 0)
    group_shape = (len(group.requests), config.num_beam_groups)
    beam_score = torch.full(beam_shape, ABSENT_BEAM_SCORE, device=device)
    # The beams of a group are equal at first, so only one of them counts.
    beam_score[:, :: config.num_beams // config.num_beam_groups] = 0.0
    group.state |= {
        "beam_score": beam_score,
        "log_probs": torch.zeros(time_shape, device=device),
        "best_score": torch.full(beam_shape, ABSENT_BEAM_SCORE, device=device),
        "best_token_ids": torch.zeros(time_shape, dtype=torch.long, device=device),
        "best_log_probs": torch.zeros(time_shape, device=device),
        "best_length": torch.zeros(beam_shape, dtype=torch.long, device=device),
        "is_finished": torch.zeros(beam_shape, dtype=torch.bool, device=device),
        "can_improve": torch.ones(group_shape, dtype=torch.bool, device=device),
        "is_done": torch.zeros(group_shape, dtype=torch.bool, device=device),
    }


def grow_beam_buffers(group: RequestGroup, context: LogitsContext) -> None:
    """Grow the buffers for one more token, by doubling."""
    num_new = max(request.length - len(request.prompt) for request in group.requests)
    required = {
        "log_probs": num_new,
        "best_log_probs": num_new,
        "best_token_ids": context.input_ids.shape[1],
    }
    for name, length in required.items():
        if group.state[name].shape[2] <= length:
            group.state[name] = F.pad(
                group.state[name], (0, max(length + 1, INITIAL_RESULT_LENGTH))
            )


def gather_scores(scores: Tensor, beam_index: Tensor, token_id: Tensor) -> Tensor:
    """Return the scores (P, k, V) at beams and tokens (P, m)."""
    return scores.flatten(1).gather(1, beam_index * scores.shape[-1] + token_id)


def get_prompt_values(x: Tensor, context: LogitsContext) -> Tensor:
    """Return the value that the rows of a prompt share: (P*k,) -> (P, 1)."""
    return x.view(-1, context.rows_per_prompt)[:, :1]


def get_group_pad_token_id(group: RequestGroup) -> int:
    """Return the padding token, else the first EOS token, else -1."""
    config = group.config
    if config.pad_token_id is not None:
        return config.pad_token_id
    return config.eos_token_id[0] if config.eos_token_id else -1


def propose_beam_candidates(
    group: RequestGroup, scores: Tensor, beam_scores: Tensor, context: LogitsContext
) -> Candidates:
    """Return the best continuations of all beams, enough that k of them are not EOS."""
    config = group.config
    _, k, vocab_size = scores.shape
    num_candidates = min(max(2, 1 + len(config.eos_token_id)) * k, k * vocab_size)
    if config.do_sample:
        total_scores = (scores + beam_scores[..., None]).flatten(1)
        step = get_prompt_values(context.lengths - context.prompt_lengths, context)[:, 0]
        index = sample_without_replacement(total_scores, group.state["seed"], step, num_candidates)
        score = total_scores.gather(1, index)
    else:
        score, index = select_top_k(scores, beam_scores, num_candidates)
    # With beam groups and with forced words, finished candidates count for the best attainable
    # score too, as in transformers.
    best_score = score.amax(1) if config.num_beam_groups > 1 else None
    candidates = Candidates(score, index // vocab_size, index % vocab_size, best_score=best_score)
    if not config.force_words_ids:
        return candidates
    return constrain_candidates(
        group.requests, candidates, scores + beam_scores[..., None], context
    )


def find_finished_candidates(
    group: RequestGroup, candidates: Candidates, context: LogitsContext
) -> Tensor | None:
    """Return (P, m) true where a candidate is EOS or meets its stopping criteria; None: nowhere."""
    config = group.config
    has_criteria = any(request.stopping_criteria for request in group.requests)
    if not (config.eos_token_id or has_criteria):
        return None
    is_finished = (candidates.token_id[..., None] == group.eos_token_ids).any(-1)
    if has_criteria:
        is_finished |= apply_stopping_criteria(group, candidates, context)
    return is_finished


def apply_stopping_criteria(
    group: RequestGroup, candidates: Candidates, context: LogitsContext
) -> Tensor:
    """Return (P, m) true where the stopping criteria of a request end a candidate."""
    beam_index = candidates.beam_index.tolist()
    token_id = candidates.token_id.tolist()
    flags = []
    for i, request in enumerate(group.requests):
        first_row = i * context.rows_per_prompt
        flags.append(
            [
                request.stopping_criteria is not None
                and request.is_stopped([*context.get_new_token_ids(first_row + beam), token])
                for beam, token in zip(beam_index[i], token_id[i], strict=True)
            ]
        )
    return group.to_tensor(flags).bool()


def add_max_length_candidates(
    group: RequestGroup, candidates: Candidates, is_finished: Tensor | None, context: LogitsContext
) -> Tensor | None:
    """Return `is_finished` with all candidates of the prompts that reach their maximum length."""
    if all(request.length + 1 < request.max_length for request in group.requests):
        return is_finished
    is_full = get_prompt_values(context.lengths + 1 >= context.max_lengths, context)
    is_full = is_full.expand_as(candidates.token_id)
    return is_full if is_finished is None else is_finished | is_full


def select_running_beams(
    candidates: Candidates, is_finished: Tensor | None, k: int
) -> tuple[Tensor, Tensor]:
    """Return the indices (P, k) of the candidates that continue, and their scores."""
    score = (
        candidates.score
        if is_finished is None
        else candidates.score + is_finished * ABSENT_BEAM_SCORE
    )
    if candidates.order is None:
        best = score.topk(k, dim=1)
        return best.indices, best.values
    order = candidates.order
    if is_finished is not None:
        order = order + is_finished * order.shape[1]
    index = order.topk(k, dim=1, largest=False).indices
    return index, score.gather(1, index)


def report_candidates(
    group: RequestGroup,
    candidates: Candidates,
    index: Tensor,
    is_finished: Tensor | None,
    beam_slice: slice,
) -> None:
    """Call the callbacks of requests with the candidates; `index` (P, k) are those that continue."""
    if all(request.beam_callback is None for request in group.requests):
        return
    k = beam_slice.stop - beam_slice.start
    if is_finished is None:
        is_finished = torch.zeros_like(candidates.token_id, dtype=torch.bool)
    is_eligible = find_eligible_candidates(candidates, k).expand_as(is_finished)
    is_hypothesis = is_finished & is_eligible
    for i, request in enumerate(group.requests):
        beam_callback = request.beam_callback
        if beam_callback is None:
            continue
        next_beam = {j: beam_slice.start + beam for beam, j in enumerate(index[i].tolist())}
        rows = zip(
            candidates.beam_index[i].tolist(),
            candidates.token_id[i].tolist(),
            candidates.score[i].tolist(),
            is_hypothesis[i].tolist(),
            strict=True,
        )
        considered = [
            BeamCandidate(beam_slice.start + beam, token_id, score, is_result, next_beam.get(j))
            for j, (beam, token_id, score, is_result) in enumerate(rows)
            if score > MIN_VALID_SCORE
        ]
        request.call(partial(beam_callback, considered), None)


def find_eligible_candidates(candidates: Candidates, k: int) -> Tensor:
    """Return true for candidates that may become hypotheses: those beyond the first k only replace
    finished beams."""
    if candidates.is_complete is not None:
        return candidates.is_complete
    num_candidates = candidates.token_id.shape[1]
    return torch.arange(num_candidates, device=candidates.token_id.device) < k


def update_best_hypotheses(
    group: RequestGroup,
    beam_slice: slice,
    candidates: Candidates,
    is_finished: Tensor,
    context: LogitsContext,
    log_probs: Tensor,
) -> None:
    """Merge finished candidates into the best hypotheses of their prompt."""
    config = group.config
    state = group.state
    k = beam_slice.stop - beam_slice.start
    is_hypothesis = is_finished & find_eligible_candidates(candidates, k)
    if is_known_all_false(is_hypothesis):
        return
    length = get_prompt_values(context.lengths, context)  # (P, 1)
    num_new = length - get_prompt_values(context.prompt_lengths, context)  # before this step
    num_reasons = (~is_hypothesis).float()  # number of reasons to exclude a candidate
    num_reasons = num_reasons + (~state["can_improve"][:, beam_slice.start // k, None]).float()
    if config.early_stopping is True:
        num_reasons = num_reasons + state["is_finished"][:, beam_slice].all(1, keepdim=True).float()
    score = candidates.score / (num_new + 1).float() ** config.length_penalty
    score = score + num_reasons * ABSENT_BEAM_SCORE
    merged_score = torch.cat([state["best_score"][:, beam_slice], score], dim=1)
    state["best_score"][:, beam_slice], top = merged_score.topk(k, dim=1)

    def merge(current: Tensor, new: Tensor) -> Tensor:
        """Return the values (P, k) of the best among current (P, k) and new (P, m) hypotheses."""
        return torch.cat([current, new], dim=1).gather(1, top)

    state["is_finished"][:, beam_slice] = merge(state["is_finished"][:, beam_slice], is_hypothesis)
    state["best_length"][:, beam_slice] = merge(
        state["best_length"][:, beam_slice], (length + 1).expand_as(is_hypothesis)
    )
    rows = merge(torch.arange(k, device=top.device).expand_as(top), candidates.beam_index + k)
    sources = {  # running beams, index of the new value, new values of the candidates
        "best_token_ids": (context.input_ids.unflatten(0, (-1, k)), length, candidates.token_id),
        "best_log_probs": (state["log_probs"][:, beam_slice], num_new, log_probs),
    }
    for name, (running, position, new) in sources.items():
        best = state[name][:, beam_slice]
        prefix = best[..., : running.shape[2]]
        prefix.copy_(gather_hypotheses(torch.cat([prefix, running], dim=1), rows))
        # For a current hypothesis, which is shorter, the value is beyond its end and has no effect.
        best.scatter_(2, position[..., None].expand(-1, k, 1), merge(new[:, :k], new)[..., None])


def gather_hypotheses(x: Tensor, index: Tensor) -> Tensor:
    """Select sequences: (P, n, L) at (P, m) -> (P, m, L)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def update_search_status(
    group: RequestGroup,
    g: int,
    beam_slice: slice,
    candidates: Candidates,
    is_finished: Tensor | None,
    context: LogitsContext,
) -> None:
    """End the search of a beam group when no running beam can become one of the best hypotheses."""
    config = group.config
    state = group.state
    use_max_length = config.early_stopping == "never" and config.length_penalty > 0
    length = context.max_lengths if use_max_length else context.lengths + 1
    num_new = get_prompt_values(length - context.prompt_lengths, context)[:, 0]
    attainable = candidates.best_score
    if attainable is None:
        attainable = state["beam_score"][:, beam_slice].amax(1)
    attainable = attainable / num_new.float() ** config.length_penalty
    all_finished = state["is_finished"][:, beam_slice].all(1)
    worst_score = torch.where(
        all_finished, state["best_score"][:, beam_slice].amin(1), ABSENT_BEAM_SCORE
    )
    state["can_improve"][:, g] &= attainable > worst_score
    is_done = ~state["can_improve"][:, g]
    if config.early_stopping is True:
        is_done |= all_finished
    if is_finished is not None:
        is_done |= is_finished.all(1)
    state["is_done"][:, g] |= is_done


def advance_beams(
    group: RequestGroup,
    context: LogitsContext,
    token_ids: Tensor,
    parents: Tensor,
    log_probs: Tensor,
) -> StepOutput:
    """Continue the beams from their parents (P, K) and report the prompts that are done."""
    state = group.state
    num_prompts, k = parents.shape
    first_rows = torch.arange(0, num_prompts * k, k, device=parents.device)
    rows = (parents + first_rows[:, None]).flatten()
    num_new = get_prompt_values(context.lengths - context.prompt_lengths, context)
    previous = state["log_probs"].flatten(0, 1).index_select(0, rows).unflatten(0, (num_prompts, k))
    state["log_probs"] = previous.scatter_(
        2, num_new[..., None].expand(-1, k, 1), log_probs[..., None]
    )
    flags = HostCopy(torch.stack([state["is_done"].all(1), state["is_invalid"]]))
    return StepOutput(
        token_ids.flatten(),
        token_ids.flatten(),
        rows,
        partial(report_finished_prompts, group, flags),
    )


def report_finished_prompts(group: RequestGroup, flags: HostCopy) -> HostStepOutput:
    """Return the results of the prompts that are done."""
    is_done, is_invalid = flags.tolist()
    group.fail_invalid_requests(is_invalid)
    finished = collect_hypotheses(group, [i for i, done in enumerate(is_done) if done])
    for request in group.requests:
        request.length += 1
    outputs = [
        RequestOutput(group.requests[i].request_id, results[0].token_ids if results else [])
        for i, results in finished.items()
    ]
    return HostStepOutput(outputs, finished)


def collect_hypotheses(group: RequestGroup, prompt_indices: list[int]) -> dict[int, list[Result]]:
    """Return the best hypotheses of these prompts, best first."""
    if not prompt_indices:
        return {}
    index = group.to_tensor(prompt_indices)
    names = ("best_score", "best_token_ids", "best_log_probs", "best_length")
    copies = [HostCopy(group.state[name].index_select(0, index)) for name in names]
    prompt_values = zip(*(copy.tolist() for copy in copies), strict=True)
    return {
        i: rank_hypotheses(group.requests[i], *values)
        for i, values in zip(prompt_indices, prompt_values, strict=True)
    }


def rank_hypotheses(
    request: Request,
    scores: list[float],
    token_ids: list[list[int]],
    log_probs: list[list[float]],
    lengths: list[int],
) -> list[Result]:
    """Return the valid hypotheses of one prompt as results, best first.

    Of equal scores in several beam groups the last comes first, as in transformers."""
    has_groups = request.config.num_beam_groups > 1
    order = sorted(range(len(scores)), key=lambda k: (-scores[k], -k if has_groups else k))
    valid = [k for k in order if scores[k] > MIN_VALID_SCORE]
    results = []
    for k in valid[: request.config.num_return_sequences]:
        new_token_ids = token_ids[k][len(request.prompt) : lengths[k]]
        if new_token_ids[-1] in request.config.eos_token_id:
            reason = "eos"
        else:
            reason = request.limit_reason if lengths[k] >= request.max_length else "stop"
        results.append(Result(new_token_ids, scores[k], log_probs[k][: len(new_token_ids)], reason))
    return results
