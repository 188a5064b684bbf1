"""Validated access to tokenizer_config.json and related files. Does not depend on families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken

from qkv.text.files import JsonObject, read_tokenizer_json_object, shorten
from qkv.text.special_tokens import SPECIAL_TOKEN_ROLES

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_MAP_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
EXTRA_SPECIAL_TOKENS_KEYS = (
    "additional_special_tokens",
    "extra_special_tokens",
)  # older, newer key
MODEL_INPUT_NAMES = ["input_ids", "attention_mask"]  # for a model without token types
MODEL_INPUT_NAMES_WITH_TYPES = ["input_ids", "token_type_ids", "attention_mask"]
NO_MAX_LENGTH = 2**24  # more means no maximum; Hugging Face writes 10**30
ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True)
class TokenizerFileConfig:
    """A JSON object, and the path of its file for error messages."""

    values: JsonObject
    path: Path

    @classmethod
    def read(cls, folder: Path) -> TokenizerFileConfig:
        """Read tokenizer_config.json; in older versions special_tokens_map.json overrides it."""
        values: JsonObject = {}
        if (folder / TOKENIZER_CONFIG_FILE).exists():
            values = read_tokenizer_json_object(folder / TOKENIZER_CONFIG_FILE)
        if (folder / SPECIAL_TOKENS_MAP_FILE).exists() and "added_tokens_decoder" not in values:
            values |= {
                key: value
                for key, value in read_tokenizer_json_object(
                    folder / SPECIAL_TOKENS_MAP_FILE
                ).items()
                if value is not None
            }
        values.pop("auto_map", None)  # refers to remote code, which is never executed
        return cls(values, folder / TOKENIZER_CONFIG_FILE)

    def get_bool(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.path}: {key} {shorten(value)}, expected true or false")
        return default if value is None else value

    def get_optional_bool(self, key: str) -> bool | None:
        """Return a boolean, or None if it is not set."""
        return self.get_bool(key, False) if self.values.get(key) is not None else None

    def get_int(self, key: str) -> int | None:
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or value < 0
        ):
            raise ValueError(f"{self.path}: {key} {shorten(value)}, expected a whole number")
        return value

    def get_str(self, key: str, default: str | None = None) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.path}: {key} {shorten(value)}, expected a string")
        return default if value is None else value

    def get_str_list(self, key: str) -> list[str]:
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"{self.path}: {key} {shorten(value)}, expected a list of strings")
        return value

    @property
    def model_max_length(self) -> int | None:
        """Maximum input length of the model, in tokens."""
        max_length = self.get_int("model_max_length")
        return None if max_length is None or max_length > NO_MAX_LENGTH else max_length

    @property
    def clean_up_tokenization_spaces(self) -> bool:
        """Whether decoding removes spaces before punctuation."""
        return self.get_bool("clean_up_tokenization_spaces", False)

    def get_side(self, key: str) -> str:
        """Return the side of padding or truncation: "left" or "right" (the default)."""
        side = self.get_str(key, "right")
        if side not in ("left", "right"):
            raise ValueError(f"{self.path}: {key} {shorten(side)}, expected left or right")
        return side

    @property
    def model_input_names(self) -> list[str]:
        """Names of the model's inputs that a call of the tokenizer returns."""
        return list(self.get_str_list("model_input_names") or MODEL_INPUT_NAMES)

    def get_special_token(self, role: str) -> AddedToken | None:
        value = self.values.get(f"{role}_token")
        return None if value is None else self._parse_token(value, f"{role}_token", special=True)

    def get_extra_special_tokens(self) -> list[AddedToken]:
        """Return the special tokens without a role."""
        tokens: list[AddedToken] = []
        for name in EXTRA_SPECIAL_TOKENS_KEYS:
            value = self.values.get(name) or []
            if not isinstance(value, list | dict):
                raise ValueError(f"{self.path}: {name} {shorten(value)}, expected a list of tokens")
            items = value.values() if isinstance(value, dict) else value
            tokens += [self._parse_token(item, name, special=True) for item in items]
        return tokens

    def get_added_tokens(self, folder: Path) -> dict[int, AddedToken]:
        """Return the tokens, by id, that are not in the vocabulary file."""
        added_tokens: dict[int, AddedToken] = {}
        decoder = self.values.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict) or not all(key.isdecimal() for key in decoder):
            raise ValueError(f"{self.path}: added_tokens_decoder, expected tokens by id")
        for key, value in decoder.items():
            added_tokens[int(key)] = self._parse_token(value, "added_tokens_decoder")
        if not decoder and (folder / ADDED_TOKENS_FILE).exists():
            path = folder / ADDED_TOKENS_FILE
            special_tokens = {
                str(token.content)
                for role in SPECIAL_TOKEN_ROLES
                if (token := self.get_special_token(role))
            }
            special_tokens |= {str(token.content) for token in self.get_extra_special_tokens()}
            for name, token_id in read_tokenizer_json_object(path, reject_duplicates=True).items():
                is_id = (
                    isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0
                )
                if not is_id or token_id in added_tokens:
                    raise ValueError(
                        f"{path}: {shorten(name)} has id {shorten(token_id)}, expected a unique id from 0"
                    )
                assert isinstance(token_id, int)
                is_special = name in special_tokens
                added_tokens[token_id] = AddedToken(
                    name, special=is_special, normalized=not is_special
                )
        return dict(sorted(added_tokens.items()))

    def _parse_token(self, value: object, name: str, *, special: bool | None = None) -> AddedToken:
        """Parse a token: a string, or an object that also has flags, such as lstrip."""
        if isinstance(value, str):
            return AddedToken(value, special=special is not False)
        if isinstance(value, Mapping) and isinstance(value.get("content"), str):
            flags = {key: value[key] for key in ADDED_TOKEN_FLAGS if key in value}
            flags["special"] = special or value.get("special", False)
            if all(isinstance(flag, bool) for flag in flags.values()):
                return AddedToken(value["content"], **flags)
        raise ValueError(f"{self.path}: {name} {shorten(value)}, expected a token")
