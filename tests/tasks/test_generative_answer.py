"""Answers that are written: what is read, windows, scores, where an answer stands, what cannot."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import pytest

import qkv
from qkv.decode import Found, generate
from qkv.tasks.read.answer import Reply
from qkv.tasks.write.generative_answer import Respond, occurs
from tests.tasks.test_tasks import built, folder
from tests.tasks.test_write import ours

TEXT = "Anna lives near the harbour. The ferry to Bregenz leaves at nine. Marie  PLAYS the harp."
QUESTION = "Who lives near the harbour?"


def task(model: Any = None, **settings: Any) -> Any:
    made = qkv.task("answer", model or folder("t5"), **({"max_new": 6} | settings))
    assert isinstance(made, Respond)
    return made


def saying(words: str) -> Any:
    """A task whose model says these words."""
    made = task()
    ids = made.tokenizer.encode(words).ids
    bias = tuple(((*ids[:place], one), 1e4 * (place + 1)) for place, one in enumerate(ids))
    return made.changed({"bias": bias, "max_new": len(ids)})


@pytest.mark.parametrize("name", ["t5", "bart", "ours"])
def test_it_reads_the_question_and_the_text(name: str) -> None:
    one = task(ours() if name == "ours" else folder(name), beams=3, results=2)
    text = "Anna lives here."
    found = one(QUESTION, text)
    ids = one.tokenizer.encode(f"question: {QUESTION} context: {text}").ids
    wanted = generate(one.model.net, sources=[ids], how=one.how)[0]
    assert found.best[0].score == pytest.approx(exp(wanted[0].score), rel=1e-4)
    said = [one.tokenizer.decode(each.ids).lower().split() for each in wanted]
    assert all(each.text.lower().split() in said for each in found.best)
    assert found == one.many([(QUESTION, text)])[0]
    own = one(QUESTION, text, template="{context} Q: {question}")
    assert one.changed({"template": "{context} Q: {question}"})(QUESTION, text) == own
    assert own != found


def test_windows_hold_the_question_and_the_text_once_over() -> None:
    one = task(length=40, stride=6, template="Q {question} C {context} A")
    (rows,) = one.all_rows([(QUESTION, TEXT)], ["text"])
    assert len(rows) > 2
    whole = one.tokenizer.encode(f"Q {QUESTION} C {TEXT} A")
    ids, front = whole.ids, len(one.tokenizer.encode(f"Q {QUESTION} C", special=False))
    back = len(one.tokenizer.encode("A"))  # with the end of the text
    inside = [row.tokens.ids[front:-back] for row in rows]
    for row in rows:
        assert len(row.tokens) <= 40
        assert (row.tokens.ids[:front], row.tokens.ids[-back:]) == (ids[:front], ids[-back:])
    assert inside[0] + [one for part in inside[1:] for one in part[6:]] == ids[front:-back]
    for row in rows:
        for owner, (start, end), number in zip(
            row.tokens.sequence, row.tokens.offsets, row.tokens.ids, strict=True
        ):
            if owner == 1:
                piece = one.tokenizer.decode([number]).strip()
                assert piece in TEXT[start:end] or number == one.tokenizer.unk
    cut = task(length=40, long="cut").all_rows([(QUESTION, TEXT)], ["text"])[0]
    assert len(cut) == 1
    with pytest.raises(
        ValueError, match=r"text: \d+ tokens, \d+ more than the 40 .* set long to cut or window"
    ):
        task(length=40, long="refuse")(QUESTION, TEXT)


def test_the_best_of_all_windows_is_the_answer() -> None:
    one = task(length=40, beams=3, results=2)
    (rows,) = one.all_rows([(QUESTION, TEXT)], ["text"])
    said = [generate(one.model.net, sources=[row.tokens.ids], how=one.how)[0] for row in rows]
    found, best = one(QUESTION, TEXT), max(each[0].score for each in said)
    assert found.score == pytest.approx(exp(best), rel=1e-4)
    assert len(found.best) == 2
    assert found.best[0].score >= found.best[1].score


def test_what_several_windows_say_is_one_answer_with_its_best_score() -> None:
    one = task(length=40, results=3, beams=3)
    (rows,) = one.all_rows([(QUESTION, TEXT)], ["text"])
    anna, plays = (one.tokenizer.encode(words, special=False).ids for words in ("anna", "plays the"))

    def said(ids: list[int], score: float) -> Found:
        return Found(ids, score, [score], "end")

    every: list[list[Found]] = [[said(anna, -2.0), said([], -0.1)] for _ in rows]
    every[-1] = [said(anna, -1.0), said(plays, -3.0)]
    found = one.found((QUESTION, TEXT), rows, every)
    assert [each.text.lower().split() for each in found.best] == [["anna"], ["plays", "the"]]
    assert found.best[0].score == pytest.approx(exp(-1))
    empty = one.changed({"none": True}).found((QUESTION, TEXT), rows, every)
    assert (empty.text, empty.start, empty.end) == ("", None, None)
    nothing = one.found((QUESTION, TEXT), rows[:1], [[said([], -0.5)]])
    assert nothing.text == ""
    assert nothing.score == pytest.approx(exp(-0.5))


def test_an_answer_that_stands_in_the_text_is_the_user_s_own() -> None:
    found = saying("marie plays the harp")(QUESTION, TEXT)
    assert found.text == "Marie  PLAYS the harp" == TEXT[found.start : found.end]
    assert found.best == (replace(found, best=()),)  # one of two windows has no harp in it, and says the same
    other = saying("at noon")(QUESTION, TEXT)
    assert (other.text, other.start, other.end) == ("at noon", None, None)


@pytest.mark.parametrize(("words", "text", "place"), [
    ("10", "In 2010, 10 came.", (9, 11)), ("10", "In 2010.", (5, 7)), ("東京", "私は東京に住む", (2, 4)),
    ("a b", "A\n  B", (0, 5)), ("straße", "Die STRASSE", None), ("İ", "xİİ", (1, 2)), ("", "a", None),
    (".*", "a.*", (1, 3)), ("x", "", None),
])  # fmt: skip
def test_where_words_stand(words: str, text: str, place: tuple[int, int] | None) -> None:
    assert occurs(words, text, 0, len(text)) == place


def test_only_the_window_is_searched() -> None:
    text = "nine and nine"
    assert occurs("nine", text, 4, len(text)) == (9, 13)
    assert occurs("nine", text, 4, 11) is None


def test_the_model_decides_unless_it_is_told() -> None:
    assert isinstance(qkv.task("answer", folder("bert-span")), Reply)
    assert isinstance(qkv.task("answer", folder("bart")), Respond)
    assert isinstance(qkv.task("answer", folder("bart"), generative=True), Respond)
    assert isinstance(qkv.task("answer", folder("bert-span"), generative=False), Reply)
    assert qkv.task("answer", folder("t5"), top=2, longest=7).how.results == 2  # type: ignore[union-attr]
    assert qkv.task("answer", folder("t5"), longest=7).how.max_new == 7  # type: ignore[union-attr]


@pytest.mark.parametrize(("make", "wrong"), [
    (lambda: task(generative=False), "`answer` needs a head for spans. Models that fit: "),
    (lambda: qkv.task("answer", folder("bert-span"), generative=True),
     "`answer` needs an encoder-decoder with the head lm. Models that fit: transformer"),
    (lambda: qkv.task("answer", built("gpt2", "lm"), generative=True), "this gpt2 is a decoder"),
    (lambda: qkv.task("answer", folder("clip")), "a head for spans, or an encoder-decoder with the head lm"),
    (lambda: task(generative="yes"), "generative is 'yes', expected true, false, or none"),
    (lambda: task(template="{question}"), "template is '{question}', expected a text with {question} and"),
    (lambda: task(template="{question} {context} {context}"), "each once"),
    (lambda: task(template=3), "template is 3"),
    (lambda: task(top=0), "results is 0"), (lambda: task(max_new=0), "max_new is 0"),
    (lambda: task(longest=9, max_new=3), "longest and max_new are one setting here, expected one of them"),
    (lambda: task()("", TEXT), "the question of text is empty"),
    (lambda: task()(QUESTION, " "), "text is only blanks"),
    (lambda: task(length=40)(QUESTION * 9, TEXT), "the question of text: .* expected fewer than the 40"),
    (lambda: task().many(["who?"]), "expected a question and a text"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(make: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong.replace("{", r"\{")) as error:
        make()
    assert "\n" not in str(error.value)
