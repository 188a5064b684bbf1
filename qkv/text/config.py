"""Settings: what tokenizer_config.json and its kin say, read by type. Knows no family and no vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken

from qkv.text.files import Json, read_json

CONFIG, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # tokens that are new get their ids in this order
EXTRAS = ("additional_special_tokens", "extra_special_tokens")  # the older name and the newer
NO_LIMIT = 10**9  # Hugging Face writes 10**30 where there is none
MARKS = ("single_word", "lstrip", "rstrip", "normalized")


class Names(dict[str, str]):
    """Tokens by role."""

    def __missing__(self, role: str) -> str:
        raise ValueError(f"no {role}_token, expected one")


@dataclass(frozen=True)
class Settings:
    """A JSON object and the file it is from, which a complaint names."""

    values: Json
    source: Path

    @classmethod
    def read(cls, folder: Path) -> Settings:
        """tokenizer_config.json, with special_tokens_map.json over it as older versions wrote them."""
        values: Json = {}
        if (folder / CONFIG).exists():
            values = read_json(folder / CONFIG)
        if (folder / SPECIAL).exists() and "added_tokens_decoder" not in values:
            values |= {key: value for key, value in read_json(folder / SPECIAL).items() if value is not None}
        values.pop("auto_map", None)  # names code to run; there is none to run here
        return cls(values, folder / CONFIG)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{self.source}: {name} {value!r}, expected true or false")
        return default if value is None else value

    def maybe(self, name: str) -> bool | None:
        """True, false, or neither."""
        return self.flag(name, False) if self.values.get(name) is not None else None

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ValueError(f"{self.source}: {name} {value!r}, expected a whole number")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.source}: {name} {value!r}, expected a string")
        return default if value is None else value

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ValueError(f"{self.source}: {name} {value!r}, expected a list of strings")
        return value

    @property
    def limit(self) -> int | None:
        """The longest input of the model, in tokens."""
        limit = self.number("model_max_length")
        return None if limit is None or limit > NO_LIMIT else limit

    @property
    def clean(self) -> bool:
        """Whether decoded text loses the spaces before punctuation."""
        return self.flag("clean_up_tokenization_spaces", False)

    @property
    def side(self) -> str:
        """Where padding goes."""
        side = self.text("padding_side", "right")
        if side not in ("left", "right"):
            raise ValueError(f"{self.source}: padding_side {side!r}, expected left or right")
        return side

    def role(self, role: str) -> AddedToken | None:
        value = self.values.get(f"{role}_token")
        return None if value is None else self._token(value, f"{role}_token", special=True)

    def extras(self) -> list[AddedToken]:
        """Special tokens without a role of their own."""
        found: list[AddedToken] = []
        for name in EXTRAS:
            value = self.values.get(name) or []
            if not isinstance(value, list | dict):
                raise ValueError(f"{self.source}: {name} {value!r}, expected a list of tokens")
            each = value.values() if isinstance(value, dict) else value
            found += [self._token(token, name, special=True) for token in each]
        return found

    def added(self, folder: Path) -> dict[int, AddedToken]:
        """Tokens with ids of their own, beside the vocabulary file."""
        found: dict[int, AddedToken] = {}
        decoder = self.values.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict) or not all(key.isdecimal() for key in decoder):
            raise ValueError(f"{self.source}: added_tokens_decoder, expected tokens by id")
        for key, value in decoder.items():
            found[int(key)] = self._token(value, "added_tokens_decoder")
        if not decoder and (folder / ADDED).exists():
            special = {str(token.content) for role in ROLES if (token := self.role(role))}
            special |= {str(token.content) for token in self.extras()}
            for name, number in read_json(folder / ADDED, strict=True).items():
                if not isinstance(number, int) or isinstance(number, bool) or number < 0 or number in found:
                    raise ValueError(f"{folder / ADDED}: {name!r} has id {number!r}, expected one of its own")
                found[number] = AddedToken(name, special=name in special, normalized=name not in special)
        return dict(sorted(found.items()))

    def _token(self, value: object, name: str, *, special: bool | None = None) -> AddedToken:
        """A token as text, or as an object that also says how it meets the text around it."""
        if isinstance(value, str):
            return AddedToken(value, special=special is not False)
        if isinstance(value, Mapping) and isinstance(value.get("content"), str):
            marks = {key: value[key] for key in MARKS if key in value}
            marks["special"] = special or value.get("special", False)
            if all(isinstance(mark, bool) for mark in marks.values()):
                return AddedToken(value["content"], **marks)
        raise ValueError(f"{self.source}: {name} {value!r}, expected a token")
