"""`qkv.fit`: the loop from a notebook, with an objective by name and one of the user's own."""

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv.text import Tokenizer

TEXTS = ["the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tree"] * 20


def model(family: str = "gpt2", **changes: Any) -> qkv.Model:
    tokenizer = Tokenizer.train(TEXTS, kind="word", vocab=60, purpose="bert")
    torch.manual_seed(0)
    made = qkv.build(family, vocab=len(tokenizer), width=32, depth=2, heads=2, length=32, **changes)
    made.tokenizer = tokenizer
    return made


def losses(made: qkv.Model, **more: Any) -> list[float]:
    told: list[float] = []
    qkv.fit(
        made, TEXTS, steps=30, rate=3e-3, log=5, callbacks=[lambda r: told.append(r.values["loss"])], **more
    )
    return told


def test_by_name() -> None:
    told = losses(model(), objective="causal-lm", length=16, rows=8)
    assert told[-1] < 0.75 * told[0]


def test_masked() -> None:
    told = losses(model("bert", feed=64, head="masked-lm"), objective="masked-lm", length=16, rows=8)
    assert told[-1] < told[0]


def test_a_function_of_the_users_own() -> None:
    def twice(out: dict[str, Tensor]) -> Tensor:
        return 2 * torch.nn.functional.cross_entropy(out["logits"].flatten(0, 1), out["labels"].flatten())

    once = losses(model(drop=0.0, embed_drop=0.0, attend_drop=0.0), length=16, rows=8, clip=0.0)
    told = losses(
        model(drop=0.0, embed_drop=0.0, attend_drop=0.0), objective=twice, length=16, rows=8, clip=0.0
    )
    assert told[0] == pytest.approx(2 * once[0], rel=0.05)


def test_labels() -> None:
    made = model("bert", feed=64, head="label", labels=2, label_take="mean")
    made.config["id2label"] = {"0": "cat", "1": "other"}
    data = [{"text": text, "label": "cat" if "cat" in text else "other"} for text in TEXTS]
    told: list[float] = []
    qkv.fit(
        made, data, objective="label", steps=80, rate=3e-3, rows=8, valid=0.2, log=10,
        callbacks=[lambda r: told.append(r.values.get("accuracy", 0.0)) if r.kind == "measure" else None],
    )  # fmt: skip
    assert told[-1] == 1.0
    assert not made.net.training


@pytest.mark.parametrize("named", [None, {"0": "LABEL_0", "1": "LABEL_1"}])
def test_labels_without_names_take_those_of_the_data(named: dict[str, str] | None) -> None:
    made = model("bert", feed=64, head="label", labels=2, label_take="mean")
    if named:
        made.config["id2label"] = named
    data = [{"text": text, "label": "cat" if "cat" in text else "other"} for text in TEXTS]
    qkv.fit(made, data, objective="label", steps=1)
    assert made.config["id2label"] == {"0": "cat", "1": "other"}
    three = model("bert", feed=64, head="label", labels=3)
    with pytest.raises(ValueError, match=r"2 labels \(cat, other\), and the model 3: build it with labels=2"):
        qkv.fit(three, data, objective="label", steps=1)
    with pytest.raises(ValueError, match="no record to learn from: is the data empty"):
        qkv.fit(three, [], objective="label", steps=1, rows=2)


def test_a_model_without_a_tokenizer_says_so() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        qkv.fit(qkv.build("gpt2", vocab=50, width=16, heads=2, depth=1), TEXTS, steps=1)


BERT: dict[str, Any] = dict(family="bert", feed=64)


@pytest.mark.parametrize(
    ("build", "asked", "message"),
    [
        (BERT, dict(objective="label"), "objective 'label' with a model of head 'none', expected 'label'"),
        ({}, dict(objective="label"), "objective 'label' with a model of head 'lm', expected 'label'"),
        (BERT | dict(head="label", labels=2), {}, "'causal-lm' with a model of head 'label', expected 'lm'"),
        (BERT, dict(objective="contrastive"), "the model gives no vector; build it with vector='mean'"),
        ({}, dict(lr=1e-3), "lr is unknown; did you mean rate"),
        ({}, dict(warmupp=1), "warmupp is unknown; did you mean warmup"),
        ({}, dict(rate="fast"), "rate is 'fast', expected a number"),
        ({}, dict(length=33), "length 33, expected at most 32: the model has no more positions"),
        ({}, dict(watch="bleu"), "learn.watch 'bleu': nothing is measured"),
    ],
)
def test_what_does_not_fit_is_one_line(build: dict[str, Any], asked: dict[str, Any], message: str) -> None:
    data = [{"text": text, "label": text[:5]} for text in TEXTS]
    with pytest.raises(ValueError, match=message):
        qkv.fit(model(**build), data, steps=1, **asked)


def test_a_tokenizer_that_is_larger_than_the_model() -> None:
    made = model()
    made.tokenizer = Tokenizer.train(TEXTS, kind="byte", vocab=300, purpose="gpt")
    with pytest.raises(ValueError, match=r"tokens in the tokenizer, but the model knows \d+; do they belong"):
        qkv.fit(made, TEXTS, steps=1, length=8)


def test_rows_have_the_models_own_length() -> None:
    assert qkv.fit(model(), TEXTS, steps=1, rows=2).tokens == 2 * 32


def test_what_stands_still_or_runs_twice_does_so_for_one_run() -> None:
    made = model()
    losses(made, length=16, rows=8, freeze=["embed.*"], recompute=True)
    assert all(p.requires_grad for p in made.net.parameters())
    assert not any("forward" in vars(module) for module in made.net.modules())


def test_choices() -> None:
    made = model("bert", feed=64, head="choice")
    data = [{"text": "the cat", "choices": ["sat on the mat", "sang"], "label": 0}] * 20
    told: list[float] = []
    qkv.fit(
        made, data, objective="choice", steps=10, rows=4, log=5,
        callbacks=[lambda r: told.append(r.values["loss"])],
    )  # fmt: skip
    assert told[-1] < told[0]


def test_a_memory_is_not_given_from_part_to_part() -> None:
    made = qkv.build("transformer-xl", vocab=60, width=32, depth=2, heads=2, memory=8, cutoffs=[])
    made.tokenizer = Tokenizer.train(TEXTS, kind="word", vocab=60, purpose="plain")
    with pytest.raises(ValueError, match=r"^learn\.accumulate 2: recurrence gives its memory"):
        losses(made, objective="recurrence", length=8, rows=4, accumulate=2)
