"""Given: what the encoder and the feed of a run are made from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.data.batches.dataset import Documents
from qkv.data.read.record import Record
from qkv.data.store.shards import Shards
from qkv.model.adapters.write import write_adapter
from qkv.model.model import Model
from qkv.nn.lora import adapters
from qkv.train.objectives import Words, words_of
from qkv.train.recipe import Recipe
from qkv.train.setup_model import reach


@dataclass(frozen=True, kw_only=True)
class Given:
    """What encoders and feeds are made from."""

    recipe: Recipe
    home: str  # the tokenizer's folder
    model: Model
    words: Words
    labels: tuple[str, ...] = ()
    records: Iterable[Record] = ()
    learnt: Path | None = None  # the folder of a model that has learnt already

    @classmethod
    def of(
        cls, recipe: Recipe, home: str | Path, model: Model, records: Iterable[Record], *,
        labels: tuple[str, ...] = (), learnt: Path | None = None,
    ) -> Given:  # fmt: skip
        """With what is known of the model and its tokenizer, which lies at `home`."""
        assert model.tokenizer is not None
        words = words_of(model.tokenizer, model, length=recipe.data.length)
        return cls(
            recipe=recipe, home=str(home), model=model, words=words, labels=labels, records=records,
            learnt=learnt,
        )  # fmt: skip

    def save(self, folder: Path) -> None:
        """Writes the model, or, where it has adapters, these alone."""
        if adapters(self.model.net):
            write_adapter(self.model, folder)
        else:
            self.model.save(folder)

    def setting(self, name: str, default: Any) -> Any:
        return self.recipe.objective.settings.get(name, default)

    @property
    def limit(self) -> int:
        """Tokens that a row may have; 0: any number."""
        return self.recipe.data.length or reach(self.model.spec) or 0

    @property
    def length(self) -> int:
        """Tokens that every row has."""
        if self.recipe.data.length < 1:
            raise ValueError(f"data.length {self.recipe.data.length}, expected the number of tokens in a row")
        return self.recipe.data.length

    @property
    def common(self) -> dict[str, Any]:
        return dict(tokenizer=self.home, long=self.recipe.data.long)

    @property
    def one_text(self) -> bool:
        """Whether the records are parts of one long text."""
        return self.recipe.data.unit == "file"


def labels_in(model: Model) -> tuple[str, ...]:
    """The labels that the model's config names, in the order of their numbers."""
    named: dict[str, str] = model.config.get("id2label") or {}
    return tuple(named[number] for number in sorted(named, key=int))


class Part(NamedTuple):
    """Which of the shards is read: the first part, to learn from, or what `share` keeps from it."""

    first: bool = True
    share: float = 0.0

    def edges(self, total: int, least: int = 1, what: str = "rows") -> tuple[int, int]:
        """From where up to where, of so many rows or tokens; both parts have as many as a batch needs."""
        edge = round(total * (1 - self.share))
        if self.share and min(edge, total - edge) < least < total:
            raise ValueError(
                f"data.valid {self.share:g}: {total - edge} of {total} {what} would be kept and {edge} "
                f"learned from, expected {least} at least of each; give another share, or files"
            )
        return (0, edge) if self.first else (edge if self.share else 0, total)

    def documents(self, shards: Shards, seed: int) -> Documents:
        order = np.arange(len(shards))
        if self.share:
            order = np.random.default_rng(seed).permutation(order)
        return Documents(shards, np.sort(order[slice(*self.edges(len(shards)))]))
