"""Judges: scores of all data, whatever batches it came in, against counts by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import qkv
from qkv.data.batches.collate import NONE
from qkv.data.batches.sampler import Feed, by_rows
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import Answered
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare
from qkv.text import Tokenizer
from qkv.train.config import RISING, Learn
from qkv.train.evaluate.evaluators import TOKENS, Judge
from qkv.train.evaluate.generation import spaced
from qkv.train.evaluate.held_out import picked, trial
from qkv.train.evaluate.validation import names, over
from qkv.train.objectives import Words, objective
from qkv.train.objectives.registry import KINDS
from qkv.train.recipe import DataPart, ModelPart, ObjectivePart, Recipe
from qkv.train.setup_context import Given, Part

LINES = ["the cat sat on the mat in New York", "a dog ran to the red house of Ada", "who is there"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train(LINES * 9, kind="wordpiece", vocab=70, purpose="bert").save(folder)
    return folder


def judged(
    home: Path, name: str, records: Sequence[dict[str, Any]] = (), *, labels: tuple[str, ...] = (),
    length: int = 0, long: str = "refuse", **settings: Any,
) -> tuple[Judge, Encoder, Given]:  # fmt: skip
    """The judge of a kind, over these records."""
    recipe = Recipe(
        model=ModelPart(), data=DataPart(train="", rows=1, length=length, long=long), learn=Learn(steps=1),
        objective=ObjectivePart(name=name, settings=settings),
    )  # fmt: skip
    model = qkv.build("bert", "tiny", vocab=100, head=KINDS[name].head or "none")
    model.tokenizer = Tokenizer.load(home)
    given, kind = Given.of(recipe, home, model, (), labels=labels), KINDS[name]
    encoder = kind.encoder(given)
    held = [Record(each, f"record {number}") for number, each in enumerate(records)]
    return kind.judge(given, encoder, lambda: held), encoder, given


def in_batches(judge: Judge, outs: Sequence[dict[str, Tensor]], seed: int) -> dict[str, float]:
    """Examples, one an output, kept in batches of any size and order."""
    dice, order, kept = random.Random(seed), list(range(len(outs))), list[Any]()
    dice.shuffle(order)
    while order:
        some, order = order[: (cut := dice.randrange(1, 4))], order[cut:]
        batch = {name: torch.stack([outs[i][name] for i in some]) for name in outs[0]}
        kept += judge.keep(batch, np.array(some))
    dice.shuffle(kept)
    found = judge.scores(kept)
    assert tuple(found) == judge.names
    assert {*judge.names} <= RISING
    return found


def test_one_label_of_two(home: Path) -> None:
    judge, _, _ = judged(home, "label", labels=("no", "yes"))
    pairs = [(1, 1), (1, 1), (1, 0), (0, 1), (0, 0), (0, 0), (0, 0)]  # said, wanted
    outs = [{"logits": torch.eye(2)[said], "labels": torch.tensor(wanted)} for said, wanted in pairs]
    for seed in range(3):
        found = in_batches(judge, outs, seed)
        assert found["accuracy"] == pytest.approx(5 / 7)
        assert found["f1"] == pytest.approx(2 * 2 / (3 + 3))  # of "yes"
        assert found["macro_f1"] == pytest.approx((2 / 3 + 3 / 4) / 2)
        assert found["matthews"] == pytest.approx((2 * 3 - 1 * 1) / (3 * 3 * 4 * 4) ** 0.5)
    assert judge.how() == {"f1": "of yes"}


def test_one_label_of_three(home: Path) -> None:
    judge, _, _ = judged(home, "label", labels=("a", "b", "c"))
    outs = [{"logits": torch.eye(3)[i % 3], "labels": torch.tensor(i % 2)} for i in range(12)]
    found = in_batches(judge, outs, 0)
    assert judge.names == ("accuracy", "macro_f1", "matthews")
    assert found["accuracy"] == pytest.approx(4 / 12)


def test_several_labels(home: Path) -> None:
    judge, _, _ = judged(home, "label", labels=("a", "b", "c"), kind="several")
    said, wanted = [{0, 1}, {1}, set(), {2}], [{0, 1}, {1, 2}, set(), {0}]
    rows = [[[1.0 if i in row else -1.0 for i in range(3)] for row in side] for side in (said, wanted)]
    outs = [
        {"logits": torch.tensor(a), "labels": torch.tensor(b).clamp(min=0)}
        for a, b in zip(*rows, strict=True)
    ]
    found = in_batches(judge, outs, 1)
    assert found["accuracy"] == 2 / 4
    assert found["f1"] == pytest.approx(2 * 3 / (4 + 5))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_numbers(home: Path) -> None:
    judge, _, _ = judged(home, "label", labels=("score",), kind="regression")
    said, wanted = [1.0, 2.0, 3.0, 10.0], [1.0, 2.0, 3.0, 4.0]
    outs = [
        {"logits": torch.tensor([a]), "labels": torch.tensor(b)} for a, b in zip(said, wanted, strict=True)
    ]
    found = in_batches(judge, outs, 2)
    assert found["spearman"] == pytest.approx(1)
    assert found["pearson"] == pytest.approx(14 / (50 * 5) ** 0.5)


def test_choices(home: Path) -> None:
    judge = KINDS["choice"].judge(None, None, list)  # type: ignore[arg-type]
    out = {"choice": torch.tensor([[1.0], [2.0], [3.0], [1.0]]), "labels": torch.tensor([1, 1])}
    assert judge.scores(judge.keep(out, np.arange(2))) == {"accuracy": 0.5}


def test_tokens_and_what_was_replaced() -> None:
    judge = KINDS["replaced-token"].judge(None, None, list)  # type: ignore[arg-type]
    out = {
        "logits": torch.eye(4)[[0, 1, 2]], "labels": torch.tensor([0, 3, NONE]),
        "seat": torch.tensor([[True, True, True, True], [True, True, False, False]]),
        "replaced": torch.tensor([[2.0, -1.0, 1.0, -3.0], [1.0, -1.0, 5.0, -5.0]]),
        "wrong": torch.tensor([[True, False, False, True], [True, False, True, True]]),
    }  # fmt: skip
    found = judge.scores(judge.keep(out, np.arange(2)) + judge.keep(out, np.arange(2)))
    assert found == pytest.approx(
        {"accuracy": 1 / 2, "replaced_accuracy": 4 / 6, "replaced_f1": 2 * 2 / (3 + 3)}
    )
    assert {*found} <= RISING


# --- tags ---

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
SENTENCES = [
    (["Ada", "saw", "New", "York"], ["B-PER", "O", "B-LOC", "I-LOC"]),
    (["in", "New", "York"], ["O", "B-LOC", "I-LOC"]),
    (["Ada"], ["B-PER"]),
]


def told(encoder: Any, record: dict[str, Any], said: list[str]) -> dict[str, Tensor]:
    """The outputs of a network that says these tags; ten tokens, of which the last are pads."""
    row = encoder([Record(record, "x")])[0]["labels"]
    labels, logits = torch.full((10,), NONE), torch.zeros(10, len(TAGS))
    words = iter(said)
    for place, label in enumerate(row):
        if label:
            labels[place] = label - 1
            logits[place, TAGS.index(next(words))] = 1.0
    return {"labels": labels, "logits": logits}


def test_entities(home: Path) -> None:
    """2 of 4 entities are found; one more ends too early, one is of another kind."""
    records = [dict(words=words, tags=tags) for words, tags in SENTENCES]
    judge, encoder, _ = judged(home, "tag", records, labels=TAGS)
    said = [["B-PER", "O", "B-LOC", "O"], ["O", "B-LOC", "I-LOC"], ["B-LOC"]]
    outs = [told(encoder, *each) for each in zip(records, said, strict=True)]
    for seed in range(3):
        found = in_batches(judge, outs, seed)
        assert found == pytest.approx({"accuracy": 6 / 8, "precision": 1 / 2, "recall": 1 / 2, "f1": 1 / 2})
    assert "entities" in judge.how()["f1"]


def test_words_that_were_cut_off_are_missed(home: Path) -> None:
    records = [dict(words=words, tags=tags) for words, tags in SENTENCES[:1]]
    whole, encoder, _ = judged(home, "tag", records, labels=TAGS)
    size = len(encoder([Record(records[0], "x")])[0]["tokens"])
    judge, short, _ = judged(home, "tag", records, labels=TAGS, length=size - 2, long="cut")
    right = SENTENCES[0][1]
    assert in_batches(whole, [told(encoder, records[0], right)], 0)["f1"] == 1
    found = in_batches(judge, [told(short, records[0], right)], 0)
    assert found["recall"] == 1 / 2
    assert found["accuracy"] < 1


def test_tags_that_name_no_entities(home: Path) -> None:
    records = [dict(words=["the", "cat"], tags=["DET", "NOUN"])]
    judge, _, _ = judged(home, "tag", records, labels=("DET", "NOUN"))
    outs = [{"logits": torch.tensor([[0.0, 0], [1, 0], [1, 0]]), "labels": torch.tensor([NONE, 0, 1])}]
    assert in_batches(judge, outs, 0) == pytest.approx({"accuracy": 1 / 2, "macro_f1": (2 / 3 + 0) / 2})


# --- answers ---


def test_answers_over_windows(home: Path) -> None:
    """Long contexts; a network that knows the places, but for one question, which it does not answer."""
    context = " ".join([*LINES[:2]] * 4)
    places = [
        ("New York", context.index("New York")),
        ("Ada", context.rindex("Ada")),
        ("cat", context.index("cat")),
    ]
    records = [
        dict(question="who?", context=context, answers={"text": [text, "nobody"], "answer_start": [at, 0]})
        for text, at in places
    ]
    records.append(dict(question="who?", context=context, answers={"text": [], "answer_start": []}))
    judge, encoder, _ = judged(home, "span", records, length=24, long="split", stride=6)
    rows = encoder([Record(each, "x") for each in records])
    outs = []
    for number, row in enumerate(rows):
        for size, *ends in zip(row["windows"], row["start"], row["end"], strict=True):
            out = {side: torch.full((24,), -9.0) for side in ("start", "end")}
            out["start"][size:] = out["end"][size:] = 99.0  # pads
            for side, place in zip(out, ends, strict=True):
                out[side][place if number != 2 else 0] = 3.0
            outs.append(out)
    assert len(outs) > 12
    for seed in range(3):
        assert in_batches(judge, outs, seed) == {"exact": 3 / 4, "f1": 3 / 4}
    assert judge.how() == {"longest": 30, "stride": 6, "no_answer": True}


def test_where_every_question_has_an_answer_one_is_given(home: Path) -> None:
    records = [dict(question="who?", context="the cat", answers=["The cat!", "a dog"])]
    judge, encoder, _ = judged(home, "span", records, length=24, long="split", stride=6)
    assert isinstance(encoder, Answered)
    inside = encoder.windows([Record(records[0], "x")])[0][0].sequence
    out = {side: torch.full((1, len(inside)), 9.0) for side in ("start", "end")}
    first, last = inside.index(1), len(inside) - 1 - inside[::-1].index(1)
    out["start"][0, first : last + 1] = out["end"][0, first : last + 1] = -9.0
    out["start"][0, first] = out["end"][0, last] = -8.0  # the best of the context
    assert judge.scores(judge.keep(out, np.array([0]))) == {"exact": 1, "f1": 1}
    assert judge.how()["no_answer"] is False
    with pytest.raises(ValueError, match=r"objective\.longest is 0: expected a whole number, at least 1"):
        judged(home, "span", records, length=24, long="split", longest=0)


# --- measures ---


def test_names_are_those_that_are_measured() -> None:
    torch.manual_seed(0)
    net = qkv.build("gpt2", vocab=30, width=16, depth=1, heads=2, length=16).net
    feed, goal = (
        Feed([{"tokens": np.arange(1, 9)}] * 5, by_rows(5, 2)),
        objective("causal-lm", Words(size=30)),
    )

    def parts(out: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict.fromkeys("ab", goal(out))

    halves = replace(goal, parts=parts, counts=lambda batch: dict.fromkeys("ab", 7))
    with torch.no_grad():
        assert names(feed, goal, TOKENS) == [*over(feed, goal)(net)]
        assert names(feed, halves, Judge()) == [*over(feed, halves, Judge())(net)]
    assert names(feed, goal, TOKENS) == "loss accuracy perplexity bits".split()
    assert names(feed, halves, Judge()) == "loss a b perplexity bits".split()


def test_the_records_of_a_part_are_those_of_its_examples(home: Path, tmp_path: Path) -> None:
    """A share that is kept is any of the records: judge and feed must mean the same ones."""
    records = [Record({"words": [word] * 3, "tags": ["B-PER"] * 3}, "x") for word in "abcdefghijkl"]
    _, encoder, given = judged(home, "tag", labels=TAGS)
    shards = prepare(records, encoder, tmp_path / "shards", fields=encoder.fields(), made_from={})
    part = Part(first=False, share=0.4)
    documents = part.documents(shards, 0)
    held = list(picked(iter(records), documents.which))
    assert 2 < len(held) < 8
    assert [encoder([each])[0]["tokens"] for each in held] == [
        documents[i]["tokens"].tolist() for i in range(len(documents))
    ]
    tried = trial(given, objective("tag", given.words), encoder, shards, records, part)
    out = {"labels": torch.zeros(len(held), 3).long(), "logits": torch.zeros(len(held), 3, len(TAGS))}
    assert tried.judge.scores(tried.judge.keep(out, np.arange(len(held))))["accuracy"] == 0
    assert tried.writes == ()


def test_a_sample_is_spread_evenly() -> None:
    assert spaced(10, 4) == [0, 3, 6, 9]
    assert spaced(3, 9) == [0, 1, 2]
    assert spaced(7, 1) == [0]
