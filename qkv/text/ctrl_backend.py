"""CTRL: a piece that goes on is written `piece@@`, the last of a word plain. Knows only this family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from qkv.text.backend import Row
from qkv.text.encoding import Encoding
from qkv.text.rust_backend import Rust

ON, END = "@@", "</w>"


@dataclass(frozen=True)
class Ctrl:
    """A Core that merges pieces in Rust and then numbers them by CTRL's own vocabulary."""

    rust: Rust
    vocabulary: dict[str, int]
    tokens: dict[int, str]
    numbers: list[int]  # by the id that Rust gives
    unk: str

    languages: ClassVar[Mapping[str, int]] = {}
    joint: ClassVar[str] = ""

    @classmethod
    def build(
        cls, vocabulary: dict[str, int], merges: list[tuple[str, str]], unk: str, added: Sequence[AddedToken]
    ) -> Ctrl:
        """The merges write the end of a word as `</w>`, the vocabulary writes its absence as `@@`."""
        # Merges may pass through pieces that have no id: they are unknown if a word ends as one.
        names = [name[:-2] if name.endswith(ON) and len(name) > 2 else name + END for name in vocabulary]
        parts = [part for pair in merges for part in (*pair, "".join(pair))]
        pieces = {name: number for number, name in enumerate(dict.fromkeys([unk, *names, *parts]))}
        rust = Tokenizer(models.BPE(pieces, merges, unk_token=unk, end_of_word_suffix=END))
        rust.pre_tokenizer = pre_tokenizers.Split(Regex(r"\S+\n?"), "removed", invert=True)
        rust.add_tokens(list(added))
        extra = [token.content for token in added if token.content not in vocabulary]
        vocabulary = vocabulary | {token: len(vocabulary) + place for place, token in enumerate(extra)}
        numbers = [vocabulary[unk]] * rust.get_vocab_size()
        for name, place in pieces.items():
            plain = name.removesuffix(END) if name.endswith(END) else name + ON
            numbers[place] = vocabulary.get(plain, vocabulary[unk])
        for token in added:
            numbers[rust.get_vocab()[token.content]] = vocabulary[token.content]
        tokens = {number: token for token, number in vocabulary.items()}
        return cls(Rust(rust), vocabulary, tokens, numbers, unk)

    def encode(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[Encoding]:
        found = self.rust.encode(rows, special=special, language=language)
        return [replace(one, ids=[self.numbers[number] for number in one.ids]) for one in found]

    def ids(
        self, rows: Sequence[Row], *, special: bool = True, target: bool = False, language: str | None = None
    ) -> list[list[int]]:
        found = self.rust.ids(rows, special=special, language=language)
        return [[self.numbers[number] for number in one] for one in found]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        skipped = set() if special else {*self.special().values()}
        words = [self.tokens.get(number, self.unk) for number in ids if number not in skipped]
        return " ".join(words).replace(f"{ON} ", "").strip()

    def token(self, number: int) -> str | None:
        return self.tokens.get(number)

    def id(self, token: str) -> int | None:
        return self.vocabulary.get(token)

    def special(self) -> dict[str, int]:
        return {token: self.vocabulary[token] for token in self.rust.special()}

    def json(self) -> bytes | None:
        return None

    def __len__(self) -> int:
        return len(self.vocabulary)
