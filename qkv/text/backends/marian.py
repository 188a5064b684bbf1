"""Marian tokenizer: one SentencePiece model per side, and a separate vocabulary with the ids.

This is the only family that runs the SentencePiece library: its pieces are looked up by name in a
vocabulary that both sides may share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from sentencepiece import SentencePieceProcessor

from qkv.text.backends.protocol import (
    TextInput,
    TextPair,
    TokenizerBackend,
    check_language,
    check_text_input,
    clean_up_tokenization,
)
from qkv.text.encoding import Encoding
from qkv.text.token_bytes import SPACE_SYMBOL, convert_piece

LANGUAGE_CODE_PATTERN = re.compile(r">>.*?<<", re.DOTALL)
BYTE_PIECE_PATTERN = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, kw_only=True)
class MarianSide:
    """SentencePiece model and vocabulary of the source or the target side."""

    processor: SentencePieceProcessor
    vocabulary: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class MarianBackend(TokenizerBackend):
    """Backend of two SentencePiece models."""

    source: MarianSide
    target: MarianSide
    added_tokens: dict[str, bool]  # tokens matched before the text is split -> is special
    unk_token: str
    eos_token: str
    add_source_eos: bool = True  # a target always ends with EOS
    clean_up_tokenization_spaces: bool = False
    continuing_subword_prefix: ClassVar[str] = ""

    @classmethod
    def build(
        cls,
        models: Sequence[bytes],
        vocabularies: Sequence[dict[str, int]],  # one for both sides, or one each
        added_tokens: dict[str, bool],
        special_tokens: Mapping[str, str],
        *,
        add_source_eos: bool = True,
        clean_up_tokenization_spaces: bool = False,
    ) -> MarianBackend:
        for vocabulary in vocabularies:
            if special_tokens["unk"] not in vocabulary:
                raise ValueError(
                    f"no {special_tokens['unk']} in the vocabulary, expected the unknown token"
                )
            for token in added_tokens:
                vocabulary.setdefault(token, len(vocabulary))
        source, target = (
            MarianSide(processor=SentencePieceProcessor(model_proto=model), vocabulary=vocabulary)
            for model, vocabulary in zip(models, [*vocabularies, *vocabularies][:2], strict=True)
        )
        return cls(
            source=source,
            target=target,
            added_tokens=added_tokens,
            unk_token=special_tokens["unk"],
            eos_token=special_tokens["eos"],
            add_source_eos=add_source_eos,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )

    @cached_property
    def languages(self) -> dict[str, int]:
        """Ids of the target language codes that precede a source text: `fra` for `>>fra<<`."""
        return {
            token[2:-2]: token_id
            for token, token_id in self.source.vocabulary.items()
            if LANGUAGE_CODE_PATTERN.fullmatch(token) and len(token) > 4
        }

    @cached_property
    def tokens_by_id(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self.target.vocabulary.items()}

    @cached_property
    def _added_token_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.added_tokens, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def encode(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        side = self.target if is_target else self.source
        if language is not None:
            language = language.removeprefix(">>").removesuffix("<<")
            check_language(language, self.languages)
        prefix_ids = [self.languages[language]] if language and add_special_tokens else []
        has_eos = add_special_tokens and (is_target or self.add_source_eos)
        suffix_ids = [side.vocabulary[self.eos_token]] if has_eos else []
        return [
            self._encode_pair(text_pair, side, prefix_ids, suffix_ids) for text_pair in text_pairs
        ]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        # With a shared vocabulary, Hugging Face decodes with the source model.
        side = self.source if self.source.vocabulary is self.target.vocabulary else self.target
        text = ""
        pieces: list[str] = []
        for token in (self.tokens_by_id[token_id] for token_id in token_ids):
            if not self.added_tokens.get(token, False):
                pieces.append(token)
            elif not skip_special_tokens:
                text += side.processor.decode_pieces(pieces) + token + " "
                pieces = []
        text += side.processor.decode_pieces(pieces)
        text = text.replace(SPACE_SYMBOL, " ").strip()
        return clean_up_tokenization(text) if self.clean_up_tokenization_spaces else text

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokens_by_id.get(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.source.vocabulary.get(token)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.source.vocabulary)

    def get_special_tokens(self) -> dict[str, int]:
        return {
            token: self.source.vocabulary[token]
            for token, is_special in self.added_tokens.items()
            if is_special
        }

    def convert_token_to_bytes(self, token: str) -> bytes:
        return convert_piece(token)

    def serialize(self) -> bytes | None:
        return None

    def __len__(self) -> int:
        return max(len(self.source.vocabulary), len(self.target.vocabulary))

    def _encode_pair(
        self, text_pair: TextPair, side: MarianSide, prefix_ids: list[int], suffix_ids: list[int]
    ) -> Encoding:
        check_text_input(*text_pair)
        encoding = Encoding([], [], [], [], [], [])
        unk_token_id = side.vocabulary[self.unk_token]

        for token_id in prefix_ids:
            encoding.append(token_id)
        for sequence_id, text in enumerate(text_pair):
            for piece, offsets, word_id in self._tokenize_words(text, side):
                token_id = side.vocabulary.get(piece, unk_token_id)
                encoding.append(token_id, offsets, sequence_id, word_id)
        for token_id in suffix_ids:
            encoding.append(token_id)
        return encoding

    def _tokenize_words(
        self, text: TextInput | None, side: MarianSide
    ) -> Iterator[tuple[str, tuple[int, int], int]]:
        """Yield (piece, offsets, word index) of a text, or of pre-tokenized words."""
        if isinstance(text, list):
            for word_id, word in enumerate(text):
                for piece, offsets in self._tokenize(word, side):
                    yield piece, offsets, word_id
            return
        word_id = -1
        for piece, offsets in self._tokenize(text or "", side):
            word_id += word_id < 0 or piece.startswith(SPACE_SYMBOL) or piece in self.added_tokens
            yield piece, offsets, word_id

    def _tokenize(self, text: str, side: MarianSide) -> Iterator[tuple[str, tuple[int, int]]]:
        end = 0
        for part in self._added_token_pattern.split(text):
            start = end
            end += len(part)
            if part in self.added_tokens:
                yield part, (start, end)
            elif part:
                if code := LANGUAGE_CODE_PATTERN.match(part):
                    yield code[0], (start, start + code.end())
                    start += code.end()
                yield from split_into_pieces(text[start:end], start, side.processor)


def split_into_pieces(
    text: str, offset: int, processor: SentencePieceProcessor
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (piece, offsets) of a part of a text; offsets exclude surrounding spaces."""
    # origin: index in `text` of each character of the normalized text
    _, origin = processor.normalize(text, with_offsets=True)
    start = 0
    end = 0
    for piece in processor.encode(text, out_type=str):
        if not BYTE_PIECE_PATTERN.fullmatch(piece) or not processor.is_byte(
            processor.piece_to_id(piece)
        ):
            start = end
            end += len(piece)
        elif (
            int(piece[3:5], 16) & 0xC0 != 0x80
        ):  # first byte of a character; the others share its offsets
            start = end
            end += 1
        text_start = origin[start]
        text_end = origin[end]
        if covered_text := text[text_start:text_end].strip():
            text_start = text.index(covered_text, text_start)
            text_end = text_start + len(covered_text)
        yield piece, (offset + text_start, offset + text_end)
