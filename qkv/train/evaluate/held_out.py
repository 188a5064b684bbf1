"""Trial: what a model is measured on: a feed, a judge of what it says, and texts that it shall write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import nn

from qkv.data.batches.sampler import Feed, Indices
from qkv.data.encode.encoder import Encoder, Pairs
from qkv.data.read.record import Record
from qkv.data.store.shards import Shards
from qkv.model.model import Model
from qkv.train.config import Learn
from qkv.train.evaluate.evaluators import Judge
from qkv.train.evaluate.generation import Papers, Writer, names_of, spaced
from qkv.train.evaluate.validation import ALONE, Measure, names, over
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import kind_of
from qkv.train.setup_context import Given, Part
from qkv.train.sharding import Spread


@dataclass(frozen=True, kw_only=True)
class Trial:
    objective: Objective
    feed: Feed
    judge: Judge
    writes: tuple[str, ...]  # what is scored of texts that are written; none: it writes no texts
    papers: Callable[[int], Papers]  # so many of them, at most

    def check(self, learn: Learn, writer: Writer | None) -> None:
        """That what the settings ask for will be measured, before anything is learned."""
        if learn.write and not self.writes:
            raise ValueError(f"learn.write {learn.write}: {self.objective.name} writes no texts, expected 0")
        if learn.write and writer is None:
            raise ValueError(
                f"learn.write {learn.write}: nothing was given to write with; qkv train has a beam"
            )
        known = [*names(self.feed, self.objective, self.judge), *(self.writes if learn.write else ())]
        if learn.watch not in known:
            more = f"; learn.write adds {', '.join(self.writes)}" if self.writes and not learn.write else ""
            raise ValueError(
                f"learn.watch {learn.watch!r}, expected one of what is measured: {', '.join(known)}{more}"
            )

    def measure(
        self, model: Model, learn: Learn, writer: Writer | None = None, spread: Spread = ALONE
    ) -> Measure:
        """What a run does at every measurement; of texts that are written it is a sample."""
        losses = over(self.feed, self.objective, self.judge, spread=spread)
        if writer is None or not learn.write:
            return losses
        if spread.kind == "shard" and spread.world > 1:
            raise ValueError(
                f"learn.write {learn.write} with learn.parallel 'shard': a network in slices writes nothing; "
                "expected 0, or 'copy'"
            )
        papers = self.papers(learn.write)

        def measure(net: nn.Module) -> dict[str, float]:
            texts = papers.written(model, writer, spread=spread)
            return losses(net) | papers.scores(texts)[0]

        return measure


def trial(
    given: Given, objective: Objective, encoder: Encoder, shards: Shards, source: Iterable[Record], part: Part
) -> Trial:
    """Of these shards, which were made of that source, or of the part of them that is kept to measure on."""
    kind = kind_of(given.recipe)
    which = part.documents(shards, given.recipe.learn.seed).which

    def papers(most: int) -> Papers:
        assert isinstance(encoder, Pairs)
        some = which[spaced(len(which), most)]
        sources = [shards.document(int(i), "source").tolist() for i in some]
        return Papers.of(encoder, sources, list(picked(source, some)))

    writes = given.recipe.objective.name == "seq2seq" and isinstance(encoder, Pairs)
    return Trial(
        objective=objective, feed=kind.feed(given, shards, part), papers=papers,
        judge=kind.judge(given, encoder, lambda: picked(source, which)),
        writes=names_of(encoder) if writes and isinstance(encoder, Pairs) else (),
    )  # fmt: skip


def check_unmeasured(learn: Learn) -> None:
    """That nothing is asked for which a run without validation data does not do."""
    for name in ("watch", "patience", "write"):
        value = getattr(learn, name)
        if value != getattr(Learn(steps=1), name):
            raise ValueError(f"learn.{name} {value!r}: nothing is measured; expected data.valid")


def picked(records: Iterable[Record], numbers: Indices) -> Iterator[Record]:
    """The records of these numbers, which rise."""
    wanted = iter(np.append(numbers, -1).tolist())
    following = next(wanted)
    for number, record in enumerate(records):
        if number == following:
            yield record
            following = next(wanted)
        if following < 0:
            return
