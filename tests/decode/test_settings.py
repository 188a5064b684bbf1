"""GenerationSettings: names and types are those of GenerationConfig, in the forms that are accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, get_type_hints

import pytest
import torch

import qkv
from qkv.decode import GenerationConfig
from qkv.decode.config import TokenIds
from qkv.decode.config_file import VALUE_OR_LIST_FIELDS, parse_field_value
from qkv.decode.settings import GenerationSettings
from tests.support import tiny

Phrase = Sequence[int]
ACCEPTED_TYPES: dict[Any, Any] = {  # the type of a field: the type of its keyword
    TokenIds: Phrase,
    tuple[str, ...]: Sequence[str],
    tuple[TokenIds, ...]: Sequence[Phrase],
    tuple[tuple[TokenIds, ...], ...]: Sequence[Phrase | Sequence[Phrase]],
    tuple[tuple[TokenIds, float], ...]: Mapping[TokenIds, float] | Sequence[tuple[Phrase, float]],
}
ITEM_TYPES: dict[Any, Any] = {TokenIds: int, tuple[str, ...]: str}
FORMS: list[tuple[str, Any, Any]] = [  # field, accepted value, value of GenerationConfig
    ("eos_token_id", 5, (5,)),
    ("eos_token_id", [5, 6], (5, 6)),
    ("eos_token_id", None, ()),
    ("forced_eos_token_id", 5, (5,)),
    ("stop_strings", "a", ("a",)),
    ("stop_strings", ["a", "b"], ("a", "b")),
    ("suppress_tokens", [3], (3,)),
    ("bad_words_ids", [[3], [4, 5]], ((3,), (4, 5))),
    ("sequence_bias", {(3,): 1.0}, (((3,), 1.0),)),
    ("sequence_bias", [[[3, 4], 1.0]], (((3, 4), 1.0),)),
    ("force_words_ids", [[3, 4], [[5], [6]]], (((3, 4),), ((5,), (6,)))),
]


def get_accepted_type(name: str, field_type: Any) -> Any:
    """Return the type of a keyword, given that of its field."""
    if field_type not in ACCEPTED_TYPES:
        return field_type
    accepted = ACCEPTED_TYPES[field_type]
    if name in VALUE_OR_LIST_FIELDS:
        accepted = ITEM_TYPES[field_type] | accepted
    return accepted | None


def test_names_and_types_are_those_of_the_config() -> None:
    expected = {
        name: get_accepted_type(name, field_type)
        for name, field_type in get_type_hints(GenerationConfig).items()
    }
    assert get_type_hints(GenerationSettings) == expected
    assert get_type_hints(qkv.Model.generate)["settings"] == Unpack[GenerationSettings]


@pytest.mark.parametrize(("name", "value", "expected"), FORMS)
def test_forms_that_are_accepted(name: str, value: Any, expected: Any) -> None:
    assert parse_field_value(name, value) == expected
    num_beams = 2 if name == "force_words_ids" else 1
    assert getattr(GenerationConfig(num_beams=num_beams, **{name: expected}), name) == expected


def test_mypy_rejects_other_names_and_types() -> None:
    """An ignored error that does not occur is an error of mypy."""
    model = tiny.build("gpt2", head="lm")
    with pytest.raises(ValueError, match="num_beans is unknown; did you mean num_beams"):
        model.generate(torch.tensor([[1]]), num_beans=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="num_beams is '2', expected an integer"):
        model.generate(torch.tensor([[1]]), num_beams="2")  # type: ignore[arg-type]
