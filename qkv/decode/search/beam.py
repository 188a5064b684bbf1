"""Beam search: in one group or several, drawn, or held to say given words.

A beam that is not there has the score FAR: numbers and order are those of transformers.
P prompts, K beams of each, in groups of k; V words, m candidates, L ids of the longest row."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.logits.forced_words import Candidates, with_words
from qkv.decode.logits.processors import Seen
from qkv.decode.logits.sampling import draw_several
from qkv.decode.logits.top_k import best
from qkv.decode.request import Choice, Entry, Event, Found, Group, News, See
from qkv.decode.runner import Read
from qkv.decode.search.greedy import weighed
from qkv.decode.transfer import Told, known_empty

FAR = -1.0e9
LOST = FAR / 1e3  # a result below it has gone through a beam that was not there
LEAST = 16  # ids of the first results


def beam(group: Group, read: Read, see: See) -> Choice:
    """The next ids of all beams, and the results that are there."""
    how, state, size, seen = group.how, group.state, len(group.entries), see()
    logs = read.logits.log_softmax(-1, dtype=torch.float)
    if group.fresh:
        begin(group)
        logs = logs.repeat_interleave(how.beams, dim=0)
    make_room(group, seen)
    k, taken = how.beams // how.groups, list[Tensor]()
    chosen = list[tuple[Tensor, Tensor, Tensor]]()  # of each group (P, k): words, parents, log-probabilities
    for g in range(how.groups):
        own = slice(g * k, (g + 1) * k)
        mine = seen if how.groups == 1 else seen.part(own, torch.cat(taken, 1) if taken else None)
        scores = weighed(group, logs.unflatten(0, (size, -1))[:, own].flatten(0, 1), mine)
        scores = scores.unflatten(0, (size, -1))  # (P, k, V)
        found = propose(group, scores, state["score"][:, own], mine)
        ended = ends(group, found, mine)
        place, state["score"][:, own] = pick(found, ended, k)
        beams, said = found.beam.gather(1, place), found.word.gather(1, place)
        chosen.append((said, beams + own.start if g else beams, at(scores, beams, said)))
        if how.groups > 1:
            taken.append(said.masked_fill(state["shut"][:, g, None], pad_of(group)))
        last = full(group, found, ended, mine)
        if last is not None:
            finish(group, own, found, last, mine, at(scores, found.beam, found.word))
        settle(group, g, own, found, last, mine)
    if how.groups == 1:
        return turn(group, seen, *chosen[0])
    return turn(group, seen, *(torch.cat(parts, 1) for parts in zip(*chosen, strict=True)))


def begin(group: Group) -> None:
    """What is known of each prompt: the scores of its beams, and its best results so far."""
    how, device, size = group.how, group.device, len(group.entries)
    each, time = (size, how.beams), (size, how.beams, 0)
    score = torch.full(each, FAR, device=device)
    score[:, :: how.beams // how.groups] = 0.0  # beams of a group are alike at first: one of them counts
    group.state |= {
        "score": score,
        "logs": torch.zeros(time, device=device),  # of every id that a beam has said
        "best": torch.full(each, FAR, device=device),
        "best ids": torch.zeros(time, dtype=torch.long, device=device),
        "best logs": torch.zeros(time, device=device),
        "best length": torch.zeros(each, dtype=torch.long, device=device),
        "ended": torch.zeros(each, dtype=torch.bool, device=device),  # is it a result?
        "open": torch.ones(size, how.groups, dtype=torch.bool, device=device),  # may better ones come?
        "shut": torch.zeros(size, how.groups, dtype=torch.bool, device=device),
    }


def make_room(group: Group, seen: Seen) -> None:
    """For one more id; what has a time axis grows by doubling."""
    new = max(entry.length - len(entry.prompt) for entry in group.entries)
    for name, need in (("logs", new), ("best logs", new), ("best ids", seen.ids.shape[1])):
        if group.state[name].shape[2] <= need:
            group.state[name] = F.pad(group.state[name], (0, max(need + 1, LEAST)))


def at(scores: Tensor, beam: Tensor, word: Tensor) -> Tensor:
    """Log-probabilities at the beams and words (P, m)."""
    return scores.flatten(1).gather(1, beam * scores.shape[-1] + word)


def of_prompt(x: Tensor, seen: Seen) -> Tensor:
    """(P*k,) -> (P, 1): what the beams of a prompt have in common."""
    return x.view(-1, seen.width)[:, :1]


def pad_of(group: Group) -> int:
    how = group.how
    return how.pad if how.pad is not None else how.ends[0] if how.ends else -1


def propose(group: Group, scores: Tensor, base: Tensor, seen: Seen) -> Candidates:
    """The best continuations of all beams: so many that enough of them are no ends."""
    how, (_, k, words) = group.how, scores.shape
    many = min(max(2, 1 + len(how.ends)) * k, k * words)
    if how.sample:
        ahead = (scores + base[..., None]).flatten(1)
        step = of_prompt(seen.length - seen.prompt, seen)[:, 0]
        index = draw_several(ahead, group.state["seed"], step, many)
        value = ahead.gather(1, index)
    else:
        value, index = best(scores, base, many)
    # In groups, and where words are asked for, ends hope too: so these searches were first written.
    hope = value.amax(1) if how.groups > 1 else None
    found = Candidates(value, index // words, index % words, hope=hope)
    return with_words(group.entries, found, scores + base[..., None], seen) if how.words else found


def ends(group: Group, found: Candidates, seen: Seen) -> Tensor | None:
    """(P, m) true where a candidate is an end, or says what a row is to stop after; None: nothing ends."""
    how, asks = group.how, any(entry.stop for entry in group.entries)
    if not (how.ends or how.stop or asks):
        return None
    last = (found.word[..., None] == group.ends).any(-1)
    new = of_prompt(seen.length - seen.prompt, seen)  # (P, 1): a phrase is of new ids alone
    for phrase in how.stop:
        said = (seen.tail(len(phrase) - 1) == group.tensor([*phrase[:-1]])).all(1).view(-1, seen.width)
        last |= (found.word == phrase[-1]) & said.gather(1, found.beam) & (new >= len(phrase) - 1)
    if asks:
        each = zip(group.entries, found.beam.tolist(), found.word.tolist(), strict=True)
        asked = [
            [
                entry.stop is not None and entry.stop([*seen.new(i * seen.width + k), word])
                for k, word in zip(beams, words, strict=True)
            ]
            for i, (entry, beams, words) in enumerate(each)
        ]
        last |= group.tensor(asked).bool()
    return last


def full(group: Group, found: Candidates, ended: Tensor | None, seen: Seen) -> Tensor | None:
    """The same, and all candidates of a prompt whose rows have no room for more."""
    if all(entry.length + 1 < entry.most for entry in group.entries):
        return ended
    over = of_prompt(seen.length + 1 >= seen.most, seen).expand_as(found.word)
    return over if ended is None else ended | over


def pick(found: Candidates, ended: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Which candidates go on (P, k), and their scores."""
    value = found.value if ended is None else found.value + ended * FAR
    if found.turn is None:
        best_ = value.topk(k, dim=1)
        return best_.indices, best_.values
    late = found.turn if ended is None else found.turn + ended * found.turn.shape[1]
    index = late.topk(k, dim=1, largest=False).indices
    return index, value.gather(1, index)


def finish(group: Group, own: slice, found: Candidates, last: Tensor, seen: Seen, logs: Tensor) -> None:
    """Candidates that end take their places among the best results of their prompt."""
    how, state, k = group.how, group.state, own.stop - own.start
    # Those beyond the first k only stand in for ends.
    among = torch.arange(last.shape[1], device=last.device) < k if found.whole is None else found.whole
    just = last & among
    if known_empty(just):
        return
    length = of_prompt(seen.length, seen)  # (P, 1)
    new = length - of_prompt(seen.prompt, seen)  # ids said before
    barred = (~just).float() + (~state["open"][:, own.start // k, None]).float()
    if how.early is True:
        barred = barred + state["ended"][:, own].all(1, keepdim=True).float()
    value = found.value / (new + 1).float() ** how.length_penalty + barred * FAR
    state["best"][:, own], top = torch.cat([state["best"][:, own], value], dim=1).topk(k, dim=1)

    def ranked(have: Tensor, those: Tensor) -> Tensor:
        """(P, k) values of the results that stay or come."""
        return torch.cat([have, those], dim=1).gather(1, top)

    state["ended"][:, own] = ranked(state["ended"][:, own], just)
    state["best length"][:, own] = ranked(state["best length"][:, own], (length + 1).expand_as(just))
    rows = ranked(torch.arange(k, device=top.device).expand_as(top), found.beam + k)
    beams = {
        "best ids": (seen.ids.unflatten(0, (-1, k)), length, found.word),
        "best logs": (state["logs"][:, own], new, logs),
    }
    for name, (before, where, by) in beams.items():
        have = state[name][:, own]
        begins = have[..., : before.shape[2]]
        begins.copy_(picked(torch.cat([begins, before], dim=1), rows))
        # One more at the end; that of a result that stays is before it, and nobody looks here.
        have.scatter_(2, where[..., None].expand(-1, k, 1), ranked(by[:, :k], by)[..., None])


def picked(x: Tensor, index: Tensor) -> Tensor:
    """(P, n, L) at (P, m) -> (P, m, L)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def settle(group: Group, g: int, own: slice, found: Candidates, last: Tensor | None, seen: Seen) -> None:
    """A search is over when no beam that goes on can hope for a place among the best."""
    how, state = group.how, group.state
    far = seen.most if how.early == "never" and how.length_penalty > 0 else seen.length + 1
    hope = state["score"][:, own].amax(1) if found.hope is None else found.hope
    hope = hope / of_prompt(far - seen.prompt, seen)[:, 0].float() ** how.length_penalty
    all_ended = state["ended"][:, own].all(1)
    state["open"][:, g] &= hope > torch.where(all_ended, state["best"][:, own].amin(1), FAR)
    over = ~state["open"][:, g]
    if how.early is True:
        over |= all_ended
    if last is not None:
        over |= last.all(1)
    state["shut"][:, g] |= over


def turn(group: Group, seen: Seen, words: Tensor, parents: Tensor, logs: Tensor) -> Choice:
    """Beams go on from their parents (P, K); prompts that are done tell their results."""
    state, (size, k) = group.state, parents.shape
    rows = (parents + torch.arange(0, size * k, k, device=parents.device)[:, None]).flatten()
    where = of_prompt(seen.length - seen.prompt, seen)[..., None].expand(-1, k, 1)
    before = state["logs"].flatten(0, 1).index_select(0, rows).unflatten(0, (size, k))
    state["logs"] = before.scatter_(2, where, logs[..., None])
    return Choice(words.flatten(), words.flatten(), rows, partial(tell, group, Told(state["shut"].all(1))))


def tell(group: Group, shut: Told) -> News:
    """The results of the prompts that are done."""
    done = results(group, [i for i, over in enumerate(shut.list()) if over])
    for entry in group.entries:
        entry.length += 1
    return News([Event(group.entries[i].ticket, one[0].ids if one else []) for i, one in done.items()], done)


def results(group: Group, places: list[int]) -> dict[int, list[Found]]:
    """The best results of the prompts at these places, the best first."""
    if not places:
        return {}
    index = group.tensor(places)
    names = ("best", "best ids", "best logs", "best length")
    parts = [Told(group.state[name].index_select(0, index)) for name in names]
    each = zip(*(part.list() for part in parts), strict=True)
    return {i: in_order(group.entries[i], *values) for i, values in zip(places, each, strict=True)}


def in_order(
    entry: Entry, score: list[float], ids: list[list[int]], logs: list[list[float]], length: list[int]
) -> list[Found]:
    """The results of one prompt."""
    # Of equals among groups the last comes first, as from a stack.
    order = sorted(range(len(score)), key=lambda k: (-score[k], -k if entry.how.groups > 1 else k))
    out = []
    for k in [k for k in order if score[k] > LOST][: entry.how.results]:
        new = ids[k][len(entry.prompt) : length[k]]
        reason = "end" if new[-1] in entry.how.ends else "length" if length[k] >= entry.most else "stop"
        out.append(Found(new, score[k], logs[k][: len(new)], reason))
    return out
