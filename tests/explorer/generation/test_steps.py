"""Generation step by step: the tokens, probabilities and processors are those of the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import qkv
from qkv.explorer.generation.steps import GenerationStep, run_step, run_steps
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.tasks.base import InputRow
from tests.explorer import models
from tests.support.errors import assert_error

GENERATORS = (
    "gpt2", "gpt3", "llama", "sparse-strided-heads", "transformer-xl", "transformer-xl-none", "bart",
    "marian", "t5", "switch", "bahdanau", "luong", "lstmn", "show-attend-tell", "vision-encoder-decoder",
    "transformer-hard", "bert-decoder",
)  # fmt: skip
NUM_TOKENS = 8
# Settings of a step, each with an effect on the generated tokens.
SETTINGS: dict[str, dict[str, Any]] = {
    "repetition penalty": dict(repetition_penalty=1.6),
    "no repeated n-grams": dict(no_repeat_ngram_size=2),
    "both": dict(repetition_penalty=1.3, no_repeat_ngram_size=1),
    "sampling": dict(do_sample=True, seed=3),
    "another seed": dict(do_sample=True, seed=4),
    "temperature": dict(do_sample=True, temperature=2.5, seed=1),
    "top-k": dict(do_sample=True, temperature=3.0, top_k=3, seed=2),
    "top-p": dict(do_sample=True, temperature=2.0, top_p=0.6, seed=5),
    "all": dict(
        do_sample=True, temperature=1.5, top_k=9, top_p=0.8, repetition_penalty=1.4,
        no_repeat_ngram_size=2, seed=7,
    ),
}  # fmt: skip


def build_generator(name: str, **generation_config: Any) -> tuple[InputBuilder, UserInput]:
    """Return the inputs of a new model, and what it continues, translates or describes."""
    builder = InputBuilder(model=models.build_changed_model(name, **generation_config))
    return builder, replace(models.build_user_input(builder), target=None)


def generate(builder: InputBuilder, user_input: UserInput, **settings: Any) -> list[int]:
    """Return the tokens that the task of the model generates."""
    row: Any
    if builder.architecture == "encoder-decoder":
        source = builder.encode_source(user_input)
        task, row = source.task, source.row
    else:
        task = builder.complete_task
        row = InputRow(task.encode([user_input.text])[0])
    defaults = dict(num_beams=1, num_return_sequences=1, do_sample=False, max_new_tokens=NUM_TOKENS)
    (results,) = task.with_settings(defaults | settings).predict([row])
    assert not isinstance(results, Exception)
    return results[0].token_ids


def walk(builder: InputBuilder, user_input: UserInput, **settings: Any) -> list[GenerationStep]:
    """Return the steps up to the end, with the token of each step in the next."""
    steps = [run_step(builder, user_input, [], settings, 5)]
    while steps[-1].reason is None and len(steps[-1].token_ids) < NUM_TOKENS:
        token_ids = [*steps[-1].token_ids, steps[-1].next]
        steps.append(run_step(builder, user_input, token_ids, settings, 5))
    return steps


@pytest.mark.parametrize("name", GENERATORS)
def test_the_greedy_path_is_that_of_the_task(name: str) -> None:
    builder, user_input = build_generator(name)
    steps = walk(builder, user_input)
    expected = generate(builder, user_input)
    assert steps[-1].token_ids == expected
    task = (
        builder.encode_source(user_input).task
        if builder.architecture == "encoder-decoder"
        else builder.complete_task
    )
    assert steps[-1].output == task.tokenizer.decode(expected, skip_special_tokens=True)
    assert steps[-1].tokens == [builder.labeler.get_text(token_id) for token_id in expected]
    chosen = run_steps(builder, user_input, {}, NUM_TOKENS)
    assert [step.next for step in chosen] == expected


@pytest.mark.parametrize("name", ["gpt2", "t5", "bahdanau", "show-attend-tell"])
def test_probabilities_are_the_softmax_of_the_logits(name: str) -> None:
    builder, user_input = build_generator(name)
    token_ids = generate(builder, user_input)[:3]
    step = run_step(builder, user_input, token_ids, dict(do_sample=True, top_k=2), 100)
    arguments: dict[str, Any] = step.trace.inputs.arguments
    with torch.no_grad():
        logits = builder.model(**arguments).logits[0, -1]
    probabilities = logits.softmax(-1)
    assert len(step.candidates) == len(logits)
    assert {row.id for row in step.candidates} == {*range(len(logits))}
    for row in step.candidates:
        assert row.probability == pytest.approx(float(probabilities[row.id]), abs=1e-6)
    best = probabilities.topk(2)
    processed = dict(
        zip(best.indices.tolist(), (best.values / best.values.sum()).tolist(), strict=True)
    )
    for row in step.candidates:
        assert row.processed == pytest.approx(processed.get(row.id, 0.0), abs=1e-6)
    keys = [(-row.processed, -row.probability) for row in step.candidates]
    assert keys == sorted(keys)
    few = run_step(builder, user_input, token_ids, {}, 3)
    assert [row.id for row in few.candidates] == probabilities.topk(3).indices.tolist()
    assert few.next == few.candidates[0].id


@pytest.mark.parametrize("name", ["gpt2", "luong"])
@pytest.mark.parametrize("case", SETTINGS)
def test_settings_have_the_effect_of_the_engine(case: str, name: str) -> None:
    builder, user_input = build_generator(name)
    expected = generate(builder, user_input, **SETTINGS[case])
    assert expected != generate(builder, user_input)
    steps = walk(builder, user_input, **SETTINGS[case])
    assert steps[-1].token_ids == expected
    for step in steps[:-1]:
        assert step.next in {row.id for row in step.candidates} or SETTINGS[case].get("do_sample")


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_defaults_of_the_folder_have_the_effect_of_the_engine(name: str) -> None:
    folder = dict(
        suppress_tokens=[14, 20], bad_words_ids=[[45], [5, 5]], min_new_tokens=6, no_repeat_ngram_size=2,
        do_sample=True, top_k=20, num_beams=3,
    )  # fmt: skip
    builder, user_input = build_generator(name, **folder)
    plain, _ = build_generator(name)
    expected = generate(builder, user_input)
    assert expected != generate(plain, user_input)
    assert walk(builder, user_input)[-1].token_ids == expected  # greedy, with the processors
    sample = generate(builder, user_input, do_sample=True, seed=5)
    assert walk(builder, user_input, do_sample=True, seed=5)[-1].token_ids == sample


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_the_end_token_ends_a_generation(name: str) -> None:
    builder, user_input = build_generator(name)
    eos = builder.labeler.tokenizer.eos_token_id
    assert eos is not None
    assert run_step(builder, user_input, [12], {}, 5).reason is None
    step = run_step(builder, user_input, [12, eos], {}, 100)
    assert step.reason == "end token"
    assert {row.id for row in step.candidates if row.is_end} == {eos}
    assert step.to_json()["is_finished"] is True
    later = run_step(builder, user_input, [eos, 12], {}, 5)
    assert later.reason is None
    assert later.to_json()["is_finished"] is False


@pytest.mark.parametrize("name", ["gpt2", "bart", "transformer-xl"])
def test_a_stop_string_of_the_folder_ends_a_generation(name: str) -> None:
    plain, user_input = build_generator(name)
    token_ids = generate(plain, user_input, no_repeat_ngram_size=1)
    text = plain.labeler.get_characters(token_ids[3]).strip()
    builder, _ = build_generator(name, stop_strings=[text], no_repeat_ngram_size=1)
    steps = walk(builder, user_input)
    assert steps[-1].reason == "stop string"
    assert steps[-1].token_ids == generate(builder, user_input)
    assert len(steps[-1].token_ids) <= 4
    assert {step.reason for step in steps[:-1]} == {None}


@pytest.mark.parametrize("name", ["gpt2", "bart", "show-attend-tell"])
def test_the_number_of_positions_ends_a_generation(name: str) -> None:
    builder, user_input = build_generator(name)
    limit = builder.get_limit("decoder")
    assert limit == 4096 if name == "show-attend-tell" else 64
    prompt = 1 if builder.architecture == "encoder-decoder" else 6
    if name != "show-attend-tell":  # whose steps are slow
        assert run_step(builder, user_input, [12] * (limit - prompt - 1), {}, 5).reason is None
        assert run_step(builder, user_input, [12] * (limit - prompt), {}, 5).reason == "length"
    too_long = [12] * (limit - prompt + 1)
    assert_error(
        lambda: run_step(builder, user_input, too_long, {}, 5), f"{limit + 1:,}", f"{limit:,}"
    )


def test_a_cut_prompt_has_a_notice() -> None:
    builder, _ = build_generator("gpt2")
    step = run_step(builder, UserInput(text="the cat " * 60), [], {}, 5)
    assert step.trace.inputs.notice is not None
    assert "Cut to 64 of 121 tokens" in step.trace.inputs.notice
    assert step.reason == "length"


def test_forced_tokens() -> None:
    """The first token may be that of the target language; the others are not forced."""
    builder, user_input = build_generator("bart", forced_bos_token_id=17)
    steps = walk(builder, user_input)
    assert steps[-1].token_ids == generate(builder, user_input)
    assert steps[0].next == 17
    first = steps[0].candidates[0]
    assert (first.id, first.processed) == (17, 1.0)
    assert 0 < first.probability < 1
    assert [row.processed for row in steps[0].candidates[1:]] == [0.0] * 4
    assert sum(row.processed > 0 for row in steps[1].candidates) == 5


def test_a_step_is_a_trace() -> None:
    builder, user_input = build_generator("gpt2")
    step = run_step(builder, user_input, [30, 31], {}, 5)
    tokens = step.trace.sequences["decoder"].tokens
    assert len(tokens) == 8
    assert [token.text for token in tokens[-2:]] == step.tokens
    description = step.to_json()
    assert description["tokens"] == [
        {"id": 30, "text": step.tokens[0]},
        {"id": 31, "text": step.tokens[1]},
    ]
    assert len(description["candidates"]) == 5
    names = {"id", "text", "probability", "processed", "is_end"}
    assert description["candidates"][0].keys() == names
    assert description["next"] == description["candidates"][0]["id"]
    path = "decoder.layers.1.attention"
    arguments: dict[str, Any] = step.trace.inputs.arguments
    with qkv.look(builder.model) as weights:
        builder.model(**arguments)
    every = slice(None)
    actual = step.trace.compute_weights(path, [0, 1, 2, 3], every, every)
    torch.testing.assert_close(actual, weights[path][0].float(), rtol=0, atol=1e-6)


def test_a_step_with_segment_recurrence_shows_the_last_token_and_its_memory() -> None:
    builder, user_input = build_generator("transformer-xl")
    step = run_step(builder, user_input, [30, 31], {}, 5)
    assert [token.text for token in step.trace.sequences["decoder"].tokens] == [step.tokens[1]]
    memory = [token.text for token in step.trace.sequences["memory"].tokens]
    assert memory == [*"sat on the mat".split(), step.tokens[0]][-5:]


@pytest.mark.parametrize("token_ids", [[-1], [73], [10**30], [1.0], ["1"], [None], [True], [[1]]])
def test_unknown_tokens_are_refused(token_ids: list[Any]) -> None:
    builder, user_input = build_generator("gpt2")
    assert builder.model.args["vocab_size"] == 73
    assert_error(lambda: run_step(builder, user_input, token_ids, {}, 5), "token id is")


@pytest.mark.parametrize(
    "settings",
    [
        dict(temperature=-1.0), dict(temperature="hot"), dict(temperature=float("nan")),
        dict(temperature=float("inf")), dict(top_p=2), dict(top_p=-0.1), dict(top_k=-1), dict(top_k=1.5),
        dict(top_k=10**30), dict(repetition_penalty=0), dict(repetition_penalty=[1]),
        dict(no_repeat_ngram_size=-1), dict(no_repeat_ngram_size="2"), dict(do_sample="yes"),
        dict(do_sample=None), dict(seed=-1), dict(seed=2**32), dict(seed=0.5), dict(seed="1"),
        dict(temperature={"a": 1}), dict(top_k=True),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    builder, user_input = build_generator("gpt2")
    (name,) = settings
    if name in ("temperature", "top_p", "top_k"):
        settings |= {"do_sample": True}
    assert_error(lambda: run_step(builder, user_input, [], settings, 5), name)


@pytest.mark.parametrize("count", [0, -1, 101, 1.5, "5", None, True])
def test_wrong_numbers_of_candidates_are_refused(count: Any) -> None:
    builder, user_input = build_generator("gpt2")
    assert_error(lambda: run_step(builder, user_input, [], {}, count), "candidates is")


def test_models_that_do_not_generate_are_refused() -> None:
    for name in ("bert", "xlnet", "vit", "clip"):
        builder, user_input = build_generator(name)
        assert not builder.can_generate
        message = "does not generate text token by token, expected one with a language model head"
        assert_error(lambda: run_step(builder, user_input, [], {}, 5), message)  # noqa: B023
    builder, _ = build_generator("gpt2")
    assert_error(lambda: run_step(builder, UserInput(text="  "), [], {}, 5), "the text is empty")


def test_logits_that_are_no_numbers_are_refused() -> None:
    builder, user_input = build_generator("gpt2")
    with torch.no_grad():
        builder.model.net.get_parameter("decoder.final_norm.weight").fill_(float("nan"))
    assert_error(lambda: run_step(builder, user_input, [], {}, 5), "NaN")
