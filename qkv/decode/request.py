"""Requests, their results, and groups of requests with the same settings. Does not depend on networks.

A request fails alone: functions of the user are called by `Request.call`, which stores their error,
and the batch goes on with a neutral value until the engine removes the request at the end of the step.
P requests of a group, N rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from qkv.decode.config import GenerationConfig
from qkv.decode.logits.processors import (
    LogitsContext,
    LogitsProcessor,
    PrefixAllowedTokensFn,
    apply_logits_processors,
    build_logits_processors,
)
from qkv.decode.logits.sampling import SamplingFilter, build_sampling_filters
from qkv.decode.transfer import copy_to_device

ValueT = TypeVar("ValueT")
StoppingCriteria = Callable[[list[int]], bool]  # new token ids so far -> is the sequence finished?


class BeamCandidate(NamedTuple):
    """A continuation that a step of beam search has considered."""

    beam: int  # running beam that it continues
    token_id: int
    score: float  # sum of log-probabilities
    is_hypothesis: bool  # finished, and good enough to be a result
    next_beam: int | None  # running beam that it becomes; None: it is not continued


BeamCallback = Callable[[list[BeamCandidate]], None]  # called in every step of beam search


class Result(NamedTuple):
    """A generated sequence."""

    token_ids: list[int]  # new tokens, EOS included
    score: float  # sum of log_probs / len(token_ids) ** length_penalty
    log_probs: list[float]  # one per token
    # eos, stop (criteria), length, context (no position), nothing (no token), error
    finish_reason: str
    error: Exception | None = None  # why its request failed, with the finish reason "error"


class RequestOutput(NamedTuple):
    """Output of a step for one request."""

    request_id: int
    new_token_ids: list[int]  # of this step; beam search outputs all tokens when it is finished
    sample_index: int = 0  # which of the samples of a prompt
    # Best first; set when the request is finished. A request that failed has one, with its error.
    results: list[Result] | None = None

    def get_results(self) -> list[Result] | None:
        """Return the results, or raise the error of the request."""
        for result in self.results or ():
            if result.error is not None:
                raise result.error
        return self.results


@dataclass(kw_only=True, eq=False)
class Request:
    """State of a prompt, or of one sample of it, in a batch; compared by identity."""

    request_id: int
    config: GenerationConfig
    prompt: list[int]
    max_length: int  # tokens of the prompt and new tokens
    limit_reason: str = "length"  # finish reason at the maximum length
    source: list[int] | Tensor | None = None
    seed: int = 0
    sample_index: int = 0
    negative_prompt: list[int] | None = None  # of guidance
    prefix_allowed_tokens_fn: PrefixAllowedTokensFn | None = None
    stopping_criteria: StoppingCriteria | None = None
    beam_callback: BeamCallback | None = None
    batch_index: int = 0
    num_start_tokens: int = 0  # of the prompt, kept in every context window
    num_dropped: int = 0  # tokens after these that the context window has left behind
    length: int = field(init=False)
    new_token_ids: list[int] = field(init=False)
    log_probs: list[float] = field(init=False)
    num_streamed: int = 0  # new tokens that were output before the current step
    error: Exception | None = None  # set in the middle of a step; the request ends after it

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Go back to the prompt; tokens that were output already are not output again."""
        self.length = len(self.prompt)
        self.num_dropped = 0
        self.new_token_ids = []
        self.log_probs = []
        self.error = None

    @property
    def num_rows(self) -> int:
        """Number of rows of the batch: beams, or candidates of contrastive search."""
        config = self.config
        return config.top_k if config.penalty_alpha and config.num_beams == 1 else config.num_beams

    @property
    def window_length(self) -> int:
        """Number of tokens in the context window of the row."""
        return self.length - self.num_dropped

    @property
    def num_input_tokens(self) -> int:
        """Number of tokens, or hidden states, of the prefill."""
        return len(self.prompt) + (0 if self.source is None else len(self.source))

    @property
    def second_input(self) -> list[int] | Tensor | None:
        """The second input of a runner: the source of the encoder, or the negative prompt."""
        return self.source if self.negative_prompt is None else self.negative_prompt

    @property
    def source_token_ids(self) -> list[int]:
        """Token ids for the encoder_* penalties: those of the encoder, else the prompt."""
        return self.source if isinstance(self.source, list) else self.prompt

    @property
    def may_have_invalid_cache(self) -> bool:
        """Whether the cached keys and values of the request may be NaN."""
        return self.error is not None or self.config.remove_invalid_values

    def call(self, function: Callable[[], ValueT], default: ValueT) -> ValueT:
        """Call a function of the user; if it fails, store its error and return the default."""
        if self.error is not None:
            return default
        try:
            return function()
        except Exception as error:
            self.error = error
            return default

    def find_allowed_tokens(self, new_token_ids: list[int]) -> Sequence[int] | Tensor | None:
        """Return the tokens that `prefix_allowed_tokens_fn` allows; None: all."""
        function = self.prefix_allowed_tokens_fn
        return None if function is None else self.call(lambda: function(new_token_ids), None)

    def is_stopped(self, new_token_ids: list[int]) -> bool:
        """Return whether the stopping criteria end a sequence with these new tokens."""
        criteria = self.stopping_criteria
        if criteria is None:
            return False
        return self.call(lambda: bool(criteria([*new_token_ids])), False)

    def append_token(self, token_id: int, log_prob: float) -> str | None:
        """Append a token and return the finish reason, or None if the sequence is not finished."""
        self.length += 1
        if log_prob != log_prob:  # NaN: all logits are -inf
            return "nothing"
        self.new_token_ids.append(token_id)
        self.log_probs.append(log_prob)
        return get_finish_reason(self, self.new_token_ids)

    def build_output(self, num_new: int) -> RequestOutput:
        """Return the last `num_new` tokens as output, without those that were output before."""
        start = max(len(self.new_token_ids) - num_new, self.num_streamed)
        return RequestOutput(self.request_id, self.new_token_ids[start:], self.sample_index)

    def build_result(self, finish_reason: str, error: Exception | None = None) -> Result:
        """Return the new tokens as a result."""
        return Result(
            self.new_token_ids,
            compute_sequence_score(self.log_probs, self.config.length_penalty),
            self.log_probs,
            finish_reason,
            error,
        )


def get_finish_reason(request: Request, new_token_ids: list[int]) -> str | None:
    """Return why a sequence with these new tokens is finished, or None if it is not."""
    if new_token_ids[-1] in request.config.eos_token_id:
        return "eos"
    if request.is_stopped(new_token_ids):
        return "stop"
    is_full = len(request.prompt) + len(new_token_ids) >= request.max_length
    return request.limit_reason if is_full else None


def compute_sequence_score(log_probs: list[float], length_penalty: float) -> float:
    """Return the sum of log-probabilities over the length to the power of the penalty."""
    return sum(log_probs) / max(len(log_probs), 1) ** length_penalty


class HostStepOutput(NamedTuple):
    """The part of a step's output that the host reads."""

    request_outputs: Sequence[RequestOutput] = ()
    finished_results: Mapping[int, list[Result]] = MappingProxyType({})  # by index in the group


def make_empty_host_output() -> HostStepOutput:
    return HostStepOutput()


class StepOutput(NamedTuple):
    """Next tokens of the N rows of a group."""

    next_input_ids: Tensor  # (N,) input of the next step
    new_token_ids: Tensor | None = None  # (N,) tokens appended to the rows; None: none in this step
    parents: Tensor | None = None  # (N,) rows to continue from; None: the rows themselves
    # Called after all work of the step is queued on the device, because it may wait for the device.
    get_host_output: Callable[[], HostStepOutput] = make_empty_host_output


ContextFn = Callable[[], LogitsContext]


class RequestGroup:
    """Requests of a batch with the same settings.

    `state` holds the tensors of the search method, (P, ...) with one entry per request."""

    def __init__(
        self, config: GenerationConfig, requests: list[Request], device: torch.device
    ) -> None:
        self.config = config
        self.requests = requests
        self.device = device
        self.logits_processors: list[LogitsProcessor] = self._build_logits_processors()
        self.sampling_filters: list[SamplingFilter] = (
            build_sampling_filters(config) if config.do_sample else []
        )
        self.is_new = True  # until its first step is applied
        # is_invalid (P,): scores were NaN or infinite
        self.state: dict[str, Tensor] = {"is_invalid": self.to_tensor([0] * len(requests)).bool()}
        self.eos_token_ids = self.to_tensor([*config.eos_token_id])
        if config.encoder_repetition_penalty != 1 or config.encoder_no_repeat_ngram_size:
            sources = [request.source_token_ids for request in requests]
            max_length = max(map(len, sources))
            shifted = [
                [token_id + 1 for token_id in source] + [0] * (max_length - len(source))
                for source in sources
            ]
            self.state["source_ids"] = self.to_tensor(shifted)  # (P, S) token ids + 1; 0: padding
        if config.do_sample:
            self.state["seed"] = self.to_tensor([request.seed for request in requests])

    def _build_logits_processors(self) -> list[LogitsProcessor]:
        has_allowed_tokens_fn = any(request.prefix_allowed_tokens_fn for request in self.requests)
        return build_logits_processors(self.config, has_allowed_tokens_fn=has_allowed_tokens_fn)

    def to_tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        """Return integers as a tensor on the group's device."""
        return copy_to_device(values, self.device)

    def process_logits(self, logits: Tensor, context: LogitsContext | ContextFn) -> Tensor:
        """Apply the logits processors and sampling filters of the group: (N, V) -> (N, V)."""
        scores = logits.float()
        self.record_invalid_scores(scores)
        if self.logits_processors:
            context = context if isinstance(context, LogitsContext) else context()
            scores = apply_logits_processors(self.logits_processors, scores, context)
            self.record_invalid_scores(scores)
        for sampling_filter in self.sampling_filters:
            scores = sampling_filter(scores)
        return scores.log_softmax(-1) if self.config.renormalize_logits else scores

    def record_invalid_scores(self, scores: Tensor) -> None:
        """Set the flags of requests whose scores are NaN or infinite; -inf: tokens not allowed."""
        # The maximum of scores with a NaN is NaN.
        is_valid = (scores.amax(-1) < torch.inf).view(len(self.requests), -1).all(1)
        self.state["is_invalid"] = self.state["is_invalid"] | ~is_valid

    def fail_invalid_requests(self, is_invalid: Sequence[float]) -> None:
        """Set the error of the requests whose scores were NaN or infinite."""
        if self.config.remove_invalid_values:
            return
        for request, flag in zip(self.requests, is_invalid, strict=True):
            if flag and request.error is None:
                number = request.length - len(request.prompt) + 1
                request.error = ValueError(
                    f"the logits of new token {number} contain NaN or infinity, expected finite "
                    "numbers: check the weights and the dtype of the model, or set "
                    "remove_invalid_values"
                )

    def merge(self, other: RequestGroup) -> None:
        """Append the requests of another group; state is zero-padded to the larger size."""
        self.requests += other.requests
        self.logits_processors = self._build_logits_processors()
        self.state = {name: concat_padded(x, other.state[name]) for name, x in self.state.items()}

    def select_requests(self, indices: list[int]) -> None:
        """Keep the requests at these indices, in this order."""
        self.requests = [self.requests[i] for i in indices]
        index = self.to_tensor(indices)
        self.state = {name: x.index_select(0, index) for name, x in self.state.items()}


def concat_padded(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate along the first axis; the other axes are zero-padded to the larger size."""
    sizes = [max(a, b) for a, b in zip(first.shape[1:], second.shape[1:], strict=True)]
    return torch.cat([pad_trailing_axes(first, sizes), pad_trailing_axes(second, sizes)])


def pad_trailing_axes(x: Tensor, sizes: list[int]) -> Tensor:
    """Zero-pad the end of every axis but the first to these sizes."""
    padding = [
        pad
        for current, target in zip(x.shape[:0:-1], sizes[::-1], strict=True)
        for pad in (0, target - current)
    ]
    return torch.nn.functional.pad(x, padding) if any(padding) else x
