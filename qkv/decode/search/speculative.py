"""Speculative decoding (Leviathan et al. 2022): a small net proposes ids, a large one reads them all at once.

What comes out is what the large net alone would say: the same ids where the likeliest is taken, the same
distribution where ids are drawn. P rows, g ids proposed for each, V words."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.logits.processors import Seen
from qkv.decode.logits.sampling import draw, uniform
from qkv.decode.pool import Outcome, Pool
from qkv.decode.request import Event, Group
from qkv.decode.runner import Moves, Prompts, Read, Reader, Sources
from qkv.decode.search.greedy import weighed

DRAFT, ACCEPT, REST = 1, 2, 3  # streams of random numbers


class Doubled:
    """Two readers of the same rows: of the large net, and of the one that drafts."""

    width = 1

    def __init__(self, large: Reader, draft: Reader) -> None:
        self.large, self.draft, self.device = large, draft, large.device

    def enter(self, prompts: Prompts, sources: Sources) -> Read:
        self.draft.enter(prompts, sources)
        return self.large.enter(prompts, sources)

    def repeat(self, places: list[int]) -> None:
        self.draft.repeat(places)
        self.large.repeat(places)

    def step(self, ids: Tensor) -> Read:
        return self.large.step(ids)

    def select(self, parents: Tensor, ids: Tensor, alike: int) -> None:
        self.draft.select(parents, ids, alike)
        self.large.select(parents, ids, alike)

    def leave(self, moves: Moves, count: int) -> None:
        self.draft.leave(moves, count)
        self.large.leave(moves, count)


class Speculating(Pool):
    """A pool of one setting, whose rows say several ids in a step."""

    def __init__(self, large: Reader, draft: Reader) -> None:
        self.two = Doubled(large, draft)
        super().__init__(self.two)

    def step(self) -> Outcome:
        (group,) = self.groups.values()
        seen = self.see(group, None)
        draft = self.propose(group, seen)
        read = self.two.large.step(torch.cat([self.table["feed"][:, None], draft.words], dim=1))
        after = [weighed(group, read.logits[:, i], seen) for i, seen in enumerate(draft.seen)]
        scores = torch.stack(after, dim=1)  # (P, g + 1, V)
        words, right = (drawn if group.how.sample else likeliest)(group, scores, draft)
        logs = scores.log_softmax(-1).gather(2, words[..., None])[..., 0]
        return self.say(group, words, logs, right)

    def propose(self, group: Group, seen: Seen) -> Draft:
        """The ids that the draft would say. It may not have read the last but one: it reads two again."""
        reader, found = self.two.draft, Draft(seen)
        reader.cut([entry.length - 2 for entry in group.entries])
        feed = seen.tail(2)
        for i in range(group.how.drafts):
            logits = reader.step(feed).logits
            scores = weighed(group, logits[:, -1] if logits.dim() == 3 else logits, found.seen[-1])
            step = group.tensor([len(entry.ids) + i for entry in group.entries])
            word = (
                draw(scores, uniform(group.state["seed"], step, DRAFT))
                if group.how.sample
                else scores.argmax(-1)
            )
            found.add(word, scores)
            feed = word[:, None]
        return found

    def say(self, group: Group, words: Tensor, logs: Tensor, right: Tensor) -> Outcome:
        """Rows say what was right, and one id more."""
        told = torch.stack([words.double(), logs.double()], dim=-1).tolist()
        events, done = [], []
        for entry, row, count in zip(group.entries, told, right.tolist(), strict=True):
            before, reason = len(entry.ids), None
            for id_, score in row[: count + 1]:
                reason = entry.say(int(id_), score)
                if reason is not None:
                    done.append((entry, [entry.found(reason)]))
                    break
            events.append(Event(entry.ticket, entry.ids[before:], entry.copy))
        table, device = self.table, self.reader.device
        new = torch.arange(words.shape[1], device=device) + table["length"][:, None]
        table["ids"] = F.pad(table["ids"], (0, max(0, int(new.max()) + 1 - table["ids"].shape[1])))
        table["ids"].scatter_(1, new, words)
        table["length"] = group.tensor([entry.length for entry in group.entries])
        table["feed"] = table["ids"].gather(1, table["length"][:, None] - 1)[:, 0]
        self.two.large.cut([entry.length - 1 for entry in group.entries])
        if done:
            self.leave({entry for entry, _ in done})
        return events, done


class Draft:
    """Ids that were proposed, their scores, and what rules know before each of them and after the last."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.said, self.scored = [seen], list[Tensor](), list[Tensor]()

    def add(self, word: Tensor, scores: Tensor) -> None:
        self.said.append(word)
        self.scored.append(scores)
        self.seen.append(self.seen[-1].with_one_more(word))

    @property
    def words(self) -> Tensor:
        return torch.stack(self.said, dim=1)  # (P, g)


def likeliest(group: Group, scores: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """The likeliest ids (P, g + 1), and of how many of them (P,) the draft was right."""
    words = scores.argmax(-1)
    return words, leading(words[:, :-1] == draft.words)


def drawn(group: Group, scores: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """Drafted ids are taken with probability p/q; in place of the first that is not, p - q is drawn from."""
    p, q = scores.softmax(-1), torch.stack(draft.scored, dim=1).softmax(-1)
    count = draft.words.shape[1]
    steps = group.tensor([[len(entry.ids) + i for i in range(count + 1)] for entry in group.entries])
    seeds = group.state["seed"][:, None].expand_as(steps)
    ratio = (p[:, :-1] / q).gather(2, draft.words[..., None])[..., 0]
    right = leading(uniform(seeds[:, :-1], steps[:, :-1], ACCEPT) < ratio)
    over = (p - F.pad(q, (0, 0, 0, 1))).clamp(min=0)  # after the last one q is nothing: all of p
    rest = over.gather(1, right[:, None, None].expand(-1, 1, over.shape[2]))[:, 0]
    where = right[:, None]
    last = draw(rest.log(), uniform(seeds.gather(1, where), steps.gather(1, where), REST)[:, 0])
    words = F.pad(draft.words, (0, 1)).scatter(1, where, last[:, None])
    return words, right


def leading(flags: Tensor) -> Tensor:
    """How many flags of each row are true before the first that is not."""
    return flags.long().cumprod(1).sum(1)
