"""Pool: prompts whose rows step together, each with `width` rows. Rows join, fork and leave between steps.

N rows of the pool, P prompts, L the room for their ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.config import How
from qkv.decode.logits.processors import Seen
from qkv.decode.request import Choice, Entry, Event, Found, Group, See, below
from qkv.decode.runner import Read, Reads, held, laid, of_places
from qkv.decode.search.beam import beam
from qkv.decode.search.contrastive import contrast
from qkv.decode.search.greedy import walk
from qkv.decode.transfer import sent

Method = Callable[[Group, Read, See], Choice]
Outcome = tuple[list[Event], list[tuple[Entry, list[Found]]]]  # and what entries that are done have found
Chosen = tuple[Group, Tensor | None, Choice]  # by the rows of a group; None: all


def method_of(how: How) -> tuple[Method, int]:
    """What chooses, and the rows that it needs for one prompt."""
    if how.beams > 1:
        return beam, how.beams
    return (contrast, how.top_k) if how.contrast else (walk, 1)


class Pool:
    def __init__(self, reader: Reads) -> None:
        self.reader, self.width = reader, reader.width
        self.entries: list[Entry] = []  # by their place
        self.groups: dict[How, Group] = {}
        self.table: dict[str, Tensor] = {}  # of every row: ids (N, L), and (N,) length, prompt, most, feed

    def join(self, entries: list[Entry]) -> Outcome:
        """Reads prompts and takes their first step; copies of one prompt read it once."""
        firsts = {*{entry.ticket: entry for entry in reversed(entries)}.values()}
        once = [entry for entry in entries if entry in firsts]
        again = [entry for entry in entries if entry not in firsts]
        order, start = {entry.ticket: i for i, entry in enumerate(once)}, len(self.entries)
        read = self.reader.enter([entry.prompt for entry in once], [entry.source for entry in once])
        if again:
            self.reader.repeat([start + order[entry.ticket] for entry in again])
        self.write_down([*once, *again])
        fresh: dict[How, list[Entry]] = {}
        for entry in self.entries[start:]:
            fresh.setdefault(entry.how, []).append(entry)
        choices = []
        for how, some in fresh.items():
            group = Group(how, some, self.reader.device)
            index = group.tensor([order[entry.ticket] for entry in some])
            choices.append(self.choose(group, self.rows(group), Read(read.logits[index], read.hidden[index])))
        return self.go_on(choices)

    def step(self) -> Outcome:
        """All rows read their next id, and every group chooses."""
        read = self.reader.step(self.table["feed"][:, None])
        if len(self.groups) == 1:
            return self.go_on([self.choose(group, None, read) for group in self.groups.values()])
        rows = [(group, self.rows(group)) for group in self.groups.values()]
        return self.go_on(
            [self.choose(group, of, Read(read.logits[of], read.hidden[of])) for group, of in rows]
        )

    def write_down(self, entries: list[Entry]) -> None:
        """Rows for these entries, below those that are there."""
        device, rows = self.reader.device, [entry for entry in entries for _ in range(self.width)]
        ids, length = laid([entry.prompt for entry in rows], device)
        most = sent([entry.most for entry in rows], device)
        new = {"ids": ids, "length": length, "prompt": length.clone(), "most": most, "feed": length.clone()}
        self.table = {name: below(self.table[name], x) if self.table else x for name, x in new.items()}
        for entry in entries:
            entry.place = len(self.entries)
            self.entries.append(entry)

    def rows(self, group: Group) -> Tensor:
        """The rows of a group, prompt by prompt."""
        return group.tensor(of_places([entry.place for entry in group.entries], self.width))

    def choose(self, group: Group, rows: Tensor | None, read: Read) -> Chosen:
        """What a group chooses; None: its rows are all rows."""
        method, _ = method_of(group.how)
        return group, rows, method(group, read, cache(partial(self.see, group, rows)))

    def see(self, group: Group, rows: Tensor | None) -> Seen:
        """What rules may know of these rows."""
        longest = max(entry.length for entry in group.entries)
        names = ("ids", "length", "prompt", "most")
        ids, length, prompt, most = (
            self.table[name] if rows is None else self.table[name][rows] for name in names
        )
        source = group.state.get("source")
        return Seen(
            ids=ids[:, :longest], length=length, prompt=prompt, most=most, width=self.width,
            source=None if source is None else source.repeat_interleave(self.width, dim=0) - 1,
            allowed=tuple(entry.allowed for entry in group.entries for _ in range(self.width))
            if any(entry.allowed for entry in group.entries) else (),
        )  # fmt: skip

    def go_on(self, choices: list[Chosen]) -> Outcome:
        """Rows go on from their parents, with what they have said; then the host hears of it, and what is
        done leaves."""
        self.follow(choices)
        longest = max(entry.length for entry in self.entries) + 1
        if longest > self.table["ids"].shape[1]:
            self.table["ids"] = F.pad(self.table["ids"], (0, longest))
        ids, length, feed = (self.table[name] for name in ("ids", "length", "feed"))
        for _, rows, choice in choices:
            if rows is None:
                feed.copy_(choice.feed)
                if choice.said is not None:
                    ids.scatter_(1, length[:, None], choice.said[:, None])
                    length += 1
                continue
            feed[rows] = choice.feed
            if choice.said is not None:
                ids[rows, length[rows]] = choice.said
                length[rows] += 1
        news = [(group, choice.tell()) for group, _, choice in choices]
        events = [event for _, some in news for event in some.events]
        done = [(group.entries[i], found) for group, some in news for i, found in some.done.items()]
        for group in [group for group, *_ in choices if group.fresh]:
            group.fresh = False
            if self.groups.setdefault(group.how, group) is not group:
                self.groups[group.how].admit(group)
        if done:
            self.leave({entry for entry, _ in done})
        return events, done

    def follow(self, choices: list[Chosen]) -> None:
        """Rows take over what their parents have read and said; fresh rows are alike as they are."""
        parents = None
        for group, rows, choice in choices:
            if choice.parents is None or group.fresh:
                continue
            if rows is None:
                parents = choice.parents
                continue
            if parents is None:
                parents = torch.arange(len(self.entries) * self.width, device=self.reader.device)
            parents[rows] = rows[choice.parents]
        if parents is not None:
            shared = min(len(entry.prompt) for entry in self.entries)  # all rows of a prompt begin with it
            self.reader.select(parents, self.table["ids"], shared)
            self.table["ids"] = self.table["ids"].index_select(0, parents)

    def leave(self, entries: set[Entry]) -> None:
        """These leave; the last ones take their places."""
        gone = {entry.place for entry in entries}
        count = len(self.entries) - len(gone)
        holes = sorted(place for place in gone if place < count)
        late = [place for place in range(count, len(self.entries)) if place not in gone]
        moves = [*zip(late, holes, strict=True)]
        self.reader.leave(moves, count)
        places = held([*range(len(self.entries))], late, holes, count)
        index = sent(of_places(places, self.width), self.reader.device)
        self.table = {name: x.index_select(0, index) for name, x in self.table.items()}
        self.entries = [self.entries[place] for place in places]
        for place, entry in enumerate(self.entries):
            entry.place = place
        for how, group in [*self.groups.items()]:
            stay = [i for i, entry in enumerate(group.entries) if entry not in entries]
            group.keep(sorted(stay, key=lambda i: group.entries[i].place))
            if not group.entries:
                del self.groups[how]
