"""Replies to questions: the best span over all windows, held against a search that tries every one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.encode.answer_spans import Scored, Span, Window, best, replies, scored
from qkv.data.encode.labels import Answered
from qkv.data.read.record import Record
from qkv.text import Tokenizer

WORDS = "the red cat and a blue dog saw Anna near old houses in New York".split()


def window(inside: list[int], first: int = 0) -> Window:
    """A token a character, from `first` on; those that are 0 are none of the context."""
    flags, offsets = np.array(inside, bool), np.zeros((len(inside), 2), np.int32)
    offsets[flags] = [(first + i, first + i + 1) for i in range(int(flags.sum()))]
    return Window(offsets, flags, 0)


def every(
    start: list[float], end: list[float], inside: list[bool], longest: int
) -> list[tuple[float, int, int]]:
    """All spans that there are, the best first."""
    found = [
        (start[a] + end[b], a, b)
        for a in range(len(start))
        for b in range(a, min(a + longest, len(start)))
        if inside[a] and inside[b]
    ]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("longest", [1, 3, 40])
def test_the_best_spans_are_those_of_a_search_over_all(longest: int) -> None:
    torch.manual_seed(longest)
    start, end = torch.randn(6, 12, dtype=torch.float64), torch.randn(6, 12, dtype=torch.float64)
    inside = torch.rand(6, 12) < 0.6
    inside[0] = False
    values, first, last = best(start, end, inside, longest=longest, most=5)
    assert not values[0].isfinite().any()
    for row in range(1, 6):
        wanted = every(start[row].tolist(), end[row].tolist(), inside[row].tolist(), longest)[:5]
        found = zip(values[row].tolist(), first[row].tolist(), last[row].tolist(), strict=True)
        assert [span for span in found if span[0] > -torch.inf] == wanted


def test_the_start_is_never_after_the_end_and_both_are_of_the_context() -> None:
    start, end = torch.tensor([[50.0, 1, 2, 9, 3, 0]]), torch.tensor([[0.0, 2, 9, 1, 4, 50]])
    found = scored(start, end, [window([0, 1, 1, 1, 1, 0])], most=2)[0]
    assert found == Scored([Span(13, 2, 4), Span(11, 1, 2)], none=50)


def test_pads_on_either_side() -> None:
    windows = [window([0, 1, 1, 1, 0]), window([0, 1, 1])]
    torch.manual_seed(0)
    start, end = torch.randn(2, 5), torch.randn(2, 5)
    right = scored(start, end, windows, most=9)
    start, end = (torch.stack([x[0], x[1].roll(2)]) for x in (start, end))
    assert scored(start, end, windows, left=True, most=9) == right
    assert len(right[1].spans) == 3


def test_half_precision_is_added_in_full() -> None:
    start = torch.tensor([[0.0, 256.0, 255.0]], dtype=torch.bfloat16)
    end = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.bfloat16)
    assert scored(start, end, [window([0, 1, 1])])[0].spans == [Span(257.0, 0, 1)]


def test_the_best_of_all_windows_each_span_once() -> None:
    one = Scored([Span(3.0, 5, 9), Span(1.0, 0, 2)], none=2.0)
    two = Scored([Span(4.0, 5, 9), Span(2.5, 7, 8)], none=9.0)
    assert replies([one, two]) == [Span(4.0, 5, 9), Span(2.5, 7, 8), Span(1.0, 0, 2)]
    assert replies([one, two], none=True)[:3] == [
        Span(4.0, 5, 9),
        Span(2.5, 7, 8),
        Span(2.0),
    ]  # the least of 2, 9
    assert replies([one, two], none=True, bias=2.5)[0] == Span(4.5)
    assert replies([Scored([], none=0.0)]) == []


def test_no_answer_must_be_better_than_the_best() -> None:
    even = Scored([Span(2.0, 1, 2)], none=2.0)
    assert replies([even], none=True)[0] == Span(2.0, 1, 2)


def test_a_text_is_as_it_is_written() -> None:
    context = "Ünder  the İce: 北京!"
    assert Span(0.0, 5, 11).text(context) == "the"
    assert Span(0.0, 11, 18).text(context) == "İce: 北京"
    assert Span(1.0).text(context) == ""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    made = Tokenizer.train([" ".join(WORDS)] * 9, kind="wordpiece", vocab=60, purpose="bert", lower=True)
    made.save(folder)
    return str(folder)


def asked(context: str, answer: str, start: int) -> Record:
    answers: list[dict[str, Any]] = [{"text": answer, "start": start}]
    return Record({"question": "who?", "context": context, "answers": answers}, "test")


def test_an_answer_comes_back_letter_by_letter_from_any_window(home: str) -> None:
    """Scores that point at the true places give the very text, whatever window holds it."""
    dice = random.Random(0)
    encoder = Answered(tokenizer=home, length=20, long="split", stride=6)
    for _ in range(40):
        words = [dice.choice([word, word.upper(), word.title()]) for word in dice.choices(WORDS, k=40)]
        place = dice.randrange(38)
        gaps = [dice.choice([" ", "  ", "\n", "\u00a0"]) for _ in words]
        context = "".join(a + b for a, b in zip(words, gaps, strict=True))
        begin = sum(len(a) + len(b) for a, b in zip(words[:place], gaps, strict=False))
        answer = words[place] + gaps[place] + words[place + 1]
        record = asked(context, answer, begin)
        row = encoder([record])[0]
        found = []
        for number, encoding in enumerate(encoder.windows([record])[0]):
            start, end = torch.zeros(1, len(encoding)), torch.zeros(1, len(encoding))
            start[0, row["start"][number]] = end[0, row["end"][number]] = 5.0
            found += scored(start, end, [Window.of(encoding, encoder.nowhere(encoding))])
        assert len(found) > 4
        assert replies(found)[0].text(context) == answer
        assert min(each.none for each in found) == 0 < max(each.none for each in found)


def test_windows_of_random_scores_against_a_search_over_all(home: str) -> None:
    encoder = Answered(tokenizer=home, length=16, long="split", stride=5)
    context = " ".join(random.Random(1).choices(WORDS, k=30))
    (windows,) = encoder.windows([asked(context, context[:1], 0)])
    torch.manual_seed(0)
    everything: list[tuple[float, int, int]] = []
    found, none = [], []
    for encoding in windows:
        start, end = torch.randn(len(encoding)), torch.randn(len(encoding))
        inside = [owner == 1 for owner in encoding.sequence]
        everything += [
            (score, encoding.offsets[a][0], encoding.offsets[b][1])
            for score, a, b in every(start.tolist(), end.tolist(), inside, 4)
        ]
        found += scored(start[None], end[None], [Window.of(encoding, 0)], longest=4)
        none.append(float(start[0] + end[0]))
    assert replies(found)[0] == pytest.approx(max(everything))
    empty = next(span for span in replies(found, none=True) if span.start == span.end)
    assert empty.score == pytest.approx(min(none))


BOTH, TEXTS = [("a", 1), ("b", 2)], [("a", None), ("b", None)]


@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ([{"text": "a", "start": 1}, {"text": "b", "start": 2}], BOTH),
        ([{"text": "a", "answer_start": 1}, {"text": "b", "answer_start": 2}], BOTH),
        ({"text": ["a", "b"], "answer_start": [1, 2]}, BOTH),  # the hub's
        (["a", "b"], TEXTS),
        ({"text": ["a", "b"]}, TEXTS),
        ("a", TEXTS[:1]),
        ([], []),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_the_forms_of_answers(form: object, answers: object) -> None:
    assert Record({"answers": form}, "x").answers() == answers


@pytest.mark.parametrize(
    "form",
    [7, None, [7], [{"start": 1}], [{"text": 3}], {"text": ["a"], "answer_start": []}, {"a": 1}],
)
def test_what_is_no_answer_is_refused(form: object) -> None:
    with pytest.raises(ValueError, match=r"x: column 'answers' holds .*, expected a list of answers"):
        Record({"answers": form}, "x").answers()
    with pytest.raises(ValueError, match="x: no column 'answers'; the columns are 'text'"):
        Record({"text": "a"}, "x").answers()
