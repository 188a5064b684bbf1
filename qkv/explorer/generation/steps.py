"""Generation step by step: the candidates of the next token, before and after the logits processors.

A step runs the model on all tokens so far, so that its attention can be looked at, and the user may
continue from any other candidate. With segment recurrence, it runs on the last token and its memory.
V vocabulary size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from qkv.decode import GenerationConfig
from qkv.decode.logits.processors import (
    LogitsContext,
    apply_logits_processors,
    build_logits_processors,
)
from qkv.decode.logits.sampling import build_sampling_filters, hash_uniform, sample_tokens
from qkv.decode.request_checks import get_vocab_size
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import TraceInputs, UserInput, to_row
from qkv.explorer.trace.trace import Trace
from qkv.model.stop_strings import build_stopping_criteria
from qkv.nn.network import Network
from qkv.tasks.write.base import GenerationTask
from qkv.validate import check_number, check_sequence_length

STEP_SETTINGS = (
    "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "no_repeat_ngram_size",
)  # fmt: skip
MAX_NEXT_TOKENS = 100
NUM_SHOWN_CANDIDATES = 5  # of a step in a picture
DEFAULT_SETTINGS = {"num_beams": 1, "num_return_sequences": 1, "do_sample": False}


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """A token that may come next, with its probability by the model and after the processors."""

    id: int
    text: str
    probability: float
    processed: float
    is_end: bool


@dataclass(frozen=True, kw_only=True)
class GenerationStep:
    """The state of a generation after `token_ids`: its trace, and the candidates of the next token."""

    trace: Trace
    token_ids: list[int]
    tokens: list[str]
    output: str
    candidates: list[NextToken]
    next: int
    reason: str | None  # why it is finished; None: it is not

    def to_json(self) -> dict[str, Any]:
        pairs = zip(self.token_ids, self.tokens, strict=True)
        return self.trace.to_json() | {
            "tokens": [{"id": token_id, "text": text} for token_id, text in pairs],
            "output": self.output,
            "candidates": [vars(candidate) for candidate in self.candidates],
            "next": self.next,
            "is_finished": self.reason is not None,
            "reason": self.reason,
        }


def run_step(
    builder: InputBuilder,
    user_input: UserInput,
    token_ids: Sequence[int],
    settings: Mapping[str, Any],
    num_candidates: int,
) -> GenerationStep:
    """Return the candidates after the tokens that were chosen so far.

    `settings` are those of GenerationConfig in STEP_SETTINGS, and the `seed` of sampling."""
    builder.check_generation(user_input)
    check_number("candidates", num_candidates, integer=True, at_least=1, at_most=MAX_NEXT_TOKENS)
    net = builder.model.net
    assert isinstance(net, Network)
    vocab_size = get_vocab_size(net)
    for token_id in token_ids:
        check_number("token id", token_id, integer=True, at_least=0, less_than=vocab_size)
    task, inputs, prompt, source = build_step_inputs(builder, user_input, token_ids)
    check_sequence_length(
        "token_ids",
        len(prompt) + len(token_ids),
        builder.get_limit(builder.generating_stack),
        f"the {builder.generating_stack}",
    )
    trace = Trace(builder.model, inputs)
    assert trace.last_logits is not None
    logits = trace.last_logits.float().cpu()
    if logits.isnan().any():
        raise ValueError("the logits are NaN, expected numbers: check the weights of the model")
    seed = settings.get("seed", 0)
    check_number("seed", seed, integer=True, at_least=0, less_than=2**32)
    values = {name: settings[name] for name in STEP_SETTINGS if name in settings}
    config = task.with_settings(DEFAULT_SETTINGS | values).generation_config
    context = build_context(config, prompt, token_ids, source)
    scores = process_logits(config, logits[None], context)
    next_token = choose_token(config, scores, context, seed)
    return GenerationStep(
        trace=trace,
        token_ids=[*token_ids],
        tokens=[builder.labeler.get_text(token_id) for token_id in token_ids],
        output=task.tokenizer.decode([*token_ids], skip_special_tokens=True),
        candidates=list_candidates(builder, config, logits, scores[0], num_candidates),
        next=next_token,
        reason=find_end(builder, task, config, prompt, token_ids),
    )


def build_step_inputs(
    builder: InputBuilder, user_input: UserInput, token_ids: Sequence[int]
) -> tuple[GenerationTask[str, Any], TraceInputs, list[int], list[int]]:
    """Return the task, the inputs of the model, the prompt of its decoder, and the source tokens."""
    if builder.architecture == "encoder-decoder":
        source = builder.encode_source(user_input)
        inputs = builder.build_decoder_step(source, token_ids)
        decoder_ids = inputs.arguments["decoder_input_ids"][0].tolist()
        prompt = decoder_ids[: len(decoder_ids) - len(token_ids)]
        return source.task, inputs, prompt, source.token_ids
    prompt, notice = builder.encode_prompt(user_input)
    segments = [[*prompt, *token_ids]]
    if builder.complete_task.has_memory:  # decoding reads every new token as a segment
        segments = [prompt, *([token_id] for token_id in token_ids)]
    *memory, ids = segments
    name = builder.generating_stack
    sequences = {name: builder.labeler.label_token_ids("text", ids)}
    if memory:
        sequences["memory"] = builder.labeler.label_token_ids("memory", [*chain(*memory)])
    inputs = TraceInputs(
        arguments={"input_ids": to_row(ids)},
        sequences=sequences,
        notice=notice,
        predicts=name,
        memory_segments=memory,
    )
    return builder.complete_task, inputs, prompt, prompt


def build_context(
    config: GenerationConfig, prompt: Sequence[int], token_ids: Sequence[int], source: Sequence[int]
) -> LogitsContext:
    """Return what logits processors read of one row."""
    ids = [*prompt, *token_ids]
    limit = len(prompt) + config.max_new_tokens if config.max_new_tokens else config.max_length
    return LogitsContext(
        input_ids=to_row(ids),
        lengths=torch.tensor([len(ids)]),
        prompt_lengths=torch.tensor([len(prompt)]),
        max_lengths=torch.tensor([max(limit or 0, len(ids) + 2)]),
        source_ids=to_row(source),
    )


def process_logits(config: GenerationConfig, logits: Tensor, context: LogitsContext) -> Tensor:
    """Apply logits processors, and the filters of sampling: (1, V) -> (1, V)."""
    scores = apply_logits_processors(build_logits_processors(config), logits, context)
    for sampling_filter in build_sampling_filters(config) if config.do_sample else ():
        scores = sampling_filter(scores)
    return scores


def choose_token(
    config: GenerationConfig, scores: Tensor, context: LogitsContext, seed: int
) -> int:
    """Return the token that greedy search, or sampling with this seed, takes."""
    if not config.do_sample:
        return int(scores[0].argmax())
    step = context.lengths - context.prompt_lengths
    return int(sample_tokens(scores, hash_uniform(torch.tensor([seed]), step))[0])


def list_candidates(
    builder: InputBuilder, config: GenerationConfig, logits: Tensor, scores: Tensor, count: int
) -> list[NextToken]:
    """Return the best tokens after the processors, then those that the processors removed."""
    before, after = logits.softmax(-1), scores.softmax(-1)
    count = min(count, len(logits))
    best = {*before.topk(count).indices.tolist(), *after.topk(count).indices.tolist()}
    order = sorted(best, key=lambda token_id: (-after[token_id], -before[token_id]))
    order = order[:count]
    return [
        NextToken(
            id=token_id,
            text=text,
            probability=float(before[token_id]),
            processed=float(after[token_id]),
            is_end=token_id in config.eos_token_id,
        )
        for token_id, text in zip(order, builder.labeler.get_different_texts(order), strict=True)
    ]


def find_end(
    builder: InputBuilder,
    task: GenerationTask[Any, Any],
    config: GenerationConfig,
    prompt: Sequence[int],
    token_ids: Sequence[int],
) -> str | None:
    """Return why no token follows: an end token or string, or the length; None if one may follow."""
    if token_ids and token_ids[-1] in config.eos_token_id:
        return "end token"
    is_stop = build_stopping_criteria(task.tokenizer, config.stop_strings, prompt)
    if token_ids and is_stop is not None and is_stop([*token_ids]):
        return "stop string"
    is_full = len(prompt) + len(token_ids) >= builder.get_limit(builder.generating_stack)
    return "length" if is_full else None


def run_steps(
    builder: InputBuilder, user_input: UserInput, settings: Mapping[str, Any], max_new_tokens: int
) -> list[GenerationStep]:
    """Return the steps of a generation, each with the token that follows in `next`."""
    token_ids: list[int] = []
    steps = []
    while len(token_ids) < max_new_tokens:
        step = run_step(builder, user_input, token_ids, settings, NUM_SHOWN_CANDIDATES)
        if step.reason is not None:
            break
        step.trace.records.clear()  # a picture of the steps needs candidates alone
        steps.append(step)
        token_ids.append(step.next)
    return steps
