"""Settings of recipes: wrong types of every key, limits, and settings without effect."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import tomlkit

import qkv
from qkv.model.transforms.heads import replace_head
from qkv.spec import VARIANT_KEYS
from qkv.train.config import TrainConfig
from qkv.train.objectives.registry import OBJECTIVE_SPECS, get_objective_spec
from qkv.train.recipe import OPEN_TABLES, TABLES, Recipe, parse_recipe
from tests.support.errors import assert_error

# One value of each type of TOML; a key accepts those of its annotation.
VALUES: dict[type, Any] = {
    int: 1, float: 0.5, bool: True, str: "x", list: [[0.5, "x", True]], dict: {"x": [1]},
}  # fmt: skip


def parse(settings: dict[str, Any], flags: tuple[str, ...] = ()) -> Recipe:
    """Parse a small recipe with other settings, by dotted key."""
    tables: dict[str, Any] = {
        "model": {"family": "bert"},
        "data": {"train": "x.txt", "batch_size": 4},
        "objective": {"name": "masked-lm"},
        "train": {"steps": 10},
    }
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        (tables.setdefault(table, {}) if table else tables)[name] = value
    return parse_recipe(tomlkit.dumps(tables), Path("r.toml"), flags)


def list_keys() -> dict[str, Any]:
    keys: dict[str, Any] = {"run": str, "device": str}
    for table, dataclass_type in TABLES.items():
        hints = get_type_hints(dataclass_type)
        names = [
            item.name for item in fields(dataclass_type) if item.name != OPEN_TABLES.get(table)
        ]
        keys |= {f"{table}.{name}": hints[name] for name in names}
    return keys


@pytest.mark.parametrize(("key", "hint"), list_keys().items())
def test_a_wrong_type_is_one_line_with_the_key(key: str, hint: Any) -> None:
    members = [member for member in get_args(hint) or (hint,) if member is not NoneType]
    origins = [hint] if get_origin(hint) in (tuple, list, dict) else members
    accepted = {
        list if get_origin(member) is tuple else get_origin(member) or member for member in origins
    }
    for kind, value in VALUES.items():
        if kind in accepted - {list, dict} or (kind is int and float in accepted):
            continue
        message = assert_error(lambda value=value: parse({key: value}), key)  # type: ignore[misc]
        assert "NoneType" not in message
        assert "Ellipsis" not in message


@pytest.mark.parametrize("name", OBJECTIVE_SPECS)
def test_a_wrong_type_of_an_objective_setting(name: str) -> None:
    spec = OBJECTIVE_SPECS[name]
    hints = get_type_hints(spec.build_objective)
    keys = [
        key for key in (*hints, *spec.extra_settings) if key not in ("vocab", "return", "generator")
    ]
    for key in keys:
        recipe = parse(
            {
                "objective.name": name,
                f"objective.{key}": {"x": [1]} if key != "class_weights" else 1,
            }
        )
        if key not in ("stride", "max_answer_tokens"):  # checked by the encoder
            assert_error(lambda recipe=recipe: get_objective_spec(recipe), f"objective.{key}")  # type: ignore[misc]
    for key in ("words", "teacher_"):
        recipe = parse({"objective.name": name, f"objective.{key}": 1})
        call = partial(get_objective_spec, recipe)
        assert_error(call, f"objective.{key}", "no such setting")


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"data.batch_tokens": 100}, "data.batch_size 4 and data.batch_tokens 100, expected only one"),
    ({"data.num_workers": 100_000}, "data.num_workers is 100000: expected a whole number, at least 0"),
    ({"data.max_length": 2**63}, "data.max_length is 9223372036854775808"),
    ({"train.grad_accum": 2**63 - 1}, "train.grad_accum is 9223372036854775807"),
    ({"train.grad_accum": 5}, "train.grad_accum 5, expected at most data.batch_size, 4"),
    ({"train.seed": 2**32}, "train.seed is 4294967296"),
    ({"train.patience": 3}, "train.patience 3, expected 0 without train.eval_every"),
    ({"train.eval_num_beams": 3}, "train.eval_num_beams 3, expected 1 without train.eval_generate"),
    ({"train.higher_is_better": True}, "train.higher_is_better True, expected False"),
    ({"train.optimizer": "adafactor", "train.eps": 1e-6}, "train.eps 1e-06, expected 1e-08"),
    ({"train.optimizer": "adafactor", "train.betas": [0.9, 0.98]}, "train.betas"),
    ({"train.lr_schedule": "noam"}, "train.warmup_steps is 0: lr_schedule 'noam' needs a warmup"),
    ({"train.lr_schedule": "constant", "train.min_lr_ratio": 0.1}, "train.min_lr_ratio is 0.1"),
    ({"model.load": "m", "model.size": "base"}, "model.size 'base' with model.load 'm'"),
    ({"model.load": "m", "model.position_embedding_type": "alibi"}, "model.position_embedding_type"),
    ({"model.load": "m", "tokenizer.vocab_size": 90}, "tokenizer.vocab_size 90 with model.load"),
    ({"tokenizer.load": "t", "tokenizer.lowercase": True}, "tokenizer.lowercase True with tokenizer.load"),
    ({"objective.teacher": "t", "tokenizer.type": "bpe"}, "tokenizer.type 'bpe' with objective.teacher"),
    ({"lora.r": 10**9, "model.load": "m"}, "lora.r is 1000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "problem"), CONTRADICTIONS, ids=str)
def test_contradictions(settings: dict[str, Any], problem: str) -> None:
    assert_error(lambda: parse(settings), problem)


@pytest.mark.parametrize("name", VARIANT_KEYS)
def test_an_empty_name_is_an_error_in_a_file_and_the_default_as_a_flag(name: str) -> None:
    assert_error(
        lambda: parse({f"model.{name}": ""}), f"r.toml: model.{name} is '', expected a name"
    )
    recipe = parse({f"model.{name}": "dot"}, (f"--model.{name}", ""))
    assert getattr(recipe.model, name) is None


def test_what_belongs_together_is_accepted() -> None:
    assert parse({"data.batch_size": 0, "data.batch_tokens": 100}).data.batch_tokens == 100
    assert parse({"train.patience": 3, "train.eval_every": 5}).train.patience == 3
    assert parse({"train.grad_accum": 4}).train.grad_accum == 4
    flags = ("--model.load", "m", "--tokenizer", "{}")
    assert parse({"tokenizer.vocab_size": 90}, flags).model.load == "m"
    # A run folder has the recipe with all defaults.
    complete = parse({}).to_dict()
    assert TrainConfig(**{**complete["train"], "betas": (0.9, 0.999)}) == parse({}).train


def test_settings_of_fit() -> None:
    model = qkv.build("bert", "tiny", vocab_size=60, device="cpu")
    model.tokenizer = qkv.Tokenizer.train(
        ["a b c"] * 9, type="word", vocab_size=60, template="bert"
    )
    for settings, problem in (
        (dict(patience=2, eval_every=0), "train.patience 2, expected 0"),
        (dict(eval_every=5), "train.eval_every 5: there is no validation data"),
        (dict(grad_accum=17), "train.grad_accum 17, expected at most data.batch_size, 16"),
    ):
        assert_error(
            lambda settings=settings: qkv.fit(  # type: ignore[misc]
                model, ["a b c"] * 40, objective="masked-lm", steps=2, progress=False, **settings
            ),
            problem,
        )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"attention_dropout": 1e300},
            "attention_dropout is 1e+300, expected a number from 0 to 1",
        ),
        ({"attention_dropout": "x"}, "attention_dropout is 'x', expected a number from 0 to 1"),
        ({"no_dropout": 0.1}, "model.no_dropout: bert has no such argument"),
        ({"width": 8}, "model.width: the sizes of a loaded model cannot change"),
    ],
)
def test_arguments_of_a_loaded_model(settings: dict[str, Any], problem: str) -> None:
    model = qkv.build("bert", "tiny", vocab_size=60, device="cpu")
    assert_error(lambda: replace_head(model, None, 0, overrides=settings), problem)
