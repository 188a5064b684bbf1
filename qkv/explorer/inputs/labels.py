"""TokenSequence: the tokens of a text as the explorer shows them, grouped into words.

Does not depend on networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from qkv.tasks.alignment import TextSpan, group_into_words
from qkv.text import Encoding, Tokenizer

SPACE = "␣"
INCOMPLETE_CHARACTER = "\ufffd"  # of bytes that are not complete characters
LONE_BYTE = re.compile("[\udc80-\udcff]")  # as Python decodes it with surrogateescape


@dataclass(frozen=True, kw_only=True)
class TokenLabel:
    """A token: its characters, or its name if it is special."""

    text: str
    word: int | None = None  # index of its word; None: special or whitespace
    segment: int | None = None  # 0: first text, 1: second text
    special: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """The tokens of a sequence that attends or is attended to; `label` is its name on the page.

    The tokens from `first_patch` on may be the patches of a picture, row by row."""

    label: str
    tokens: tuple[TokenLabel, ...]
    words: tuple[str, ...] = ()
    picture: str | None = None  # data URL of what the model reads
    grid: tuple[int, int] | None = None  # rows and columns of patches
    first_patch: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class TokenLabeler:
    """The characters of every token of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.token_bytes = tokenizer.get_token_bytes()
        self.language_codes = {token_id: code for code, token_id in tokenizer.languages.items()}

    def get_characters(self, token_id: int) -> str:
        """Return the characters that a token adds to a text, with its space; none if it is special."""
        return self.get_bytes(token_id).decode("utf-8", errors="replace")

    def get_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none if it is special."""
        return self.token_bytes[token_id] if 0 <= token_id < len(self.token_bytes) else b""

    def get_text(self, token_id: int) -> str:
        """Return the characters of a token without the space around them, else its bytes or its name."""
        characters = self.get_characters(token_id)
        if INCOMPLETE_CHARACTER in characters:
            return " ".join(f"{byte:02X}" for byte in self.token_bytes[token_id].strip())
        if characters:
            return characters.strip() or characters
        if code := self.language_codes.get(token_id):
            return code
        if not 0 <= token_id < len(self.tokenizer):
            return f"[{token_id}]"
        return self.tokenizer.convert_ids_to_tokens(token_id)

    def get_different_texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return the texts of tokens to choose from: where two differ by the space around them only, the
        space is shown."""
        texts = [self.get_text(token_id) for token_id in token_ids]
        ids_of: dict[str, set[int]] = {}
        for token_id, text in zip(token_ids, texts, strict=True):
            ids_of.setdefault(text, set()).add(token_id)
        return [
            self.show_spaces(token_id, text) if len(ids_of[text]) > 1 else text
            for token_id, text in zip(token_ids, texts, strict=True)
        ]

    def show_spaces(self, token_id: int, text: str) -> str:
        """Return the text of a token with visible spaces around it."""
        characters = self.get_characters(token_id)
        before = len(characters) - len(characters.lstrip(" "))
        after = len(characters) - len(characters.rstrip(" "))
        return SPACE * before + text + SPACE * after if characters.strip() else text

    def label_encoding(self, label: str, encoding: Encoding) -> TokenSequence:
        """Return the tokens of a text or a pair; the tokens that the tokenizer adds are special."""
        has_pair = 1 in encoding.sequence_ids
        segments = [
            None if sequence_id is None or not has_pair else sequence_id
            for sequence_id in encoding.sequence_ids
        ]
        is_special = [sequence_id is None for sequence_id in encoding.sequence_ids]
        return self.label_tokens(label, encoding.input_ids, segments, is_special)

    def label_token_ids(self, label: str, token_ids: Sequence[int]) -> TokenSequence:
        """Return the tokens of a text without its encoding; a token without characters is special."""
        is_special = [not self.get_characters(token_id) for token_id in token_ids]
        return self.label_tokens(label, token_ids, [None] * len(token_ids), is_special)

    def label_tokens(
        self,
        label: str,
        token_ids: Sequence[int],
        segments: Sequence[int | None],
        is_special: Sequence[bool],
    ) -> TokenSequence:
        words: list[str] = []
        word_of: dict[int, int] = {}
        for segment in dict.fromkeys(segments):
            indices = [i for i, other in enumerate(segments) if other == segment]
            spans = self.locate_characters([token_ids[i] for i in indices])
            for word, members in group_into_words(spans):
                word_of |= {indices[member]: len(words) for member in members}
                words.append(word.text)
        tokens = tuple(
            TokenLabel(
                text=self.get_text(token_id),
                word=None if special else word_of.get(i),
                segment=segment,
                special=special,
            )
            for i, (token_id, segment, special) in enumerate(
                zip(token_ids, segments, is_special, strict=True)
            )
        )
        return TokenSequence(label=label, tokens=tokens, words=tuple(words))

    def locate_characters(self, token_ids: Sequence[int]) -> list[TextSpan]:
        """Return the span of each token in the concatenation of all, without the space around it; the
        tokens of one character, which may have several bytes, have the same span."""
        pieces = [self.get_bytes(token_id) for token_id in token_ids]
        text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
        sizes = [len(character.encode("utf-8", errors="surrogateescape")) for character in text]
        character_of = [index for index, size in enumerate(sizes) for _ in range(size)]  # each byte
        text = LONE_BYTE.sub(INCOMPLETE_CHARACTER, text)
        spans = []
        position = 0
        for piece in pieces:
            start = end = character_of[position - 1] + 1 if position else 0
            if piece:
                start, end = character_of[position], character_of[position + len(piece) - 1] + 1
            characters = text[start:end]
            stripped = characters.strip()
            start += len(characters) - len(characters.lstrip()) if stripped else 0
            spans.append(TextSpan(stripped, start, start + len(stripped)))
            position += len(piece)
        return spans
