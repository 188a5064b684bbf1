"""Tokenizer of fairseq's translation models: one vocabulary per side, one BPE for both, and Moses
tokenization before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tokenizers import AddedToken

from qkv.text.backends.ctrl import CONTINUATION_SUFFIX, END_OF_WORD_SUFFIX, CtrlBackend
from qkv.text.backends.protocol import (
    TextPair,
    TokenizerBackend,
    check_language,
    check_text_input,
)
from qkv.text.backends.rust import is_split_into_words
from qkv.text.encoding import Encoding
from qkv.text.moses import detokenize_moses, locate_moses_tokens, tokenize_moses

FSMT_WORD_PATTERN = r"\S+"


@dataclass(frozen=True, kw_only=True)
class FsmtBackend(TokenizerBackend):
    """Backend of two vocabularies; a text is split into words and ends with EOS.

    `moses_languages` are those of source and target for Moses tokenization; None: words are
    separated by whitespace. `add_source_eos`: also a source ends with EOS."""

    source: CtrlBackend
    target: CtrlBackend
    eos_token: str
    moses_languages: tuple[str, str] | None = None
    add_source_eos: bool = True

    languages: ClassVar[Mapping[str, int]] = {}
    continuing_subword_prefix: ClassVar[str] = ""

    @classmethod
    def build(
        cls,
        vocabularies: Sequence[dict[str, int]],  # of source and target
        merges: list[tuple[str, str]] | None,
        special_tokens: Mapping[str, str],
        *,
        moses_languages: tuple[str, str] | None = None,
        add_source_eos: bool = True,
    ) -> FsmtBackend:
        """Build the backend; without merges, the words of a text are tokens of the vocabulary."""
        added_tokens = [AddedToken(token, special=True) for token in special_tokens.values()]
        source, target = (
            CtrlBackend.build(
                vocabulary,
                merges,
                special_tokens["unk"],
                added_tokens,
                word_pattern=FSMT_WORD_PATTERN,
            )
            for vocabulary in vocabularies
        )
        return cls(
            source=source,
            target=target,
            eos_token=special_tokens["eos"],
            moses_languages=moses_languages,
            add_source_eos=add_source_eos,
        )

    def encode(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        if language is not None:
            check_language(language, self.languages)
        side = self.target if is_target else self.source
        if self.moses_languages is None or is_split_into_words(text_pairs):
            encodings = side.encode(text_pairs, add_special_tokens=False)
        else:
            moses_language = self.moses_languages[is_target]
            encodings = [_encode_moses(pair, side, moses_language) for pair in text_pairs]
        if add_special_tokens and (is_target or self.add_source_eos):
            for encoding in encodings:
                encoding.append(side.vocabulary[self.eos_token])
        return encodings

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text = self.target.decode(token_ids, skip_special_tokens=skip_special_tokens)
        text = text.removesuffix(CONTINUATION_SUFFIX)  # of an unfinished word
        if self.moses_languages is None:
            return text
        return detokenize_moses(text.split(), self.moses_languages[1])

    def id_to_token(self, token_id: int) -> str | None:
        return self.target.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.target.token_to_id(token)

    def convert_token_to_bytes(self, token: str) -> bytes:
        return self.target.convert_token_to_bytes(token)

    def get_vocab(self) -> dict[str, int]:
        return self.source.get_vocab()

    def get_special_tokens(self) -> dict[str, int]:
        return self.source.get_special_tokens()

    def serialize(self) -> bytes | None:
        return None

    def __len__(self) -> int:
        return max(len(self.source), len(self.target))


def _encode_moses(text_pair: TextPair, side: CtrlBackend, language: str) -> Encoding:
    """Encode the Moses tokens of a text or a pair; offsets are those of the texts."""
    check_text_input(*text_pair)
    texts = ["" if text is None else str(text) for text in text_pair]
    words = [tokenize_moses(text, language) for text in texts]
    spans = [locate_moses_tokens(text, row) for text, row in zip(texts, words, strict=True)]
    pair: TextPair = (words[0], None if text_pair[1] is None else words[1])
    encoding = side.encode([pair], add_special_tokens=False)[0]
    offsets = []
    for (start, end), word_id, sequence_id in zip(
        encoding.offset_mapping, encoding.word_ids, encoding.sequence_ids, strict=True
    ):
        first, last = spans[sequence_id or 0][word_id or 0]
        is_escaped = last - first != len(words[sequence_id or 0][word_id or 0])
        offsets.append((first, last) if is_escaped else (first + start, first + end))
    return replace(encoding, offset_mapping=offsets)


def to_fsmt_token(token: str, special_tokens: Sequence[str]) -> str:
    """Return fairseq's token as FSMT's vocabularies spell it: `le@@` -> `le`, `er` -> `er</w>`."""
    if token in special_tokens:
        return token
    if token.endswith(CONTINUATION_SUFFIX) and len(token) > len(CONTINUATION_SUFFIX):
        return token.removesuffix(CONTINUATION_SUFFIX)
    return token + END_OF_WORD_SUFFIX


def from_fsmt_token(token: str, special_tokens: Sequence[str]) -> str:
    """Return a token of FSMT's vocabularies as fairseq spells it."""
    if token in special_tokens:
        return token
    if token.endswith(END_OF_WORD_SUFFIX):
        return token.removesuffix(END_OF_WORD_SUFFIX)
    return token + CONTINUATION_SUFFIX
