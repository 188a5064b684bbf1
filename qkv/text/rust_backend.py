"""Rust: a tokenizer of the `tokenizers` library, and the tokens it puts around a text. Knows no files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tokenizers
from tokenizers import models, processors

from qkv.text.backend import Row, Text, check_language, check_text, tidy
from qkv.text.config import Names
from qkv.text.encoding import Encoding
from qkv.text.files import one_line, to_json


@dataclass(frozen=True, kw_only=True)
class Languages:
    """Where the code of a language stands among the tokens around a text: `{language}` in the templates."""

    codes: dict[str, int]
    around: tuple[str, str]  # one text, and a pair
    source: str | None = None  # which is meant when none is asked for
    target: str | None = None


def template(
    rust: tokenizers.Tokenizer, around: tuple[str, str], names: Names, language: str | None = None
) -> processors.PostProcessor:
    """What puts tokens around texts, from rows such as `{cls}:0 $A:0 {sep}:0`: each with its type."""

    def fill(found: re.Match[str]) -> str:
        return language or "" if found[1] == "language" else names[found[1]]

    single, pair = ([re.sub(r"\{(\w+)\}", fill, piece) for piece in row.split()] for row in around)
    tokens = {piece.rpartition(":")[0] for piece in single + pair if not piece.startswith("$")}
    ids = {token: rust.token_to_id(token) for token in sorted(tokens)}
    if lost := [token for token, number in ids.items() if number is None]:
        raise ValueError(f"{', '.join(lost)}: put around a text, but not in the vocabulary")
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(ids.items()))


@dataclass
class Rust:
    """A Core that is a tokenizer of the `tokenizers` library."""

    rust: tokenizers.Tokenizer
    names: Names = field(default_factory=Names)
    spoken: Languages | None = None
    clean: bool = False

    def __post_init__(self) -> None:
        self.rust.no_padding()
        self.rust.no_truncation()
        cutter, joiner = (
            "" if part is None else part.__getstate__().decode()
            for part in (self.rust.pre_tokenizer, self.rust.decoder)
        )
        # Byte-level tokenizers that add no space of their own would glue words together.
        self._glues = '"ByteLevel"' in cutter and '"add_prefix_space":false' in cutter
        # CLIP ends words with a mark, and its decoder leaves that in the text.
        self._mark = getattr(self.rust.model, "end_of_word_suffix", None) if '"ByteLevel"' in joiner else None
        # Hugging Face cleans only what is no BPE: there, spaces are part of the tokens.
        self._cleans = self.clean and not isinstance(self.rust.model, models.BPE)
        # Where languages are spoken, each has its own; they are put around texts by hand.
        self._around: dict[str | None, processors.PostProcessor] = {}
        if self.spoken:
            self._around[None], self.rust.post_processor = self.rust.post_processor, None

    @property
    def languages(self) -> Mapping[str, int]:
        return self.spoken.codes if self.spoken else {}

    @property
    def joint(self) -> str:
        return getattr(self.rust.model, "continuing_subword_prefix", None) or ""

    def encode(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[Encoding]:
        found = [
            Encoding(
                one.ids,
                one.offsets,
                one.type_ids,
                [mark == 1 for mark in one.special_tokens_mask],
                one.sequence_ids,
                one.word_ids,
            )
            for one in self._run(rows, special, target, language)
        ]
        return [unspaced(one) for one in found] if self._glues and in_words(rows) else found

    def ids(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[list[int]]:
        return [one.ids for one in self._run(rows, special, target, language, fast=True)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        text = self.rust.decode(ids, skip_special_tokens=not special)
        if self._mark:
            text = text.replace(self._mark, " ").strip()
        return tidy(text) if self._cleans else text

    def token(self, number: int) -> str | None:
        return self.rust.id_to_token(number)

    def id(self, token: str) -> int | None:
        return self.rust.token_to_id(token)

    def special(self) -> dict[str, int]:
        added = sorted(self.rust.get_added_tokens_decoder().items())
        return {token.content: number for number, token in added if token.special}

    def json(self) -> bytes | None:
        if not self.spoken:
            return self.rust.to_str(pretty=True).encode("utf-8")
        usual = json.loads(self._around[None].__getstate__())
        return to_json({**json.loads(self.rust.to_str()), "post_processor": usual})

    def __len__(self) -> int:
        return self.rust.get_vocab_size(with_added_tokens=True)

    def _run(
        self, rows: Sequence[Row], special: bool, target: bool, language: str | None, fast: bool = False
    ) -> list[tokenizers.Encoding]:
        around = self._language(language, target)
        words = in_words(rows)
        run = self.rust.encode_batch_fast if fast else self.rust.encode_batch
        texts = [(self._spaced(a), None if b is None else self._spaced(b)) for a, b in rows]
        try:
            with one_line("text"):
                if around is None or not special:
                    inputs = [a if b is None else (a, b) for a, b in texts]
                    return run(inputs, is_pretokenized=words, add_special_tokens=special)
                flat = [text for row in texts for text in row if text is not None]
                bare = iter(run(flat, is_pretokenized=words, add_special_tokens=False))
                return [around.process(next(bare), None if b is None else next(bare)) for _, b in texts]
        except ValueError:
            for row in rows:
                check_text(*row)
            raise

    def _spaced(self, text: Text) -> Text:
        if self._glues and isinstance(text, list):
            return [f" {word}" if place else word for place, word in enumerate(text)]
        return text

    def _language(self, language: str | None, target: bool) -> processors.PostProcessor | None:
        """What puts this language around a text; None: the tokenizer does it itself."""
        if self.spoken is None:
            if language is not None:
                check_language(language, {})
            return None
        if language is None:
            language = self.spoken.target if target else self.spoken.source
        if language not in self._around:
            check_language(language or "", self.languages)
            self._around[language] = template(self.rust, self.spoken.around, self.names, language)
        return self._around[language]


def in_words(rows: Sequence[Row]) -> bool:
    return bool(rows) and isinstance(rows[0][0], list)


def unspaced(one: Encoding) -> Encoding:
    """Offsets in the words themselves, where every word but the first was given a space in front."""
    offsets = [
        (max(start - 1, 0), max(end - 1, 0)) if word else (start, end)
        for (start, end), word in zip(one.offsets, one.words, strict=True)
    ]
    return replace(one, offsets=offsets)
