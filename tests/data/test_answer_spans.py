"""Answer spans: the best span over all windows, compared with a search over all spans."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from qkv.data.encode.answer_spans import (
    AnswerSpan,
    ContextWindow,
    WindowPrediction,
    find_best_spans,
    predict_spans,
    rank_answer_spans,
)
from qkv.data.encode.labels import QuestionAnsweringEncoder
from qkv.data.read.record import Record
from qkv.text import Tokenizer

WORDS = "the red cat and a blue dog saw Anna near old houses in New York".split()


def make_window(context_mask: list[int], first: int = 0) -> ContextWindow:
    """Return a window whose context tokens cover one character each, from character `first` on."""
    mask = np.array(context_mask, bool)
    offsets = np.zeros((len(context_mask), 2), np.int32)
    offsets[mask] = [(first + i, first + i + 1) for i in range(int(mask.sum()))]
    return ContextWindow(offsets, mask, 0)


def list_all_spans(
    start_logits: list[float],
    end_logits: list[float],
    context_mask: list[bool],
    max_answer_tokens: int,
) -> list[tuple[float, int, int]]:
    """Return all spans as (score, first token, last token), the best first."""
    length = len(start_logits)
    spans = [
        (start_logits[a] + end_logits[b], a, b)
        for a in range(length)
        for b in range(a, min(a + max_answer_tokens, length))
        if context_mask[a] and context_mask[b]
    ]
    return sorted(spans, reverse=True)


@pytest.mark.parametrize("max_answer_tokens", [1, 3, 40])
def test_the_best_spans_are_those_of_a_search_over_all(max_answer_tokens: int) -> None:
    torch.manual_seed(max_answer_tokens)
    start_logits = torch.randn(6, 12, dtype=torch.float64)
    end_logits = torch.randn(6, 12, dtype=torch.float64)
    context_mask = torch.rand(6, 12) < 0.6
    context_mask[0] = False
    scores, first, last = find_best_spans(
        start_logits, end_logits, context_mask, max_answer_tokens=max_answer_tokens, top_k=5
    )
    assert not scores[0].isfinite().any()
    for row in range(1, 6):
        expected = list_all_spans(
            start_logits[row].tolist(),
            end_logits[row].tolist(),
            context_mask[row].tolist(),
            max_answer_tokens,
        )[:5]
        spans = zip(scores[row].tolist(), first[row].tolist(), last[row].tolist(), strict=True)
        assert [span for span in spans if span[0] > -torch.inf] == expected


def test_the_start_is_never_after_the_end_and_both_are_in_the_context() -> None:
    start_logits = torch.tensor([[50.0, 1, 2, 9, 3, 0]])
    end_logits = torch.tensor([[0.0, 2, 9, 1, 4, 50]])
    window = make_window([0, 1, 1, 1, 1, 0])
    (prediction,) = predict_spans(start_logits, end_logits, [window], top_k=2)
    spans = [AnswerSpan(13, 2, 4), AnswerSpan(11, 1, 2)]
    assert prediction == WindowPrediction(spans, no_answer_score=50)


def test_padding_may_be_on_either_side() -> None:
    windows = [make_window([0, 1, 1, 1, 0]), make_window([0, 1, 1])]
    torch.manual_seed(0)
    start_logits = torch.randn(2, 5)
    end_logits = torch.randn(2, 5)
    right = predict_spans(start_logits, end_logits, windows, top_k=9)
    start_logits, end_logits = (
        torch.stack([x[0], x[1].roll(2)]) for x in (start_logits, end_logits)
    )
    assert predict_spans(start_logits, end_logits, windows, pad_left=True, top_k=9) == right
    assert len(right[1].spans) == 3


def test_half_precision_logits_are_added_in_float32() -> None:
    start_logits = torch.tensor([[0.0, 256.0, 255.0]], dtype=torch.bfloat16)
    end_logits = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.bfloat16)
    (prediction,) = predict_spans(start_logits, end_logits, [make_window([0, 1, 1])])
    assert prediction.spans == [AnswerSpan(257.0, 0, 1)]


def test_spans_of_all_windows_are_ranked_once_each() -> None:
    first = WindowPrediction([AnswerSpan(3.0, 5, 9), AnswerSpan(1.0, 0, 2)], no_answer_score=2.0)
    second = WindowPrediction([AnswerSpan(4.0, 5, 9), AnswerSpan(2.5, 7, 8)], no_answer_score=9.0)
    best = [AnswerSpan(4.0, 5, 9), AnswerSpan(2.5, 7, 8)]
    assert rank_answer_spans([first, second]) == [*best, AnswerSpan(1.0, 0, 2)]
    ranked = rank_answer_spans([first, second], allow_no_answer=True)
    assert ranked[:3] == [*best, AnswerSpan(2.0)]  # the minimum of 2 and 9
    assert rank_answer_spans([WindowPrediction([], no_answer_score=0.0)]) == []


def test_no_answer_must_be_better_than_the_best_span() -> None:
    prediction = WindowPrediction([AnswerSpan(2.0, 1, 2)], no_answer_score=2.0)
    assert rank_answer_spans([prediction], allow_no_answer=True)[0] == AnswerSpan(2.0, 1, 2)


def test_an_answer_is_the_text_of_the_context() -> None:
    context = "Ünder  the İce: 北京!"
    assert AnswerSpan(0.0, 5, 11).extract_text(context) == "the"
    assert AnswerSpan(0.0, 11, 18).extract_text(context) == "İce: 北京"
    assert AnswerSpan(1.0).extract_text(context) == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer.train(
        [" ".join(WORDS)] * 9, type="wordpiece", vocab_size=60, template="bert", lowercase=True
    )
    tokenizer.save(path)
    return str(path)


def make_record(context: str, answer: str, start: int) -> Record:
    answers: list[dict[str, Any]] = [{"text": answer, "start": start}]
    return Record({"question": "who?", "context": context, "answers": answers}, "test")


def test_an_answer_is_extracted_exactly_from_any_window(folder: str) -> None:
    """Logits that point at the true tokens give the exact answer, whatever window contains it."""
    rng = random.Random(0)
    encoder = QuestionAnsweringEncoder(
        tokenizer_folder=folder, max_length=20, overflow="window", stride=6
    )
    for _ in range(40):
        words = [
            rng.choice([word, word.upper(), word.title()]) for word in rng.choices(WORDS, k=40)
        ]
        first = rng.randrange(38)
        gaps = [rng.choice([" ", "  ", "\n", "\u00a0"]) for _ in words]
        context = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
        begin = sum(len(word) + len(gap) for word, gap in zip(words[:first], gaps, strict=False))
        answer = words[first] + gaps[first] + words[first + 1]
        record = make_record(context, answer, begin)
        row = encoder([record])[0]
        predictions = []
        for i, encoding in enumerate(encoder.encode_windows([record])[0]):
            start_logits = torch.zeros(1, len(encoding))
            end_logits = torch.zeros(1, len(encoding))
            start_logits[0, row["start"][i]] = end_logits[0, row["end"][i]] = 5.0
            no_answer_index = encoder.find_no_answer_index(encoding)
            window = ContextWindow.from_encoding(encoding, no_answer_index)
            predictions += predict_spans(start_logits, end_logits, [window])
        assert len(predictions) > 4
        assert rank_answer_spans(predictions)[0].extract_text(context) == answer
        scores = [prediction.no_answer_score for prediction in predictions]
        assert min(scores) == 0 < max(scores)


def test_spans_of_windows_are_those_of_a_search_over_all(folder: str) -> None:
    encoder = QuestionAnsweringEncoder(
        tokenizer_folder=folder, max_length=16, overflow="window", stride=5
    )
    context = " ".join(random.Random(1).choices(WORDS, k=30))
    (windows,) = encoder.encode_windows([make_record(context, context[:1], 0)])
    torch.manual_seed(0)
    all_spans: list[tuple[float, int, int]] = []
    predictions = []
    no_answer_scores = []
    for encoding in windows:
        start_logits = torch.randn(len(encoding))
        end_logits = torch.randn(len(encoding))
        context_mask = [sequence_id == 1 for sequence_id in encoding.sequence_ids]
        all_spans += [
            (score, encoding.offset_mapping[a][0], encoding.offset_mapping[b][1])
            for score, a, b in list_all_spans(
                start_logits.tolist(), end_logits.tolist(), context_mask, 4
            )
        ]
        window = ContextWindow.from_encoding(encoding, 0)
        predictions += predict_spans(
            start_logits[None], end_logits[None], [window], max_answer_tokens=4
        )
        no_answer_scores.append(float(start_logits[0] + end_logits[0]))
    assert rank_answer_spans(predictions)[0] == pytest.approx(max(all_spans))
    ranked = rank_answer_spans(predictions, allow_no_answer=True)
    no_answer = next(span for span in ranked if span.start == span.end)
    assert no_answer.score == pytest.approx(min(no_answer_scores))


WITH_STARTS = [("a", 1), ("b", 2)]
WITHOUT_STARTS = [("a", None), ("b", None)]


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ([{"text": "a", "start": 1}, {"text": "b", "start": 2}], WITH_STARTS),
        ([{"text": "a", "answer_start": 1}, {"text": "b", "answer_start": 2}], WITH_STARTS),
        ({"text": ["a", "b"], "answer_start": [1, 2]}, WITH_STARTS),  # as the hub has it
        (["a", "b"], WITHOUT_STARTS),
        ({"text": ["a", "b"]}, WITHOUT_STARTS),
        ("a", WITHOUT_STARTS[:1]),
        ([], []),
        ({"text": [], "answer_start": []}, []),
    ],
)
def test_answers_may_have_several_formats(value: object, answers: object) -> None:
    assert Record({"answers": value}, "x").get_answers() == answers


@pytest.mark.parametrize(
    "value",
    [7, None, [7], [{"start": 1}], [{"text": 3}], {"text": ["a"], "answer_start": []}, {"a": 1}],
)
def test_bad_answers_are_errors(value: object) -> None:
    with pytest.raises(
        ValueError, match=r"x: column 'answers' holds .*, expected a list of answers"
    ):
        Record({"answers": value}, "x").get_answers()
    with pytest.raises(ValueError, match="x: no column 'answers'; the columns are 'text'"):
        Record({"text": "a"}, "x").get_answers()
