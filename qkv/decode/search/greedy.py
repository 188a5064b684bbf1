"""One row a prompt, one id after another: the likeliest, or one that is drawn."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from qkv.decode.logits.processors import Seen, apply
from qkv.decode.logits.sampling import draw, uniform
from qkv.decode.request import Choice, Entry, Event, Found, Group, News, See
from qkv.decode.runner import Read
from qkv.decode.transfer import Told


def walk(group: Group, read: Read, see: See) -> Choice:
    """The next id of every row."""
    scores = weighed(group, read.logits, see)
    if group.how.sample:
        seen = see()
        step = seen.length - seen.prompt
        word = draw(scores, uniform(group.state["seed"], step))
    else:
        word = scores.argmax(-1)
    logs = scores.gather(1, word[:, None])[:, 0] - scores.logsumexp(-1)
    return Choice(word, word, None, partial(say, group.entries, said(word, logs)))


def said(words: Tensor, logs: Tensor) -> Told:
    """Ids and their scores on their way to the host, as exact as either is."""
    return Told(torch.stack([words.double(), logs.double()]))


def say(entries: list[Entry], told: Told) -> News:
    """Every entry says its id."""
    events, done = list[Event](), dict[int, list[Found]]()
    ids, scores = told.list()
    for i, (entry, id_, score) in enumerate(zip(entries, map(int, ids), scores, strict=True)):
        reason = entry.say(id_, score)
        events.append(Event(entry.ticket, [] if reason == "nothing" else [id_], entry.copy))
        if reason is not None:
            done[i] = [entry.found(reason)]
    return News(events, done)


def weighed(group: Group, logits: Tensor, seen: Seen | See) -> Tensor:
    """Scores of all words after the rules, and the filters where something is drawn."""
    scores = logits.float()
    if group.rules:
        scores = apply(group.rules, scores, seen if isinstance(seen, Seen) else seen())
    for filter_ in group.filters:
        scores = filter_(scores)
    return scores.log_softmax(-1) if group.how.renormalise else scores
