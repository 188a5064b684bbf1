"""fit: the loop of recipes on a model and data that are at hand, as in a notebook."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qkv.data.read.corpus import Corpus
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare
from qkv.model.model import Model
from qkv.train.config import Learn
from qkv.train.evaluate.held_out import check_unmeasured, trial
from qkv.train.evaluate.validation import Measure
from qkv.train.loop.activation_checkpointing import forwards_kept
from qkv.train.loop.trainer import Report, State, Trainer
from qkv.train.objectives.objective import Out, written
from qkv.train.objectives.registry import RAGGED, check_head, kind_of
from qkv.train.recipe import DataPart, ModelPart, ObjectivePart, Recipe, make
from qkv.train.setup import goal_of, labels_for
from qkv.train.setup_context import Given, Part, labels_in
from qkv.train.setup_model import check_fits, name_labels, reach

NAMELESS = re.compile(r"LABEL_\d+")  # Hugging Face's names for labels without one
LENGTH = 512  # tokens of a row, at most, where nothing is said
ELSEWHERE = dict(lr="rate", learning_rate="rate", weight_decay="decay", epochs="steps", batch_size="rows")
Data = str | Path | Corpus | Iterable[str | Mapping[str, Any]]


def fit(
    model: Model, data: Data, *, steps: int, objective: str | Callable[[Out], Tensor] = "causal-lm",
    like: str = "causal-lm", rows: int = 16, length: int = 0, long: str = "cut", valid: float = 0.0,
    settings: Mapping[str, Any] | None = None, callbacks: Sequence[Callable[[Report], None]] = (),
    **learn: Any,
) -> State:  # fmt: skip
    """Trains the model where it is, and leaves it in eval mode.

    `data` are texts, records such as {"text": ..., "label": ...}, a path or a Corpus. `objective` is a name,
    or a function `out -> loss` over the batches of the objective that `like` names: given what the net gives,
    or only what that objective reads `together`. `settings` are the objective's own, `learn` those of a
    recipe's table `learn`, such as rate=1e-4. Rows of one `length` have as many tokens as the model reads, at
    most 512, unless it is given."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError(
            "the model has no tokenizer: set model.tokenizer, for example to Tokenizer.load(folder)"
        )
    name = objective if isinstance(objective, str) else like
    if not length and name not in RAGGED:
        length = min(reach(model.spec) or LENGTH, LENGTH)
    recipe = Recipe(
        model=ModelPart(), data=DataPart(train="", rows=rows, length=length, long=long, valid=valid),
        objective=ObjectivePart(name=name, settings=dict(settings or {})), learn=learn_of(steps, learn),
    )  # fmt: skip
    if not valid:
        check_unmeasured(recipe.learn)
    kind, source = kind_of(recipe), records(data)
    if isinstance(objective, str):
        check_head(kind, model, name)
    check_fits(model, tokenizer, length)
    with tempfile.TemporaryDirectory(prefix="qkv-") as room:
        tokenizer.save(room)
        if kind.column and all(NAMELESS.fullmatch(name) for name in labels_in(model)):
            take_labels(model, labels_for(recipe, kind, source))
        given = Given.of(recipe, room, model, source, labels=labels_in(model) if kind.column else ())
        encoder = kind.encoder(given)
        shards = prepare(
            source, encoder, Path(room) / "data", fields=encoder.fields(), made_from={"fit": repr(encoder)}
        )
        target = goal_of(given)
        target = target if isinstance(objective, str) else written(objective, target)
        net, _ = kind.net(given)
        evaluate: Measure | None = None
        if valid:
            kept = trial(given, target, encoder, shards, source, Part(first=False, share=valid))
            kept.check(recipe.learn, None)
            evaluate = kept.measure(model, recipe.learn)
        with left_as_it_was(net):
            return Trainer(
                net=net, feed=kind.feed(given, shards, Part(first=True, share=valid)), objective=target,
                learn=recipe.learn, callbacks=callbacks, evaluate=evaluate,
            ).run()  # fmt: skip


@contextmanager
def left_as_it_was(net: nn.Module) -> Iterator[None]:
    """What stands still, and what runs twice (`freeze`, `recompute`), is so for one run."""
    learns = [(tensor, tensor.requires_grad) for tensor in net.parameters()]
    try:
        with forwards_kept(net):
            yield
    finally:
        for tensor, before in learns:
            tensor.requires_grad_(before)


def learn_of(steps: int, given: Mapping[str, Any]) -> Learn:
    """The settings of the loop; one that is unknown is told with the nearest that is known."""
    for name in given.keys() & ELSEWHERE.keys():
        raise ValueError(f"{name} is unknown; did you mean {ELSEWHERE[name]}?")
    made: Learn = make(Learn, {"steps": steps, **given}, "")
    return made


def take_labels(model: Model, labels: tuple[str, ...]) -> None:
    """A model whose labels have no names takes those of the data."""
    if len(labels) != model.args["labels"]:
        found = f"the data has {len(labels)} labels ({', '.join(labels[:20])})"
        raise ValueError(f"{found}, and the model {model.args['labels']}: build it with labels={len(labels)}")
    name_labels(model, labels)


def records(data: Data) -> Iterable[Record]:
    """Whatever was given, as records that know their place."""
    if isinstance(data, Corpus):
        return data
    if isinstance(data, str | Path):
        return Corpus(data)
    return [
        Record({"text": each} if isinstance(each, str) else dict(each), f"example {number}")
        for number, each in enumerate(data)
    ]
