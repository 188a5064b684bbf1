"""Every golden call of a pipeline that writes, by our tasks: the same ids, the same text."""

from typing import Any

import pytest

import qkv
from qkv.tasks.write import decoding
from qkv.tasks.write.base import Written
from tests.tasks.test_goldens import calls, model

NAMES = dict(
    max_new_tokens="max_new", num_beams="beams", no_repeat_ngram_size="no_repeat", min_length="min_length",
    length_penalty="length_penalty", early_stopping="early", num_return_sequences="results",
    src_lang="source", tgt_lang="target",
)  # fmt: skip


@pytest.fixture(autouse=True, params=["itself", "prepared"])
def _network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network writes, or its prepared copy, for a single row too."""
    monkeypatch.setattr(decoding, "ROWS", 1 if request.param == "prepared" else 10**9)
    monkeypatch.setattr(decoding, "PAYS", 0)


def check(call: dict[str, Any], task: Any, name: str) -> None:
    """Where one text was asked for several results, they are its best; else each text has one."""
    inputs, output = call["inputs"], call["output"]
    texts = inputs if isinstance(inputs, list) else [inputs]
    found: list[Written] = task.many(texts)
    results = [one for each in found for one in each.best]
    assert [one.text for one in results] == [one[f"{name}_text"].strip() for one in output]
    tokens = [[task.tokenizer.token(number) for number in one[f"{name}_token_ids"][1:]] for one in output]
    ends = {task.tokenizer.token(number) for number in (task.tokenizer.eos, task.tokenizer.pad)}
    for ours, theirs in zip(results, tokens, strict=True):
        while theirs and theirs[-1] in ends and len(theirs) > len(ours.tokens):
            theirs.pop()
        assert [*ours.tokens] == theirs


def settings(call: dict[str, Any]) -> dict[str, Any]:
    given = {NAMES[name]: value for name, value in call["settings"].items() if name in NAMES}
    return given | ({"long": "cut"} if call["settings"].get("truncation") else {})


@calls("translation")
def test_translate(call: dict[str, Any]) -> None:
    check(call, qkv.task("translate", model(call["model"]), **settings(call)), "translation")


@calls("summarization")
def test_summarise(call: dict[str, Any]) -> None:
    check(call, qkv.task("summarise", model(call["model"]), **settings(call)), "summary")


@calls("text2text-generation")
def test_rewrite(call: dict[str, Any]) -> None:
    """A text as it is, by the settings of no task: a prefix of nothing and none of its settings."""
    task = qkv.task("translate", model(call["model"]), prefix="", **settings(call))
    check(call, task, "generated")
