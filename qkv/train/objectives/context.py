"""SetupContext: the arguments of the builders of an objective's encoder, samplers, evaluator and
module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.data.encode.overflow import DEFAULT_OVERFLOW, check_overflow_unset
from qkv.data.read.record import Record
from qkv.model.adapters.write import write_adapter
from qkv.model.model import Model
from qkv.nn.lora import lora_layers
from qkv.train.objectives.vocabulary import (
    VocabularyInfo,
    build_vocabulary_info,
    get_max_positions,
)
from qkv.train.recipe import Recipe

if TYPE_CHECKING:
    from qkv.train.embeddings import EmbeddingMatches


@dataclass(frozen=True, kw_only=True)
class SetupContext:
    """The arguments of the builders of encoders, samplers, evaluators and modules."""

    recipe: Recipe
    tokenizer_folder: str
    model: Model
    vocab: VocabularyInfo
    label_names: tuple[str, ...] = ()
    records: Iterable[Record] = ()
    trained_model_folder: Path | None = None  # folder of a model that is already trained
    embeddings: EmbeddingMatches | None = None  # of the setting model.embeddings

    @classmethod
    def from_recipe(
        cls, recipe: Recipe, tokenizer_folder: str | Path, model: Model, records: Iterable[Record], *,
        label_names: tuple[str, ...] = (), trained_model_folder: Path | None = None,
        embeddings: EmbeddingMatches | None = None,
    ) -> SetupContext:  # fmt: skip
        """Build the context of a model whose tokenizer, if it has one, is in `tokenizer_folder`."""
        return cls(
            recipe=recipe,
            tokenizer_folder=str(tokenizer_folder),
            model=model,
            vocab=build_vocabulary_info(
                model.tokenizer,
                model,
                max_length=recipe.data.max_length,
                label_names=label_names,
            ),
            label_names=label_names,
            records=records,
            trained_model_folder=trained_model_folder,
            embeddings=embeddings,
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
        overflow = self.recipe.data.overflow or DEFAULT_OVERFLOW
        return dict(tokenizer_folder=self.tokenizer_folder, overflow=overflow)

    def check_overflow_unset(self, reason: str) -> None:
        """Raise ValueError if `data.overflow` is set for an objective that accepts texts of any
        length."""
        check_overflow_unset(
            "data.overflow", self.recipe.data.overflow, self.recipe.objective.name, reason
        )

    @property
    def stratify_field(self) -> str | None:
        """The field of the shards with the label of a record, if every record has exactly one."""
        return "label" if self.recipe.objective.has_single_label else None

    @property
    def is_single_document(self) -> bool:
        """Whether the records are consecutive parts of one long document."""
        return self.recipe.data.unit == "file"
