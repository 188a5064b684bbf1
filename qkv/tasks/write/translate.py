"""Translate: a text into another language, line by line or sentence by sentence; the lines stay.

Models know languages in three ways: by codes around a source and before a target (mBART), by the code of the
target in front of a source (`>>en<<`: Marian, and models of our recipes), or by a prefix in words (T5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from qkv.builtin.language import german_or_english
from qkv.decode import How
from qkv.tasks.base import Row, Text
from qkv.tasks.checks import check_strings, checked, one_of
from qkv.tasks.write.base import Rewrite, Written
from qkv.text import Encoding
from qkv.text.sentences import SENTENCE

PAIR = re.compile(r"translation_(\w+)_to_(\w+)")


@dataclass(frozen=True, kw_only=True)
class Translate(Rewrite):
    """`source`, `target`: languages, where the model has several; `by`: line or sentence, what is read at
    once: as its folder says (`task_specific_params`), else a line."""

    name: ClassVar[str] = "translate"
    source: str | None = None
    target: str | None = None
    by: str | None = None

    def __post_init__(self) -> None:
        check_strings(source=self.source, target=self.target)
        super().__post_init__()
        one_of("by", self.unit, ("line", "sentence"))
        if not self.tokenizer.languages and not self.pairs:
            for what, name in (("source", self.source), ("target", self.target)):
                if name is not None:
                    raise ValueError(f"{what} is {name!r}, and this model has no languages to choose from")

    @property
    def unit(self) -> str:
        """What is read at once. A model that has learnt single sentences says so."""
        if self.by is not None:
            return self.by
        own = self.params.get("translation")
        return str(own.get("by", "line")) if isinstance(own, dict) else "line"

    # --- by a prefix ---

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """The directions that the folder names: from which language into which."""
        return {key: (m[1], m[2]) for key in self.params if (m := PAIR.fullmatch(key))}

    @property
    def part(self) -> str | None:
        wanted = [name and bare(name) for name in (self.source, self.target)]
        fits = [
            key
            for key, pair in self.pairs.items()
            if all(name in (None, one) for name, one in zip(wanted, pair, strict=True))
        ]
        if not fits and self.pairs and not self.tokenizer.languages:
            known = ", ".join(f"{one} to {other}" for one, other in self.pairs.values())
            raise ValueError(f"{self.source or 'any'} to {self.target or 'any'}: expected one of {known}")
        return fits[0] if len(fits) == 1 else None

    # --- by codes ---

    @cached_property
    def arrows(self) -> bool:
        """Do codes such as `>>en<<` name the target in front of a source?"""
        known = self.tokenizer.languages
        return bool(known) and all(
            code.startswith(">>") or self.tokenizer.id(f">>{code}<<") is not None for code in known
        )

    def code(self, what: str, name: str | None) -> str | None:
        """The code of a language: `de` is `de`, `>>de<<` or `de_DE`."""
        known = self.tokenizer.languages
        if name is None or name in known or not known:
            return name
        found = [code for code in known if plain(code) == plain(name)]
        found = found or [code for code in known if bare(code) == bare(name)]
        if len(found) != 1:
            raise ValueError(f"{what} is {name!r}, expected one of {', '.join(named(known))}")
        return found[0]

    @cached_property
    def codes(self) -> tuple[str | None, str | None]:
        """Those of source and target; of two codes with arrows, the target is the one that the source is
        not."""
        source, target = self.code("source", self.source), self.code("target", self.target)
        others = [code for code in self.tokenizer.languages if code != source]
        if self.arrows and source is not None and target is None and len(others) == 1:
            target = others[0]
        return source, target

    def settled(self, usual: How) -> dict[str, Any]:
        """The code of the target is the first word of a row, or its start where it already is a code."""
        _, target = self.codes
        if target is None or self.arrows or not self.tokenizer.languages:
            return {}
        number = self.tokenizer.languages[target]
        starts = usual.start in self.tokenizer.languages.values()
        return {"start": number, "first": None} if starts else {"first": number}

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        source, target = self.codes
        known = bool(self.tokenizer.languages)
        language = (target if self.arrows else source) if known else None
        return self.tokenizer.encode_many(texts, language=language)

    def check_direction(self, text: str) -> None:
        """Is it known into which language?"""
        known, (_, target) = self.tokenizer.languages, self.codes
        if self.arrows:
            good, names = target is not None, named(known)
        elif known:
            good, names = {self.how.first, self.how.start} & {*known.values()} != set(), named(known)
        else:
            good = self.part is not None or self.prefix is not None or not self.pairs
            names = [*map(" to ".join, self.pairs.values())]
        if not good:
            raise ValueError(f"into which language? Expected source and target, of {', '.join(names)}")

    # --- by a guess ---

    @property
    def guesses(self) -> bool:
        """Is it a model of codes between German and English, and nobody has said which way?"""
        if self.source is not None or self.target is not None or not self.arrows:
            return False
        return sorted(map(bare, self.tokenizer.languages)) == ["de", "en"]

    @cached_property
    def ways_round(self) -> dict[str, Translate]:
        """The task out of each language."""
        return {code: replace(self, source=code) for code in ("de", "en")}

    def directed(self, text: str) -> tuple[Translate, str]:
        """The task in the direction of a text, and the text: as the user says, or the text itself, by the
        code that it begins with, else by a guess."""
        for code in self.tokenizer.languages if self.arrows and self.codes[1] is None else ():
            if text.lstrip().startswith(mark := f">>{plain(code)}<<"):
                return replace(self, target=code), text.lstrip().removeprefix(mark).lstrip()
        return (self.ways_round[german_or_english(text)] if self.guesses else self), text

    def all_rows(self, given: Sequence[str], names: Sequence[str]) -> list[list[Row]]:
        ways = [self.directed(checked(one, name)) for one, name in zip(given, names, strict=True)]
        if all(way is self for way, _ in ways):  # read together, which is faster
            return super().all_rows(given, names)
        rows: list[list[Row]] = []
        for (way, text), name in zip(ways, names, strict=True):
            rows += super().all_rows([text], [name]) if way is self else way.all_rows([text], [name])
        return rows

    # --- texts ---

    def texts(self, given: str, what: str) -> list[Text]:
        found = super().texts(given, what)
        for text in found:
            assert isinstance(text, str)
            self.check_direction(text.removeprefix(self.before))
        return found

    def parted(self, given: str) -> Iterator[tuple[str, str]]:
        """What is read at once, each after the blanks before it."""
        way, given = self.directed(given)  # its code is a token of every part
        for gap, body in cut(given, self.unit):
            for blank, part in way.portions(body) if body else [("", "")]:
                yield gap + blank, part
                gap = ""

    def lead(self, given: str) -> int:
        return len(given) - len(self.directed(given)[1])

    def put(self, parted: Sequence[tuple[str, str]], parts: Sequence[Written]) -> list[str]:
        """Translations in the places of what they translate."""
        left = iter(parts)
        return [gap + (next(left).text if body else "") for gap, body in parted]


def plain(code: str) -> str:
    """A code without its arrows."""
    return code.removeprefix(">>").removesuffix("<<")


def bare(code: str) -> str:
    """A language's short name: of `>>de<<`, `de_DE` and `de` it is `de`."""
    return plain(code).split("_")[0]


def named(codes: Iterable[str]) -> list[str]:
    """Codes by their short names, or by their own where two would have the same."""
    short = Counter(map(bare, codes))
    return [bare(code) if short[bare(code)] == 1 else plain(code) for code in codes]


def cut(text: str, by: str) -> Iterator[tuple[str, str]]:
    """Lines, or sentences, each after the blanks before it; what is left at the end comes with no text."""
    gap = ""
    for place, line in enumerate(text.split("\n")):
        gap += "\n" if place else ""
        body = line.strip()
        start = line.index(body)
        gap += line[:start]
        if body:
            parts = SENTENCE.split(body) if by == "sentence" else [body]
            for part, blank in zip(parts[::2], [*parts[1::2], ""], strict=True):
                yield gap, part
                gap = blank
            gap = line[start + len(body) :]
    yield gap, ""
