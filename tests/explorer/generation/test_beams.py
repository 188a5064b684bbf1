"""Beam search as a tree: the result of the task, parents, and scores that are sums of log-probabilities."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from qkv.decode import Result
from qkv.explorer.generation.beams import BeamNode, BeamTree, search_beams
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.tasks.base import InputRow
from tests.explorer import models
from tests.explorer.generation.test_steps import build_generator
from tests.support.errors import assert_error

SEARCHED = ("gpt2", "llama", "transformer-xl", "bart", "t5", "luong", "show-attend-tell")
MAX_NEW_TOKENS = 7


def search_with_task(
    builder: InputBuilder, user_input: UserInput, num_beams: int, **settings: Any
) -> Result:
    """Return the best result of the task of the model."""
    row: Any
    if builder.architecture == "encoder-decoder":
        source = builder.encode_source(user_input)
        task, row = source.task, source.row
    else:
        task = builder.complete_task
        row = InputRow(task.encode([user_input.text])[0])
    defaults = dict(num_beams=num_beams, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    (results,) = task.with_settings(defaults | settings).predict([row])
    assert not isinstance(results, Exception)
    return results[0]


def collect_ids(tree: BeamTree, depth: int, place: int) -> list[int]:
    """Return the tokens up to a candidate."""
    ids = []
    for step in reversed(tree.steps[: depth + 1]):
        ids.append(step[place].id)
        place = step[place].parent
    assert place == -1
    return ids[::-1]


def compute_log_probs(
    builder: InputBuilder, user_input: UserInput, token_ids: list[int]
) -> list[float]:
    """Return the log-probabilities of tokens, from one forward pass."""
    arguments: dict[str, Any]
    if builder.architecture == "encoder-decoder":
        source = builder.encode_source(user_input)
        arguments = dict(builder.build_decoder_step(source, token_ids[:-1]).arguments)
    else:
        prompt, _ = builder.encode_prompt(user_input)
        arguments = {"input_ids": torch.tensor([[*prompt, *token_ids[:-1]]])}
    with torch.no_grad():
        logits = builder.model(**arguments).logits[0, -len(token_ids) :]
    log_probs = logits.log_softmax(-1)
    return [float(log_probs[i, token_id]) for i, token_id in enumerate(token_ids)]


def list_nodes(tree: BeamTree) -> list[tuple[int, int, BeamNode]]:
    return [
        (depth, place, node)
        for depth, step in enumerate(tree.steps)
        for place, node in enumerate(step)
    ]


@pytest.mark.parametrize("num_beams", [2, 4])
@pytest.mark.parametrize("name", SEARCHED)
def test_the_result_is_that_of_the_task(name: str, num_beams: int) -> None:
    builder, user_input = build_generator(name)
    tree = search_beams(builder, user_input, num_beams, MAX_NEW_TOKENS)
    expected = search_with_task(builder, user_input, num_beams)
    ids = [step[place].id for step, place in zip(tree.steps, tree.best, strict=True)]
    assert ids == expected.token_ids
    assert tree.score == expected.score
    assert tree.output == builder.labeler.tokenizer.decode(ids, skip_special_tokens=True).strip()
    last = tree.steps[-1][tree.best[-1]]
    assert last.is_finished is (
        len(ids) < MAX_NEW_TOKENS or ids[-1] == builder.labeler.tokenizer.eos_token_id
    )
    assert last.score / len(ids) == pytest.approx(expected.score, abs=1e-5)  # length_penalty 1


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_the_settings_of_the_folder_apply(name: str) -> None:
    folder = dict(length_penalty=2.0, no_repeat_ngram_size=1, suppress_tokens=[5, 6], num_beams=7)
    builder, user_input = build_generator(name, **folder)
    tree = search_beams(builder, user_input, 3, MAX_NEW_TOKENS)
    expected = search_with_task(builder, user_input, 3)
    ids = [step[place].id for step, place in zip(tree.steps, tree.best, strict=True)]
    assert ids == expected.token_ids
    assert len({*ids}) == len(ids)
    assert tree.score == expected.score
    last = tree.steps[-1][tree.best[-1]]
    assert last.score / len(ids) ** 2 == pytest.approx(tree.score, abs=1e-5)
    text = builder.labeler.get_characters(ids[2]).strip()
    stopped, _ = build_generator(name, stop_strings=[text], **folder)
    tree = search_beams(stopped, user_input, 3, MAX_NEW_TOKENS)
    expected = search_with_task(stopped, user_input, 3)
    ids = [step[place].id for step, place in zip(tree.steps, tree.best, strict=True)]
    assert ids == expected.token_ids
    assert tree.score == expected.score


@pytest.mark.parametrize("name", SEARCHED)
def test_parents_form_a_tree(name: str) -> None:
    builder, user_input = build_generator(name)
    tree = search_beams(builder, user_input, 3, MAX_NEW_TOKENS)
    assert {node.parent for node in tree.steps[0]} == {-1}
    for depth, _, node in list_nodes(tree):
        if depth:
            parent = tree.steps[depth - 1][node.parent]
            assert node.score <= parent.score
            assert parent.is_kept
            assert parent.id not in {builder.labeler.tokenizer.eos_token_id}
        assert node.text == builder.labeler.get_text(node.id)
    for step in tree.steps[:-1]:
        assert sum(node.is_kept and not node.is_finished for node in step) == 3
    for depth, step in enumerate(tree.steps):
        keys = [tuple(collect_ids(tree, depth, place)) for place in range(len(step))]
        assert len({*keys}) == len(keys)
    for before, place, step in zip(tree.best, tree.best[1:], tree.steps[1:], strict=False):
        assert step[place].parent == before


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart", "t5", "luong", "show-attend-tell"])
def test_scores_are_sums_of_log_probabilities(name: str) -> None:
    builder, user_input = build_generator(name)
    tree = search_beams(builder, user_input, 3, 4)
    nodes = [row for row in list_nodes(tree) if row[1] in (0, len(tree.steps[row[0]]) - 1)]
    for depth, place, node in nodes:
        log_probs = compute_log_probs(builder, user_input, collect_ids(tree, depth, place))
        assert node.score == pytest.approx(sum(log_probs), abs=1e-4)


def test_json() -> None:
    builder, user_input = build_generator("bart")
    tree = search_beams(builder, user_input, 2, 3)
    description = json.loads(json.dumps(tree.to_json(), allow_nan=False))
    assert description["output"] == tree.output
    assert description["score"] == tree.score
    assert description["best"] == [*tree.best]
    node = description["steps"][0][0]
    assert node == tree.steps[0][0]._asdict()
    assert node.keys() == {"id", "text", "parent", "score", "is_kept", "is_finished"}


@pytest.mark.parametrize("value", [1, 17, 0, -2, 2.5, "4", None, True, 10**20])
def test_wrong_numbers_of_beams_are_refused(value: Any) -> None:
    builder, user_input = build_generator("gpt2")
    assert_error(lambda: search_beams(builder, user_input, value, 5), "num_beams is")


@pytest.mark.parametrize("value", [0, -1, 201, 1.5, "4", None, True])
def test_wrong_numbers_of_tokens_are_refused(value: Any) -> None:
    builder, user_input = build_generator("gpt2")
    assert_error(lambda: search_beams(builder, user_input, 2, value), "max_new_tokens is")


def test_models_and_texts_that_cannot_be_searched() -> None:
    for name in ("bert", "xlnet", "vit", "clip"):
        builder, user_input = build_generator(name)
        message = "does not generate text"
        assert_error(lambda: search_beams(builder, user_input, 2, 5), message)  # noqa: B023
    builder, _ = build_generator("bart")
    assert_error(lambda: search_beams(builder, UserInput(), 2, 5), "the text is empty")
    builder, _ = build_generator("gpt2")
    too_long = UserInput(text=models.TEXT * 40)
    assert_error(lambda: search_beams(builder, too_long, 2, 5), "64")
