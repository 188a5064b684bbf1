"""Engine: continuous batching of generation requests. Works on token ids, not on text.

engine = Engine(net)
request_id = engine.add_request([15, 27], generation_config=GenerationConfig(max_new_tokens=20))
while engine.has_unfinished_requests:
    for output in engine.step():  # new token ids, and the results when a request is finished
        ...
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from qkv.decode.config import GenerationConfig, format_setting_value
from qkv.decode.config_file import check_config_token_ids
from qkv.decode.logits.forced_words import count_forced_tokens
from qkv.decode.logits.processors import PrefixAllowedTokensFn
from qkv.decode.request import Request, RequestOutput, Result, StoppingCriteria
from qkv.decode.runner import ModelRunner
from qkv.decode.running_batch import RunningBatch, get_search_method
from qkv.decode.search.speculative import SpeculativeBatch
from qkv.decode.segment_runner import SegmentRunner
from qkv.kernels.attention import without_cudnn
from qkv.nn.transformer import Transformer
from qkv.validate import check_sequence_length

DEFAULT_MAX_NEW_TOKENS = 256  # when the settings have no maximum length
UNLIMITED_BATCH_SIZE = 1 << 30

Source = Sequence[int] | Tensor


class Engine:
    """Generates for many requests at once; a result does not depend on the other requests.

    Requests may be added at any time and have different settings. `assistant_model` is a smaller
    network with the same vocabulary for speculative decoding. `max_batch_size` limits the rows
    that run at the same time; requests above it wait. `static_shapes` keeps the shapes of a step
    constant and, on a GPU, replays the step as a CUDA graph."""

    def __init__(
        self,
        net: Transformer,
        *,
        assistant_model: Transformer | None = None,
        max_batch_size: int | None = None,
        static_shapes: bool = False,
    ) -> None:
        if net.training:
            raise ValueError("the network is in training mode, expected eval mode: call net.eval()")
        self.net = net
        self.assistant_model = assistant_model
        self.max_batch_size = max_batch_size
        self.static_shapes = static_shapes
        self.is_encoder_decoder = net.encoder is not None and net.decoder is not None
        self.is_recurrent = is_recurrent_model(net)
        self.vocab_size = get_vocab_size(net)
        self.max_positions = net.last_stack.spec.max_positions
        if assistant_model is not None:
            check_assistant_model(net, assistant_model)
        self.waiting_requests: list[Request] = []
        self.running_batches: dict[Hashable, RunningBatch] = {}
        self.partial_results: dict[int, dict[int, list[Result]]] = {}  # request_id, sample_index
        self.last_request_id = -1
        self.num_steps = 0

    @property
    def has_unfinished_requests(self) -> bool:
        """True while requests wait or run."""
        return bool(self.waiting_requests) or any(
            batch.requests for batch in self.running_batches.values()
        )

    def add_request(
        self,
        prompt: Sequence[int] = (),
        *,
        source: Source | None = None,
        generation_config: GenerationConfig | None = None,
        seed: int = 0,
        prefix_allowed_tokens_fn: PrefixAllowedTokensFn | None = None,
        stopping_criteria: StoppingCriteria | None = None,
    ) -> int:
        """Add a request to the queue and return its id; it is processed from the next step on.

        `source` is the encoder's token ids, or hidden states (S, W) for cross-attention.
        `prefix_allowed_tokens_fn` returns the token ids allowed after the new token ids so far;
        `stopping_criteria` returns True after the last one. It is required with `stop_strings`, which
        the engine cannot find because it has no tokenizer."""
        generation_config = generation_config or GenerationConfig()
        self.check_config(generation_config)
        if generation_config.stop_strings and stopping_criteria is None:
            raise ValueError(
                f"stop_strings is {format_setting_value(generation_config.stop_strings)}, expected none"
                " without a tokenizer: use Model.generate or a task, or pass stopping_criteria"
            )
        prompt_ids = self.prepare_prompt(list(prompt), source, generation_config)
        max_length, limit_reason = self.compute_max_length(prompt_ids, generation_config)
        has_start_token = self.is_encoder_decoder or prompt_ids[0] == generation_config.bos_token_id
        self.last_request_id += 1
        self.waiting_requests += [
            Request(
                request_id=self.last_request_id,
                config=generation_config,
                prompt=prompt_ids,
                max_length=max_length,
                limit_reason=limit_reason,
                num_start_tokens=int(has_start_token),
                seed=seed + (sample_index << 32),
                sample_index=sample_index,
                source=list(source) if isinstance(source, Sequence) else source,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                stopping_criteria=stopping_criteria,
            )
            for sample_index in range(generation_config.num_samples)
        ]
        return self.last_request_id

    def check_config(self, config: GenerationConfig) -> None:
        """Raise an error if this network cannot decode with these settings."""
        check_config_token_ids(config, self.vocab_size)
        if config.penalty_alpha and config.top_k > self.vocab_size:
            raise ValueError(
                f"top_k is {config.top_k} with penalty_alpha, expected at most the vocabulary size "
                f"{self.vocab_size:,}"
            )
        if self.is_recurrent and (config.penalty_alpha or self.assistant_model is not None):
            setting = "penalty_alpha" if config.penalty_alpha else "assistant_model"
            raise ValueError(
                f"{setting} needs a cache that can be truncated, and a recurrent model has none: remove it"
            )
        if self.assistant_model is not None and (config.num_beams > 1 or config.penalty_alpha):
            raise ValueError(
                "assistant_model works with greedy search and sampling: remove num_beams and penalty_alpha"
            )

    def prepare_prompt(
        self, prompt: list[int], source: Source | None, config: GenerationConfig
    ) -> list[int]:
        """Check prompt and source, and return the prompt with the start token."""
        check_prompt("prompt", prompt, self.vocab_size)
        if not self.is_encoder_decoder:
            prompt = prompt or ([] if config.bos_token_id is None else [config.bos_token_id])
            if not prompt:
                raise ValueError(
                    "prompt is empty, expected at least one token id: add one or set bos_token_id"
                )
            self.check_assistant_length(prompt)
            return prompt
        if source is None or not len(source):
            raise ValueError("source is empty, expected the token ids of the encoder")
        encoder = self.net.encoder
        assert encoder is not None
        check_prompt("source", source, encoder.spec.embedding.vocab_size)
        check_sequence_length("source", len(source), encoder.spec.max_positions, "the encoder")
        shift = self.net.spec.shift_right
        start_token_id = config.decoder_start_token_id
        if start_token_id is None:
            start_token_id = shift.start_token_id if shift else config.bos_token_id
        if start_token_id is None:
            raise ValueError("an encoder-decoder needs a start token: set decoder_start_token_id")
        return prompt if prompt[:1] == [start_token_id] else [start_token_id, *prompt]

    def check_assistant_length(self, prompt: list[int]) -> None:
        """Raise an error if the prompt is too long for the assistant model."""
        if self.assistant_model is None:
            return
        max_positions = self.assistant_model.last_stack.spec.max_positions
        check_sequence_length("prompt", len(prompt), max_positions, "assistant_model")

    def compute_max_length(self, token_ids: list[int], config: GenerationConfig) -> tuple[int, str]:
        """Return the maximum length of a sequence, prompt included, and its finish reason."""
        if config.max_new_tokens is not None:
            requested = len(token_ids) + config.max_new_tokens
        elif config.max_length is not None:
            requested = config.max_length
        else:
            requested = len(token_ids) + DEFAULT_MAX_NEW_TOKENS
        max_positions = requested if self.max_positions is None else self.max_positions
        is_beyond = requested > max_positions
        if len(token_ids) >= min(requested, max_positions):
            limit = (
                f"the model has {max_positions} positions"
                if is_beyond
                else f"max_length is {requested}"
            )
            raise ValueError(
                f"prompt has {len(token_ids)} tokens and leaves no room for new tokens: {limit}"
            )
        stops = is_beyond and config.context_overflow == "stop"
        max_length, limit_reason = (max_positions, "context") if stops else (requested, "length")
        num_forced = count_forced_tokens(config.force_words_ids)
        if num_forced > max_length - len(token_ids):
            raise ValueError(
                f"force_words_ids needs {num_forced} tokens, "
                f"and {max_length - len(token_ids)} are left: set max_new_tokens higher"
            )
        return max_length, limit_reason

    @torch.inference_mode()
    @without_cudnn()
    def step(self) -> list[RequestOutput]:
        """Generate the next tokens of all running requests and the first of waiting ones."""
        outputs: list[RequestOutput] = []
        self.num_steps += 1
        for batch in self.running_batches.values():
            if batch.requests:
                outputs += self.attach_results(*batch.step())
        self.remove_empty_batches()
        for batch, requests in self.assign_batches(self.schedule_requests()):
            outputs += self.attach_results(*batch.add_requests(requests))
        self.remove_empty_batches()
        return outputs

    def remove_empty_batches(self) -> None:
        """Remove empty batches that cannot be reused; the others keep their buffers."""
        if self.is_recurrent or self.assistant_model is not None:
            self.running_batches = {
                key: batch for key, batch in self.running_batches.items() if batch.requests
            }

    def schedule_requests(self) -> list[Request]:
        """Take the requests that fit into max_batch_size from the queue, in order.

        All samples of a prompt are scheduled together. A request with more rows than max_batch_size
        runs alone."""
        num_running = sum(
            len(batch.requests) * batch.rows_per_prompt for batch in self.running_batches.values()
        )
        available = (
            UNLIMITED_BATCH_SIZE
            if self.max_batch_size is None
            else self.max_batch_size - num_running
        )
        rows_by_request_id = {request.request_id: 0 for request in self.waiting_requests}
        for request in self.waiting_requests:
            rows_by_request_id[request.request_id] += get_search_method(request.config)[1]
        num_scheduled = 0
        scheduled_ids: set[int] = set()
        for request_id, num_rows in rows_by_request_id.items():
            if num_scheduled + num_rows > available and (num_scheduled or num_running):
                break
            scheduled_ids.add(request_id)
            num_scheduled += num_rows
        scheduled = [
            request for request in self.waiting_requests if request.request_id in scheduled_ids
        ]
        self.waiting_requests = [
            request for request in self.waiting_requests if request.request_id not in scheduled_ids
        ]
        return scheduled

    def assign_batches(self, requests: list[Request]) -> list[tuple[RunningBatch, list[Request]]]:
        """Return the batches that requests join, created if needed, and the requests of each."""
        requests_by_key: dict[Hashable, list[Request]] = {}
        for request in requests:
            rows_per_prompt = get_search_method(request.config)[1]
            key: Hashable = (
                rows_per_prompt
                if self.assistant_model is None
                else (rows_per_prompt, request.config)
            )
            if self.is_recurrent:  # rows start in the same step, with prompts of equal length
                key = (rows_per_prompt, len(request.prompt), self.num_steps)
            if key not in self.running_batches:
                self.running_batches[key] = self.create_running_batch(rows_per_prompt)
            requests_by_key.setdefault(key, []).append(request)
        return [
            (self.running_batches[key], group)
            for key, batch_requests in requests_by_key.items()
            for group in group_by_length(batch_requests)
        ]

    def create_running_batch(self, rows_per_prompt: int) -> RunningBatch:
        """Return an empty batch with the runner that the network needs."""
        if self.is_recurrent:
            return RunningBatch(SegmentRunner(self.net, rows_per_prompt))
        runner = ModelRunner(self.net, rows_per_prompt, self.static_shapes)
        if self.assistant_model is None:
            return RunningBatch(runner)
        return SpeculativeBatch(runner, ModelRunner(self.assistant_model))

    def attach_results(
        self, request_outputs: list[RequestOutput], finished: list[tuple[Request, list[Result]]]
    ) -> list[RequestOutput]:
        """Return the outputs with the results of requests of which all samples are finished."""
        ready: dict[tuple[int, int], list[Result]] = {}
        for request, results in finished:
            results_by_sample = self.partial_results.setdefault(request.request_id, {})
            results_by_sample[request.sample_index] = results
            if len(results_by_sample) == request.config.num_samples:
                del self.partial_results[request.request_id]
                key = (request.request_id, request.sample_index)
                ready[key] = rank_results(request.config, results_by_sample)
        if not ready:
            return request_outputs
        return [
            output._replace(results=ready.get((output.request_id, output.sample_index)))
            for output in request_outputs
        ]

    @torch.inference_mode()
    def abort_request(self, request_id: int) -> None:
        """Remove a request, waiting or running, without results."""
        self.waiting_requests = [
            request for request in self.waiting_requests if request.request_id != request_id
        ]
        self.partial_results.pop(request_id, None)
        for batch in self.running_batches.values():
            aborted = {request for request in batch.requests if request.request_id == request_id}
            if aborted:
                batch.remove_requests(aborted)
        self.remove_empty_batches()


def rank_results(
    config: GenerationConfig, results_by_sample: dict[int, list[Result]]
) -> list[Result]:
    """Return the results of all samples in sampling order, or by score with `best_of`."""
    results = [result for index in sorted(results_by_sample) for result in results_by_sample[index]]
    if config.best_of is not None:
        results = sorted(results, key=lambda result: -result.score)
    return results[: config.num_return_sequences]


def generate(
    net: Transformer | Engine,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    sources: Sequence[Sequence[int]] | None = None,
    generation_config: GenerationConfig | None = None,
    seed: int = 0,
    prefix_allowed_tokens_fn: PrefixAllowedTokensFn | None = None,
    stopping_criteria: StoppingCriteria | Sequence[StoppingCriteria | None] | None = None,
    assistant_model: Transformer | None = None,
    batch_size: int | None = None,
) -> list[list[Result]]:
    """Return the results of every prompt (decoder) or source (encoder-decoder), in their order.

    `batch_size` prompts of similar length are processed at a time; None: all. Prompt i is sampled
    with `seed` + i. `stopping_criteria` is one function for all prompts, or one per prompt. An idle
    engine may be passed instead of a network and can be reused. The other arguments are those of
    `Engine.add_request`."""
    engine = net if isinstance(net, Engine) else Engine(net, assistant_model=assistant_model)
    if engine.has_unfinished_requests:
        raise ValueError(
            "the engine has unfinished requests, expected an idle one: their results would be lost"
        )
    rows = [*zip_longest(prompts or [], sources or [])]
    order = sorted(
        range(len(rows)), key=lambda i: sum(len(ids) for ids in rows[i] if ids is not None)
    )
    if stopping_criteria is None or callable(stopping_criteria):
        row_criteria = [stopping_criteria] * len(rows)
    else:
        row_criteria = [*stopping_criteria]
    size = batch_size or max(len(rows), 1)
    results: dict[int, list[Result]] = {}
    for start in range(0, len(order), size):
        row_by_request_id: dict[int, int] = {}
        for i in order[start : start + size]:
            prompt, source = rows[i]
            request_id = engine.add_request(
                prompt or (),
                source=source,
                generation_config=generation_config,
                seed=seed + i,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                stopping_criteria=row_criteria[i],
            )
            row_by_request_id[request_id] = i
        while engine.has_unfinished_requests:
            for output in engine.step():
                if output.results is not None:
                    results[row_by_request_id[output.request_id]] = output.results
    return [results[i] for i in range(len(rows))]


def stream_generate(
    net: Transformer,
    prompt: Sequence[int] = (),
    *,
    source: Sequence[int] | None = None,
    generation_config: GenerationConfig | None = None,
    seed: int = 0,
    assistant_model: Transformer | None = None,
) -> Iterator[RequestOutput]:
    """Yield the outputs of one prompt step by step; the last one has the results."""
    engine = Engine(net, assistant_model=assistant_model)
    engine.add_request(prompt, source=source, generation_config=generation_config, seed=seed)
    while engine.has_unfinished_requests:
        yield from engine.step()


def group_by_length(requests: list[Request]) -> list[list[Request]]:
    """Split requests into groups of similar input length, to limit the padding of the prefill."""
    groups: list[list[Request]] = []
    for request in sorted(requests, key=lambda request: request.num_input_tokens):
        if not groups or (
            request.num_input_tokens > 1.25 * groups[-1][0].num_input_tokens + 4
            and len(groups[-1]) >= 4
        ):
            groups.append([])
        groups[-1].append(request)
    return groups


def get_vocab_size(net: Transformer) -> int:
    """Return the vocabulary size of the stack that generates."""
    return net.last_stack.spec.embedding.vocab_size


def is_recurrent_model(net: Transformer) -> bool:
    """Return whether the network has segment-level recurrence (Transformer-XL, XLNet)."""
    return net.last_stack.spec.recurrence is not None


def check_prompt(name: str, token_ids: Source, vocab_size: int) -> None:
    """Raise an error if an element is not a token id of the vocabulary."""
    invalid = [
        token_id
        for token_id in token_ids
        if type(token_id) is not int or not 0 <= token_id < vocab_size
    ]
    if invalid:
        raise ValueError(
            f"{name} contains {format_setting_value(invalid[0])}, expected token ids from 0 to "
            f"{vocab_size - 1:,}"
        )


def check_assistant_model(net: Transformer, assistant_model: Transformer) -> None:
    """Raise an error if a network cannot draft for another."""
    if get_vocab_size(net) != get_vocab_size(assistant_model):
        raise ValueError(
            f"assistant_model has a vocabulary of {get_vocab_size(assistant_model):,}, "
            f"expected {get_vocab_size(net):,} as the model has"
        )
    if (net.encoder is None) != (assistant_model.encoder is None) or is_recurrent_model(
        assistant_model
    ):
        raise ValueError(
            "assistant_model has another architecture, expected a decoder for a decoder, "
            "an encoder-decoder for an encoder-decoder, and no recurrence"
        )
