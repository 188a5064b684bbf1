"""Goldens of Hugging Face's pipelines for tasks that generate text: the same ids and texts."""

from typing import Any

import pytest

import qkv
from qkv.tasks.write import decoding
from qkv.tasks.write.seq2seq import GeneratedText
from tests.tasks.test_goldens import calls, model

SETTINGS = (
    "max_new_tokens", "num_beams", "no_repeat_ngram_size", "min_length", "length_penalty",
    "early_stopping", "num_return_sequences", "src_lang", "tgt_lang",
)  # fmt: skip


@pytest.fixture(autouse=True, params=["network", "optimized copy"])
def _network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate with the network, or with its optimized copy even for a single row."""
    monkeypatch.setattr(
        decoding, "MIN_ROWS_FOR_COPY", 1 if request.param == "optimized copy" else 10**9
    )
    monkeypatch.setattr(decoding, "MIN_STEPS_FOR_COPY", 0)


def check(call: dict[str, Any], task: Any, name: str) -> None:
    """Compare texts and tokens; several results of one text are its candidates."""
    inputs, output = call["inputs"], call["output"]
    texts = inputs if isinstance(inputs, list) else [inputs]
    outputs: list[GeneratedText] = task.map(texts)
    results = [candidate for output in outputs for candidate in output.candidates]
    assert [result.text for result in results] == [one[f"{name}_text"].strip() for one in output]
    tokens = [
        [
            task.tokenizer.convert_ids_to_tokens(token_id)
            for token_id in one[f"{name}_token_ids"][1:]
        ]
        for one in output
    ]
    ends = {
        task.tokenizer.convert_ids_to_tokens(token_id)
        for token_id in (task.tokenizer.eos_token_id, task.tokenizer.pad_token_id)
    }
    for result, expected in zip(results, tokens, strict=True):
        while expected and expected[-1] in ends and len(expected) > len(result.tokens):
            expected.pop()
        assert [*result.tokens] == expected


def select_settings(call: dict[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in call["settings"].items() if name in SETTINGS}
    return settings | ({"overflow": "truncate"} if call["settings"].get("truncation") else {})


@calls("translation")
def test_translate(call: dict[str, Any]) -> None:
    check(call, qkv.task("translate", model(call["model"]), **select_settings(call)), "translation")


@calls("summarization")
def test_summarize(call: dict[str, Any]) -> None:
    check(call, qkv.task("summarize", model(call["model"]), **select_settings(call)), "summary")


@calls("text2text-generation")
def test_text2text(call: dict[str, Any]) -> None:
    """Without the prefix and settings of any task."""
    task = qkv.task("translate", model(call["model"]), prefix="", **select_settings(call))
    check(call, task, "generated")
