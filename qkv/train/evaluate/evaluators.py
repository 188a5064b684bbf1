"""Judges: how good what a network says is, over all of the data it is tried on. One a kind; decode nothing.

A mean of batches is no F1: what is needed of each batch is kept, and the scores are those of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

from qkv.data.batches.collate import NONE
from qkv.data.batches.sampler import Indices
from qkv.data.encode.answer_spans import LONGEST, Scored, Window, replies, scored
from qkv.data.encode.encoder import Encoder
from qkv.data.encode.labels import Answered, Tagged, firsts
from qkv.data.read.record import Record
from qkv.train.evaluate.metrics import (
    TAG,
    agreement,
    entity_f1,
    exact,
    label_f1,
    labels_f1,
    macro_f1,
    matthews,
    overlap,
    pearson,
    share,
    spearman,
)
from qkv.train.objectives.objective import Out
from qkv.train.setup_context import Given
from qkv.validate import number

ENCODED = 256  # records that are encoded at once
Records = Callable[[], Iterable[Record]]  # those that the feed's examples were made of, in their order


class Judge(NamedTuple):
    """`keep` takes what is needed of a batch, whose examples have these numbers; `scores` are those of all.

    What is kept are plain values: those of several processes are put behind each other, in any order."""

    names: tuple[str, ...] = ()
    keep: Callable[[Out, Indices], list[Any]] = lambda out, indices: []
    scores: Callable[[list[Any]], dict[str, float]] = lambda kept: {}
    how: Callable[[], dict[str, Any]] = dict  # what must be told with the scores


Judges = Callable[[Given, Encoder, Records], Judge]


def nobody(given: Given, encoder: Encoder, records: Records) -> Judge:
    """The loss says it all."""
    return Judge()


# --- tokens ---


def tokens(given: Given, encoder: Encoder, records: Records) -> Judge:
    return TOKENS


def agreed(out: Out) -> tuple[int, int]:
    """How many labels are the likeliest of their logits, and of how many."""
    if "logits" not in out or "labels" not in out or out["labels"].is_floating_point():
        return 0, 0
    labels = out["labels"]
    logits = out["logits"].flatten(0, -2) if out["logits"].dim() > 1 else out["logits"]
    if logits.shape[:-1] != labels.flatten().shape:
        return 0, 0
    asked = labels.flatten() != NONE
    return int((logits.argmax(-1) == labels.flatten())[asked].sum()), int(asked.sum())


def ratio(kept: list[tuple[int, int]]) -> float:
    """Of (right, all) of every batch."""
    return sum(right for right, _ in kept) / max(sum(asked for _, asked in kept), 1)


# The share of the labels that are the likeliest of their logits.
TOKENS = Judge(("accuracy",), lambda out, indices: [agreed(out)], lambda kept: {"accuracy": ratio(kept)})


def replaced(given: Given, encoder: Encoder, records: Records) -> Judge:
    """Which tokens were replaced, beside what the generator made of the hidden ones (ELECTRA)."""

    def keep(out: Out, indices: Indices) -> list[Any]:
        seat, wrong, told = out["seat"], out["wrong"], out["replaced"] > 0
        found = [(told == wrong) & seat, seat, told & wrong & seat, told & seat, wrong & seat]
        return [(*agreed(out), *(int(each.sum()) for each in found))]

    def scores(kept: list[Any]) -> dict[str, float]:
        right, asked, same, seats, *three = (sum(column) for column in zip(*kept, strict=True))
        values = (right / max(asked, 1), same / max(seats, 1), agreement(*three).f1)
        return dict(zip(names, values, strict=True))

    names = ("accuracy", "replaced_accuracy", "replaced_f1")
    return Judge(names, keep, scores)


# --- labels and numbers ---


def labelled(given: Given, encoder: Encoder, records: Records) -> Judge:
    makes = {"single": one_label, "several": several_labels, "regression": numbers}
    return makes[given.setting("kind", "single")](given)


def one_label(given: Given) -> Judge:
    """Where there are two labels, `f1` is that of the second, as GLUE counts it."""
    two = len(given.labels) == 2

    def keep(out: Out, indices: Indices) -> list[Any]:
        return list(zip(out["logits"].argmax(-1).tolist(), out["labels"].tolist(), strict=True))

    def scores(kept: list[Any]) -> dict[str, float]:
        predicted, wanted = map(list, zip(*kept, strict=True))
        found = {"accuracy": share(one == other for one, other in kept)}
        found |= {"f1": label_f1(predicted, wanted, 1)} if two else {}
        return found | {"macro_f1": macro_f1(predicted, wanted), "matthews": matthews(predicted, wanted)}

    names = ("accuracy", *(("f1",) if two else ()), "macro_f1", "matthews")
    return Judge(names, keep, scores, lambda: {"f1": f"of {given.labels[1]}"} if two else {})


def several_labels(given: Given) -> Judge:
    """A text is right with all of its labels and no other; `f1` is over all labels of all texts."""

    def keep(out: Out, indices: Indices) -> list[Any]:
        both = ((out["logits"] > 0).tolist(), (out["labels"] > 0).tolist())
        sets = ([frozenset(i for i, each in enumerate(row) if each) for row in side] for side in both)
        return list(zip(*sets, strict=True))

    def scores(kept: list[Any]) -> dict[str, float]:
        predicted, wanted = zip(*kept, strict=True)
        means = labels_f1(predicted, wanted)
        right = share(one == other for one, other in kept)
        return {"accuracy": right, "f1": means.micro, "macro_f1": means.macro}

    return Judge(("accuracy", "f1", "macro_f1"), keep, scores)


def numbers(given: Given) -> Judge:
    def keep(out: Out, indices: Indices) -> list[Any]:
        return list(zip(out["logits"].squeeze(-1).tolist(), out["labels"].tolist(), strict=True))

    def scores(kept: list[Any]) -> dict[str, float]:
        predicted, wanted = zip(*kept, strict=True)
        return {"pearson": pearson(predicted, wanted), "spearman": spearman(predicted, wanted)}

    return Judge(("pearson", "spearman"), keep, scores)


def chosen(given: Given, encoder: Encoder, records: Records) -> Judge:
    """The share of the questions of which the right choice has the best score."""

    def keep(out: Out, indices: Indices) -> list[Any]:
        scores = out["choice"].flatten().unflatten(0, (len(out["labels"]), -1))  # (B * C, 1) -> (B, C)
        return (scores.argmax(-1) == out["labels"]).tolist()

    return Judge(("accuracy",), keep, lambda kept: {"accuracy": share(kept)})


# --- words ---


def tagged(given: Given, encoder: Encoder, records: Records) -> Judge:
    """The share of right words, and the F1 of entities; of each tag, where they name no entities.

    A word that the network was not shown, since it was cut off or has no token, is of no entity."""
    assert isinstance(encoder, Tagged)
    labels, held = given.labels, cache(lambda: list(records()))
    named = all(TAG.fullmatch(label) for label in labels)

    def keep(out: Out, indices: Indices) -> list[Any]:
        rows = zip(indices.tolist(), out["logits"].argmax(-1), out["labels"], strict=True)
        return [(place, row[gold != NONE].tolist()) for place, row, gold in rows]

    def scores(kept: list[Any]) -> dict[str, float]:
        predicted, wanted = [], []
        for place, found in kept:
            record = held()[place]
            gold: Any = record["tags"]
            words = range(len(gold)) if len(found) == len(gold) else firsts(encoder.encoding(record))
            said = dict(zip(words, (labels[each] for each in found), strict=True))
            predicted.append([said.get(word, "O") for word in range(len(gold))])
            wanted.append(list(map(str, gold)))
        one, other = ([tag for row in side for tag in row] for side in (predicted, wanted))
        right = {"accuracy": share(a == b for a, b in zip(one, other, strict=True))}
        if named:
            return right | entity_f1(predicted, wanted)._asdict()
        return right | {"macro_f1": macro_f1(one, other, labels)}

    more = ("precision", "recall", "f1") if named else ("macro_f1",)
    how = {"f1": "of entities, both ends and the kind right (conlleval)"} if named else {}
    return Judge(("accuracy", *more), keep, scores, lambda: how)


# --- answers ---


class Asked(NamedTuple):
    """Questions: their contexts, the answers that are right, and the windows of all, one behind the other."""

    contexts: list[str]
    wanted: list[list[str]]
    windows: list[Window]
    question: list[int]  # of each window

    @staticmethod
    def of(encoder: Answered, records: Iterable[Record]) -> Asked:
        found, held = Asked([], [], [], []), list(records)
        for some in (held[i : i + ENCODED] for i in range(0, len(held), ENCODED)):
            for record, windows in zip(some, encoder.windows(some), strict=True):
                found.question.extend([len(found.contexts)] * len(windows))
                found.windows.extend(Window.of(each, encoder.nowhere(each)) for each in windows)
                found.contexts.append(record.text("context"))
                found.wanted.append([answer.text for answer in record.answers()])
        return found


def answered(given: Given, encoder: Encoder, records: Records) -> Judge:
    """SQuAD's exact match and F1 of the best span over all windows of a question, in the user's own letters.

    Where some questions have no answer, none is an answer too."""
    assert isinstance(encoder, Answered)
    longest, asked = given.setting("longest", LONGEST), cache(lambda: Asked.of(encoder, records()))
    number("objective.longest", longest, whole=True, at_least=1)

    def keep(out: Out, indices: Indices) -> list[Any]:
        windows = [asked().windows[i] for i in indices]
        found = scored(out["start"], out["end"], windows, left=given.words.left, longest=longest)
        return [(asked().question[i], each) for i, each in zip(indices, found, strict=True)]

    def scores(kept: list[Any]) -> dict[str, float]:
        said: dict[int, list[Scored]] = {}
        for question, each in kept:
            said.setdefault(question, []).append(each)
        values = []
        for question, windows in said.items():
            best = next(iter(replies(windows, none=some_have_none())), None)
            text = best.text(asked().contexts[question]) if best else ""
            values.append([judge(text, asked().wanted[question]) for judge in (exact, overlap)])
        return {
            name: sum(column) / len(values)
            for name, column in zip(names, zip(*values, strict=True), strict=True)
        }

    def some_have_none() -> bool:
        return not all(asked().wanted)

    def how() -> dict[str, Any]:
        return {"longest": longest, "stride": encoder.stride, "no_answer": some_have_none()}

    names = ("exact", "f1")
    return Judge(names, keep, scores, how)
