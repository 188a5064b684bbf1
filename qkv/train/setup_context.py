"""SetupContext and DataSplit: what the encoders and samplers of a run are built from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.data.batches.dataset import DocumentDataset
from qkv.data.read.record import Record
from qkv.data.store.shards import Shards
from qkv.model.adapters.write import write_adapter
from qkv.model.model import Model
from qkv.nn.lora import lora_layers
from qkv.train.objectives import VocabularyInfo, build_vocabulary_info
from qkv.train.recipe import Recipe
from qkv.train.setup_model import get_max_positions


@dataclass(frozen=True, kw_only=True)
class SetupContext:
    """What encoders and samplers are built from."""

    recipe: Recipe
    tokenizer_folder: str
    model: Model
    vocab: VocabularyInfo
    label_names: tuple[str, ...] = ()
    records: Iterable[Record] = ()
    trained_model_folder: Path | None = None  # folder of a model that is already trained

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, tokenizer_folder: str | Path, model: Model, records: Iterable[Record], *,
        label_names: tuple[str, ...] = (), trained_model_folder: Path | None = None,
    ) -> SetupContext:  # fmt: skip
        """Build the context of a model whose tokenizer is stored in `tokenizer_folder`."""
        assert model.tokenizer is not None
        return cls(
            recipe=recipe,
            tokenizer_folder=str(tokenizer_folder),
            model=model,
            vocab=build_vocabulary_info(model.tokenizer, model, max_length=recipe.data.max_length),
            label_names=label_names,
            records=records,
            trained_model_folder=trained_model_folder,
        )

    def save(self, folder: Path) -> None:
        """Save the model, or only its adapter if it has one."""
        if lora_layers(self.model.net):
            write_adapter(self.model, folder)
        else:
            self.model.save(folder)

    def get_setting(self, name: str, default: Any) -> Any:
        return self.recipe.objective.settings.get(name, default)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens in a row; 0: no limit."""
        return self.recipe.data.max_length or get_max_positions(self.model.spec) or 0

    @property
    def row_length(self) -> int:
        """Number of tokens in every row."""
        if self.recipe.data.max_length < 1:
            raise ValueError(
                f"data.max_length {self.recipe.data.max_length}, expected the number of tokens in a row"
            )
        return self.recipe.data.max_length

    @property
    def encoder_kwargs(self) -> dict[str, Any]:
        return dict(tokenizer_folder=self.tokenizer_folder, overflow=self.recipe.data.overflow)

    @property
    def is_single_document(self) -> bool:
        """Whether the records are consecutive parts of one long document."""
        return self.recipe.data.unit == "file"


def get_config_label_names(model: Model) -> tuple[str, ...]:
    """Return the label names in the model's config, by label id."""
    id2label: dict[str, str] = model.config.get("id2label") or {}
    return tuple(id2label[number] for number in sorted(id2label, key=int))


class DataSplit(NamedTuple):
    """A split of the shards: the training part, or the `validation_fraction` held out from it."""

    is_train: bool = True
    validation_fraction: float = 0.0

    def compute_bounds(self, total: int, min_count: int = 1, unit: str = "rows") -> tuple[int, int]:
        """Return the range of this split in `total` units; each split needs at least `min_count`."""
        boundary = round(total * (1 - self.validation_fraction))
        if self.validation_fraction and min(boundary, total - boundary) < min_count < total:
            raise ValueError(
                f"data.validation {self.validation_fraction:g}: it would hold out "
                f"{total - boundary} of {total} {unit} and train on {boundary}, expected at least "
                f"{min_count} each; set another fraction, or files"
            )
        if self.is_train:
            return 0, boundary
        return (boundary if self.validation_fraction else 0), total

    def select_documents(self, shards: Shards, seed: int) -> DocumentDataset:
        order = np.arange(len(shards))
        if self.validation_fraction:
            order = np.random.default_rng(seed).permutation(order)
        return DocumentDataset(shards, np.sort(order[slice(*self.compute_bounds(len(shards)))]))
