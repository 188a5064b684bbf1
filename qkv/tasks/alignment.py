"""Alignment: attention weights between a generated text and its source, by token or by word.

Does not depend on networks."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import Literal, TypeAlias

from qkv.tasks.base import trim_span
from qkv.text import Encoding, Tokenizer

WORD_JOINERS = "'’‐-.,·_"  # part of a word between letters: it's, on-line, 3.5
UNSPACED_SCRIPTS = re.compile(  # Thai, Lao, Burmese, Khmer, Japanese, Chinese
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
WORD_PATTERN = re.compile(r"a+(?:'a+)*|\S")  # matches the classes of classify_character

CharacterSpan: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class TextSpan:
    """A token or word: the text from `start` up to `end`.

    A token without characters, such as an end token, has its name as `text`."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Alignment:
    """Attention weights between two texts: a row per target span, a column per source span.

    A row sums to 1. Offsets refer to the user's text and to the generated text. `layer` is the
    decoder layer of the weights, counted from 0, or "mean" for the mean of all layers."""

    source: tuple[TextSpan, ...]
    target: tuple[TextSpan, ...]
    weights: tuple[tuple[float, ...], ...]
    layer: int | Literal["mean"] | None = None

    def merge_into_words(self) -> Alignment:
        """Return the alignment of words: the sum over source tokens, the mean over target tokens.

        Tokens without characters are dropped, so that a row may sum to less than 1."""
        source_words = group_into_words(self.source)
        target_words = group_into_words(self.target)
        weights = tuple(
            tuple(
                sum(self.weights[t][s] for t in rows for s in columns) / len(rows)
                for _, columns in source_words
            )
            for _, rows in target_words
        )
        return Alignment(
            tuple(word for word, _ in source_words),
            tuple(word for word, _ in target_words),
            weights,
            self.layer,
        )

    def argmax(self) -> tuple[int | None, ...]:
        """Return the index of the source span with the largest weight for every target span."""
        return tuple(
            max(range(len(row)), key=row.__getitem__, default=None) for row in self.weights
        )

    def shift_target(self, offset: int) -> Alignment:
        """Return the alignment with the target offsets shifted by `offset` characters."""
        target = tuple(
            replace(span, start=span.start + offset, end=span.end + offset) for span in self.target
        )
        return replace(self, target=target)


def group_into_words(spans: Sequence[TextSpan]) -> list[tuple[TextSpan, list[int]]]:
    """Return the words of a text and the indices of their tokens.

    A token belongs to the word in which it starts; without spaces, every token is a word."""
    indices = [index for index, span in enumerate(spans) if span.start < span.end]
    text_start = min((spans[index].start for index in indices), default=0)
    text_end = max((spans[index].end for index in indices), default=0)
    characters = [" "] * (text_end - text_start)
    for span in (spans[index] for index in indices):
        characters[span.start - text_start : span.end - text_start] = span.text
    text = "".join(characters)
    classes = "".join(map(classify_character, text))
    word_starts = {match.start() for match in WORD_PATTERN.finditer(classes)}
    word_numbers = [*accumulate(position in word_starts for position in range(len(text)))]
    groups: dict[int, list[int]] = {}
    for index in indices:
        groups.setdefault(word_numbers[spans[index].start - text_start], []).append(index)
    words = []
    for group in groups.values():
        start = spans[group[0]].start
        end = max(spans[index].end for index in group)
        words.append((TextSpan(text[start - text_start : end - text_start], start, end), group))
    return words


def classify_character(character: str) -> str:
    """Return `a` for a word character, `'` for a joiner, `.` for a single-character word, or a space."""
    if character.isspace():
        return " "
    if character in WORD_JOINERS:
        return "'"
    is_punctuation = unicodedata.category(character)[0] == "P"
    return "." if UNSPACED_SCRIPTS.match(character) or is_punctuation else "a"


def locate_source_tokens(
    tokenizer: Tokenizer, encoding: Encoding, source: str, offset: int, prefix: str
) -> tuple[TextSpan, ...]:
    """Return the spans of the encoder's tokens in the user's text.

    The encoded text is `prefix`, which is not in the user's text, and the source from `offset` on."""
    language_codes = {token_id: code for code, token_id in tokenizer.languages.items()}
    spans: list[CharacterSpan | None] = []
    names: list[str] = []
    for token_id, (start, end), sequence_id in zip(
        encoding.input_ids, encoding.offset_mapping, encoding.sequence_ids, strict=True
    ):
        if sequence_id is None:
            spans.append(None)
            names.append(language_codes.get(token_id) or tokenizer.convert_ids_to_tokens(token_id))
        elif end <= len(prefix) > 0:
            spans.append(None)
            names.append(prefix[start:end])
        else:
            source_start = offset + max(start - len(prefix), 0)
            spans.append((source_start, offset + end - len(prefix)))
            names.append(prefix[start:end])
    return build_text_spans(source, spans, names)


def locate_target_tokens(
    tokenizer: Tokenizer, token_ids: Sequence[int], text: str
) -> tuple[TextSpan, ...]:
    """Return the spans of generated tokens: the characters that each adds to the decoded text."""
    special_ids = {*tokenizer.all_special_ids}
    partial_texts = (
        tokenizer.decode(token_ids[: count + 1], skip_special_tokens=True).lstrip()
        for count in range(len(token_ids))
    )
    ends = accumulate(
        (count_common_prefix(partial, text) for partial in partial_texts), max, initial=0
    )
    spans = [
        None if token_id in special_ids else span
        for token_id, span in zip(token_ids, pairwise(ends), strict=True)
    ]
    return build_text_spans(text, spans, tokenizer.convert_ids_to_tokens(token_ids))


def count_common_prefix(text: str, other: str) -> int:
    """Return the length of the common prefix of both texts."""
    pairs = zip(text, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def build_text_spans(
    text: str, spans: Sequence[CharacterSpan | None], token_names: Sequence[str]
) -> tuple[TextSpan, ...]:
    """Return the spans of tokens; None is a token without characters.

    Whitespace, and bytes of an incomplete character, belong to the token after them."""
    text_spans: list[TextSpan] = []
    position = max((span[1] for span in spans if span), default=0)
    following: CharacterSpan | None = None
    for span, name in zip(reversed(spans), reversed(token_names), strict=True):
        if span is None:
            following = None
        else:
            start, end = trim_span(text, *span)
            if start < end:
                following = (start, end)
        if following:
            text_spans.append(TextSpan(text[slice(*following)], *following))
        else:
            text_spans.append(TextSpan(name, position, position))
        position = text_spans[-1].start
    return tuple(reversed(text_spans))
