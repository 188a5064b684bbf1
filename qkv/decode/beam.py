"""Beam search: in one group or several, drawn, or held to say given words.

A beam that is not there has the score FAR: numbers and order are those of transformers.
P prompts, K beams of each, in groups of k; V words, m candidates, L ids of the longest row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.decode.entry import Choice, Entry, Event, Found, Group, See
from qkv.decode.reader import Read
from qkv.decode.rules import Seen
from qkv.decode.sample import draw_several
from qkv.decode.walk import weighed
from qkv.decode.words import Candidates, with_words

FAR = -1.0e9
LOST = FAR / 1e3  # a result below it has gone through a beam that was not there
CHUNK = 128  # words whose largest score stands for them at first sight


def beam(group: Group, read: Read, see: See) -> Choice:
    """The next ids of all beams, and the results that are there."""
    how, size, logits, seen = group.how, len(group.entries), read.logits.float(), see()
    if group.fresh:
        begin(group)
        logits = logits.repeat_interleave(how.beams, dim=0)
    k, taken = how.beams // how.groups, torch.zeros(size, 0, dtype=torch.long, device=group.device)
    words, parents, logs = list[Tensor](), list[Tensor](), list[Tensor]()
    for g in range(how.groups):
        own = slice(g * k, (g + 1) * k)
        mine = seen if how.groups == 1 else seen.part(own, taken)
        scores, base = scored(group, logits.unflatten(0, (size, -1))[:, own], mine)
        found = propose(group, scores, base + group.state["score"][:, own], mine)
        ended = ends(group, found, mine)
        chosen, group.state["score"][:, own] = pick(found, ended, k)
        last = ended | of_prompt(mine.length + 1 >= mine.most, mine)  # or its row is full
        finish(group, own, found, last, mine, at(scores, base, found.beam, found.word))
        done = group.state["shut"][:, g, None].clone()  # before this step: such a group takes pads
        settle(group, g, own, found, last, mine)
        beams, said = found.beam.gather(1, chosen), found.word.gather(1, chosen)
        words, parents = [*words, said], [*parents, beams + own.start]
        logs.append(at(scores, base, beams, said))
        taken = torch.cat([taken, said.masked_fill(done, pad_of(group))], dim=1)
    return turn(group, torch.cat(words, 1), torch.cat(parents, 1), torch.cat(logs, 1))


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


def scored(group: Group, logits: Tensor, seen: Seen) -> tuple[Tensor, Tensor]:
    """Scores (P, k, V) and what each beam's are to be raised by (P, k) to be log-probabilities."""
    if not (group.rules or group.filters or group.how.renormalise):
        return logits, -logits.logsumexp(-1)
    scores = weighed(group, logits.flatten(0, 1).log_softmax(-1), seen)
    return scores.view_as(logits), torch.zeros(logits.shape[:2], device=logits.device)


def at(scores: Tensor, base: Tensor, beam: Tensor, word: Tensor) -> Tensor:
    """Log-probabilities at the beams and words (P, m)."""
    return scores.flatten(1).gather(1, beam * scores.shape[-1] + word) + base.gather(1, beam)


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


def ends(group: Group, found: Candidates, seen: Seen) -> Tensor:
    """(P, m) true where a candidate is an end, or says what a row is to stop after."""
    how = group.how
    last = torch.isin(found.word, group.tensor([*how.ends]))
    for phrase in how.stop:
        said = (seen.tail(len(phrase) - 1) == group.tensor([*phrase[:-1]])).all(1).view(-1, seen.width)
        last |= (found.word == phrase[-1]) & said.gather(1, found.beam)
    for i, entry in enumerate(group.entries):
        if entry.stop is not None:
            said_by = [seen.new(i * seen.width + k) for k in range(seen.width)]
            pairs = zip(found.beam[i].tolist(), found.word[i].tolist(), strict=True)
            last[i] |= group.tensor([entry.stop([*said_by[k], word]) for k, word in pairs]).bool()
    return last


def pick(found: Candidates, ended: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Which candidates go on (P, k), and their scores."""
    value = found.value + ended * FAR
    if found.turn is None:
        best_ = value.topk(k, dim=1)
        return best_.indices, best_.values
    index = (found.turn + ended * found.turn.shape[1]).topk(k, dim=1, largest=False).indices
    return index, value.gather(1, index)


def finish(group: Group, own: slice, found: Candidates, last: Tensor, seen: Seen, logs: Tensor) -> None:
    """Candidates that end take their places among the best results of their prompt."""
    how, state, k = group.how, group.state, own.stop - own.start
    many = found.word.shape[1]
    # Those beyond the first k only stand in for ends.
    among = torch.arange(many, device=last.device) < k if found.whole is None else found.whole
    just = last & among
    if just.device.type == "cpu" and not just.any():
        return
    new = of_prompt(seen.length - seen.prompt, seen)  # (P, 1) ids said before
    full = state["ended"][:, own].all(1, keepdim=True) & (how.early is True)
    shut = full.float() + (~state["open"][:, own.start // k, None]).float() + (~just).float()
    value = found.value / (new + 1).float() ** how.length_penalty + shut * FAR
    top = torch.cat([state["best"][:, own], value], dim=1).topk(k, dim=1)
    ids = followed(seen.ids.unflatten(0, (-1, k)), found, of_prompt(seen.length, seen), found.word)
    results = {
        "best": value, "best ids": ids, "ended": just,
        "best logs": followed(state["logs"][:, own], found, new, logs),
        "best length": of_prompt(seen.length + 1, seen).expand(-1, many),
    }  # fmt: skip
    for name, those in results.items():
        have = state[name] = longer(state[name], those)
        both = torch.cat([have[:, own], longer(those, have)], dim=1)
        have[:, own] = picked(both, top.indices)


def followed(rows: Tensor, found: Candidates, where: Tensor, by: Tensor) -> Tensor:
    """(P, k, L) of the candidates' beams with one more value at the end (P, 1) of each: (P, m, L + 1)."""
    rows = F.pad(picked(rows, found.beam), (0, 1))
    return rows.scatter(2, where[..., None].expand(-1, rows.shape[1], 1), by[..., None].to(rows.dtype))


def picked(x: Tensor, index: Tensor) -> Tensor:
    """(P, n, ...) at (P, m) -> (P, m, ...)."""
    wide = index.view(*index.shape, *[1] * (x.dim() - 2))
    return x.gather(1, wide.expand(-1, -1, *x.shape[2:]))


def longer(x: Tensor, like: Tensor) -> Tensor:
    """x with a time axis at least as long as that of the other, where they have one."""
    return x if x.dim() < 3 else F.pad(x, (0, max(0, like.shape[2] - x.shape[2])))


def settle(group: Group, g: int, own: slice, found: Candidates, last: Tensor, seen: Seen) -> None:
    """A search is over when no beam that goes on can hope for a place among the best."""
    how, state = group.how, group.state
    far = seen.most if how.early == "never" and how.length_penalty > 0 else seen.length + 1
    hope = state["score"][:, own].amax(1) if found.hope is None else found.hope
    hope = hope / of_prompt(far - seen.prompt, seen)[:, 0].float() ** how.length_penalty
    all_ended = state["ended"][:, own].all(1)
    state["open"][:, g] &= hope > torch.where(all_ended, state["best"][:, own].amin(1), FAR)
    state["shut"][:, g] |= ~state["open"][:, g] | (all_ended & (how.early is True)) | last.all(1)


def turn(group: Group, words: Tensor, parents: Tensor, logs: Tensor) -> Choice:
    """Beams go on from their parents (P, K); prompts that are done tell their results."""
    state, how, entries = group.state, group.how, group.entries
    new = group.tensor([entry.length - len(entry.prompt) for entry in entries])
    state["logs"] = followed(state["logs"], Candidates(logs, parents, words), new[:, None], logs)
    told = torch.cat([parents, state["shut"].all(1, keepdim=True)], dim=1).tolist()
    done = {i: results(group, i, entry) for i, entry in enumerate(entries) if told[i][-1]}
    for entry in entries:
        entry.length += 1
    rows = [i * how.beams + parent for i, row in enumerate(told) for parent in row[:-1]]
    events = [Event(entries[i].ticket, found[0].ids if found else []) for i, found in done.items()]
    return Choice(words.flatten(), words.flatten(), rows, events, done)


def results(group: Group, i: int, entry: Entry) -> list[Found]:
    """The best results of a prompt, the best first."""
    names = ("best", "best ids", "best logs", "best length")
    score, ids, logs, length = (group.state[name][i].tolist() for name in names)
    # Of equals among groups the last comes first, as from a stack.
    order = sorted(range(len(score)), key=lambda k: (-score[k], -k if entry.how.groups > 1 else k))
    out = []
    for k in [k for k in order if score[k] > LOST][: entry.how.results]:
        new = ids[k][len(entry.prompt) : length[k]]
        reason = "end" if new[-1] in entry.how.ends else "length" if length[k] >= entry.most else "stop"
        out.append(Found(new, score[k], logs[k][: len(new)], reason))
    return out


def best(scores: Tensor, base: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each prompt's scores (P, k, V), raised by beam, and where they are in k * V.

    They lie in those chunks whose largest are the largest: the others are looked at once."""
    k, words = scores.shape[1:]
    if k * words < 4 * CHUNK * count:
        found = (scores + base[..., None]).flatten(1).topk(count, dim=1)
        return found.values, found.indices
    chunks = words // CHUNK
    heads = scores[..., : chunks * CHUNK].unflatten(2, (chunks, CHUNK)).amax(3) + base[..., None]  # (P, k, n)
    top = heads.flatten(1).topk(count, dim=1).indices  # (P, count)
    start = top // chunks * words + top % chunks * CHUNK
    inside = (start[..., None] + torch.arange(CHUNK, device=scores.device)).flatten(1)
    rest = torch.arange(k * words, device=scores.device).view(k, words)[:, chunks * CHUNK :].flatten()
    index = torch.cat([inside, rest.expand(len(scores), -1)], dim=1)
    found = (scores.flatten(1).gather(1, index) + base.gather(1, index // words)).topk(count, dim=1)
    return found.values, index.gather(1, found.indices)
