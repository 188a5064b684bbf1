"""Constraints on generated text: regular expressions, JSON schemas, required words, a draft model."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.tasks.write.constraints import encode_force_words
from tests.support.text_oracle import CORPUS
from tests.tasks.test_tasks import load_golden
from tests.tasks.test_write import build_seq2seq

pytest.importorskip(
    "llguidance", reason="constraints of text need llguidance: pip install qkv[guide]"
)
TYPES = ("char", "word", "wordpiece", "bpe", "byte", "unigram")
REGEX = r"(the|a) (big|dog|fox)( and the (dog|fox))?"
SCHEMA = {
    "type": "object", "required": ["a", "b"], "additionalProperties": False,
    "properties": {"a": {"enum": ["dog", "fox"]}, "b": {"type": "integer", "minimum": 3, "maximum": 40}},
}  # fmt: skip


@cache
def build_decoder(type_name: str = "byte", template: str = "gpt", seed: int = 0) -> qkv.Model:
    """Return a decoder with random weights and a tokenizer of this type."""
    texts = [*CORPUS, "the a big dog and the fox { } [ ] : , 0123456789 \"'"] * 4
    tokenizer = qkv.Tokenizer.train(texts, type=type_name, vocab_size=400, template=template)
    sizes: dict[str, Any] = dict(width=16, depth=1, heads=2, max_positions=128)
    model = qkv.build("gpt2", **sizes, vocab_size=len(tokenizer) + 3, head="lm")
    torch.manual_seed(seed)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = tokenizer
    return model


# --- regular expressions and JSON schemas ---


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"temperature": 2.0}], ids=str)
@pytest.mark.parametrize("type_name", TYPES)
def test_completions_match_the_regex(type_name: str, settings: dict[str, Any]) -> None:
    task = qkv.task("complete", build_decoder(type_name), regex=REGEX, **settings)
    for prompt in ("the", "the dog"):
        result = task(prompt)
        assert result.finish_reason == "eos"
        assert re.fullmatch(REGEX, result.new_text.strip()), result.new_text
        assert "".join(task.stream(prompt)) == result.new_text


def test_a_model_without_eos_stops_when_the_text_is_complete() -> None:
    model = build_decoder("char", "plain")
    assert model.tokenizer is not None
    assert model.tokenizer.eos_token_id is None
    for num_beams in (1, 2):
        result = qkv.task("complete", model, regex="(dog|fox){2}", num_beams=num_beams)("the")
        assert re.fullmatch("(dog|fox){2}", result.new_text.strip())
        assert result.finish_reason == "stop"
    stopped = qkv.task("complete", model, regex="[a-z]+", max_new_tokens=9, stop_strings=["e"])
    result = stopped("the ", repetition_penalty=3.0)
    assert result.finish_reason in ("stop", "length")
    assert re.fullmatch("[a-z]+", result.new_text.strip())


@pytest.mark.parametrize("name", ["marian", "bart", "t5", "mbart"])
def test_generated_texts_match_the_regex(name: str) -> None:
    regex = "[a-z]{2,6}( [a-z]{1,5}){1,3}"
    languages: dict[str, Any] = {"tgt_lang": "de_DE"} if name == "mbart" else {}
    tasks: list[Any] = [qkv.task("summarize", load_golden(name), regex=regex, max_new_tokens=40)]
    if name != "bart":
        settings = languages | ({"prefix": ""} if name == "t5" else {})
        model = load_golden(name)
        tasks.append(qkv.task("translate", model, regex=regex, max_new_tokens=40, **settings))
    for task in tasks:
        for text in ("Anna lives here.", "Marie plays."):
            result = task(text, num_return_sequences=2)
            assert len(result.candidates) == 2
            for candidate in result.candidates:
                assert re.fullmatch(regex, candidate.text), candidate.text


def test_answers_match_the_regex() -> None:
    task = qkv.task("answer", load_golden("t5"), regex="[a-z]{3,9}", max_new_tokens=20)
    result = task("Who lives here?", "Anna lives here.")
    assert re.fullmatch("[a-z]{3,9}", result.text, re.IGNORECASE)


@pytest.mark.parametrize("type_name", ["char", "byte", "bpe"])
def test_completions_match_the_json_schema(type_name: str, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    task = qkv.task("complete", build_decoder(type_name), json_schema=SCHEMA, max_new_tokens=90)
    result = task("the")
    value = json.loads(result.new_text)
    assert value["a"] in ("dog", "fox")
    assert 3 <= value["b"] <= 40
    assert result.new_text.strip() == json.dumps(value)
    for schema in (json.dumps(SCHEMA), path, str(path)):
        assert task("the", json_schema=schema) == result
    samples = task("the", do_sample=True, num_return_sequences=4).candidates
    assert all({*json.loads(sample.new_text)} == {"a", "b"} for sample in samples)


def test_a_text_that_the_vocabulary_cannot_spell() -> None:
    task = qkv.task("complete", build_decoder("char"), regex="dog☃")
    result = task("the")
    assert result.finish_reason == "nothing"
    assert result.new_text.strip() == "do"


# --- required words ---


@pytest.mark.parametrize("type_name", TYPES)
def test_completions_contain_the_words(type_name: str) -> None:
    task = qkv.task("complete", build_decoder(type_name), max_new_tokens=20, min_new_tokens=20)
    result = task("the", force_words=["big dog", ["fox", "rabbit"]])
    assert re.search(r"\bbig dog\b", result.new_text) or type_name == "char"
    assert "big dog" in result.new_text
    assert "fox" in result.new_text or "rabbit" in result.new_text
    assert "".join(task.stream("the", force_words=["big dog"])).count("big dog")


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_generated_texts_contain_the_words(name: str) -> None:
    settings: dict[str, Any] = dict(max_new_tokens=12, no_repeat_ngram_size=0)
    task = qkv.task("summarize", load_golden(name), **settings, force_words=["harp"])
    assert "harp" in task("Anna lives here.").text.lower()


def test_ids_of_words_follow_a_space() -> None:
    tokenizer = build_decoder("byte").tokenizer
    assert tokenizer is not None
    (((token_ids),),) = encode_force_words(tokenizer, ["dog"])
    assert list(token_ids) == tokenizer.encode(" dog", add_special_tokens=False)


# --- a draft model ---


def test_a_draft_model_does_not_change_greedy_results(tmp_path: Path) -> None:
    model = build_decoder("byte")
    task = qkv.task("complete", model, max_new_tokens=16)
    expected = task("the dog")
    draft = build_decoder("byte", seed=1)
    draft.save(tmp_path / "draft")
    for assistant_model in (draft, model, tmp_path / "draft", str(tmp_path / "draft")):
        result = task("the dog", assistant_model=assistant_model, num_assistant_tokens=3)
        assert (result.text, result.tokens) == (expected.text, expected.tokens)
    with_draft = task.with_settings({"assistant_model": draft})
    assert "".join(with_draft.stream("the dog")) == expected.new_text
    assert [result.text for result in with_draft.map(["the dog"] * 5)] == [expected.text] * 5
    assert with_draft("the dog", temperature=0.9).finish_reason in ("length", "eos")
    constrained = task("the dog", regex=REGEX)
    assert with_draft("the dog", regex=REGEX).text == constrained.text


def test_a_draft_model_of_an_encoder_decoder() -> None:
    model = build_seq2seq()
    model.generation_config = {"num_beams": 3}  # which speculative decoding does not use
    task = qkv.task("summarize", model, max_new_tokens=12)
    expected = task("Ein Zug fährt.", num_beams=1)
    assert task("Ein Zug fährt.", assistant_model=model).text == expected.text
    model.generation_config = None


# --- errors ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(regex="[a-"), "regex is '[a-': unclosed character class"),
        (dict(regex="(?=a)b"), "regex is '(?=a)b': look-around"),
        (dict(regex=5), "regex is 5, expected a string"),
        (dict(regex="☃"), "regex: the tokenizer has no token that begins such a text"),
        (dict(json_schema="{a"), "json_schema is not JSON: Expecting property name"),
        (dict(json_schema="no-such-file"), "json_schema is 'no-such-file', expected a JSON object"),
        (dict(json_schema=[1]), "json_schema is a list, expected a JSON object"),
        (dict(json_schema={"type": "foo"}), "json_schema: "),
        (dict(regex="a", json_schema={}), "regex and json_schema are both set"),
        (dict(force_words="dog"), "force_words is 'dog', expected a list of words"),
        (dict(force_words=[" "]), "force_words contains (' ',), expected words"),
        (dict(force_words=[[]]), "force_words contains (), expected words"),
        (dict(force_words=["☃"]), "force_words contains '☃', which the tokenizer cannot encode"),
        (dict(force_words=["dog"], num_beams=1), "force_words_ids needs beam search"),
        (dict(force_words=["dog"] * 9, max_new_tokens=4), "force_words_ids needs"),
        (
            dict(assistant_model=3),
            "assistant_model is a int, expected a Model, a folder or a hub id",
        ),
        (dict(assistant_model="no-such-folder"), "no-such-folder"),
        (dict(draft_model="x"), "did you mean assistant_model?"),
        (dict(guided_regex="x"), "did you mean regex?"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    task = qkv.task("complete", build_decoder("char"))
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        task("the", **settings)
    assert message in str(caught.value)


def test_a_draft_model_of_another_vocabulary() -> None:
    task = qkv.task("complete", build_decoder("char"))
    with pytest.raises(
        ValueError, match=r"assistant_model has another vocabulary: token .* expected"
    ):
        task("the", assistant_model=build_decoder("byte"))
    with pytest.raises(ValueError, match=r"assistant_model has another architecture|vocabulary"):
        task("the", assistant_model=build_seq2seq())


def test_words_that_no_beam_generates() -> None:
    task = qkv.task("complete", build_decoder("char"), max_new_tokens=3, num_beams=2)
    with pytest.raises(ValueError, match=r"force_words"):
        task("the", force_words=["dog"], suppress_tokens=task.tokenizer.encode("o"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        ValueError, match="regex needs the package llguidance; install it with: pip"
    ):
        qkv.task("complete", build_decoder("char"), regex="a")
