"""Constraints on generated text: a regular expression, a JSON schema, and required words.

The constraint is on the text of a result, without the space before its first word. llguidance, which
computes the tokens that a grammar allows, is imported on first use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from qkv.decode.logits.grammar import GrammarConstraint
from qkv.decode.request import StoppingCriteria
from qkv.files import read_json_value
from qkv.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

JsonSchema: TypeAlias = str | Path | Mapping[str, Any]
MAX_LOOKAHEAD = 32  # allowed tokens whose continuation is computed
# Any tokenization of the text is allowed: where the grammar prescribes the text, not that of llguidance.
NO_FORCING = '%llguidance {"no_forcing": true}'
# Separators of json.dumps; free whitespace could go on forever.
JSON_FORMAT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def read_json_schema(schema: JsonSchema) -> dict[str, Any]:
    """Return a JSON schema: a mapping, a file, or JSON text, which begins with a brace."""
    value: object = schema
    if isinstance(schema, str) and schema.lstrip().startswith("{"):
        try:
            value = json.loads(schema)
        except ValueError as error:
            raise ValueError(f"json_schema is not JSON: {error}") from None
    elif isinstance(schema, str | Path):
        if not Path(schema).is_file():
            raise ValueError(f"json_schema is {str(schema)!r}, expected a JSON object or a file")
        value = read_json_value(Path(schema))
    if not isinstance(value, Mapping):
        raise ValueError(f"json_schema is a {type(value).__name__}, expected a JSON object")
    return dict(value)


def import_llguidance(setting: str) -> Any:
    try:
        import llguidance
    except ImportError:
        raise ValueError(
            f"{setting} needs the package llguidance; install it with: pip install 'qkv[guide]'"
        ) from None
    return llguidance


@dataclass(frozen=True, kw_only=True, eq=False)
class TextGrammar:
    """A grammar for the text of new tokens, as functions of the token ids so far.

    `eos_token_ids` end a complete text. Without them, `is_complete` does.
    `ignored_token_id`: a forced first token, such as a language code, which is not text."""

    tokenizer: Tokenizer
    vocab_size: int  # of the network
    eos_token_ids: tuple[int, ...]
    ignored_token_id: int | None = None
    regex: str | None = None
    json_schema: JsonSchema | None = None

    @property
    def setting(self) -> str:
        return "json_schema" if self.regex is None else "regex"

    @property
    def eos_token_id(self) -> int:
        """The EOS token of the grammar: that of the model, else an id after the vocabulary."""
        return self.eos_token_ids[0] if self.eos_token_ids else len(self.tokenizer)

    @cached_property
    def constraint(self) -> GrammarConstraint:
        """The tokens allowed by the grammar, as columns of the vocabulary and of EOS."""
        matcher_class = import_llguidance(self.setting).LLMatcher
        if self.regex is None:
            assert self.json_schema is not None
            schema = {"x-guidance": JSON_FORMAT} | read_json_schema(self.json_schema)
            body = f"%json {json.dumps(schema)}"
        else:
            problem = matcher_class.validate_grammar(matcher_class.grammar_from_regex(self.regex))
            if problem:
                raise ValueError(f"regex is {self.regex!r}: {summarize_problem(problem)}")
            body = f"/{escape_slashes(self.regex)}/"
        grammar = f'{NO_FORCING}\nstart: " "? text{self.space_after}\ntext: {body}'
        tokenizer = get_guidance_tokenizer(self.tokenizer, self.eos_token_id, self.setting)
        matcher = matcher_class(tokenizer, matcher_class.grammar_from_lark(grammar), log_level=0)
        if matcher.is_error():
            raise ValueError(f"{self.setting}: {summarize_problem(matcher.get_error())}")
        return GrammarConstraint(matcher, len(self.tokenizer) + 1)

    @property
    def space_after(self) -> str:
        """An optional last space, where the token that ends a word includes one."""
        tokens = [token for token in self.tokenizer.get_token_bytes() if len(token) > 1]
        num_before = sum(token.startswith(b" ") for token in tokens)
        num_after = sum(token.endswith(b" ") for token in tokens)
        return ' " "?' if num_after > num_before else ""

    def check(self) -> None:
        """Raise an error if the grammar is invalid, or the tokenizer has no token to begin a text."""
        token_bytes = self.tokenizer.get_token_bytes()
        first_ids = self([]).nonzero()[:, 0].tolist()
        spaces = [i for i in first_ids if i < len(token_bytes) and token_bytes[i] == b" "]
        if len(first_ids) == len(spaces) and not any(self([i]).any() for i in spaces):
            raise ValueError(
                f"{self.setting}: the tokenizer has no token that begins such a text; "
                "expected characters of its vocabulary"
            )

    def compute_allowed(self, token_ids: list[int]) -> Tensor:
        """Return the tokens that may follow, and last the EOS token of a model without one.

        Of a few tokens, those are dropped after which the vocabulary cannot continue the text."""
        start = int(token_ids[:1] == [self.ignored_token_id])
        ends = [i for i, token_id in enumerate(token_ids) if token_id in self.eos_token_ids]
        if ends:  # after EOS, which draft tokens may go beyond, only EOS follows
            allowed = torch.zeros(len(self.tokenizer) + 1, dtype=torch.bool)
            allowed[self.eos_token_id] = True
            return allowed
        allowed = self.constraint(token_ids[start:])
        candidates = allowed.nonzero()[:, 0].tolist()
        if len(candidates) <= MAX_LOOKAHEAD and not self.has_all_bytes:
            for token_id in candidates:
                if token_id != self.eos_token_id:
                    allowed[token_id] = self.constraint([*token_ids[start:], token_id]).any()
        return allowed

    @cached_property
    def has_all_bytes(self) -> bool:
        """Whether the tokens can spell any text, so that every allowed token can be continued."""
        tokens = {*self.tokenizer.get_token_bytes()}
        return all(bytes([byte]) in tokens for byte in range(256))

    def __call__(self, token_ids: list[int]) -> Tensor:
        """Return (V,) true for the token ids that may follow these."""
        allowed = self.compute_allowed(token_ids)
        output = torch.zeros(self.vocab_size, dtype=torch.bool)
        count = min(self.vocab_size, len(self.tokenizer))
        output[:count] = allowed[:count]
        for eos_token_id in self.eos_token_ids:
            output[eos_token_id] = allowed[self.eos_token_id]
        return output

    def is_complete(self, token_ids: list[int]) -> bool:
        """Return whether a text is complete and no token may follow, for a model without EOS."""
        is_end = bool(self.compute_allowed(token_ids)[self.eos_token_id])
        return is_end and not self(token_ids).any()


def join_stopping_criteria(
    criteria: StoppingCriteria | None, grammar: TextGrammar | None
) -> StoppingCriteria | None:
    """Return criteria that also end a row when its grammar is complete."""
    if grammar is None or grammar.eos_token_ids:
        return criteria
    return lambda ids: grammar.is_complete(ids) or (criteria is not None and criteria(ids))


def escape_slashes(regex: str) -> str:
    """Return a regular expression as it is written between slashes."""
    escaped = re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], regex)
    return escaped.replace("\n", r"\n")


def summarize_problem(problem: str) -> str:
    """Return the cause in a message of llguidance, which may draw the place below it."""
    lines = [line.strip() for line in problem.strip().splitlines()]
    causes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return causes[0] if causes else lines[0]


_guidance_tokenizers: WeakKeyDictionary[Tokenizer, dict[int, Any]] = WeakKeyDictionary()


class GuidanceVocabulary:
    """The vocabulary of a tokenizer as llguidance reads it; the last token is EOS, if there is none."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        token_bytes = tokenizer.get_token_bytes()
        special_ids = [i for i, value in enumerate(token_bytes) if not value]
        self.eos_token_id = eos_token_id
        self.special_token_ids = [*special_ids, len(token_bytes)]
        names = [value or f"<|{i}|>".encode() for i, value in enumerate(token_bytes)]
        self.tokens = [*names, b"<|eos|>"]

    def __call__(self, text: bytes) -> list[int]:
        """Return no tokens: with NO_FORCING, no text is tokenized."""
        return []


def get_guidance_tokenizer(
    tokenizer: Tokenizer, eos_token_id: int, setting: str
) -> llguidance.LLTokenizer:
    """Return the tokenizer of llguidance for one of ours, built once."""
    guidance = import_llguidance(setting)
    known = _guidance_tokenizers.setdefault(tokenizer, {})
    if eos_token_id not in known:
        wrapper = guidance.TokenizerWrapper(GuidanceVocabulary(tokenizer, eos_token_id))
        known[eos_token_id] = guidance.LLTokenizer(wrapper, n_vocab=len(wrapper.tokens))
    return known[eos_token_id]


def encode_force_words(
    tokenizer: Tokenizer, force_words: Sequence[str | Sequence[str]]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return `force_words_ids`: the ids of words; of a list of alternatives, one is required."""
    if isinstance(force_words, str) or not isinstance(force_words, Sequence):
        raise ValueError(f"force_words is {force_words!r}, expected a list of words")
    alternatives = [(words,) if isinstance(words, str) else tuple(words) for words in force_words]
    token_bytes = tokenizer.get_token_bytes()
    for words in alternatives:
        if not words or not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"force_words contains {words!r}, expected words, or lists of words")
    return tuple(
        tuple(encode_word(tokenizer, token_bytes, word.strip()) for word in words)
        for words in alternatives
    )


def encode_word(tokenizer: Tokenizer, token_bytes: list[bytes], word: str) -> tuple[int, ...]:
    """Return the ids of a word inside a text: after a space, if that is a part of its first token."""
    after_space, alone = (
        tuple(tokenizer.encode(text, add_special_tokens=False, is_target=True))
        for text in (f" {word}", word)
    )
    if not alone or tokenizer.unk_token_id in alone:
        raise ValueError(
            f"force_words contains {word!r}, which the tokenizer cannot encode; "
            "expected words of known characters"
        )
    text = b"".join(token_bytes[token_id] for token_id in after_space).decode(errors="replace")
    return after_space if text == f" {text.strip()}" else alone
