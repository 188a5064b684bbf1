"""Embed: one vector a text, or the last states of all of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from qkv.batch import Batch
from qkv.nn.heads import take
from qkv.spec import Head, Two
from qkv.tasks.base import Out, Row, Task
from qkv.tasks.batching import Progress, at_rest
from qkv.tasks.checks import one_of
from qkv.weights.tensors import read_json

Array: TypeAlias = NDArray[np.float32]
POOLS = ("mean", "first", "last", "pooled")


@dataclass(frozen=True, kw_only=True)
class Embed(Task[str, Array]):
    """`pool`: the mean of the states, the first, the last, or the pooler's; `unit`: of length one.

    None: as the folder's 1_Pooling says, else the mean as it is. CLIP's texts have their own vector."""

    name: ClassVar[str] = "embed"
    pool: str | None = None
    unit: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool is not None:
            one_of("pool", self.pool, POOLS)
            if isinstance(self.model.spec, Two):
                raise ValueError(
                    f"pool is {self.pool!r}: this model has a vector of its own for a text, expected none"
                )
        if self.unit is False and isinstance(self.model.spec, Two):
            raise ValueError("unit is False: this model's vectors are of length one, expected none")
        if self.pool == "pooled" and not self.has_pooler:
            raise ValueError("pool is 'pooled': this model has no pooler, expected mean, first or last")

    @property
    def limit(self) -> int:
        return min(super().limit, self.most or super().limit)

    @cached_property
    def most(self) -> int | None:
        """The tokens of a text that sentence-transformers reads of it, where its folder says so."""
        home = self.model.home
        if home is None or not (home / "sentence_bert_config.json").is_file():
            return None
        most = read_json(home / "sentence_bert_config.json").get("max_seq_length")
        return most if isinstance(most, int) and most > 0 else None

    @property
    def has_pooler(self) -> bool:
        spec = self.model.spec
        return not isinstance(spec, Two) and any("pooled" in getattr(head, "out", ()) for head in spec.heads)

    def many(  # type: ignore[override]  # one array, not a list of them
        self, given: Iterable[str], /, *, batch_tokens: int = 4096, progress: Progress = False,
        **settings: Any,
    ) -> Array:  # fmt: skip
        """The vectors of many texts, (texts, width)."""
        found = super().many(given, batch_tokens=batch_tokens, progress=progress, **settings)
        return np.stack(found) if found else np.zeros((0, 0), np.float32)

    def states(self, text: str, /) -> Array:
        """The last states of all tokens, special ones too, (tokens, width)."""
        (rows,) = self.all_rows([text], ["text"])
        with at_rest(self.model):
            return self.run(rows)[0]["hidden"][0].float().cpu().numpy()

    def read(self, out: Out, batch: Batch, rows: Sequence[Row]) -> list[Array]:
        vector, unit = self.model.vector, self.unit
        if isinstance(self.model.spec, Two):
            found, usual = out["text"], True
        else:
            pool = self.pool or (vector.take if vector else "mean")
            found, usual = take(Head(name="pool", take=pool), out, batch), bool(vector and vector.unit)
        found = found.float()
        return list(
            (F.normalize(found, dim=-1) if (usual if unit is None else unit) else found).cpu().numpy()
        )

    def found(self, given: str, rows: Sequence[Row], said: Sequence[Any]) -> Array:
        return said[0]
