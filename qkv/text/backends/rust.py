"""RustBackend: a tokenizer of the `tokenizers` library, with language templates. Reads no files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import tokenizers
from tokenizers import models, processors

from qkv.text.backends.protocol import (
    TextInput,
    TextPair,
    check_language,
    check_text_input,
    clean_up_tokenization,
)
from qkv.text.encoding import Encoding
from qkv.text.files import encode_json, reraise_as_value_error
from qkv.text.special_tokens import SpecialTokens
from qkv.text.token_bytes import build_token_converter


@dataclass(frozen=True, kw_only=True)
class LanguageTemplates:
    """Language codes, and templates with the position of `{language}` in a text."""

    code_to_id: dict[str, int]
    templates: tuple[str, str]  # for a text and for a pair
    src_lang: str | None = None  # default language of a source text
    tgt_lang: str | None = None  # default language of a target text


def build_template_processor(
    tokenizer: tokenizers.Tokenizer,
    templates: tuple[str, str],
    special_tokens: SpecialTokens,
    language: str | None = None,
) -> processors.PostProcessor:
    """Build the post-processor of templates such as `{cls}:0 $A:0 {sep}:0`; :0 is a token type."""

    def substitute(match: re.Match[str]) -> str:
        return language or "" if match[1] == "language" else special_tokens[match[1]]

    single, pair = (
        [re.sub(r"\{(\w+)\}", substitute, item) for item in template.split()]
        for template in templates
    )
    tokens = {item.rpartition(":")[0] for item in single + pair if not item.startswith("$")}
    token_ids = {token: tokenizer.token_to_id(token) for token in sorted(tokens)}
    if missing := [token for token, token_id in token_ids.items() if token_id is None]:
        raise ValueError(
            f"{', '.join(missing)}: in the template but not in the vocabulary; add these tokens"
        )
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=list(token_ids.items())
    )


@dataclass
class RustBackend:
    """Backend of a tokenizer of the `tokenizers` library."""

    tokenizer: tokenizers.Tokenizer
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    language_templates: LanguageTemplates | None = None
    clean_up_tokenization_spaces: bool = False

    def __post_init__(self) -> None:
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        pre_tokenizer_json, decoder_json = (
            "" if part is None else part.__getstate__().decode()
            for part in (self.tokenizer.pre_tokenizer, self.tokenizer.decoder)
        )
        # Byte-level tokenizers without a prefix space would join pre-tokenized words.
        self._needs_word_spaces = (
            '"ByteLevel"' in pre_tokenizer_json and '"add_prefix_space":false' in pre_tokenizer_json
        )
        # CLIP marks the end of words, and its decoder does not remove the mark.
        self._end_of_word_suffix = (
            getattr(self.tokenizer.model, "end_of_word_suffix", None)
            if '"ByteLevel"' in decoder_json
            else None
        )
        # Hugging Face cleans up only models other than BPE, whose tokens include spaces.
        self._cleans_up_spaces = self.clean_up_tokenization_spaces and not isinstance(
            self.tokenizer.model, models.BPE
        )
        self._convert_token = build_token_converter(self.tokenizer)
        # With languages there is one post-processor per language, applied in _encode_batch.
        self._post_processors: dict[str | None, processors.PostProcessor] = {}
        if self.language_templates:
            self._post_processors[None] = self.tokenizer.post_processor
            self.tokenizer.post_processor = None

    @property
    def languages(self) -> Mapping[str, int]:
        return self.language_templates.code_to_id if self.language_templates else {}

    @property
    def continuing_subword_prefix(self) -> str:
        return getattr(self.tokenizer.model, "continuing_subword_prefix", None) or ""

    def encode(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        encodings = [
            Encoding(
                result.ids,
                result.offsets,
                result.type_ids,
                [is_special == 1 for is_special in result.special_tokens_mask],
                result.sequence_ids,
                result.word_ids,
            )
            for result in self._encode_batch(text_pairs, add_special_tokens, is_target, language)
        ]
        if self._needs_word_spaces and is_split_into_words(text_pairs):
            return [remove_space_from_offsets(encoding) for encoding in encodings]
        return encodings

    def encode_ids(
        self,
        text_pairs: Sequence[TextPair],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[list[int]]:
        results = self._encode_batch(
            text_pairs, add_special_tokens, is_target, language, ids_only=True
        )
        return [result.ids for result in results]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text = self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        if self._end_of_word_suffix:
            text = text.replace(self._end_of_word_suffix, " ").strip()
        return clean_up_tokenization(text) if self._cleans_up_spaces else text

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokenizer.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.tokenizer.token_to_id(token)

    def get_vocab(self) -> dict[str, int]:
        return self.tokenizer.get_vocab(with_added_tokens=True)

    def get_special_tokens(self) -> dict[str, int]:
        added_tokens = sorted(self.tokenizer.get_added_tokens_decoder().items())
        return {token.content: token_id for token_id, token in added_tokens if token.special}

    def convert_token_to_bytes(self, token: str) -> bytes:
        return self._convert_token(token)

    def serialize(self) -> bytes | None:
        if not self.language_templates:
            return self.tokenizer.to_str(pretty=True).encode("utf-8")
        post_processor = json.loads(self._post_processors[None].__getstate__())
        return encode_json(
            {**json.loads(self.tokenizer.to_str()), "post_processor": post_processor}
        )

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def _encode_batch(
        self,
        text_pairs: Sequence[TextPair],
        add_special_tokens: bool,
        is_target: bool,
        language: str | None,
        ids_only: bool = False,
    ) -> list[tokenizers.Encoding]:
        post_processor = self._get_post_processor(language, is_target)
        is_pretokenized = is_split_into_words(text_pairs)
        encode = self.tokenizer.encode_batch_fast if ids_only else self.tokenizer.encode_batch
        texts = [
            (self._add_word_spaces(a), None if b is None else self._add_word_spaces(b))
            for a, b in text_pairs
        ]
        try:
            with reraise_as_value_error("text"):
                if post_processor is None or not add_special_tokens:
                    inputs = [a if b is None else (a, b) for a, b in texts]
                    return encode(
                        inputs,
                        is_pretokenized=is_pretokenized,
                        add_special_tokens=add_special_tokens,
                    )
                flat_texts = [text for pair in texts for text in pair if text is not None]
                encodings = iter(
                    encode(flat_texts, is_pretokenized=is_pretokenized, add_special_tokens=False)
                )
                return [
                    post_processor.process(next(encodings), None if b is None else next(encodings))
                    for _, b in texts
                ]
        except ValueError:
            for text_pair in text_pairs:
                check_text_input(*text_pair)
            raise

    def _add_word_spaces(self, text: TextInput) -> TextInput:
        if self._needs_word_spaces and isinstance(text, list):
            return [f" {word}" if i else word for i, word in enumerate(text)]
        return text

    def _get_post_processor(
        self, language: str | None, is_target: bool
    ) -> processors.PostProcessor | None:
        """Return the post-processor of a language, or None if the tokenizer has its own."""
        if self.language_templates is None:
            if language is not None:
                check_language(language, {})
            return None
        if language is None:
            language = (
                self.language_templates.tgt_lang if is_target else self.language_templates.src_lang
            )
        if language not in self._post_processors:
            check_language(language or "", self.languages)
            self._post_processors[language] = build_template_processor(
                self.tokenizer, self.language_templates.templates, self.special_tokens, language
            )
        return self._post_processors[language]


def is_split_into_words(text_pairs: Sequence[TextPair]) -> bool:
    return bool(text_pairs) and isinstance(text_pairs[0][0], list)


def remove_space_from_offsets(encoding: Encoding) -> Encoding:
    """Return an encoding with offsets without the space added before all words but the first."""
    offsets = [
        (max(start - 1, 0), max(end - 1, 0)) if word_id else (start, end)
        for (start, end), word_id in zip(encoding.offset_mapping, encoding.word_ids, strict=True)
    ]
    return replace(encoding, offset_mapping=offsets)
