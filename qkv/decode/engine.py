"""Engine: continuous batching of generation requests. Works on token ids, not on text.

engine = Engine(net)
request_id = engine.add_request([15, 27], generation_config=GenerationConfig(max_new_tokens=20))
while engine.has_unfinished_requests:
    for output in engine.step():  # new token ids, and the results when a request is finished
        ...

A request that fails ends with its error and does not change the results of others:
- an error of a function of the user, and NaN, are stored in the request in the middle of a step, and
  the batch goes on with neutral values;
- an error of the network, such as a lack of memory, may be due to any request of a batch: all of them
  start again, half of the rows at a time, until a request that fails alone ends with the error.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count
from threading import RLock

import torch

from qkv.decode.config import GenerationConfig, format_setting_value
from qkv.decode.guidance import GuidedRunner
from qkv.decode.logits.processors import PrefixAllowedTokensFn, check_allowed_tokens
from qkv.decode.recurrent_runner import RecurrentRunner
from qkv.decode.request import BeamCallback, Request, RequestOutput, Result, StoppingCriteria
from qkv.decode.request_checks import (
    Source,
    check_assistant_length,
    check_assistant_model,
    check_config,
    compute_max_length,
    get_vocab_size,
    has_segment_recurrence,
    is_encoder_decoder_model,
    prepare_negative_prompt,
    prepare_prompt,
)
from qkv.decode.request_queue import RequestQueue
from qkv.decode.runner import ModelRunner
from qkv.decode.running_batch import BatchOutcome, RunningBatch
from qkv.decode.search.speculative import SpeculativeBatch
from qkv.decode.segment_runner import SegmentRunner
from qkv.kernels.attention import without_cudnn
from qkv.memory import is_memory_error
from qkv.nn.network import Network
from qkv.nn.recurrent import RecurrentStack


class Engine:
    """Generates for many requests at once; a result does not depend on the other requests.

    Requests may be added at any time and have different settings. `assistant_model` is a smaller
    network with the same vocabulary for speculative decoding. `max_batch_size` limits the rows
    that run at the same time; requests above it wait. `static_shapes` keeps the shapes of a step
    constant and, on a GPU, replays the step as a CUDA graph. Any thread, and the functions of a
    request, may add and abort requests; one thread at a time takes a step."""

    def __init__(
        self,
        net: Network,
        *,
        assistant_model: Network | None = None,
        max_batch_size: int | None = None,
        static_shapes: bool = False,
    ) -> None:
        if net.training:
            raise ValueError("the network is in training mode, expected eval mode: call net.eval()")
        self.net = net
        self.assistant_model = assistant_model
        self.static_shapes = static_shapes
        self.has_segments = has_segment_recurrence(net)
        if assistant_model is not None:
            check_assistant_model(net, assistant_model)
        self.queue = RequestQueue(max_batch_size)
        self.running_batches: dict[Hashable, RunningBatch] = {}
        self.unfinished: dict[int, list[Request]] = {}  # samples by request_id
        self.partial_results: dict[int, dict[int, list[Result]]] = {}  # request_id, sample_index
        self.outputs: list[RequestOutput] = []  # of the current step
        self.aborted_ids: set[int] = set()  # aborted in the middle of a step
        self.num_steps = 0
        self._request_ids = count()
        self._step_lock = RLock()
        self._is_stepping = False

    @property
    def has_unfinished_requests(self) -> bool:
        """True while requests wait or run."""
        return bool(self.unfinished or self.outputs)

    @property
    def num_running_rows(self) -> int:
        """Number of rows of all running requests."""
        batches = self.running_batches.values()
        return sum(len(batch.requests) * batch.rows_per_prompt for batch in batches)

    def add_request(
        self,
        prompt: Sequence[int] = (),
        *,
        source: Source | None = None,
        generation_config: GenerationConfig | None = None,
        seed: int = 0,
        negative_prompt_ids: Sequence[int] | None = None,
        prefix_allowed_tokens_fn: PrefixAllowedTokensFn | None = None,
        stopping_criteria: StoppingCriteria | None = None,
        beam_callback: BeamCallback | None = None,
    ) -> int:
        """Add a request to the queue and return its id; it is processed from the next step on.

        `source` is the encoder's token ids, or its hidden states (S, W) for cross-attention.
        `negative_prompt_ids` is the prompt that `guidance_scale` leads away from, by default the last
        token of the prompt. `prefix_allowed_tokens_fn` returns the token ids allowed after the new
        token ids so far; `stopping_criteria` returns True after the last one. It is required with
        `stop_strings`, which the engine cannot find because it has no tokenizer. `beam_callback` gets
        the candidates of every step of beam search. If one of these functions raises an error, the
        request ends with a result whose `finish_reason` is "error" and whose `error` is that error."""
        generation_config = generation_config or GenerationConfig()
        check_config(self.net, self.assistant_model, generation_config)
        if generation_config.stop_strings and stopping_criteria is None:
            raise ValueError(
                f"stop_strings is {format_setting_value(generation_config.stop_strings)}, expected none"
                " without a tokenizer: use Model.generate or a task, or pass stopping_criteria"
            )
        prompt_ids = prepare_prompt(self.net, list(prompt), source, generation_config)
        negative_prompt = prepare_negative_prompt(
            self.net, prompt_ids, negative_prompt_ids, generation_config
        )
        is_encoder_decoder = is_encoder_decoder_model(self.net)
        if self.assistant_model is not None and not is_encoder_decoder:
            check_assistant_length(self.assistant_model, prompt_ids)
        max_length, limit_reason = compute_max_length(self.net, prompt_ids, generation_config)
        has_start_token = is_encoder_decoder or prompt_ids[0] == generation_config.bos_token_id
        if prefix_allowed_tokens_fn is not None:
            prefix_allowed_tokens_fn = partial(
                check_allowed_tokens, prefix_allowed_tokens_fn, get_vocab_size(self.net)
            )
        request_id = next(self._request_ids)
        self.unfinished[request_id] = [
            Request(
                request_id=request_id,
                config=generation_config,
                prompt=prompt_ids,
                max_length=max_length,
                limit_reason=limit_reason,
                num_start_tokens=int(has_start_token),
                seed=seed + (sample_index << 32),
                sample_index=sample_index,
                source=list(source) if isinstance(source, Sequence) else source,
                negative_prompt=negative_prompt,
                prefix_allowed_tokens_fn=prefix_allowed_tokens_fn,
                stopping_criteria=stopping_criteria,
                beam_callback=beam_callback,
            )
            for sample_index in range(generation_config.num_samples)
        ]
        self.queue.add(self.unfinished[request_id])
        return request_id

    @torch.inference_mode()
    @without_cudnn()
    def step(self) -> list[RequestOutput]:
        """Generate the next tokens of all running requests and the first of waiting ones."""
        with self._step_lock:
            if self._is_stepping:
                raise ValueError("a function of a request called step, expected no call in a step")
            self._is_stepping = True
            try:
                self.run_step()
            finally:
                self._is_stepping = False
            outputs = self.outputs
            self.outputs = []
            return outputs

    def run_step(self) -> None:
        """Take a step of all batches, and add waiting requests; `outputs` are those of the step."""
        self.num_steps += 1
        self.remove_aborted_requests()
        for key in [*self.running_batches]:
            self.step_batch(key)
        self.remove_empty_batches()
        scheduled = self.queue.take(self.num_running_rows)
        try:
            for key, requests in self.group_by_batch(scheduled).items():
                for group in group_by_length(requests):
                    self.admit_requests(key, group)
        except BaseException:  # such as KeyboardInterrupt
            running = {request for b in self.running_batches.values() for request in b.requests}
            self.put_back([request for request in scheduled if request not in running])
            raise
        self.remove_empty_batches()
        self.remove_aborted_requests()
        if not self.unfinished:
            self.queue.row_limit = None

    def step_batch(self, key: Hashable) -> None:
        """Take a step of a batch, unless it is empty or was discarded."""
        batch = self.running_batches.get(key)
        if batch is not None and batch.requests:
            self.run_batch(batch, batch.step)

    def run_batch(
        self,
        batch: RunningBatch,
        run: Callable[[], BatchOutcome],
        new_requests: Sequence[Request] = (),
    ) -> None:
        """Run a step of a batch and collect what it gives; after an error, its requests start again."""
        requests = [*batch.requests, *new_requests]
        for request in batch.requests:
            request.num_streamed = max(request.num_streamed, len(request.new_token_ids))
        try:
            outcome = run()
        except Exception as error:
            failure = error
        except BaseException:  # such as KeyboardInterrupt
            self.discard_batch(batch)
            self.put_back(requests)
            raise
        else:
            return self.collect(outcome)
        self.discard_batch(batch)
        self.recover(requests, release_frames(failure))

    def admit_requests(self, key: Hashable, requests: list[Request]) -> None:
        """Add requests to the batch of a key; if their prefill fails, the running ones are as before."""
        if key not in self.running_batches:
            self.running_batches[key] = self.create_running_batch(requests[0])
        batch = self.running_batches[key]
        try:
            prefill = batch.prefill(requests)
        except Exception as error:
            failure = error
        else:
            return self.run_batch(batch, partial(batch.add_requests, prefill), requests)
        self.recover(requests, release_frames(failure))

    def recover(self, requests: Sequence[Request], error: Exception) -> None:
        """Start requests again after an error that any of them may have caused.

        Only half of their rows may run at once. A single request ends with the error; if it lacks
        memory while others run, it waits for them."""
        num_running = self.num_running_rows
        can_free_memory = False
        if is_memory_error(error):
            unused = [batch for batch in self.running_batches.values() if not batch.requests]
            can_free_memory = num_running > 0 or any(batch.is_used for batch in unused)
            for batch in unused:
                self.discard_batch(batch)
        is_single = len({request.request_id for request in requests}) == 1
        if is_single and not can_free_memory:
            first_sample = min(requests, key=lambda request: request.sample_index)
            return self.fail_request(first_sample, error)
        num_rows = sum(request.num_rows for request in requests)
        self.queue.row_limit = num_running + (0 if is_single else num_rows // 2)
        self.put_back(requests)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Put requests that have not ended back into the queue, to start again."""
        unfinished = [request for request in requests if request.request_id in self.unfinished]
        for request in unfinished:
            request.restart()
        self.queue.put_back(unfinished)

    def fail_request(self, request: Request, error: Exception) -> None:
        """End a request with an error: the only place where requests fail."""
        if self.remove_request(request.request_id):
            result = request.build_result("error", error)
            self.outputs.append(
                RequestOutput(request.request_id, [], request.sample_index, [result])
            )

    def collect(self, outcome: BatchOutcome) -> None:
        """Add the outputs of a step, with the results of requests of which all samples finished."""
        failed_ids = {request.request_id for request in outcome.failed}
        ready: dict[tuple[int, int], list[Result]] = {}
        for request, results in outcome.finished:
            if request.request_id in failed_ids:
                continue
            results_by_sample = self.partial_results.setdefault(request.request_id, {})
            results_by_sample[request.sample_index] = results
            if len(results_by_sample) == request.config.num_samples:
                key = (request.request_id, request.sample_index)
                ready[key] = rank_results(request.config, results_by_sample)
        self.outputs += [
            output._replace(results=ready.get((output.request_id, output.sample_index)))
            for output in outcome.request_outputs
        ]
        for request_id, _ in ready:
            del self.unfinished[request_id]
            del self.partial_results[request_id]
            self.queue.raise_row_limit()
        for request in sorted(outcome.failed, key=lambda request: request.sample_index):
            assert request.error is not None
            self.fail_request(request, request.error)

    def group_by_batch(self, requests: Sequence[Request]) -> dict[Hashable, list[Request]]:
        """Return the requests that join each batch."""
        groups: dict[Hashable, list[Request]] = {}
        for request in requests:
            groups.setdefault(self.get_batch_key(request), []).append(request)
        return groups

    def get_batch_key(self, request: Request) -> Hashable:
        """Return the key of the batch that a request joins."""
        if self.has_segments:  # rows start in the same step, with prompts of equal length
            return (request.num_rows, len(request.prompt), self.num_steps)
        if self.assistant_model is not None:
            return (request.num_rows, request.config)
        return (request.num_rows, type(request.source), request.config.guidance_scale)

    def create_running_batch(self, request: Request) -> RunningBatch:
        """Return an empty batch with the runner that the network and the request need."""
        if self.has_segments:
            return RunningBatch(SegmentRunner(self.net, request.num_rows))
        if isinstance(self.net.last_stack, RecurrentStack):
            return RunningBatch(RecurrentRunner(self.net, request.num_rows))
        if request.negative_prompt is not None:
            guidance_scale = request.config.guidance_scale
            return RunningBatch(GuidedRunner(self.net, guidance_scale, self.static_shapes))
        runner = ModelRunner(self.net, request.num_rows, self.static_shapes)
        if self.assistant_model is None:
            return RunningBatch(runner)
        return SpeculativeBatch(runner, ModelRunner(self.assistant_model))

    def remove_empty_batches(self) -> None:
        """Remove empty batches that cannot be reused; the others keep their buffers."""
        if self.has_segments or self.assistant_model is not None:
            self.running_batches = {
                key: batch for key, batch in self.running_batches.items() if batch.requests
            }

    def discard_batch(self, batch: RunningBatch) -> None:
        """Remove a batch and free its buffers."""
        self.running_batches = {
            key: other for key, other in self.running_batches.items() if other is not batch
        }

    @torch.inference_mode()
    def abort_request(self, request_id: int) -> None:
        """Remove a request, waiting or running, without results.

        In the middle of a step, the request is removed at its end."""
        self.aborted_ids.add(request_id)
        if self._step_lock.acquire(blocking=False):
            try:
                if not self._is_stepping:
                    self.remove_aborted_requests()
                    self.remove_empty_batches()
            finally:
                self._step_lock.release()

    def remove_aborted_requests(self) -> None:
        """Remove aborted requests and their outputs of this step."""
        while self.aborted_ids:
            request_id = self.aborted_ids.pop()
            self.remove_request(request_id)
            self.outputs = [output for output in self.outputs if output.request_id != request_id]

    def remove_request(self, request_id: int) -> bool:
        """Remove a request; return False if it has ended before."""
        if self.unfinished.pop(request_id, None) is None:
            return False
        self.queue.remove(request_id)
        self.partial_results.pop(request_id, None)
        for batch in [*self.running_batches.values()]:
            removed = {request for request in batch.requests if request.request_id == request_id}
            if removed:
                self.run_batch(batch, partial(batch.drop_requests, removed))
        return True


def release_frames(error: Exception) -> Exception:
    """Return an error without the tensors that the functions of its traceback hold.

    This is called after the except block, which holds them too."""
    traceback.clear_frames(error.__traceback__)
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without the caller, which runs


def rank_results(
    config: GenerationConfig, results_by_sample: dict[int, list[Result]]
) -> list[Result]:
    """Return the results of all samples in sampling order, or by score with `best_of`."""
    results = [result for index in sorted(results_by_sample) for result in results_by_sample[index]]
    if config.best_of is not None:
        results = sorted(results, key=lambda result: -result.score)
    return results[: config.num_return_sequences]


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
