"""One row a prompt, one id after another: the likeliest, or one that is drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.decode.entry import Choice, Event, Group, See
from qkv.decode.reader import Read
from qkv.decode.rules import Seen, apply
from qkv.decode.sample import draw, uniform


def walk(group: Group, read: Read, see: See) -> Choice:
    """The next id of every row."""
    scores = weighed(group, read.logits, see)
    if group.how.sample:
        step = group.tensor([len(entry.ids) for entry in group.entries])
        word = draw(scores, uniform(group.state["seed"], step))
    else:
        word = scores.argmax(-1)
    logs = scores.gather(1, word[:, None])[:, 0] - scores.logsumexp(-1)
    told = torch.stack([word.double(), logs.double()]).tolist()
    events, done = [], {}
    for i, (entry, id_, score) in enumerate(zip(group.entries, *told, strict=True)):
        reason = entry.say(int(id_), score)
        events.append(Event(entry.ticket, [] if reason == "nothing" else [int(id_)], entry.copy))
        if reason is not None:
            done[i] = [entry.found(reason)]
    return Choice(word, word, None, events, done)


def weighed(group: Group, logits: Tensor, seen: Seen | See) -> Tensor:
    """Scores of all words after the rules, and the filters where something is drawn."""
    scores = logits.float()
    if group.rules:
        scores = apply(group.rules, scores, seen if isinstance(seen, Seen) else seen())
    for filter_ in group.filters:
        scores = filter_(scores)
    return scores.log_softmax(-1) if group.how.renormalise else scores
