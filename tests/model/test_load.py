"""load: a head, label names and a family that the files do not have."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import qkv
from qkv.families import get_family
from qkv.model.adapters.write import write_adapter
from tests.support import compare, tiny
from tests.support.adapters import build_adapted
from tests.support.limits import get_error_message
from tests.support.model_folders import FILE, FolderOf, change_config

LABEL_NAMES = ["billing", "bug", "praise"]
OUT = ["heads.sequence_classification.out.weight", "heads.sequence_classification.out.bias"]


def save_tiny(folder: Path, family: str, **changes: Any) -> Path:
    tiny.build(family, dtype=torch.float32, **changes).save(folder)
    return folder


def load_with_warnings(folder: Path, **settings: Any) -> tuple[qkv.Model, list[str]]:
    """Return the model and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = qkv.load(folder, **settings)
    return model, [str(warning.message) for warning in caught]


def remove_tensors(folder: Path, start: str) -> dict[str, torch.Tensor]:
    """Remove the tensors whose name has this start, and return them."""
    tensors = load_file(folder / FILE)
    save_file({k: x for k, x in tensors.items() if not k.startswith(start)}, folder / FILE)
    return {name: tensor for name, tensor in tensors.items() if name.startswith(start)}


# --- head ---


def list_heads() -> list[tuple[str, str]]:
    return [(family, head) for family in tiny.FAMILIES for head in get_family(family).heads]


@pytest.mark.parametrize(
    ("family", "head"), list_heads(), ids=[f"{family}-{head}" for family, head in list_heads()]
)
def test_every_head_is_put_on_a_loaded_body(
    family: str, head: str, get_folder: FolderOf, tmp_path: Path
) -> None:
    folder = get_folder(family)
    original = qkv.load(folder)
    torch.manual_seed(0)
    model, messages = load_with_warnings(folder, head=head)
    assert model.args["head"] == head
    expected = dict(original.net.named_parameters(remove_duplicate=False))
    old = {name: p for name, p in model.named_parameters() if name not in model.new_parameters}
    shared = {name: p for name, p in old.items() if name in expected}
    compare.assert_bitwise_equal(
        shared, {name: expected[name] for name in shared}, because=compare.COPIED
    )
    # ModernBERT's checkpoints call the dense layer of every head the same.
    assert all(".dense." in name or ".norm." in name for name in old.keys() - expected.keys())
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    lines = [message for message in messages if "newly initialized" in message]
    assert len(lines) == bool(trainable & {*model.new_parameters})
    assert not lines or f"{model.new_parameters[0]}" in lines[0]
    model.save(tmp_path / "saved")
    reloaded = qkv.load(tmp_path / "saved")
    compare.assert_bitwise_equal(
        dict(reloaded.named_parameters()), dict(model.named_parameters()), because=compare.COPIED
    )


def test_new_parameters_are_initialized_as_in_build(get_folder: FolderOf) -> None:
    model, (message,) = load_with_warnings(
        get_folder("bert"), head="sequence-classification", label_names=LABEL_NAMES
    )
    names = ["heads.pooler.dense.weight", "heads.pooler.dense.bias", *OUT]
    assert message.endswith(
        f"bert: {', '.join(names)} are newly initialized: train the model before using it"
    )
    weight = model.net.get_parameter("heads.pooler.dense.weight")
    assert 0.015 < weight.std() < 0.025  # initializer_range is 0.02
    assert not model.net.get_parameter(OUT[1]).any()


def test_a_head_has_the_dtype_of_the_body(get_folder: FolderOf) -> None:
    model, _ = load_with_warnings(
        get_folder("bert"), head="token-classification", dtype=torch.bfloat16
    )
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_the_encoder_of_an_encoder_decoder(get_folder: FolderOf) -> None:
    input_ids = tiny.random_ids(2, 9)
    encoder, messages = load_with_warnings(get_folder("t5"), head="encoder")
    assert not messages
    outputs = qkv.load(get_folder("t5"))(input_ids, decoder_input_ids=input_ids)
    compare.assert_close(
        {"x": encoder(input_ids).last_hidden_state},
        {"x": outputs.encoder_last_hidden_state},
        within=1e-6,
    )


def test_a_sentence_embedding(tmp_path: Path, get_folder: FolderOf) -> None:
    input_ids = tiny.random_ids(2, 9)
    model, messages = load_with_warnings(get_folder("gpt2"), head="sentence-embedding")
    assert not messages
    outputs = model(input_ids)
    mean = torch.nn.functional.normalize(outputs.last_hidden_state.mean(1), dim=-1)
    compare.assert_close({"x": outputs.sentence_embedding}, {"x": mean}, within=1e-6)
    model.save(tmp_path / "embedding")
    classifier, _ = load_with_warnings(tmp_path / "embedding", head="sequence-classification")
    assert "sentence_embedding" not in classifier(input_ids)
    assert classifier(input_ids).logits.shape == (2, 2)


def test_an_unknown_head_is_an_error(get_folder: FolderOf) -> None:
    message = get_error_message(lambda: qkv.load(get_folder("bert"), head="rocket"))
    assert "bert head is 'rocket': expected one of none, masked-lm" in message


def test_another_head_keeps_the_model_type(copy_folder: FolderOf) -> None:
    folder = change_config(
        copy_folder("roberta"), model_type="xlm-roberta", architectures=["XLMRobertaForMaskedLM"]
    )
    model, _ = load_with_warnings(folder, head="token-classification")
    assert model.config["model_type"] == "xlm-roberta"
    assert model.config["architectures"] == ["XLMRobertaForTokenClassification"]


def test_a_pooler_kept_aside_is_used_by_another_head(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, "bert", head="pretraining")
    change_config(folder, architectures=["BertForMaskedLM"])
    model, messages = load_with_warnings(folder, head="none")
    assert not messages
    assert model.new_parameters == ()


def test_the_head_of_an_adapter(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="none")
    adapted = build_adapted(base, "sequence-classification")
    write_adapter(adapted, tmp_path / "adapter", base_model_name=str(base))
    model, messages = load_with_warnings(tmp_path / "adapter", head="sequence-classification")
    assert not messages
    assert model.new_parameters == ()
    message = get_error_message(lambda: qkv.load(tmp_path / "adapter", head="masked-lm"))
    assert "the model has adapters of another head" in message


# --- label names ---


def test_label_names_resize_the_head(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "two", "bert", head="sequence-classification")
    model, (message,) = load_with_warnings(folder, label_names=LABEL_NAMES)
    assert f"{', '.join(OUT)} are newly initialized" in message
    assert model(tiny.random_ids(2, 9)).logits.shape == (2, 3)
    assert model.config["id2label"] == {"0": "billing", "1": "bug", "2": "praise"}
    assert model.config["label2id"] == {"billing": 0, "bug": 1, "praise": 2}
    model.save(tmp_path / "three")
    assert qkv.load(tmp_path / "three").config["id2label"] == model.config["id2label"]


def test_label_names_of_the_same_number_keep_the_head(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "a", "bert", head="sequence-classification")
    model, messages = load_with_warnings(folder, label_names=["no", "yes"])
    assert not messages
    assert model.new_parameters == ()
    assert model.config["id2label"] == {"0": "no", "1": "yes"}
    model.save(tmp_path / "b")
    logits = qkv.load(tmp_path / "b")(tiny.random_ids(2, 9)).logits
    model, (message,) = load_with_warnings(tmp_path / "b", label_names=["ham", "spam"])
    assert "the labels no, yes are renamed to ham, spam, and the head keeps its weights" in message
    compare.assert_bitwise_equal(
        model(tiny.random_ids(2, 9)).logits, logits, because=compare.SAME_KERNELS
    )
    assert model.config["id2label"] == {"0": "ham", "1": "spam"}
    _, messages = load_with_warnings(tmp_path / "b", label_names=["no", "yes"])
    assert not messages


def test_the_labels_of_another_head(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, "bert", head="token-classification", num_labels=3)
    id2label = {"0": "O", "1": "B-PER", "2": "I-PER"}
    change_config(folder, id2label=id2label, num_labels=3, problem_type="regression")
    model, _ = load_with_warnings(folder, head="sequence-classification")
    assert model.config["id2label"] == id2label
    assert "problem_type" not in model.config
    model, _ = load_with_warnings(folder, label_names=["no", "yes"])
    assert model.config["id2label"] == {"0": "no", "1": "yes"}
    assert "num_labels" not in model.config
    assert "problem_type" not in model.config


@pytest.mark.parametrize(
    ("label_names", "words"),
    [([], "expected a list"), ("abc", "expected a list"), (["a", 1], "expected a list"),
     (["a", "a"], "each name once"), (["a", "b"], "'masked-lm', which has no labels")],
    ids=str,
)  # fmt: skip
def test_invalid_label_names_are_errors(label_names: Any, words: str, get_folder: FolderOf) -> None:
    message = get_error_message(lambda: qkv.load(get_folder("bert"), label_names=label_names))
    assert "label_names" in message
    assert words in message


@pytest.mark.parametrize("keys", [
    dict(id2label={"0": "no", "1": "yes"}), dict(id2label=None, num_labels=2),
    dict(id2label={"0": "no", "1": "yes"}, _num_labels=2), dict(id2label=None, label2id=None),
], ids=["names", "num_labels", "_num_labels", "none"])  # fmt: skip
def test_the_tensor_decides_the_number_of_labels(tmp_path: Path, keys: dict[str, Any]) -> None:
    folder = save_tiny(tmp_path / "a", "bert", head="sequence-classification", num_labels=50)
    expected = qkv.load(folder)(tiny.random_ids(2, 9)).logits
    model, (message,) = load_with_warnings(change_config(folder, **keys))
    assert "the head has 50 labels, config.json has 2" in message
    compare.assert_bitwise_equal(
        model(tiny.random_ids(2, 9)).logits, expected, because=compare.SAME_KERNELS
    )
    assert len(model.config["id2label"]) == 50
    assert model.config["id2label"]["1"] == ("yes" if keys["id2label"] else "LABEL_1")
    assert model.config["id2label"]["49"] == "LABEL_49"
    model.save(tmp_path / "b")
    assert qkv.load(tmp_path / "b").args["num_labels"] == 50


# --- heads that the files lack, or have besides ---


def test_a_missing_head_is_initialized(copy_folder: FolderOf) -> None:
    folder = copy_folder("bert")
    removed = remove_tensors(folder, "cls.")
    assert removed
    model, (message,) = load_with_warnings(folder)
    assert "heads.lm.dense.weight, heads.lm.dense.bias" in message
    assert "newly initialized" in message
    assert {name.split(".")[1] for name in model.new_parameters} == {"lm"}
    assert "heads.lm.out.weight" not in model.new_parameters  # tied to the embedding


def test_an_extra_head_is_kept_aside(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "a", "bert", head="pretraining")
    change_config(folder, architectures=["BertForMaskedLM"])
    model, (message,) = load_with_warnings(folder)
    assert "bert.pooler.dense.bias, bert.pooler.dense.weight, cls.seq_relationship.bias" in message
    assert "kept aside, and written back by save" in message
    model.save(tmp_path / "b")
    compare.assert_bitwise_equal(
        load_file(tmp_path / "b" / FILE), load_file(folder / FILE), because=compare.COPIED
    )


def test_an_extra_decoder_is_kept_aside(copy_folder: FolderOf) -> None:
    model, (message,) = load_with_warnings(
        change_config(copy_folder("t5"), architectures=["T5EncoderModel"])
    )
    assert "decoder.block.0.layer.0.SelfAttention.k.weight" in message
    assert any(name.startswith("decoder.") for name in model.extra_tensors)


def test_a_missing_body_is_an_error(copy_folder: FolderOf) -> None:
    folder = copy_folder("t5")
    remove_tensors(folder, "decoder.block.1.layer.2")
    assert "decoder.block.1.layer.2.layer_norm.weight is missing" in get_error_message(
        lambda: qkv.load(folder)
    )


# --- what config.json does not state ---


def remove_keys(folder: Path, *keys: str) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in config.items() if key not in keys}))
    return folder


def test_the_family_of_a_config_without_model_type(copy_folder: FolderOf) -> None:
    folder = remove_keys(copy_folder("bert"), "model_type", "architectures")
    message = get_error_message(lambda: qkv.load(folder))
    assert "model_type is None" in message
    assert "family=" in message
    model = qkv.load(folder, family="bert", head="masked-lm")
    assert (model.family.name, model.args["head"], model.new_parameters) == (
        "bert",
        "masked-lm",
        (),
    )


def test_the_class_names_the_family(copy_folder: FolderOf) -> None:
    model = qkv.load(remove_keys(copy_folder("roberta"), "model_type"))
    assert (model.family.name, model.args["head"]) == ("roberta", "masked-lm")


def test_a_class_of_its_own_needs_a_head(copy_folder: FolderOf) -> None:
    folder = change_config(copy_folder("bert"), architectures=["BertForRockets"])
    assert "head=" in get_error_message(lambda: qkv.load(folder))
    assert qkv.load(folder, head="masked-lm").new_parameters == ()


def test_another_family_than_that_of_config_json_is_an_error(get_folder: FolderOf) -> None:
    message = get_error_message(lambda: qkv.load(get_folder("bert"), family="roberta"))
    assert "family 'roberta', but this is a bert model" in message
    assert "'rocket'" in get_error_message(lambda: qkv.load(get_folder("bert"), family="rocket"))
