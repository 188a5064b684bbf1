"""Batches made ahead: by a thread or by processes, they are the same."""

import multiprocessing
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from qkv.data.batches.sampler import Feed, Place, rows_feed
from qkv.train.loop.prefetch import Part, drawn
from qkv.train.objectives import Words, objective
from qkv.train.objectives.objective import Objective, written

START = Place()
WORDS = Words(size=50, mask=4, special=(0, 1, 2, 3, 4))


def made() -> tuple[Feed, Objective]:
    rng = np.random.default_rng(0)
    texts = [{"tokens": rng.integers(5, 50, length)} for length in rng.integers(3, 20, 40)]
    lengths = np.array([len(text["tokens"]) for text in texts])
    return rows_feed(texts, lengths, tokens=64), objective("masked-lm", WORDS, share=0.3)


def some(workers: int, place: Place = START, *, count: int = 12) -> list[tuple[Place, list[Part]]]:
    feed, target = made()
    with closing(
        drawn(feed, target, lambda at: [(part, True) for part in feed.parts(at, 2)], place, workers)
    ) as batches:
        return list(islice(batches, count))


def tensors(parts: list[Part]) -> list[Tensor]:
    found = []
    for part in parts:
        assert part.batch.rows is not None
        assert part.batch.rows.ids is not None
        found += [part.batch.rows.ids, part.batch.rows.positions, *part.batch.labels.values()]
    return found


def test_processes_make_what_a_thread_makes() -> None:
    ours, theirs = some(0), some(2)
    assert {place.epoch for place, _ in ours} > {0}  # past the end of an epoch
    for (place, mine), (other, afar) in zip(ours, theirs, strict=True):
        assert place == other
        assert [part[1:] for part in mine] == [part[1:] for part in afar]
        assert all(torch.equal(a, b) for a, b in zip(tensors(mine), tensors(afar), strict=True))
    assert not multiprocessing.active_children()


def test_it_begins_anywhere() -> None:
    whole = some(0)
    for (place, mine), (other, later) in zip(whole[3:], some(0, whole[3][0], count=9), strict=True):
        assert place == other
        assert all(torch.equal(a, b) for a, b in zip(tensors(mine), tensors(later), strict=True))


def test_a_function_of_the_users_stays_in_its_process() -> None:
    feed, target = made()
    own = written(lambda out: out["logits"].sum(), target)
    with pytest.raises(ValueError, match="function of the user"):
        next(drawn(feed, own, lambda at: [(feed.batches(0)[0], True)], Place(), 2))
