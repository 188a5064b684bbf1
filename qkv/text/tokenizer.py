"""Tokenizer: text to tokens and back, whatever the family; load, save and train. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path

from qkv.text.backend import Core, Row, Text
from qkv.text.config import ADDED, CONFIG, EXTRAS, ROLES, SPECIAL, Settings
from qkv.text.encoding import Encoding
from qkv.text.files import to_json, write_files
from qkv.text.load import WHOLE, Parts, load
from qkv.text.train import train
from qkv.text.vocab import MOST


class Tokenizer:
    """Text to tokens and back. Special tokens are known by role: `pad`, `unk`, `bos` ... are ids or None."""

    def __init__(self, core: Core, settings: Settings, files: Mapping[str, bytes] | None = None) -> None:
        self._core, self._settings, self._files = core, settings, dict(files or {})
        tokens = {role: token.content for role in ROLES if (token := settings.role(role))}
        self.roles: dict[str, int] = {
            role: number for role, token in tokens.items() if (number := core.id(token)) is not None
        }
        self.bos, self.eos, self.unk, self.sep, self.pad, self.cls, self.mask = map(self.roles.get, ROLES)
        self.extras: dict[str, int] = {
            token: number for token, number in core.special().items() if token not in tokens.values()
        }
        self.side, self.limit = settings.side, settings.limit

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Open the tokenizer files that a published model ships, or that `save` wrote."""
        return cls._of(load(Path(folder)))

    @classmethod
    def train(
        cls,
        source: Iterable[str | Path] | Path,
        *,
        kind: str = "byte",
        vocab: int = 8000,
        purpose: str = "gpt",
        lower: bool = False,
        sentinels: int = 0,
        codes: Sequence[str] = (),
        limit: int | None = None,
    ) -> Tokenizer:
        """Learn a vocabulary from texts, or from the lines of files where a Path is given.

        The kind is char, word, wordpiece, bpe, byte or unigram; `vocab` counts all tokens, special ones too.
        The purpose gives the special tokens and what stands around a text: bert, roberta, gpt, llama,
        seq2seq, bos-eos, t5, xlnet or plain. Sentinels are T5's `<extra_id_0>` ...; codes are languages or
        controls, one of which `encode(language=...)` puts in front of a text.
        """
        learned = train(
            source, kind=kind, vocab=vocab, purpose=purpose, lower=lower, sentinels=sentinels, codes=codes,
            limit=limit,
        )  # fmt: skip
        return cls._of(Parts(*learned, {}))

    @classmethod
    def _of(cls, parts: Parts) -> Tokenizer:
        return cls(parts.core, parts.settings, parts.files)

    def save(self, folder: str | Path) -> None:
        """Write the files of Hugging Face's layout, and vocabulary files that came with it, into a folder."""
        folder, whole, values = Path(folder), self._core.json(), dict(self._settings.values)
        files = dict(self._files)
        if whole is not None:
            files[WHOLE] = whole
            values = {
                key: value for key, value in values.items() if key not in EXTRAS or isinstance(value, dict)
            }
        special: dict[str, object] = {
            f"{role}_token": self.token(number) for role, number in self.roles.items()
        }
        if self.extras:
            special[EXTRAS[0]] = list(self.extras)
        files |= {CONFIG: to_json(dict(sorted(values.items()))), SPECIAL: to_json(special)}
        write_files(folder, files)
        for name in {WHOLE, ADDED} - files.keys():  # an older tokenizer's, which would speak over this one
            (folder / name).unlink(missing_ok=True)

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special: bool = True,
        target: bool = False,
        language: str | None = None,
    ) -> Encoding:
        """The tokens of a text, or of a pair; `target`: on the side that is translated into."""
        return self._encode([(text, pair)], special, target, language)[0]

    def encode_many(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        special: bool = True,
        target: bool = False,
        language: str | None = None,
    ) -> list[Encoding]:
        """The tokens of many texts or pairs at once, on all processors."""
        return self._encode(rows_of(texts), special, target, language)

    def encode_words(
        self,
        words: list[str],
        pair: list[str] | None = None,
        *,
        special: bool = True,
        target: bool = False,
        language: str | None = None,
    ) -> Encoding:
        """The tokens of a text that is cut into words: `words` counts them, offsets are in each word."""
        return self._encode([(words, pair)], special, target, language)[0]

    def encode_ids(
        self,
        texts: Iterable[str | tuple[str, str]],
        *,
        special: bool = True,
        target: bool = False,
        language: str | None = None,
    ) -> list[list[int]]:
        """The ids alone of many texts or pairs: half the time of `encode_many`, for a large corpus."""
        return self._core.ids(rows_of(texts), special=special, target=target, language=language)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens; `special`: special tokens are written out, not left out."""
        ids = [self._check(number) for number in ids]
        return self._core.decode(ids, special=special)

    def token(self, number: int) -> str:
        token = self._core.token(self._check(number))
        assert token is not None
        return token

    def id(self, token: str) -> int | None:
        return self._core.id(token)

    @property
    def languages(self) -> Mapping[str, int]:
        """The ids of the codes that `encode(language=...)` knows."""
        return self._core.languages

    @property
    def joint(self) -> str:
        """What a piece that goes on with a word begins with, such as `##`; empty: nothing marks it."""
        return self._core.joint

    @property
    def sentinels(self) -> list[int]:
        """The ids of `<extra_id_0>`, `<extra_id_1>` ..., T5's marks for what was taken out of a text."""
        found = (self.id(f"<extra_id_{place}>") for place in count())
        return [
            number for number in takewhile(lambda number: number is not None, found) if number is not None
        ]

    def __len__(self) -> int:
        return len(self._core)

    def __repr__(self) -> str:
        return f"qkv.Tokenizer({self._settings.values.get('tokenizer_class')}, {len(self):,} tokens)"

    def _encode(
        self, rows: Sequence[Row], special: bool, target: bool, language: str | None
    ) -> list[Encoding]:
        return self._core.encode(rows, special=special, target=target, language=language)

    def _check(self, number: int) -> int:
        if not 0 <= number < MOST or self._core.token(number) is None:
            raise ValueError(f"id {number}: expected one of this tokenizer's {len(self)} tokens")
        return number


def rows_of(texts: Iterable[str | tuple[str, str]]) -> list[tuple[Text, Text | None]]:
    return [(text, None) if isinstance(text, str) else text for text in texts]
