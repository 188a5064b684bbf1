"""Tokenizer: encoding, decoding, loading, saving, training."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import overload

from qkv.staging import read_folder
from qkv.text.backends.protocol import TokenizerBackend, make_text_pairs
from qkv.text.batch_encoding import (
    BatchEncoding,
    HasToList,
    LengthOptions,
    TokenIdRow,
    TokenIdRows,
    build_batch_encoding,
    list_rows,
    list_token_ids,
)
from qkv.text.config import TokenizerFileConfig
from qkv.text.encoding import Encoding
from qkv.text.files import TokenizerFiles
from qkv.text.load import load_tokenizer_parts
from qkv.text.save import save_tokenizer_files
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES, SpecialToken
from qkv.text.train import train_tokenizer
from qkv.text.vocab import TOKEN_ID_LIMIT


class Tokenizer:
    """Tokenizer of any family; `pad_token`, `pad_token_id` ... are None if it has no such token."""

    bos_token = SpecialToken()
    eos_token = SpecialToken()
    unk_token = SpecialToken()
    sep_token = SpecialToken()
    pad_token = SpecialToken()
    cls_token = SpecialToken()
    mask_token = SpecialToken()

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
        token_ids = {role: backend.token_to_id(token) for role, token in tokens.items()}
        self.bos_token_id = token_ids.get("bos")
        self.eos_token_id = token_ids.get("eos")
        self.unk_token_id = token_ids.get("unk")
        self.sep_token_id = token_ids.get("sep")
        self.pad_token_id = token_ids.get("pad")
        self.cls_token_id = token_ids.get("cls")
        self.mask_token_id = token_ids.get("mask")
        self.extra_special_tokens: dict[str, int] = {
            token: token_id
            for token, token_id in backend.get_special_tokens().items()
            if token not in tokens.values()
        }
        self.padding_side = config.get_side("padding_side")
        self.truncation_side = config.get_side("truncation_side")
        self.model_max_length = config.model_max_length
        self.model_input_names = config.model_input_names

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer files of a published model, or those that `save` wrote."""
        with read_folder(Path(folder)):
            parts = load_tokenizer_parts(Path(folder))
        return cls(parts.backend, parts.config, parts.files)

    @classmethod
    def from_files(cls, files: TokenizerFiles) -> Tokenizer:
        """Load a tokenizer from files as they were read, whether or not they have changed since."""
        with read_folder(files.folder):
            if TokenizerFiles.read(files.folder) == files:
                return cls.load(files.folder)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.contents.items():
                (Path(folder) / name).write_bytes(content)
            try:
                return cls.load(folder)
            except ValueError as error:
                raise ValueError(str(error).replace(folder, str(files.folder))) from None

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
        includes special tokens. `template` sets the special tokens and their positions: bert,
        roberta, gpt, llama, seq2seq, bos-eos, t5, xlnet or plain. `num_sentinels` is the number of
        T5's `<extra_id_0>` ... `extra_tokens` are language or control codes;
        `language=` adds one before a text."""
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
        special_tokens = {
            role: self.convert_ids_to_tokens(token_id)
            for role, token_id in self.special_token_ids.items()
        }
        save_tokenizer_files(
            Path(folder),
            self._backend,
            self._config,
            self._files,
            special_tokens,
            list(self.extra_special_tokens),
        )

    def __call__(
        self, text: str | Iterable[str | tuple[str, str]],
        text_pair: str | Iterable[str] | None = None, *, add_special_tokens: bool = True,
        padding: bool | str = False, truncation: bool | str = False, max_length: int | None = None,
        return_tensors: str | None = None, return_offsets_mapping: bool = False,
        is_target: bool = False, language: str | None = None,
    ) -> BatchEncoding:  # fmt: skip
        """Encode a text, or a list of texts, to the inputs of a model: `model(**tokenizer(...))`.

        `padding`: True or "longest" pads to the longest row, "max_length" to `max_length`.
        `truncation`: True or "longest_first" truncates the longer text of a pair, "only_first" and
        "only_second" one of them, to `max_length`; special tokens are kept. `max_length` is by
        default `model_max_length`. `return_tensors`: "pt" (torch) or "np" (numpy) returns tensors
        (B, T), None lists, of one text without the batch dimension. `is_target`: encode targets of
        translation. `language`: one of `languages`."""
        options = LengthOptions.create(padding, truncation, max_length, self.model_max_length)
        if options.padding and self.pad_token_id is None:
            raise ValueError(
                "padding: this tokenizer has no pad token;"
                " set one, such as tokenizer.pad_token = tokenizer.eos_token"
            )
        pad_values: dict[str, object] = {"input_ids": self.pad_token_id}
        if "token_type_ids" in self.model_input_names:
            pad_values["token_type_ids"] = 0
        if "attention_mask" in self.model_input_names:
            pad_values["attention_mask"] = 0
        if return_offsets_mapping:
            pad_values["offset_mapping"] = (0, 0)
        encodings = self._backend.encode(
            make_text_pairs(text, text_pair),
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )
        batch = build_batch_encoding(
            options.truncate(encodings, self.truncation_side),
            pad_values,
            options,
            self.padding_side,
            return_tensors,
        )
        if return_tensors is None and isinstance(text, str):
            return BatchEncoding({name: rows[0] for name, rows in batch.items()})
        return batch

    def encode(
        self, text: str, text_pair: str | None = None, *, add_special_tokens: bool = True,
        truncation: bool | str = False, max_length: int | None = None,
        is_target: bool = False, language: str | None = None,
    ) -> list[int]:  # fmt: skip
        """Return the ids of a text or a pair, the `input_ids` of a call."""
        options = LengthOptions.create(False, truncation, max_length, self.model_max_length)
        encodings = self._backend.encode(
            make_text_pairs(text, text_pair),
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )
        return options.truncate(encodings, self.truncation_side)[0].input_ids

    def encode_batch(
        self, texts: Iterable[str | tuple[str, str]], *, add_special_tokens: bool = True,
        is_target: bool = False, language: str | None = None,
    ) -> list[Encoding]:  # fmt: skip
        """Return the full encodings of texts or pairs, with offsets and word ids."""
        return self._backend.encode(
            make_text_pairs(texts),
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )

    def encode_words(
        self, words: list[str], text_pair: list[str] | None = None, *,
        add_special_tokens: bool = True, is_target: bool = False, language: str | None = None,
    ) -> Encoding:  # fmt: skip
        """Encode pre-tokenized words; `word_ids` are their indices, offsets are within words."""
        return self._backend.encode(
            [(words, text_pair)],
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )[0]

    def encode_ids(
        self, texts: Iterable[str | tuple[str, str]], *, add_special_tokens: bool = True,
        is_target: bool = False, language: str | None = None,
    ) -> list[list[int]]:  # fmt: skip
        """Return only the ids of many texts or pairs, in about half the time of a call."""
        return self._backend.encode_ids(
            make_text_pairs(texts),
            add_special_tokens=add_special_tokens,
            is_target=is_target,
            language=language,
        )

    def decode(self, token_ids: TokenIdRow, *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids: a list, a tensor (T,) or a single id."""
        checked_ids = [self._check_token_id(token_id) for token_id in list_token_ids(token_ids)]
        return self._backend.decode(checked_ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: TokenIdRows, *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Return the text of each row of ids: a list of lists or tensors, or a tensor (B, T)."""
        return [
            self.decode(row, skip_special_tokens=skip_special_tokens)
            for row in list_rows(sequences)
        ]

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str: ...

    @overload
    def convert_ids_to_tokens(self, ids: Sequence[int] | HasToList) -> list[str]: ...

    def convert_ids_to_tokens(self, ids: TokenIdRow) -> str | list[str]:
        """Return the token of an id, or the list of tokens of ids."""
        tokens = [
            self._backend.id_to_token(self._check_token_id(token_id)) or ""
            for token_id in list_token_ids(ids)
        ]
        return tokens[0] if isinstance(ids, int) else tokens

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        """Return the id of a token, or the ids of a list; `unk_token_id` for unknown tokens."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        token_id = self._backend.token_to_id(tokens)
        return self.unk_token_id if token_id is None else token_id

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens, added tokens included."""
        return self._backend.get_vocab()

    def get_token_bytes(self) -> list[bytes]:
        """Return the UTF-8 bytes that each token adds to a text, with its space; none for special tokens."""
        special_ids = {*self.all_special_ids, *self._backend.get_special_tokens().values()}
        tokens = [self._backend.id_to_token(token_id) for token_id in range(len(self))]
        return [
            b""
            if token is None or token_id in special_ids
            else self._backend.convert_token_to_bytes(token)
            for token_id, token in enumerate(tokens)
        ]

    @property
    def special_token_ids(self) -> dict[str, int]:
        """Ids of the special tokens by role: bos, eos, unk, sep, pad, cls and mask."""
        token_ids = {role: getattr(self, f"{role}_token_id") for role in SPECIAL_TOKEN_ROLES}
        return {role: token_id for role, token_id in token_ids.items() if token_id is not None}

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens, with or without a role."""
        token_ids = [*self.special_token_ids.values(), *self.extra_special_tokens.values()]
        return list(dict.fromkeys(token_ids))

    @property
    def all_special_tokens(self) -> list[str]:
        """Special tokens, with or without a role."""
        return self.convert_ids_to_tokens(self.all_special_ids)

    @property
    def languages(self) -> Mapping[str, int]:
        """Ids of the language codes that `language=` accepts."""
        return self._backend.languages

    @property
    def continuing_subword_prefix(self) -> str:
        """Prefix of tokens inside a word, such as `##`; empty if there is none."""
        return self._backend.continuing_subword_prefix

    @property
    def sentinel_token_ids(self) -> list[int]:
        """Ids of T5's sentinel tokens `<extra_id_0>`, `<extra_id_1>` ..."""
        token_ids: list[int] = []
        while (token_id := self._backend.token_to_id(f"<extra_id_{len(token_ids)}>")) is not None:
            token_ids.append(token_id)
        return token_ids

    def __len__(self) -> int:
        return len(self._backend)

    def __repr__(self) -> str:
        return f"qkv.Tokenizer({self._config.values.get('tokenizer_class')}, {len(self):,} tokens)"

    def _check_token_id(self, token_id: int) -> int:
        if not 0 <= token_id < TOKEN_ID_LIMIT or self._backend.id_to_token(token_id) is None:
            raise ValueError(
                f"id {token_id}: expected one of the {len(self)} ids of this tokenizer"
            )
        return token_id
