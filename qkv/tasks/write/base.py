"""Write: what tasks that write have in common: settings of decoding, requests to the engine, n-best texts.

The folder's own settings (generation_config.json, an older config.json, a task's part of it) hold where the
user gives none."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

from qkv.decode import Found, How, read_how
from qkv.nn.transformer import Transformer
from qkv.spec import Spec
from qkv.tasks.alignment import Alignment, read_pieces, written_pieces
from qkv.tasks.base import ENDLESS, Given, Row, Task, Text
from qkv.tasks.checks import check_strings, checked, one_of
from qkv.tasks.chunking import begins, portions
from qkv.tasks.cross_attention import Looked, check_layer, look_back
from qkv.tasks.write.decoding import writer
from qkv.validate import number

DECODING = tuple(each.name for each in fields(How))
DRAWS = ("temperature", "top_k", "top_p", "min_p", "typical", "epsilon", "eta", "best_of")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Written:
    """A text, its log-probability over its length, as `length_penalty` has it, and its pieces.
    `best` has the next best too; `alignments`, where they are asked for, tell what each part that was read at
    once was made of."""

    text: str
    score: float
    tokens: tuple[str, ...]
    best: tuple[Written, ...] = ()
    alignments: tuple[Alignment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Write(Task[Given, Result]):
    """`seed`: of what is drawn; `decoding`: settings of `How`, which may also be given by their own names."""

    seed: int = 0
    decoding: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        super().__post_init__()
        number("seed", self.seed, whole=True, at_least=0, less_than=2**32)
        if not isinstance(self.decoding, Mapping):
            raise ValueError(f"decoding is {self.decoding!r}, expected settings by their names")
        for name in self.decoding:
            one_of("setting", name, DECODING)
        self.how  # noqa: B018  settings that are wrong are said now

    def changed(self, settings: dict[str, Any]) -> Self:
        own = [each.name for each in fields(self) if each.name != "model"]
        for name in settings:
            one_of("setting", name, [*own, *DECODING])
        given = {name: value for name, value in settings.items() if name not in own}
        rest = {name: value for name, value in settings.items() if name in own}
        if given:
            rest["decoding"] = {**self.decoding, **rest.get("decoding", {}), **given}
        return replace(self, **rest) if rest else self

    @property
    def part(self) -> str | None:
        """The task's name in a folder's `task_specific_params`."""
        return None

    @property
    def params(self) -> Mapping[str, Any]:
        """All parts of `task_specific_params`."""
        found = self.model.config.get("task_specific_params")
        return found if isinstance(found, dict) else {}

    @cached_property
    def how(self) -> How:
        """The folder's settings, and the user's on top. More results than beams are as many beams; a setting
        of drawing draws."""
        model, tokenizer, given = self.model, self.tokenizer, dict(self.decoding)
        usual = read_how(model.generation, model.config, self.part)
        if any(name in given for name in DRAWS) and not given.get("contrast"):
            given.setdefault("sample", True)
        results, beams = given.get("results"), given.get("beams", usual.beams)
        if isinstance(results, int) and "beams" not in given and not given.get("sample", usual.sample):
            given["beams"] = max(beams, results)
        end = next((one for one in (tokenizer.eos, tokenizer.sep) if one is not None), None)
        if not usual.ends and end is not None:
            given.setdefault("ends", (end,))
        if usual.start is None and model.args.get("start") is not None:
            given.setdefault("start", model.args["start"])
        for ours, other in (("max_length", "max_new"), ("min_length", "min_new")):
            if given.get(ours) is not None:
                given.setdefault(other, None)  # which else the folder's would win with
        return replace(usual, **{**self.settled(usual), **given})

    def settled(self, usual: How) -> dict[str, Any]:
        """Settings that follow from others of the task."""
        return {}

    @property
    def width(self) -> int:
        return max(self.how.beams, self.how.copies)

    @abstractmethod
    def request(self, row: Row) -> dict[str, Any]:
        """What the engine is asked: `Engine.admit`'s prompt or source, and what goes with it."""

    def ask(self, rows: Sequence[Row]) -> list[list[Found]]:
        """The results of every row. All draw with one seed: none depends on its place among others."""
        assert isinstance(self.model.net, Transformer)
        results = dict[int, list[Found]]()
        with writer(self.model.net, len(rows) * self.width) as engine:
            tickets = [engine.admit(**self.request(row), how=self.how, seed=self.seed) for row in rows]
            while engine.busy:
                results |= {e.ticket: e.results for e in engine.step() if e.results is not None}
        return [self.some(results[ticket]) for ticket in tickets]

    def some(self, results: list[Found]) -> list[Found]:
        """Results, of which there is at least one, the best first: what is drawn comes in any order."""
        if not results:
            right = "expected one nearer to 0, or fewer words that are forbidden"
            raise ValueError(f"no result: length_penalty is {self.how.length_penalty:g}; {right}")
        return sorted(results, key=lambda one: one.score, reverse=True)

    def words(self, ids: Sequence[int]) -> list[int]:
        """Without ids that only fill up the network's vocabulary, and have no text."""
        return [one for one in ids if one < len(self.tokenizer)]

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tokenizer.token(one) for one in self.words(ids))


@dataclass(frozen=True, kw_only=True)
class Rewrite(Write[str, Written]):
    """An encoder reads a text, a decoder writes another. `prefix`: what stands before a text, as T5's tasks
    are named; without it, as the folder says. `alignment`: tells what a text was made of, by the decoder's
    layer of this number, by the "penultimate" one, or by the "mean" of all; it costs a forward."""

    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    prefix: str | None = None
    alignment: str | int | None = None

    def __post_init__(self) -> None:
        check_strings(prefix=self.prefix)
        super().__post_init__()
        assert isinstance(self.model.net, Transformer)
        check_layer(self.alignment, len(self.model.net.tower.order))

    @property
    def limit(self) -> int:
        """Where only distances count, as in T5, a tokenizer's limit is for texts that are to be cut alone."""
        spec = self.model.spec
        assert isinstance(spec, Spec)
        assert spec.encoder is not None
        if self.long != "refuse" or spec.encoder.embed.positions is not None:
            return super().limit
        return self.length or ENDLESS

    def request(self, row: Row) -> dict[str, Any]:
        return {"source": row.tokens.ids}

    def portions(self, text: str) -> Iterator[tuple[str, str]]:
        """Parts that are read one by one, each after the blanks before it: of a text that is too long, as
        many as it takes."""
        if self.long == "window":
            return portions(text, self.limit, lambda part: self.encode([part])[0], self.before)
        return iter([("", text)])

    @property
    def before(self) -> str:
        """The prefix, as it is given or as the folder says."""
        if self.prefix is not None:
            return self.prefix
        own = self.params.get(self.part or "")
        found = own.get("prefix") if isinstance(own, dict) else None
        return str(found if found is not None else self.model.config.get("prefix") or "")

    def ask(self, rows: Sequence[Row]) -> list[list[Found]]:
        said = super().ask(rows)
        if self.alignment is None:
            return said
        net, flat = self.model.net, [one for found in said for one in found]
        assert isinstance(net, Transformer)
        sources = [row.tokens.ids for row, found in zip(rows, said, strict=True) for _ in found]
        looked = iter(look_back(net, sources, flat, self.how, self.alignment))
        return [[next(looked) for _ in found] for found in said]

    def written(self, found: Found, row: Row | None = None, given: str = "", at: int = 0) -> Written:
        """A result as a text, and what it was made of in a row whose text stands at that place of what was
        given, if that is known."""
        ids = self.words(found.ids)
        made = Written(self.tokenizer.decode(ids).strip(), found.score, self.pieces(ids))
        if row is None or not isinstance(found, Looked):
            return made
        source = read_pieces(self.tokenizer, row.tokens, given, at, self.before)
        target = written_pieces(self.tokenizer, ids, made.text)
        looks = [looks for one, looks in zip(found.ids, found.weights, strict=True) if self.words([one])]
        weights = tuple(tuple(each[: len(source)]) for each in looks)
        return replace(made, alignments=(Alignment(source, target, weights),))

    def parted(self, given: str) -> Iterator[tuple[str, str]]:
        """What is read at once, each after the blanks before it."""
        return self.portions(given)

    def texts(self, given: str, what: str) -> list[Text]:
        return [self.before + body for _, body in self.parted(checked(given, what)) if body]

    def found(self, given: str, rows: Sequence[Row], said: Sequence[list[Found]]) -> Written:
        parted = [*self.parted(given)]
        read, lead = zip(rows, begins(parted), said, strict=True), self.lead(given)
        parts = [[self.written(one, row, given, at + lead) for one in each] for row, at, each in read]
        best = tuple(joined(each, self.put(parted, each)) for each in zip(*parts, strict=False))
        return replace(best[0], best=best)

    def lead(self, given: str) -> int:
        """Letters before what is read: none, unless a text may say more than itself."""
        return 0

    @abstractmethod
    def put(self, parted: Sequence[tuple[str, str]], parts: Sequence[Written]) -> list[str]:
        """What was written of each part, and what stands between; one after the other they are the text."""


def joined(parts: Sequence[Written], texts: Sequence[str]) -> Written:
    """Parts of one text, each at the end of one of the texts: their scores are added."""
    tokens = tuple(piece for part in parts for piece in part.tokens)
    ends = zip(parts, accumulate(map(len, texts)), strict=False)
    moved = tuple(one.moved(end - len(part.text)) for part, end in ends for one in part.alignments)
    return Written("".join(texts), math.fsum(part.score for part in parts), tokens, alignments=moved)
