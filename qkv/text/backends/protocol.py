"""TokenizerBackend: the protocol of classes that convert text to tokens and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from qkv.text.encoding import Encoding

TextInput: TypeAlias = str | list[str]  # a list: pre-tokenized words
TextPair: TypeAlias = tuple[TextInput, TextInput | None]


class TokenizerBackend(Protocol):
    """Tokenization algorithm of a tokenizer; `RustBackend` for nearly every family."""

    @property
    def languages(self) -> Mapping[str, int]: ...

    @property
    def continuing_subword_prefix(self) -> str: ...

    def encode(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool,
        is_target: bool,
        language: str | None,
    ) -> list[Encoding]: ...

    def encode_ids(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool,
        is_target: bool,
        language: str | None,
    ) -> list[list[int]]:
        encodings = self.encode(
            text_pairs,
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )
        return [encoding.input_ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def id_to_token(self, token_id: int) -> str | None: ...

    def token_to_id(self, token: str) -> int | None: ...

    def get_vocab(self) -> dict[str, int]: ...

    def get_special_tokens(self) -> dict[str, int]: ...

    def convert_token_to_bytes(self, token: str) -> bytes: ...

    def serialize(self) -> bytes | None: ...

    def __len__(self) -> int: ...


def make_text_pairs(
    text: str | Iterable[str | tuple[str, str]], text_pair: str | Iterable[str] | None = None
) -> list[TextPair]:
    """Return pairs of a text and its `text_pair` or None, for one text or a list of texts."""
    if isinstance(text, str) and (text_pair is None or isinstance(text_pair, str)):
        return [(text, text_pair)]
    if isinstance(text, str) or isinstance(text_pair, str):
        raise ValueError("text and text_pair: one text and a list; expected two texts or two lists")
    if not isinstance(text, Iterable):
        raise ValueError(f"text is a {type(text).__name__}, expected a string or a list of strings")
    if text_pair is None:
        return [item if isinstance(item, tuple) else (check_string(item), None) for item in text]
    first_texts = [check_string(item) for item in text]
    second_texts = [check_string(item) for item in text_pair]
    if len(first_texts) != len(second_texts):
        raise ValueError(
            f"text has {len(first_texts)} texts and text_pair {len(second_texts)};"
            " expected one text_pair for each text"
        )
    return list(zip(first_texts, second_texts, strict=True))


def check_string(value: object) -> str:
    """Return a string; raise ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r}: expected a string")
    return value


def check_text_input(*texts: TextInput | None) -> None:
    """Raise ValueError for a non-string, or a lone surrogate, which UTF-8 cannot encode."""
    for text in texts:
        for part in text if isinstance(text, list) else [text]:
            if part is not None and (surrogate := re.search("[\ud800-\udfff]", check_string(part))):
                character = f"U+{ord(surrogate[0]):04X} at character {surrogate.start()}"
                raise ValueError(
                    f"text: a lone surrogate, {character};"
                    " decode the bytes again with errors='replace'"
                )


def check_language(language: str, languages: Mapping[str, int]) -> None:
    if language not in languages:
        known = ", ".join(languages) or "none"
        raise ValueError(
            f"language {language!r}: expected one of this tokenizer's languages: {known}"
        )


def clean_up_tokenization(text: str) -> str:
    """Remove spaces before punctuation and contractions, as transformers does."""
    for punctuation in (".", "?", "!", ","):
        text = text.replace(f" {punctuation}", punctuation)
    text = text.replace(" ' ", "'")
    for contraction in ("n't", "'m", "'s", "'ve", "'re"):
        text = text.replace(f" {contraction}", contraction)
    return text
