"""Generative answers: source text, windows, scores, offsets of an answer, errors."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import pytest

import qkv
from qkv.decode import Result, generate
from qkv.tasks.read.answer import ExtractiveAnswerTask
from qkv.tasks.write.generative_answer import GenerativeAnswerTask, find_phrase
from tests.tasks.test_tasks import build_model, load_golden
from tests.tasks.test_write import build_seq2seq

TEXT = "Anna lives near the harbour. The ferry to Bregenz leaves at nine. Marie  PLAYS the harp."
QUESTION = "Who lives near the harbour?"


def build_task(model: Any = None, **settings: Any) -> Any:
    task = qkv.task("answer", model or load_golden("t5"), **({"max_new_tokens": 6} | settings))
    assert isinstance(task, GenerativeAnswerTask)
    return task


def build_task_that_generates(words: str) -> Any:
    """Return a task whose model generates these words."""
    task = build_task()
    ids = task.tokenizer.encode(words)
    bias = tuple(((*ids[:i], token_id), 1e4 * (i + 1)) for i, token_id in enumerate(ids))
    return task.with_settings({"sequence_bias": bias, "max_new_tokens": len(ids)})


@pytest.mark.parametrize("name", ["t5", "bart", "seq2seq"])
def test_source_is_the_filled_template(name: str) -> None:
    task = build_task(
        build_seq2seq() if name == "seq2seq" else load_golden(name),
        num_beams=3,
        num_return_sequences=2,
    )
    text = "Anna lives here."
    result = task(QUESTION, text)
    ids = task.tokenizer.encode(f"question: {QUESTION} context: {text}")
    expected = generate(task.model.net, sources=[ids], generation_config=task.generation_config)[0]
    assert result.candidates[0].score == pytest.approx(exp(expected[0].score), rel=1e-4)
    texts = [
        task.tokenizer.decode(result.token_ids, skip_special_tokens=True).lower().split()
        for result in expected
    ]
    assert all(answer.text.lower().split() in texts for answer in result.candidates)
    assert result == task.map([(QUESTION, text)])[0]
    other = task(QUESTION, text, template="{context} Q: {question}")
    assert task.with_settings({"template": "{context} Q: {question}"})(QUESTION, text) == other
    assert other != result


def test_windows_contain_the_question_and_cover_the_context() -> None:
    task = build_task(max_input_length=40, stride=6, template="Q {question} C {context} A")
    (rows,) = task.preprocess([(QUESTION, TEXT)], ["text"])
    assert len(rows) > 2
    (encoding,) = task.tokenizer.encode_batch([f"Q {QUESTION} C {TEXT} A"])
    ids = encoding.input_ids
    front = len(task.tokenizer.encode(f"Q {QUESTION} C", add_special_tokens=False))
    back = len(task.tokenizer.encode("A"))  # with the end token
    context_ids = [row.encoding.input_ids[front:-back] for row in rows]
    for row in rows:
        assert len(row.encoding) <= 40
        assert (row.encoding.input_ids[:front], row.encoding.input_ids[-back:]) == (
            ids[:front],
            ids[-back:],
        )
    assert (
        context_ids[0] + [token_id for part in context_ids[1:] for token_id in part[6:]]
        == ids[front:-back]
    )
    for row in rows:
        for sequence_id, (start, end), token_id in zip(
            row.encoding.sequence_ids,
            row.encoding.offset_mapping,
            row.encoding.input_ids,
            strict=True,
        ):
            if sequence_id == 1:
                token_text = task.tokenizer.decode(token_id, skip_special_tokens=True).strip()
                assert token_text in TEXT[start:end] or token_id == task.tokenizer.unk_token_id
    truncated = build_task(max_input_length=40, overflow="truncate").preprocess(
        [(QUESTION, TEXT)], ["text"]
    )[0]
    assert len(truncated) == 1
    with pytest.raises(
        ValueError,
        match=r'text: \d+ tokens, expected at most 40; .* set overflow to "truncate" or "window"',
    ):
        build_task(max_input_length=40, overflow="error")(QUESTION, TEXT)


def test_answer_is_the_best_of_all_windows() -> None:
    task = build_task(max_input_length=40, num_beams=3, num_return_sequences=2)
    (rows,) = task.preprocess([(QUESTION, TEXT)], ["text"])
    row_results = [
        generate(
            task.model.net,
            sources=[row.encoding.input_ids],
            generation_config=task.generation_config,
        )[0]
        for row in rows
    ]
    result = task(QUESTION, TEXT)
    best = max(results[0].score for results in row_results)
    assert result.score == pytest.approx(exp(best), rel=1e-4)
    assert len(result.candidates) == 2
    assert result.candidates[0].score >= result.candidates[1].score


def test_equal_answers_of_windows_are_merged() -> None:
    task = build_task(max_input_length=40, num_return_sequences=3, num_beams=3)
    (rows,) = task.preprocess([(QUESTION, TEXT)], ["text"])
    anna, plays = (
        task.tokenizer.encode(words, add_special_tokens=False) for words in ("anna", "plays the")
    )

    def build_result(ids: list[int], score: float) -> Result:
        return Result(ids, score, [score], "eos")

    predictions: list[list[Result]] = [
        [build_result(anna, -2.0), build_result([], -0.1)] for _ in rows
    ]
    predictions[-1] = [build_result(anna, -1.0), build_result(plays, -3.0)]
    result = task.postprocess((QUESTION, TEXT), rows, predictions)
    assert [answer.text.lower().split() for answer in result.candidates] == [
        ["anna"],
        ["plays", "the"],
    ]
    assert result.candidates[0].score == pytest.approx(exp(-1))
    empty = task.with_settings({"allow_no_answer": True}).postprocess(
        (QUESTION, TEXT), rows, predictions
    )
    assert (empty.text, empty.start, empty.end) == ("", None, None)
    nothing = task.postprocess((QUESTION, TEXT), rows[:1], [[build_result([], -0.5)]])
    assert nothing.text == ""
    assert nothing.score == pytest.approx(exp(-0.5))


def test_answer_in_the_context_has_its_spelling_and_offsets() -> None:
    result = build_task_that_generates("marie plays the harp")(QUESTION, TEXT)
    assert result.text == "Marie  PLAYS the harp" == TEXT[result.start : result.end]
    assert result.candidates == (
        replace(result, candidates=()),
    )  # both windows generate it; one does not contain it
    other = build_task_that_generates("at noon")(QUESTION, TEXT)
    assert (other.text, other.start, other.end) == ("at noon", None, None)


@pytest.mark.parametrize(("phrase", "text", "span"), [
    ("10", "In 2010, 10 came.", (9, 11)), ("10", "In 2010.", (5, 7)), ("東京", "私は東京に住む", (2, 4)),
    ("a b", "A\n  B", (0, 5)), ("straße", "Die STRASSE", None), ("İ", "xİİ", (1, 2)), ("", "a", None),
    (".*", "a.*", (1, 3)), ("x", "", None),
])  # fmt: skip
def test_find_phrase(phrase: str, text: str, span: tuple[int, int] | None) -> None:
    assert find_phrase(phrase, text, 0, len(text)) == span


def test_find_phrase_in_the_window_only() -> None:
    text = "nine and nine"
    assert find_phrase("nine", text, 4, len(text)) == (9, 13)
    assert find_phrase("nine", text, 4, 11) is None


def test_answer_task_depends_on_the_model() -> None:
    assert isinstance(qkv.task("answer", load_golden("bert-span")), ExtractiveAnswerTask)
    assert isinstance(qkv.task("answer", load_golden("bart")), GenerativeAnswerTask)
    assert isinstance(
        qkv.task("answer", load_golden("bart"), generative=True), GenerativeAnswerTask
    )
    assert isinstance(
        qkv.task("answer", load_golden("bert-span"), generative=False), ExtractiveAnswerTask
    )
    task: Any = qkv.task("answer", load_golden("t5"), top_k=2, max_answer_tokens=7)
    assert task.generation_config.num_return_sequences == 2
    task = qkv.task("answer", load_golden("t5"), max_answer_tokens=7)
    assert task.generation_config.max_new_tokens == 7


@pytest.mark.parametrize(("call", "message"), [
    (lambda: build_task(generative=False), "`answer` needs a question-answering head. Supported: "),
    (lambda: qkv.task("answer", load_golden("bert-span"), generative=True),
     "`answer` needs an encoder-decoder with the head lm. Supported: transformer"),
    (lambda: qkv.task("answer", build_model("gpt2", "lm"), generative=True), "this gpt2 is a decoder"),
    (lambda: qkv.task("answer", load_golden("clip")),
     "a question-answering head, or an encoder-decoder with the head lm"),
    (lambda: build_task(generative="yes"), "generative is 'yes', expected true, false or none"),
    (lambda: build_task(template="{question}"),
     "template is '{question}', expected a text that contains {question} and"),
    (lambda: build_task(template="{question} {context} {context}"), "once each"),
    (lambda: build_task(template=3), "template is 3"),
    (lambda: build_task(top_k=0), "num_return_sequences is 0"),
    (lambda: build_task(max_new_tokens=0), "max_new_tokens is 0"),
    (lambda: build_task(max_answer_tokens=9, max_new_tokens=3),
     "max_answer_tokens and max_new_tokens are the same setting here, expected one"),
    (lambda: build_task()("", TEXT), "the question of text is empty"),
    (lambda: build_task()(QUESTION, " "), "text is only whitespace"),
    (lambda: build_task(max_input_length=40)(QUESTION * 9, TEXT),
     "the question of text: .* expected fewer than the limit of 40"),
    (lambda: build_task().map(["who?"]), "expected a tuple of a question and a context"),
])  # fmt: skip
def test_errors_are_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("{", r"\{")) as error:
        call()
    assert "\n" not in str(error.value)
