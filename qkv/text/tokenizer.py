"""Tokenizer: encoding, decoding, loading, saving, training. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from qkv.text.backends.protocol import TextInput, TextPair, TokenizerBackend
from qkv.text.config import (
    ADDED_TOKENS_FILE,
    EXTRA_SPECIAL_TOKENS_KEYS,
    SPECIAL_TOKEN_ROLES,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
    TokenizerFileConfig,
)
from qkv.text.encoding import Encoding
from qkv.text.files import encode_json, write_files
from qkv.text.load import TOKENIZER_FILE, load_tokenizer_parts
from qkv.text.train import train_tokenizer
from qkv.text.vocab import TOKEN_ID_LIMIT


class Tokenizer:
    """Tokenizer of any family; `pad_token_id` ... are None if it has no such token."""

    def __init__(
        self,
        backend: TokenizerBackend,
        config: TokenizerFileConfig,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        self._backend = backend
        self._config = config
        self._files = dict(files or {})
        tokens = {
            role: token.content
            for role in SPECIAL_TOKEN_ROLES
            if (token := config.get_special_token(role))
        }
        self.special_token_ids: dict[str, int] = {
            role: token_id
            for role, token in tokens.items()
            if (token_id := backend.token_to_id(token)) is not None
        }
        self.bos_token_id = self.special_token_ids.get("bos")
        self.eos_token_id = self.special_token_ids.get("eos")
        self.unk_token_id = self.special_token_ids.get("unk")
        self.sep_token_id = self.special_token_ids.get("sep")
        self.pad_token_id = self.special_token_ids.get("pad")
        self.cls_token_id = self.special_token_ids.get("cls")
        self.mask_token_id = self.special_token_ids.get("mask")
        self.extra_special_tokens: dict[str, int] = {
            token: token_id
            for token, token_id in backend.get_special_tokens().items()
            if token not in tokens.values()
        }
        self.padding_side = config.padding_side
        self.model_max_length = config.model_max_length

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer files of a published model, or those that `save` wrote."""
        parts = load_tokenizer_parts(Path(folder))
        return cls(parts.backend, parts.config, parts.files)

    @classmethod
    def train(
        cls,
        source: Iterable[str | Path] | Path,
        *,
        type: str = "byte",
        vocab_size: int = 8000,
        template: str = "gpt",
        lowercase: bool = False,
        num_sentinels: int = 0,
        extra_tokens: Sequence[str] = (),
        model_max_length: int | None = None,
    ) -> Tokenizer:
        """Train a tokenizer on texts, or on the lines of files (Path).

        `type` is char, word, wordpiece, bpe, byte (byte-level BPE) or unigram. `vocab_size`
        includes special tokens. `template` sets the special tokens and where they are added: bert,
        roberta, gpt, llama, seq2seq, bos-eos, t5, xlnet or plain. `num_sentinels` is the number of
        T5's `<extra_id_0>` ... `extra_tokens` are language or control codes;
        `encode(language=...)` adds one before a text."""
        backend, config = train_tokenizer(
            source,
            type=type,
            vocab_size=vocab_size,
            template=template,
            lowercase=lowercase,
            num_sentinels=num_sentinels,
            extra_tokens=extra_tokens,
            model_max_length=model_max_length,
        )
        return cls(backend, config)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer in Hugging Face format, with its original vocabulary files."""
        folder = Path(folder)
        values = dict(self._config.values)
        files = dict(self._files)
        tokenizer_json = self._backend.serialize()
        if tokenizer_json is not None:
            files[TOKENIZER_FILE] = tokenizer_json
            values = {
                key: value
                for key, value in values.items()
                if key not in EXTRA_SPECIAL_TOKENS_KEYS or isinstance(value, dict)
            }
        special_tokens_map: dict[str, object] = {
            f"{role}_token": self.id_to_token(token_id)
            for role, token_id in self.special_token_ids.items()
        }
        if self.extra_special_tokens:
            special_tokens_map[EXTRA_SPECIAL_TOKENS_KEYS[0]] = list(self.extra_special_tokens)
        files |= {
            TOKENIZER_CONFIG_FILE: encode_json(dict(sorted(values.items()))),
            SPECIAL_TOKENS_MAP_FILE: encode_json(special_tokens_map),
        }
        write_files(folder, files)
        # Files of an older tokenizer in the folder would take precedence over this one.
        for name in {TOKENIZER_FILE, ADDED_TOKENS_FILE} - files.keys():
            (folder / name).unlink(missing_ok=True)

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> Encoding:
        """Encode a text or a pair; `is_target`: as a target of translation."""
        return self._encode([(text, text_pair)], add_special_tokens, is_target, language)[0]

    def encode_batch(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        """Encode many texts or pairs, in parallel."""
        return self._encode(make_text_pairs(texts), add_special_tokens, is_target, language)

    def encode_words(
        self,
        words: list[str],
        text_pair: list[str] | None = None,
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> Encoding:
        """Encode pre-tokenized words; `word_ids` are their indices, offsets are within words."""
        return self._encode([(words, text_pair)], add_special_tokens, is_target, language)[0]

    def encode_ids(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        add_special_tokens: bool = True,
        is_target: bool = False,
        language: str | None = None,
    ) -> list[list[int]]:
        """Return only the ids of many texts or pairs, in about half the time of `encode_batch`."""
        return self._backend.encode_ids(
            make_text_pairs(texts),
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )

    def decode(self, token_ids: Sequence[int], *, keep_special_tokens: bool = False) -> str:
        """Decode ids to a text, without special tokens unless `keep_special_tokens`."""
        checked_ids = [self._check_token_id(token_id) for token_id in token_ids]
        return self._backend.decode(checked_ids, keep_special_tokens=keep_special_tokens)

    def id_to_token(self, token_id: int) -> str:
        token = self._backend.id_to_token(self._check_token_id(token_id))
        assert token is not None
        return token

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    @property
    def languages(self) -> Mapping[str, int]:
        """Ids of the language codes that `encode(language=...)` accepts."""
        return self._backend.languages

    @property
    def continuing_subword_prefix(self) -> str:
        """Prefix of tokens inside a word, such as `##`; empty if there is none."""
        return self._backend.continuing_subword_prefix

    @property
    def sentinel_token_ids(self) -> list[int]:
        """Ids of T5's sentinel tokens `<extra_id_0>`, `<extra_id_1>` ..."""
        token_ids: list[int] = []
        while (token_id := self.token_to_id(f"<extra_id_{len(token_ids)}>")) is not None:
            token_ids.append(token_id)
        return token_ids

    def __len__(self) -> int:
        return len(self._backend)

    def __repr__(self) -> str:
        return f"qkv.Tokenizer({self._config.values.get('tokenizer_class')}, {len(self):,} tokens)"

    def _encode(
        self,
        text_pairs: Sequence[TextPair],
        add_special_tokens: bool,
        is_target: bool,
        language: str | None,
    ) -> list[Encoding]:
        return self._backend.encode(
            text_pairs,
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )

    def _check_token_id(self, token_id: int) -> int:
        if not 0 <= token_id < TOKEN_ID_LIMIT or self._backend.id_to_token(token_id) is None:
            raise ValueError(
                f"id {token_id}: expected one of the {len(self)} ids of this tokenizer"
            )
        return token_id


def make_text_pairs(
    texts: Iterable[str | tuple[str, str]],
) -> list[tuple[TextInput, TextInput | None]]:
    return [(text, None) if isinstance(text, str) else text for text in texts]
