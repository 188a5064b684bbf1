"""Task: what all tasks have in common: their settings, rows that fit the model, batches, results in order.

    given ─ texts ─ rows of tokens ─ batches by length ─ net ─ what each row says ─ results

B rows, T tokens of the longest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from qkv.batch import Batch
from qkv.data.batches.collate import beside
from qkv.model.inputs import check_inputs, make_batch, room
from qkv.model.model import Model
from qkv.spec import XL, Spec, Stack, Two
from qkv.tasks.batching import Progress, at_rest, by_length, far
from qkv.tasks.checks import check_flags, checked, listed, one_of
from qkv.tasks.requirements import check_fits
from qkv.text import Encoding, Tokenizer
from qkv.validate import number

ENDLESS = 8192  # tokens that are read at once where neither the model nor its tokenizer has a limit
AT_ONCE = 1024  # texts that are encoded, sorted by length and held at a time

Text: TypeAlias = str | tuple[str, str]
Out: TypeAlias = dict[str, Tensor]
Given = TypeVar("Given")
Found = TypeVar("Found")


class Row(NamedTuple):
    """What the network reads at once: a text, or a window of it; and the tokens that are asked about."""

    tokens: Encoding
    ask: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[Given, Found]):
    """A model and the settings of a task; a call may give other settings for itself.

    `length`: tokens that are read at once, where it is to be fewer than the model can; `long`: what becomes
    of a text that has more; `stride`: tokens that neighbouring windows share."""

    name: ClassVar[str]
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut")
    model: Model
    long: str = "refuse"
    length: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        check_fits(self.model, self.name)
        if self.model.tokenizer is None:
            raise ValueError(
                f"`{self.name}`: the model has no tokenizer; expected its files beside the weights"
            )
        check_flags(self)
        one_of("long", self.long, self.ways)
        if self.length is not None:
            number("length", self.length, whole=True, at_least=1)
        if self.stride is not None:
            number("stride", self.stride, whole=True, at_least=0)

    def __call__(self, given: Given, /, **settings: Any) -> Found:
        """The result for one text."""
        return self.changed(settings).results([given])[0]

    def many(
        self, given: Iterable[Given], /, *, batch_tokens: int = 4096, progress: Progress = False,
        **settings: Any,
    ) -> list[Found]:  # fmt: skip
        """The results for many texts, in their order; `batch_tokens` with pads are read at once."""
        return self.changed(settings).results(listed("many", given), batch_tokens, progress)

    def changed(self, settings: dict[str, Any]) -> Self:
        """The same task with other settings."""
        known = [field.name for field in fields(self) if field.name != "model"]
        for name in settings:
            one_of("setting", name, known)
        return replace(self, **settings) if settings else self

    # --- what a task says of itself ---

    def texts(self, given: Given, what: str) -> list[Text]:
        """The texts, or pairs of them, that are asked of one input; `what` names it in complaints."""
        return [checked(given, what)]

    def rows(self, whole: Encoding, what: str) -> list[Row]:
        """A text as what the network reads: itself, its beginning, or its windows."""
        return [Row(part) for part in self.parts(whole, what)]

    def ids(self, row: Row) -> list[int]:
        return row.tokens.ids

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        return self.tokenizer.encode_many(texts)

    def ask(self, rows: Sequence[Row]) -> list[Any]:
        """What comes of rows that go through the network together: of one forward, what `read` reads."""
        return self.read(*self.run(rows), rows)

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Any]:
        """What the network says of every row; a task without it has its own `ask`."""
        raise NotImplementedError

    @abstractmethod
    def found(self, given: Given, rows: Sequence[Row], said: Sequence[Any]) -> Found:
        """The result for an input, out of what was said of all of its rows."""

    # --- what all share ---

    @property
    def tokenizer(self) -> Tokenizer:
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    @property
    def limit(self) -> int:
        """The most tokens that are read at once."""
        spec = self.model.spec
        text = spec.text if isinstance(spec, Two) else spec
        assert text is not None
        stacks = [text.encoder, text.decoder if text.encoder is None or text.shift else None]
        sizes = [room(stack) for stack in stacks if stack]
        return min((n for n in (*sizes, self.tokenizer.limit, self.length) if n is not None), default=ENDLESS)

    @property
    def width(self) -> int:
        """So many rows of the network are one of ours."""
        return 1

    def shared(self, whole: Encoding) -> int:
        """The tokens that neighbouring windows of a text share; what stays, such as a question, is in all."""
        usual, slides = min(self.limit // 2, 128), whole.sequence.count(1 if 1 in whole.sequence else 0)
        room = self.limit - (len(whole) - slides)
        return self.stride if self.stride is not None else usual if usual < room else room // 2

    def cut(self, whole: Encoding) -> Encoding:
        """As much of a text as the model can read."""
        return whole.cut(self.limit)

    def parts(self, whole: Encoding, what: str) -> list[Encoding]:
        """A text in parts that the model can read."""
        if all(owner is None for owner in whole.sequence):
            raise ValueError(f"{what}: nothing in it that this tokenizer knows; expected words")
        limit = self.limit
        if len(whole) <= limit:
            return [whole]
        if self.long == "window":
            return whole.windows(limit, stride=self.shared(whole))
        if self.long == "cut":
            return [self.cut(whole)]
        more = f"{len(whole) - limit:,} more than the {limit:,} that are read at once"
        ways = " or ".join(way for way in self.ways if way != "refuse")
        raise ValueError(f"{what}: {len(whole):,} tokens, {more}; shorten it, or set long to {ways}")

    def results(
        self, given: Sequence[Given], batch_tokens: int = 4096, progress: Progress = False
    ) -> list[Found]:
        """The results for all, by these settings."""
        number("batch_tokens", batch_tokens, whole=True, at_least=1)
        found: list[Found] = []
        with at_rest(self.model):
            for start in range(0, len(given), AT_ONCE):
                some = given[start : start + AT_ONCE]
                names = [f"text {start + i + 1}" if len(given) > 1 else "text" for i in range(len(some))]
                rows = self.all_rows(some, names)
                here, all_of_them = len(some), len(given)
                if (
                    all_of_them <= AT_ONCE
                ):  # then it is known how many rows there are: lines of a file, windows
                    here = all_of_them = max(sum(map(len, rows)), here)
                tell = far(self.name, start, here, all_of_them, progress)
                said = iter(self.said([row for each in rows for row in each], batch_tokens, tell))
                both = zip(some, rows, strict=True)
                found += [self.found(one, each, [next(said) for _ in each]) for one, each in both]
        return found

    def all_rows(self, given: Sequence[Given], names: Sequence[str]) -> list[list[Row]]:
        """The rows of every input, whose texts are encoded together."""
        texts = [self.texts(one, what) for one, what in zip(given, names, strict=True)]
        encoded = iter(self.encode([text for each in texts for text in each]))
        both = zip(texts, names, strict=True)
        return [[row for _ in each for row in self.rows(next(encoded), what)] for each, what in both]

    def said(self, rows: Sequence[Row], batch_tokens: int, tell: Callable[[float], None]) -> list[Any]:
        """What is said of every row, in their order; they are read by length, the longest first."""
        said: list[Any] = [None] * len(rows)
        done = 0
        for places in by_length([len(row.tokens) for row in rows], batch_tokens // self.width):
            some = [rows[place] for place in places]
            for place, one in zip(places, self.ask(some), strict=True):
                said[place] = one
            done += len(some)
            tell(done / len(rows))
        return said

    def run(self, rows: Sequence[Row]) -> tuple[Out, Batch]:
        """One forward."""
        batch = self.batch(rows)
        return self.model.net(batch), batch

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Rows side by side; where tokens are asked about, a head for all reads these alone."""
        model, spec = self.model, self.model.spec
        ids = beside([np.array(self.ids(row)) for row in rows], self.tokenizer.pad or 0)
        given: dict[str, Any] = {
            "ids": ids,
            "mask": beside([np.ones(len(row.tokens), np.int64) for row in rows], 0) > 0,
        }
        if isinstance(spec, Spec) and reads_types(spec):
            given["types"] = beside([np.array(row.tokens.types) for row in rows], 0)
        check_inputs(spec, given)
        batch = make_batch(spec, **{name: x.to(model.device) for name, x in given.items()})
        places = [i * ids.shape[1] + place for i, row in enumerate(rows) for place in row.ask]
        return replace(batch, read=torch.tensor(places, device=model.device)) if places else batch


def reads_types(spec: Spec) -> bool:
    """Are there segments to tell apart? GPT's types are tokens that a task has no use for."""
    first: Stack = spec.encoder or spec.decoder  # type: ignore[assignment]
    relate = first.layers[0].attend.relate
    return (isinstance(first.embed.types, int) and first.embed.types > 1) or (
        isinstance(relate, XL) and relate.segments
    )


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Without blanks at the ends, which some tokenizers count to a word."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, max(start, start + len(part.strip()))


def labels_of(model: Model, count: int) -> tuple[str, ...]:
    """The names of a head's labels, as config.json has them."""
    named = model.config.get("id2label") or {}
    return tuple(str(named.get(str(i), named.get(i, f"LABEL_{i}"))) for i in range(count))
