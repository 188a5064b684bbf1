"""Engine: prompts come, step together, and go. Knows ids, no text.

engine = Engine(net)
ticket = engine.admit([15, 27], how=How(max_new=20))     # at any time
while engine.busy:
    for event in engine.step():                          # ids as they are said; results at the end
        ...
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from qkv.decode.config import How, short
from qkv.decode.generation_config import check_ids
from qkv.decode.logits.forced_words import least_room
from qkv.decode.logits.processors import Allowed
from qkv.decode.pool import Pool, method_of
from qkv.decode.request import Entry, Event, Found, Stop
from qkv.decode.runner import Reader, room_of
from qkv.decode.search.speculative import Speculating
from qkv.decode.segment_runner import Recurrence
from qkv.kernels.attention import without_cudnn
from qkv.nn.transformer import Transformer

LENGTH = 256  # new ids, where no setting says how many
MOST = 1 << 30  # rows, where there is no limit


Source = Sequence[int] | Tensor


class Engine:
    """Reads for many at once; each request has settings of its own, and no row depends on another.

    `draft`: a smaller net with the same words, which proposes ids. `rows`: no more of them at a time."""

    def __init__(
        self, net: Transformer, *, draft: Transformer | None = None, rows: int | None = None,
        static: bool = False,
    ) -> None:  # fmt: skip
        if net.training:
            raise ValueError("the net is in training mode, and would drop what it reads: call net.eval()")
        self.net, self.draft, self.limit, self.static = net, draft, rows, static
        self.pair, self.recurs = net.encoder is not None and net.decoder is not None, recurs(net)
        self.words, self.room = words_of(net), room_of(net.tower)
        if draft is not None:
            check_draft(net, draft)
        self.waiting: list[Entry] = []
        self.pools: dict[Hashable, Pool] = {}
        self.found: dict[int, dict[int, list[Found]]] = {}  # by ticket and copy
        self.last, self.steps = -1, 0

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(pool.entries for pool in self.pools.values())

    def admit(
        self, prompt: Sequence[int] = (), *, source: Source | None = None,
        how: How | None = None, seed: int = 0, allowed: Allowed | None = None, stop: Stop | None = None,
    ) -> int:  # fmt: skip
        """A request, which is read at the next step; a `source` is ids, or states (S, W) to cross to.

        `allowed` gives the ids that may follow the new ids so far; `stop` ends a row after them."""
        how = how or How()
        self.check(how)
        ids = self.begun(list(prompt), source, how)
        most = self.most(ids, how)
        self.last += 1
        self.waiting += [
            Entry(
                ticket=self.last, how=how, prompt=ids, most=most, seed=seed + (copy << 32), copy=copy,
                source=list(source) if isinstance(source, Sequence) else source, allowed=allowed, stop=stop,
            )
            for copy in range(how.copies)
        ]  # fmt: skip
        return self.last

    def check(self, how: How) -> None:
        """Can this net do that?"""
        check_ids(how, self.words)
        if how.contrast and how.top_k > self.words:
            raise ValueError(
                f"top_k is {how.top_k} with contrast, expected no more than {self.words:,} words"
            )
        if self.recurs and (how.contrast or self.draft is not None):
            what = "contrast" if how.contrast else "a draft"
            raise ValueError(f"{what} takes steps back, which a recurrence cannot: leave it out")
        if self.draft is not None and (how.beams > 1 or how.contrast):
            raise ValueError("a draft serves rows that are greedy or drawn: leave out beams and contrast")

    def begun(self, prompt: list[int], source: Source | None, how: How) -> list[int]:
        """What the row begins with."""
        check_prompt("prompt", prompt, self.words)
        if not self.pair:
            prompt = prompt or ([] if how.begin is None else [how.begin])
            if not prompt:
                raise ValueError("prompt is empty, expected one id at least, or `begin` among the settings")
            self.check_room(prompt)
            return prompt
        if source is None or not len(source):
            raise ValueError("source is empty, expected the ids that the encoder reads")
        encoder = self.net.encoder
        assert encoder is not None
        check_prompt("source", source, encoder.stack.embed.vocab)
        room = room_of(encoder)
        if room is not None and len(source) > room:
            raise ValueError(f"a source of {len(source)} ids, and the encoder has {room} positions: cut it")
        shift = self.net.spec.shift
        start = how.start if how.start is not None else shift.first if shift else how.begin
        if start is None:
            raise ValueError("an encoder-decoder's row needs an id to begin with: set `start`")
        return prompt if prompt[:1] == [start] else [start, *prompt]

    def check_room(self, prompt: list[int]) -> None:
        """Does a draft read as much? The net itself is asked by `most`."""
        room = None if self.draft is None else room_of(self.draft.tower)
        if room is not None and len(prompt) > room:
            raise ValueError(f"a prompt of {len(prompt)} ids, and the draft has {room} positions: cut it")

    def most(self, ids: list[int], how: How) -> int:
        """How long the row may become."""
        wanted = len(ids) + LENGTH if how.max_length is None else how.max_length
        wanted = wanted if how.max_new is None else len(ids) + how.max_new
        most = wanted if self.room is None else min(wanted, self.room)
        if len(ids) >= most:
            by = f"max_length is {wanted}" if most == wanted else f"the model has {self.room} positions"
            raise ValueError(f"a prompt of {len(ids)} ids leaves no room: {by}")
        needed = least_room(how.words)
        if needed > most - len(ids):
            raise ValueError(f"words of {needed} ids, and room for {most - len(ids)}: set max_new higher")
        return most

    @torch.inference_mode()
    @without_cudnn()
    def step(self) -> list[Event]:
        """All rows that go on say their next ids, and requests that wait their first."""
        events: list[Event] = []
        self.steps += 1
        for pool in self.pools.values():
            events += self.tell(*pool.step()) if pool.entries else []
        self.clear()
        for pool, entries in self.seated(self.taken()):
            events += self.tell(*pool.join(entries))
        self.clear()
        return events

    def clear(self) -> None:
        """Pools without rows are given up where no other will be like them; the rest keep their buffers."""
        if self.recurs or self.draft is not None:
            self.pools = {key: pool for key, pool in self.pools.items() if pool.entries}

    def taken(self) -> list[Entry]:
        """Those that wait, as far as there is room for their rows; copies of one prompt go together."""
        used = sum(len(pool.entries) * pool.width for pool in self.pools.values())
        room = MOST if self.limit is None else self.limit - used
        count, tickets = 0, {entry.ticket: 0 for entry in self.waiting}
        for entry in self.waiting:
            tickets[entry.ticket] += method_of(entry.how)[1]
        taken: set[int] = set()
        for ticket, rows in tickets.items():
            if count + rows > room and (count or used):  # one that is too large goes alone
                break
            taken, count = taken | {ticket}, count + rows
        found = [entry for entry in self.waiting if entry.ticket in taken]
        self.waiting = [entry for entry in self.waiting if entry.ticket not in taken]
        return found

    def seated(self, entries: list[Entry]) -> list[tuple[Pool, list[Entry]]]:
        """The pools that entries join."""
        found: dict[Hashable, list[Entry]] = {}
        for entry in entries:
            width = method_of(entry.how)[1]
            key: Hashable = width if self.draft is None else (width, entry.how)
            if self.recurs:  # rows begin together, with prompts of one length
                key = (width, len(entry.prompt), self.steps)
            if key not in self.pools:
                self.pools[key] = self.pool(width)
            found.setdefault(key, []).append(entry)
        return [(self.pools[key], part) for key, some in found.items() for part in alike(some)]

    def pool(self, width: int) -> Pool:
        if self.recurs:
            return Pool(Recurrence(self.net, width))
        reader = Reader(self.net, width, self.static)
        return Pool(reader) if self.draft is None else Speculating(reader, Reader(self.draft))

    def tell(self, events: list[Event], done: list[tuple[Entry, list[Found]]]) -> list[Event]:
        """Events, with the results where all rows of a request are done."""
        ready: dict[tuple[int, int], list[Found]] = {}
        for entry, found in done:
            mine = self.found.setdefault(entry.ticket, {})
            mine[entry.copy] = found
            if len(mine) == entry.how.copies:
                del self.found[entry.ticket]
                ready[entry.ticket, entry.copy] = ranked(entry.how, mine)
        if not ready:
            return events
        return [event._replace(results=ready.get((event.ticket, event.copy))) for event in events]

    @torch.inference_mode()
    def drop(self, ticket: int) -> None:
        """Forgets a request."""
        self.waiting = [entry for entry in self.waiting if entry.ticket != ticket]
        self.found.pop(ticket, None)
        for pool in self.pools.values():
            gone = {entry for entry in pool.entries if entry.ticket == ticket}
            if gone:
                pool.leave(gone)
        self.clear()


def ranked(how: How, found: dict[int, list[Found]]) -> list[Found]:
    """The results of all copies: in their order, or the likeliest first where only some come back."""
    every = [one for copy in sorted(found) for one in found[copy]]
    if how.best_of is not None:
        every = sorted(every, key=lambda one: -one.score)
    return every[: how.results]


def generate(
    net: Transformer | Engine, prompts: Sequence[Sequence[int]] | None = None, *,
    sources: Sequence[Sequence[int]] | None = None, how: How | None = None, seed: int = 0,
    allowed: Allowed | None = None, stop: Stop | None = None, draft: Transformer | None = None,
    batch: int | None = None,
) -> list[list[Found]]:  # fmt: skip
    """The results of every prompt, or source, in their order; `batch` of them at a time, of like length.

    Row i draws with `seed` + i; the rest is as in `Engine.admit`. An engine that is given goes on living."""
    engine = net if isinstance(net, Engine) else Engine(net, draft=draft)
    if engine.busy:
        raise ValueError("the engine has rows of others, expected one that is idle: their results were lost")
    rows = [*zip_longest(prompts or [], sources or [])]
    order = sorted(range(len(rows)), key=lambda i: sum(len(each) for each in rows[i] if each is not None))
    size, found = batch or max(len(rows), 1), dict[int, list[Found]]()
    for some in (order[i : i + size] for i in range(0, len(order), size)):
        tickets = {}
        for i in some:
            prompt, source = rows[i]
            ticket = engine.admit(
                prompt or (), source=source, how=how, seed=seed + i, allowed=allowed, stop=stop
            )
            tickets[ticket] = i
        while engine.busy:
            found |= {tickets[e.ticket]: e.results for e in engine.step() if e.results is not None}
    return [found[i] for i in range(len(rows))]


def stream(
    net: Transformer, prompt: Sequence[int] = (), *, source: Sequence[int] | None = None,
    how: How | None = None, seed: int = 0, draft: Transformer | None = None,
) -> Iterator[Event]:  # fmt: skip
    """What comes of one prompt, event by event; the last one has the results."""
    engine = Engine(net, draft=draft)
    engine.admit(prompt, source=source, how=how, seed=seed)
    while engine.busy:
        yield from engine.step()


def alike(entries: list[Entry]) -> list[list[Entry]]:
    """Entries in parts of like length: what is read together is filled up to the longest."""
    parts: list[list[Entry]] = []
    for entry in sorted(entries, key=lambda entry: entry.reads):
        if not parts or (entry.reads > 1.25 * parts[-1][0].reads + 4 and len(parts[-1]) >= 4):
            parts.append([])
        parts[-1].append(entry)
    return parts


def words_of(net: Transformer) -> int:
    return net.tower.stack.embed.vocab


def recurs(net: Transformer) -> bool:
    return net.tower.stack.recall is not None


def check_prompt(name: str, ids: Source, words: int) -> None:
    wrong = [each for each in ids if type(each) is not int or not 0 <= each < words]
    if wrong:
        raise ValueError(f"{name} holds {short(wrong[0])}, expected ids from 0 to {words - 1:,}")


def check_draft(net: Transformer, draft: Transformer) -> None:
    if words_of(net) != words_of(draft):
        raise ValueError(f"the draft has {words_of(draft):,} words, expected the net's {words_of(net):,}")
    if (net.encoder is None) != (draft.encoder is None) or recurs(draft):
        raise ValueError("the draft is of another shape, expected a decoder to a decoder, a pair to a pair")
