"""Grammar constraints: regular expressions and JSON schemas by llguidance, and a matcher of the test."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Self

import pytest

from qkv.decode import GenerationConfig, generate
from qkv.decode.logits.grammar import MAX_CACHED_MATCHERS, GrammarConstraint
from qkv.nn.network import Network
from tests.support import tiny

EOS = 0
CHARACTERS = ["<end>", *'{}[]":,. -0123456789abcdefghijklmnop']


class AlternatingMatcher:
    """Allows odd and even token ids in turn, and EOS after three of them."""

    def __init__(self, token_ids: tuple[int, ...] = ()) -> None:
        self.token_ids = token_ids

    def deep_copy(self) -> Self:
        return type(self)(self.token_ids)

    def consume_token(self, sampled_token: int) -> bool:
        self.token_ids = (*self.token_ids, sampled_token)
        return True

    def is_error(self) -> bool:
        return False

    def compute_logit_bias(self) -> bytes:
        if len(self.token_ids) == 3:
            return bytes([1] + [0] * 20)
        is_even = bool(self.token_ids) and self.token_ids[-1] % 2 == 1
        return bytes(int(token_id > 0 and (token_id % 2 == 0) == is_even) for token_id in range(21))


def build_net(family: str = "gpt2") -> Network:
    net = tiny.build(family).net
    assert isinstance(net, Network)
    return net


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(eos_token_id=(EOS,)),
        GenerationConfig(eos_token_id=(EOS,), num_beams=3, num_return_sequences=2),
        GenerationConfig(eos_token_id=(EOS,), do_sample=True),
    ],
)
def test_matcher_constrains_rows(config: GenerationConfig) -> None:
    results = generate(
        build_net(),
        [[5, 6], [7]],
        generation_config=config,
        prefix_allowed_tokens_fn=GrammarConstraint(AlternatingMatcher(), tiny.VOCAB),
    )
    for row in results:
        for result in row:
            assert [token_id % 2 for token_id in result.token_ids] == [1, 0, 1, 0]
            assert result.token_ids[-1] == EOS
            assert max(result.token_ids) < 21


def test_matcher_cache_is_limited() -> None:
    constraint = GrammarConstraint(AlternatingMatcher(), 21)
    for n in range(MAX_CACHED_MATCHERS + 50):
        constraint([1, 2 + n])
    assert len(constraint.matchers) <= MAX_CACHED_MATCHERS
    assert constraint([1, 2]).nonzero()[:, 0].tolist() == [*range(1, 21, 2)]


def build_character_tokenizer() -> Any:
    """Return a tokenizer of llguidance with one token per character."""
    guidance = pytest.importorskip("llguidance")

    class CharacterTokenizer:
        eos_token_id = EOS
        bos_token_id = None
        tokens: ClassVar[list[bytes]] = [character.encode() for character in CHARACTERS]
        special_token_ids = (EOS,)

        def __call__(self, text: str) -> list[int]:
            return [CHARACTERS.index(character) for character in text]

    wrapper = guidance.TokenizerWrapper(CharacterTokenizer())
    return guidance.LLTokenizer(wrapper, n_vocab=len(CHARACTERS))


def decode(token_ids: list[int]) -> str:
    """Return the text of tokens without EOS."""
    return "".join(CHARACTERS[token_id] for token_id in token_ids[:-1])


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_regular_expression(family: str, num_beams: int) -> None:
    guidance = pytest.importorskip("llguidance")
    matcher = guidance.LLMatcher(
        build_character_tokenizer(),
        guidance.LLMatcher.grammar_from_regex("[a-f]{2,4}-[0-9]+(abc|def)"),
    )
    inputs: dict[str, Any] = {"sources" if family == "bart" else "prompts": [[5, 6], [7]]}
    config = GenerationConfig(
        eos_token_id=(EOS,), num_beams=num_beams, max_new_tokens=40, decoder_start_token_id=3
    )
    for row in generate(
        build_net(family),
        **inputs,
        generation_config=config,
        prefix_allowed_tokens_fn=GrammarConstraint(matcher, tiny.VOCAB),
    ):
        text = decode(row[0].token_ids)
        assert re.fullmatch("[a-f]{2,4}-[0-9]+(abc|def)", text) or row[0].finish_reason == "length"
        assert re.match("[a-f]{2,4}-[0-9]", text)


def test_json_schema() -> None:
    guidance = pytest.importorskip("llguidance")
    schema = {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"enum": ["cd", "ef"]}, "b": {"type": "integer", "minimum": 3, "maximum": 40}},
    }  # fmt: skip
    matcher = guidance.LLMatcher(
        build_character_tokenizer(),
        guidance.LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_flexible": False}
        ),
    )
    config = GenerationConfig(
        eos_token_id=(EOS,), do_sample=True, max_new_tokens=60, num_return_sequences=3
    )
    for row in generate(
        build_net(),
        [[5, 6], [7]],
        generation_config=config,
        prefix_allowed_tokens_fn=GrammarConstraint(matcher, tiny.VOCAB),
    ):
        for result in row:
            value = json.loads(decode(result.token_ids))
            assert value["a"] in ("cd", "ef")
            assert 3 <= value["b"] <= 40
