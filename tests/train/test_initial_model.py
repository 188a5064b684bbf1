"""The initial model of a run: a pretrained body with the head and the labels of the recipe."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qkv.model.label_names import get_label_names, set_label_names
from qkv.model.model import Model
from qkv.text import Tokenizer
from qkv.train.initial_model import prepare_model
from qkv.train.recipe import ModelConfig, Recipe, parse_recipe
from tests.support import compare, tiny

LABEL_NAMES = ("billing", "bug", "praise")
RECIPE = """
[model]
load = "FOLDER"
label_names = ["billing", "bug", "praise"]
[data]
train = "tickets.csv"
batch_size = 2
[objective]
name = "sequence-classification"
[train]
steps = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model without `model_type` and `architectures` in config.json."""
    tiny.build("bert", dtype=torch.float32, head="none").save(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["model_type"], config["architectures"]
    path.write_text(json.dumps(config))
    return tmp_path


def read(folder: Path, *flags: str) -> Recipe:
    return parse_recipe(RECIPE.replace("FOLDER", str(folder)), Path("recipe.toml"), flags)


def test_the_head_and_the_labels_of_a_recipe(folder: Path) -> None:
    tokenizer = Tokenizer.train(["a bug"], type="char", vocab_size=20, template="bert")
    recipe = read(folder, "--model.family", "bert")
    model = prepare_model(
        recipe, tokenizer, LABEL_NAMES, head="sequence-classification", pooling=None
    )
    assert model.new_parameters == (
        "heads.sequence_classification.out.weight",
        "heads.sequence_classification.out.bias",
    )
    assert model.config["id2label"] == {"0": "billing", "1": "bug", "2": "praise"}
    expected = dict(tiny.build("bert", dtype=torch.float32, head="none").named_parameters())
    loaded = dict(model.named_parameters())
    compare.assert_bitwise_equal(
        {name: loaded[name] for name in expected}, expected, because=compare.COPIED
    )


def test_a_config_without_family_is_an_error(folder: Path) -> None:
    tokenizer = Tokenizer.train(["a bug"], type="char", vocab_size=20, template="bert")
    with pytest.raises(ValueError, match="model_type is None"):
        prepare_model(
            read(folder), tokenizer, LABEL_NAMES, head="sequence-classification", pooling=None
        )


def test_labels_of_a_trained_head(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a bug"], type="char", vocab_size=20, template="bert")
    classifier = tiny.build(
        "bert", dtype=torch.float32, head="sequence-classification", num_labels=3
    )
    set_label_names(classifier, ("praise", "bug", "billing"))
    classifier.save(tmp_path)

    def prepare(recipe: Recipe, *label_names: str) -> Model:
        return prepare_model(
            recipe, tokenizer, label_names, head="sequence-classification", pooling=None
        )

    without_names = replace(read(tmp_path), model=ModelConfig(load=str(tmp_path)))
    model = prepare(without_names, *LABEL_NAMES)  # those of the data, sorted
    assert model.new_parameters == ()
    assert get_label_names(model) == ("praise", "bug", "billing")
    assert get_label_names(prepare(without_names, "a", "b", "c")) == ("a", "b", "c")
    with pytest.raises(ValueError, match="expected the order of the label ids: praise, bug"):
        prepare(read(tmp_path), *LABEL_NAMES)
