"""Every golden call of a pipeline that reads, by our tasks. docs/tasks.md says where ours differ."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import qkv
from qkv.data.encode.images import Pixels

ROOT = Path(__file__).parent.parent / "goldens" / "pipelines"


@cache
def model(name: str) -> qkv.Model:
    return qkv.load(ROOT / name)


def calls(file: str) -> pytest.MarkDecorator:
    rows = json.loads((ROOT / f"{file}.json").read_text(encoding="utf-8"))
    return pytest.mark.parametrize("call", rows, ids=lambda row: f"{row['model']}-{row['settings']}"[:60])


def several(call: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Inputs and outputs, where there may be one or many."""
    if isinstance(call["inputs"], list):
        return call["inputs"], call["output"]
    return [call["inputs"]], [call["output"]]


def renamed(settings: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names[name]: value for name, value in settings.items() if name in names}


def near(score: float) -> Any:
    return pytest.approx(score, rel=2e-4, abs=2e-6)


@calls("text-classification")
def test_classify(call: dict[str, Any]) -> None:
    settings = renamed(call["settings"], top_k="top", function_to_apply="apply", max_length="length")
    task = qkv.task("classify", model(call["model"]), long="cut", **{"top": 1, **settings})
    inputs, outputs = several(call)
    given = [(one["text"], one["text_pair"]) if isinstance(one, dict) else one for one in inputs]
    for found, told in zip(task.many(given), outputs, strict=True):
        wanted = told if isinstance(told, list) else [told]
        assert [one.label for one in found.best] == [one["label"] for one in wanted]
        assert [one.score for one in found.best] == [near(one["score"]) for one in wanted]
        assert (found.label, found.score) == (found.best[0].label, found.best[0].score)


@calls("zero-shot-classification")
def test_classify_by_labels_of_ones_own(call: dict[str, Any]) -> None:
    names = dict(candidate_labels="labels", hypothesis_template="template", multi_label="several")
    task = qkv.task("classify", model(call["model"]), **renamed(call["settings"], **names))
    for text, wanted in zip(*several(call), strict=True):
        found = task(text)
        assert [one.label for one in found.best] == wanted["labels"]
        assert [one.score for one in found.best] == [near(score) for score in wanted["scores"]]


@calls("token-classification")
def test_tag(call: dict[str, Any]) -> None:
    names = dict(aggregation_strategy="join", ignore_labels="leave", stride="stride")
    task = qkv.task("tag", model(call["model"]), **renamed(call["settings"], **names))
    inputs, outputs = several(call)
    for text, found, told in zip(inputs, task.many(inputs), outputs, strict=True):
        wanted = [one for one in told if one["start"] < one["end"]]
        labels = [one.get("entity_group", one.get("entity")) for one in wanted]
        assert [one.label for one in found] == labels
        assert [(one.start, one.end) for one in found] == [(one["start"], one["end"]) for one in wanted]
        assert [one.score for one in found] == [near(one["score"]) for one in wanted]
        assert all(one.text == text[one.start : one.end] for one in found)


@calls("fill-mask")
@pytest.mark.filterwarnings("ignore:target '")
def test_fill(call: dict[str, Any]) -> None:
    task = qkv.task("fill", model(call["model"]), **renamed(call["settings"], top_k="top", targets="targets"))
    special = {*model(call["model"]).tokenizer.roles.values()}  # type: ignore[union-attr]
    for text, told in zip(*several(call), strict=True):
        found, wanted = task(text), told if isinstance(told[0], list) else [told]
        for gap, words in zip(found.gaps, wanted, strict=True):
            assert [one.id for one in gap.best] == [one["token"] for one in words]
            assert [one.score for one in gap.best] == [near(one["score"]) for one in words]
            for ours, theirs in zip(gap.best, words, strict=True):
                if ours.id not in special:
                    assert ours.word.strip() == theirs["token_str"].removeprefix("##").strip()
                    sequence = theirs["sequence"]
                    for mark in ("[CLS] ", " [SEP]", "<s>", "</s>"):
                        sequence = sequence.replace(mark, "")
                    same = sequence.removeprefix("##").replace("<mask>", " <mask>").lower()
                    assert ours.text.lower() == same
        best = [gap.best[0].word for gap in found.gaps]
        assert all(word in found.text for word in best)


@calls("question-answering")
def test_answer(call: dict[str, Any]) -> None:
    names = dict(
        top_k="top", max_answer_len="longest", align_to_words="words", handle_impossible_answer="none",
        max_seq_len="length", doc_stride="stride",
    )  # fmt: skip
    task = qkv.task("answer", model(call["model"]), **renamed(call["settings"], **names))
    inputs, outputs = several(call)
    given = [(one["question"], one["context"]) for one in inputs]
    for (question, context), found, told in zip(given, task.many(given), outputs, strict=True):
        wanted = told if isinstance(told, list) else [told]
        places = [(one["start"], one["end"], one["answer"]) for one in wanted]
        assert [(one.start, one.end, one.text) for one in found.best] == places
        assert [one.score for one in found.best] == [near(one["score"]) for one in wanted]
        assert all(one.text == context[one.start : one.end] for one in found.best)
        assert task(question, context).text == found.text


@calls("feature-extraction")
def test_embed(call: dict[str, Any]) -> None:
    task = qkv.task("embed", model(call["model"]))
    wanted = np.array(call["output"][0])
    np.testing.assert_allclose(task.states(call["inputs"]), wanted, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(task(call["inputs"]), wanted.mean(0), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(task(call["inputs"], pool="first"), wanted[0], rtol=1e-4, atol=2e-5)


@calls("zero-shot-image-classification")
def test_match(call: dict[str, Any]) -> None:
    settings = {"template": "This is a photo of {}."} | renamed(
        call["settings"], candidate_labels="labels", hypothesis_template="template"
    )
    task = qkv.task("match", model(call["model"]), **settings)
    images = [ROOT / "images" / f"{name}.png" for name in call["inputs"]]
    for found, wanted in zip(task.many(images), call["output"], strict=True):
        assert [one.label for one in found.best] == [one["label"] for one in wanted]
        assert [one.score for one in found.best] == [near(one["score"]) for one in wanted]


PREPROCESSORS = json.loads((ROOT / "images" / "preprocessors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", PREPROCESSORS, ids=lambda row: row["name"])
def test_pixels(row: dict[str, Any]) -> None:
    wanted = load_file(ROOT / "images" / "pixels.safetensors")
    prepare = Pixels.of(row["config"])
    for image in sorted((ROOT / "images").glob("*.png")):
        found = torch.from_numpy(prepare(image))
        torch.testing.assert_close(found, wanted[f"{row['name']}.{image.stem}"], rtol=0, atol=2e-6)
