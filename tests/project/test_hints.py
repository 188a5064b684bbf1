"""Hints for unknown names, in every call that takes settings by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import qkv
from qkv.hints import describe_unknown_name
from tests.support import tiny

build: Any = qkv.build  # mypy would reject the names
fit: Any = qkv.fit
IDS = torch.tensor([[1, 2]])
CALLS: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda model: build("gpt2", hidden_size=8),
        "gpt2: hidden_size is unknown; did you mean width?",
    ),
    (lambda model: build("t5", n_layer=8), "t5: n_layer is unknown; did you mean depth?"),
    (lambda model: build("bert", widht=8), "bert: widht is unknown; did you mean width?"),
    (lambda model: build("bert", zzz=8), "bert: zzz is unknown; expected one of "),
    (
        lambda model: qkv.task("text-generation", model),
        "task text-generation is unknown; did you mean complete?",
    ),
    (
        lambda model: fit(model, ["a"], steps=1, learning_rate=1.0),
        "learning_rate is unknown; did you mean lr?",
    ),
    (
        lambda model: fit(model, ["a"], steps=1, compute_metrics=len),
        "compute_metrics is unknown; did you mean metrics?",
    ),
    (
        lambda model: fit(model, ["a"], steps=1, batch=1),
        "batch is unknown; did you mean batch_size?",
    ),
    (
        lambda model: model.generate(IDS, beam_size=3),
        "generate: beam_size is unknown; did you mean num_beams?",
    ),
    (
        lambda model: model.generate(IDS, use_cache=True),
        "generate: use_cache is unknown; generation always uses",
    ),
    (
        lambda model: model(IDS, output_attentions=True),
        "input output_attentions is unknown; attention weights are recorded by qkv.look(model)",
    ),
    (
        lambda model: model(IDS, attention_masks=IDS),
        "input attention_masks is unknown; did you mean attention_mask?",
    ),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_names_of_other_libraries_get_a_hint(call: Callable[[Any], object], message: str) -> None:
    model = tiny.build("gpt2", head="lm")
    model.tokenizer = qkv.Tokenizer.train(["a b"] * 9, type="char", vocab_size=tiny.VOCAB)
    with pytest.raises((ValueError, TypeError)) as error:
        call(model)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_many_known_names_are_not_all_listed() -> None:
    known = [f"name{number}" for number in range(50)]
    assert describe_unknown_name("zzz", known).endswith("name28, name29 ...")
    assert describe_unknown_name("name5x", known) == "name5x is unknown; did you mean name5?"
    assert (
        describe_unknown_name("zzz", ["a"], prefix="--") == "--zzz is unknown; expected one of --a"
    )
