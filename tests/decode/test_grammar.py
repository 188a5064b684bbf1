"""Rows that match a regular expression or a JSON schema, by llguidance; and a matcher of our own."""

from __future__ import annotations

import json
import re
from typing import Any, Self

import pytest

from qkv.decode import How, generate
from qkv.decode.logits.grammar import MOST, Guide
from qkv.nn.transformer import Transformer
from tests.support import tiny

END = 0
LETTERS = ["<end>", *'{}[]":,. -0123456789abcdefghijklmnop']


class Alternating:
    """Even ids after odd ones, odd after even; 0 ends after three."""

    def __init__(self, ids: tuple[int, ...] = ()) -> None:
        self.ids = ids

    def deep_copy(self) -> Self:
        return type(self)(self.ids)

    def consume_token(self, sampled_token: int) -> bool:
        self.ids = (*self.ids, sampled_token)
        return True

    def compute_logit_bias(self) -> bytes:
        if len(self.ids) == 3:
            return bytes([1] + [0] * 20)
        even = bool(self.ids) and self.ids[-1] % 2 == 1
        return bytes(int(id_ > 0 and (id_ % 2 == 0) == even) for id_ in range(21))


def net(family: str = "gpt2") -> Transformer:
    made = tiny.model(family).net
    assert isinstance(made, Transformer)
    return made


@pytest.mark.parametrize(
    "how", [How(ends=(END,)), How(ends=(END,), beams=3, results=2), How(ends=(END,), sample=True)]
)
def test_a_matcher_guides_rows(how: How) -> None:
    found = generate(net(), [[5, 6], [7]], how=how, allowed=Guide(Alternating(), tiny.VOCAB))
    for row in found:
        for one in row:
            assert [id_ % 2 for id_ in one.ids] == [1, 0, 1, 0]
            assert one.ids[-1] == END
            assert max(one.ids) < 21


def test_matchers_are_shared_and_forgotten() -> None:
    guide = Guide(Alternating(), 21)
    for n in range(MOST + 50):
        guide([1, 2 + n])
    assert len(guide.at) <= MOST
    assert guide([1, 2]).nonzero()[:, 0].tolist() == [*range(1, 21, 2)]


def tokenizer() -> Any:
    """One token a character, as llguidance asks for it."""
    guidance = pytest.importorskip("llguidance")

    class Characters:
        eos_token_id, bos_token_id, tokens = END, None, [letter.encode() for letter in LETTERS]
        special_token_ids = (END,)

        def __call__(self, text: str) -> list[int]:
            return [LETTERS.index(letter) for letter in text]

    wrapper = guidance.TokenizerWrapper(Characters())
    return guidance.LLTokenizer(wrapper, n_vocab=len(LETTERS))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_a_regular_expression(family: str, beams: int) -> None:
    guidance = pytest.importorskip("llguidance")
    matcher = guidance.LLMatcher(
        tokenizer(), guidance.LLMatcher.grammar_from_regex("[a-f]{2,4}-[0-9]+(abc|def)")
    )
    side: dict[str, Any] = {"sources": [[5, 6], [7]]} if family == "bart" else {"prompts": [[5, 6], [7]]}
    how = How(ends=(END,), beams=beams, max_new=40, start=3)
    for row in generate(net(family), **side, how=how, allowed=Guide(matcher, tiny.VOCAB)):
        text = "".join(LETTERS[id_] for id_ in row[0].ids[:-1])
        assert re.fullmatch("[a-f]{2,4}-[0-9]+(abc|def)", text) or row[0].reason == "length"
        assert re.match("[a-f]{2,4}-[0-9]", text)


def test_a_json_schema() -> None:
    guidance = pytest.importorskip("llguidance")
    schema = {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"enum": ["cd", "ef"]}, "b": {"type": "integer", "minimum": 3, "maximum": 40}},
    }  # fmt: skip
    matcher = guidance.LLMatcher(
        tokenizer(),
        guidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False}),
    )
    how = How(ends=(END,), sample=True, max_new=60, results=3)
    for row in generate(net(), [[5, 6], [7]], how=how, allowed=Guide(matcher, tiny.VOCAB)):
        for one in row:
            said = json.loads("".join(LETTERS[id_] for id_ in one.ids[:-1]))
            assert said["a"] in ("cd", "ef")
            assert 3 <= said["b"] <= 40
