"""Goldens of Hugging Face's pipelines for tasks that read text; docs/tasks.md lists differences."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import qkv
from qkv.data.encode.images import ImageProcessor

ROOT = Path(__file__).parent.parent / "goldens" / "pipelines"


@cache
def model(name: str) -> qkv.Model:
    return qkv.load(ROOT / name)


def calls(file: str) -> pytest.MarkDecorator:
    rows = json.loads((ROOT / f"{file}.json").read_text(encoding="utf-8"))
    return pytest.mark.parametrize(
        "call", rows, ids=lambda row: f"{row['model']}-{row['settings']}"[:60]
    )


def list_inputs_and_outputs(call: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the inputs and outputs of a call with one or many inputs."""
    if isinstance(call["inputs"], list):
        return call["inputs"], call["output"]
    return [call["inputs"]], [call["output"]]


def rename_settings(settings: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return the settings that have a name of ours, under that name."""
    return {names[name]: value for name, value in settings.items() if name in names}


def approximate(score: float) -> Any:
    return pytest.approx(score, rel=2e-4, abs=2e-6)


@calls("text-classification")
def test_classify(call: dict[str, Any]) -> None:
    settings = rename_settings(
        call["settings"],
        top_k="top_k",
        function_to_apply="function_to_apply",
        max_length="max_input_length",
    )
    task = qkv.task(
        "classify", model(call["model"]), overflow="truncate", **{"top_k": 1, **settings}
    )
    inputs, outputs = list_inputs_and_outputs(call)
    task_inputs = [
        (item["text"], item["text_pair"]) if isinstance(item, dict) else item for item in inputs
    ]
    for result, output in zip(task.map(task_inputs), outputs, strict=True):
        expected = output if isinstance(output, list) else [output]
        assert [item.label for item in result.candidates] == [item["label"] for item in expected]
        assert [item.score for item in result.candidates] == [
            approximate(item["score"]) for item in expected
        ]
        assert (result.label, result.score) == (
            result.candidates[0].label,
            result.candidates[0].score,
        )


@calls("zero-shot-classification")
def test_classify_zero_shot(call: dict[str, Any]) -> None:
    task = qkv.task("classify", model(call["model"]), **call["settings"])
    for text, expected in zip(*list_inputs_and_outputs(call), strict=True):
        result = task(text)
        assert [item.label for item in result.candidates] == expected["labels"]
        assert [item.score for item in result.candidates] == [
            approximate(score) for score in expected["scores"]
        ]


@calls("token-classification")
def test_tag(call: dict[str, Any]) -> None:
    names = dict(aggregation_strategy="aggregation", ignore_labels="ignore_labels", stride="stride")
    task = qkv.task("tag", model(call["model"]), **rename_settings(call["settings"], **names))
    inputs, outputs = list_inputs_and_outputs(call)
    for text, result, output in zip(inputs, task.map(inputs), outputs, strict=True):
        expected = [item for item in output if item["start"] < item["end"]]
        labels = [item.get("entity_group", item.get("entity")) for item in expected]
        assert [item.label for item in result] == labels
        assert [(item.start, item.end) for item in result] == [
            (item["start"], item["end"]) for item in expected
        ]
        assert [item.score for item in result] == [approximate(item["score"]) for item in expected]
        assert all(item.text == text[item.start : item.end] for item in result)


@calls("fill-mask")
@pytest.mark.filterwarnings("ignore:target '")
def test_fill(call: dict[str, Any]) -> None:
    task = qkv.task("fill", model(call["model"]), **call["settings"])
    special = {*model(call["model"]).tokenizer.special_token_ids.values()}  # type: ignore[union-attr]
    for text, output in zip(*list_inputs_and_outputs(call), strict=True):
        result, expected = task(text), output if isinstance(output[0], list) else [output]
        for mask, words in zip(result.masks, expected, strict=True):
            assert [item.token for item in mask.candidates] == [item["token"] for item in words]
            assert [item.score for item in mask.candidates] == [
                approximate(item["score"]) for item in words
            ]
            for prediction, golden in zip(mask.candidates, words, strict=True):
                if prediction.token not in special:
                    assert (
                        prediction.token_str.strip()
                        == golden["token_str"].removeprefix("##").strip()
                    )
                    sequence = golden["sequence"]
                    for mark in ("[CLS] ", " [SEP]", "<s>", "</s>"):
                        sequence = sequence.replace(mark, "")
                    same = sequence.removeprefix("##").replace("<mask>", " <mask>").lower()
                    assert prediction.sequence.lower() == same
        words = [mask.candidates[0].token_str for mask in result.masks]
        assert all(word in result.text for word in words)


@calls("question-answering")
def test_answer(call: dict[str, Any]) -> None:
    names = dict(
        top_k="top_k", max_answer_len="max_answer_tokens", align_to_words="align_to_words",
        handle_impossible_answer="allow_no_answer", max_seq_len="max_input_length",
        doc_stride="stride",
    )  # fmt: skip
    task = qkv.task("answer", model(call["model"]), **rename_settings(call["settings"], **names))
    inputs, outputs = list_inputs_and_outputs(call)
    task_inputs = [(item["question"], item["context"]) for item in inputs]
    for (question, context), result, output in zip(
        task_inputs, task.map(task_inputs), outputs, strict=True
    ):
        expected = output if isinstance(output, list) else [output]
        places = [(item["start"], item["end"], item["answer"]) for item in expected]
        assert [(item.start, item.end, item.text) for item in result.candidates] == places
        assert [item.score for item in result.candidates] == [
            approximate(item["score"]) for item in expected
        ]
        assert all(item.text == context[item.start : item.end] for item in result.candidates)
        assert task(question, context).text == result.text


@calls("feature-extraction")
def test_embed(call: dict[str, Any]) -> None:
    task = qkv.task("embed", model(call["model"]))
    expected = np.array(call["output"][0])
    np.testing.assert_allclose(
        task.get_last_hidden_state(call["inputs"]), expected, rtol=1e-4, atol=2e-5
    )
    np.testing.assert_allclose(task(call["inputs"]), expected.mean(0), rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(
        task(call["inputs"], pooling="first"), expected[0], rtol=1e-4, atol=2e-5
    )


@calls("zero-shot-image-classification")
def test_match(call: dict[str, Any]) -> None:
    settings = {"hypothesis_template": "This is a photo of {}."} | call["settings"]
    task = qkv.task("match", model(call["model"]), **settings)
    images = [ROOT / "images" / f"{name}.png" for name in call["inputs"]]
    for result, expected in zip(task.map(images), call["output"], strict=True):
        assert [item.label for item in result.candidates] == [item["label"] for item in expected]
        assert [item.score for item in result.candidates] == [
            approximate(item["score"]) for item in expected
        ]


PREPROCESSORS = json.loads((ROOT / "images" / "preprocessors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", PREPROCESSORS, ids=lambda row: row["name"])
def test_pixels(row: dict[str, Any]) -> None:
    expected = load_file(ROOT / "images" / "pixels.safetensors")
    processor = ImageProcessor.from_config(row["config"])
    for image in sorted((ROOT / "images").glob("*.png")):
        result = torch.from_numpy(processor(image))
        torch.testing.assert_close(
            result, expected[f"{row['name']}.{image.stem}"], rtol=0, atol=2e-6
        )
