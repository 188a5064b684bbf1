"""Complete: a text goes on. What is written comes whole, or in a stream as it is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from qkv.decode import Engine, Found, How
from qkv.decode.engine import LENGTH
from qkv.nn.transformer import Transformer
from qkv.tasks.base import Row, Text
from qkv.tasks.batching import at_rest
from qkv.tasks.checks import check_strings, checked
from qkv.tasks.write.base import Write
from qkv.text import Encoding

BROKEN = "\ufffd"  # what bytes are decoded to that are no character, or not yet
JOINS = re.compile(r"(?:(?: n)?(?: ?'[vr]?)? ?|@@)\Z")  # ends that tokenizers may join with more: do n 't


@dataclass(frozen=True)
class Completion:
    """The prompt and what comes after it; `new`: what comes after it alone; its log-probability over its
    length, and pieces; `reason`: it ended by an `end`, a `stop` or its `length`. `best` has others too."""

    text: str
    new: str
    score: float
    tokens: tuple[str, ...]
    reason: str
    best: tuple[Completion, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Complete(Write[str, Completion]):
    """`stop`: a text, or several, before which it ends; `code`: CTRL's control code, or one that the
    tokenizer was trained with. A prompt that is cut loses its beginning, to leave room for as many words as
    are wanted, but keeps half of what the model reads: `long="cut"` where it must be, `"window"` also where
    there would be less room. Models with a memory then read all of it."""

    name: ClassVar[str] = "complete"
    ways: ClassVar[tuple[str, ...]] = ("refuse", "cut", "window")
    stop: str | Sequence[str] = ()
    code: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strings(code=self.code)
        if not isinstance(self.stop, Sequence):
            raise ValueError(f"stop is {self.stop!r}, expected a text or several")
        for one in self.stops:
            if not isinstance(one, str) or not one:
                raise ValueError(f"stop is {one!r}, expected a text of one character or more")
        spoken = self.tokenizer.languages
        if self.code is not None and self.code not in spoken:
            if spoken or self.model.family.name != "ctrl":
                known = ", ".join(spoken) or "none, as this model knows no codes"
                raise ValueError(f"code is {self.code!r}, expected one of {known}")
            if self.tokenizer.id(self.code) in (None, self.tokenizer.unk):
                raise ValueError(f"code is {self.code!r}, expected a word of CTRL's, such as Links or Books")

    @property
    def part(self) -> str | None:
        return "text-generation"

    def settled(self, usual: How) -> dict[str, Any]:
        """A folder's `max_length` counts the prompt too, and GPT-2's is 50: a longer one could not go on."""
        return {"max_length": None}

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def limit(self) -> int:
        return max(super().limit - 1, 1)  # one is to be written

    def texts(self, given: str, what: str) -> list[Text]:
        words = self.code is not None and not self.tokenizer.languages
        return [f"{self.code} {checked(given, what)}" if words else checked(given, what)]

    def encode(self, texts: Sequence[Text]) -> list[Encoding]:
        """Tokens after which a text goes on: those that a tokenizer puts at its end are left out."""
        language = self.code if self.tokenizer.languages else None
        found = [one.opened() for one in self.tokenizer.encode_many(texts, language=language)]
        if self.code is None or language is not None:
            return found
        return [replace(one, sequence=[None, *one.sequence[1:]]) for one in found]  # a code is never cut off

    @property
    def remembers(self) -> bool:
        """Does the model read on from states of what it has read, of which it keeps so many and no more?"""
        assert isinstance(self.model.net, Transformer)
        recall = self.model.net.tower.stack.recall
        return recall is not None and bool(recall.length)

    def parts(self, whole: Encoding, what: str) -> list[Encoding]:
        room = self.limit + 1 - min(self.how.max_new or LENGTH, self.limit // 2)
        if self.long == "window" and len(whole) > room:
            return [whole] if self.remembers else [whole.cut(room, side="left")]
        if self.long == "cut" and len(whole) > self.limit:
            return [whole.cut(room, side="left")]
        return super().parts(whole, what)

    def request(self, row: Row) -> dict[str, Any]:
        return {"prompt": row.tokens.ids, "stop": self.stopper(row.tokens.ids) if self.stops else None}

    def stopper(self, prompt: list[int]) -> Callable[[list[int]], bool]:
        return lambda ids: self.ended(self.after(prompt, ids)) is not None

    def ended(self, new: str) -> int | None:
        """Where the first of the texts to stop at begins."""
        return min((place for one in self.stops if (place := new.find(one)) >= 0), default=None)

    def after(self, prompt: list[int], ids: Sequence[int]) -> str:
        """What ids say after a prompt."""
        words = self.words(ids)
        if not words:
            return ""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *words])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(words)

    def completion(self, given: str, prompt: list[int], found: Found) -> Completion:
        new = self.after(prompt, found.ids)
        new = new[: self.ended(new)]
        return Completion(given + new, new, found.score, self.pieces(found.ids), found.reason)

    def found(self, given: str, rows: Sequence[Row], said: Sequence[list[Found]]) -> Completion:
        best = tuple(self.completion(given, rows[0].tokens.ids, one) for one in said[0])
        return replace(best[0], best=best)

    def stream(self, given: str, /, **settings: Any) -> Iterator[str]:
        """What comes after a prompt, bit by bit; together it is `new`. Characters come whole, and nothing
        that may be the beginning of a text to stop at."""
        task = self.changed(settings)
        if task.how.copies > 1:
            raise ValueError(f"results is {task.how.copies}, expected one for a stream")
        assert isinstance(self.model.net, Transformer)
        ((row,),) = task.all_rows([given], ["text"])
        ids, sent = list[int](), ""
        with at_rest(self.model):
            engine = Engine(self.model.net)
            engine.admit(**task.request(row), how=task.how, seed=task.seed)
        while engine.busy:
            with at_rest(self.model):
                events = engine.step()
            for event in events:
                ids += event.ids
                done = event.results is not None
                said = ids if event.results is None else task.some(event.results)[0].ids
                new = task.after(row.tokens.ids, said)
                new = new[: task.ended(new)] if done else task.sure(new)
                if len(new) > len(sent) and (done or new.startswith(sent)):
                    yield new[len(sent) :]
                    sent = new

    def sure(self, new: str) -> str:
        """Without an end that may yet become something else."""
        new = JOINS.sub("", new.rstrip(BROKEN))
        ends = [size for one in self.stops for size in range(1, len(one)) if new.endswith(one[:size])]
        place = self.ended(new)
        return new[:place] if place is not None else new[: len(new) - max(ends, default=0)]
