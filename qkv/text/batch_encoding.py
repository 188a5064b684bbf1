"""BatchEncoding: encodings as the inputs of a model, truncated and padded, as lists or tensors.

Does not depend on tokenizers. torch and numpy are imported only to return tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from qkv.text.encoding import TRUNCATION_STRATEGIES, Encoding

PADDING_STRATEGIES = ("longest", "max_length")
TENSOR_TYPES = ("pt", "np")


class HasToList(Protocol):
    """A tensor of any library."""

    def tolist(self) -> Any: ...


TokenIdRow: TypeAlias = int | Sequence[int] | HasToList
TokenIdRows: TypeAlias = Sequence[Sequence[int] | HasToList] | HasToList


class BatchEncoding(dict[str, Any]):
    """Inputs of a model by name; keys are also attributes: `batch["input_ids"]`, `batch.input_ids`.

    The values are lists, or tensors (B, T) with `return_tensors`."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"no field {name!r}: this encoding has {', '.join(self)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self})

    def to(self, device: Any) -> BatchEncoding:
        """Return the tensors on another device, as `torch.Tensor.to` does."""
        if not all(hasattr(value, "to") for value in self.values()):
            raise ValueError('to: this encoding has no torch tensors; set return_tensors="pt"')
        return BatchEncoding({name: value.to(device) for name, value in self.items()})


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """Padding and truncation strategies (None: no padding, no truncation), and the maximum length."""

    padding: str | None
    truncation: str | None
    max_length: int | None

    @classmethod
    def create(
        cls,
        padding: bool | str,
        truncation: bool | str,
        max_length: int | None,
        model_max_length: int | None,
    ) -> LengthOptions:
        """Validate the options of a call; `max_length` defaults to that of the model."""
        padding_strategy = _get_strategy("padding", padding, PADDING_STRATEGIES)
        truncation_strategy = _get_strategy("truncation", truncation, TRUNCATION_STRATEGIES)
        if max_length is not None:
            if not isinstance(max_length, int) or max_length < 1:
                raise ValueError(f"max_length {max_length!r}: expected an integer of 1 or more")
            if truncation_strategy is None and padding_strategy != "max_length":
                raise ValueError(
                    f"max_length {max_length} has no effect without truncation=True"
                    ' or padding="max_length"; set one of them'
                )
        max_length = model_max_length if max_length is None else max_length
        if padding_strategy == "max_length" and max_length is None:
            raise ValueError(
                'padding="max_length": this tokenizer has no model_max_length; set max_length'
            )
        return cls(padding=padding_strategy, truncation=truncation_strategy, max_length=max_length)

    def truncate(self, encodings: Sequence[Encoding], truncation_side: str) -> list[Encoding]:
        """Return encodings of at most `max_length` tokens; special tokens are kept."""
        if self.truncation is None or self.max_length is None:
            return list(encodings)
        return [
            encoding.truncate(
                self.max_length, strategy=self.truncation, truncation_side=truncation_side
            )
            for encoding in encodings
        ]

    def get_padded_length(self, rows: Sequence[Sequence[object]]) -> int:
        """Return the length to which rows are padded; longer rows are not changed."""
        if self.padding == "longest":
            return max(map(len, rows), default=0)
        return self.max_length or 0 if self.padding == "max_length" else 0


def _get_strategy(name: str, value: bool | str, strategies: Sequence[str]) -> str | None:
    """Return the strategy of an option; True means the first strategy."""
    if isinstance(value, bool):
        return strategies[0] if value else None
    if value not in strategies:
        expected = ", ".join(map(repr, strategies))
        raise ValueError(f"{name} {value!r}: expected True, False or one of {expected}")
    return value


def build_batch_encoding(
    encodings: Sequence[Encoding],
    pad_values: Mapping[str, object],
    options: LengthOptions,
    padding_side: str,
    return_tensors: str | None,
) -> BatchEncoding:
    """Return the padded rows of every field; `pad_values` maps each field to its padding value."""
    if return_tensors is not None and return_tensors not in TENSOR_TYPES:
        raise ValueError(f"return_tensors {return_tensors!r}: expected 'pt', 'np' or None")
    batch = BatchEncoding()
    for name, pad_value in pad_values.items():
        if name == "attention_mask":
            rows = [[1] * len(encoding) for encoding in encodings]
        else:
            rows = [list(getattr(encoding, name)) for encoding in encodings]
        length = options.get_padded_length(rows)
        batch[name] = [_pad_row(row, length, pad_value, padding_side) for row in rows]
    return batch if return_tensors is None else _convert_to_tensors(batch, return_tensors)


def _pad_row(row: list[Any], length: int, pad_value: object, padding_side: str) -> list[Any]:
    padding = [pad_value] * (length - len(row))
    return padding + row if padding_side == "left" else row + padding


def _convert_to_tensors(batch: BatchEncoding, return_tensors: str) -> BatchEncoding:
    """Return rows of one length as torch tensors ("pt") or numpy arrays ("np") of int64."""
    lengths = sorted({len(row) for row in batch["input_ids"]})
    if len(lengths) > 1:
        raise ValueError(
            f"return_tensors {return_tensors!r}: rows of {lengths[0]} to {lengths[-1]} tokens,"
            " expected rows of one length; set padding=True"
        )
    if return_tensors == "pt":
        import torch

        return BatchEncoding(
            {name: torch.tensor(rows, dtype=torch.int64) for name, rows in batch.items()}
        )
    import numpy as np

    return BatchEncoding({name: np.array(rows, np.int64) for name, rows in batch.items()})


def list_token_ids(token_ids: TokenIdRow) -> list[int]:
    """Return the ids of one row as a list."""
    values = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    row = [values] if isinstance(values, int) else list(values)
    if row and isinstance(row[0], list | tuple):
        raise ValueError("ids: a batch of rows, expected one row; use batch_decode for a batch")
    return [int(token_id) for token_id in row]


def list_rows(sequences: TokenIdRows) -> list[Any]:
    """Return the rows of a batch of ids."""
    rows = sequences.tolist() if hasattr(sequences, "tolist") else list(sequences)
    if not isinstance(rows, list) or any(isinstance(row, int) for row in rows):
        raise ValueError("ids: one row, expected a batch of rows; use decode for one row")
    return rows
