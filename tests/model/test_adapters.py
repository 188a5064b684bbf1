"""Adapters with a new head: what goes with them, the search for the base model, invalid files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.model.transforms.heads import replace_head
from qkv.model.transforms.pooling import Pooling
from qkv.nn.lora import add_lora, lora_layers, merge_lora
from qkv.text import Tokenizer
from tests.support import compare, tiny
from tests.support.adapters import (
    NUM_LABELS,
    build_adapted,
    randomize_trainable_parameters,
    run,
    save_tiny,
)


def test_pooler_of_the_checkpoint_is_kept(tmp_path: Path) -> None:
    """A masked language model with other pretraining heads in the file, as bert-base-uncased."""
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    config = json.loads((base / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.warns(UserWarning, match="kept aside"):
        model = qkv.load(base)
    tensors = load_file(base / "model.safetensors")
    assert not any("pooler" in name for name, _ in model.net.named_parameters())
    model, new_parameters = replace_head(model, "sequence-classification", NUM_LABELS)
    assert new_parameters == (
        "heads.sequence_classification.out.weight",
        "heads.sequence_classification.out.bias",
    )
    compare.assert_bitwise_equal(
        model.net.get_parameter("heads.pooler.dense.weight"),
        tensors["bert.pooler.dense.weight"].float(),  # as the new parameters
        because=compare.COPIED,
    )


def test_classifier_of_another_head_is_not_copied(tmp_path: Path) -> None:
    """Both are called classifier in checkpoints."""
    _, new_parameters = replace_head(
        qkv.load(
            save_tiny(tmp_path, "bert", head="sequence-classification", num_labels=NUM_LABELS)
        ),
        "token-classification",
        NUM_LABELS,
    )
    assert new_parameters == (
        "heads.token_classification.out.weight",
        "heads.token_classification.out.bias",
    )


def test_model_without_hf_class_keeps_parameter_names(tmp_path: Path) -> None:
    model = tiny.build("bert", positions="alibi", head="sequence-classification")
    model.save(tmp_path / "base")
    add_lora(model.net)
    randomize_trainable_parameters(model.net)
    write_adapter(model, tmp_path / "adapter", base_model_name=str(tmp_path / "base"))
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert "base_model.model.encoder.layers.0.attention.q.lora_A.weight" in tensors
    ids = tiny.random_ids(2, 9)
    compare.assert_bitwise_equal(
        run(qkv.load(tmp_path / "adapter"), ids), run(model, ids), because=compare.SAME_KERNELS
    )


def test_labels_and_tokenizer_go_with_an_adapter(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    model = build_adapted(base, "sequence-classification")
    model.config["id2label"] = {"0": "no", "1": "yes", "2": "maybe"}
    model.config["problem_type"] = "single_label_classification"
    model.tokenizer = Tokenizer.train(
        ["the cat sat on the mat"], type="word", vocab_size=30, template="bert"
    )
    write_adapter(model, tmp_path / "adapter", base_model_name=str(base))
    loaded = qkv.load(tmp_path / "adapter")
    assert loaded.config["id2label"] == model.config["id2label"]
    assert loaded.config["problem_type"] == model.config["problem_type"]
    assert loaded.config["architectures"] == ["BertForSequenceClassification"]
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("the cat") == model.tokenizer.encode("the cat")
    merge_lora(loaded.net)
    loaded.save(tmp_path / "plain")
    plain = qkv.load(tmp_path / "plain", dtype=torch.float64)
    assert plain.tokenizer is not None
    assert plain.config["id2label"] == model.config["id2label"]
    assert (
        compare.max_difference(run(plain, tiny.random_ids(2, 9)), run(model, tiny.random_ids(2, 9)))
        < 1e-9
    )


def test_pooling_goes_with_an_adapter(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="none")
    model, new_parameters = replace_head(qkv.load(base), None, 0, Pooling("mean"))
    assert new_parameters == ()
    add_lora(model.net.double())
    randomize_trainable_parameters(model.net)
    write_adapter(model, tmp_path / "adapter", base_model_name=str(base))
    with torch.no_grad():
        embeddings = [
            m(tiny.random_ids(2, 9))["sentence_embedding"]
            for m in (model, qkv.load(tmp_path / "adapter"))
        ]
    compare.assert_bitwise_equal(*embeddings, because=compare.SAME_KERNELS)


def test_adapters_of_bfloat16_models_are_float32(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining", dtype=torch.bfloat16)
    write_adapter(build_adapted(base, "sequence-classification"), tmp_path / "adapter")
    loaded = qkv.load(base, adapter=tmp_path / "adapter")
    dtypes = {name: p.dtype for name, p in loaded.net.named_parameters()}
    float32_names = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert float32_names == {name for name in dtypes if "lora_" in name}
    assert {*dtypes.values()} == {torch.bfloat16, torch.float32}


def test_model_with_adapters_cannot_be_saved(tmp_path: Path) -> None:
    model = tiny.build("bert")
    add_lora(model.net)
    with pytest.raises(
        ValueError, match="the model has adapters; call merge_lora or write_adapter"
    ) as raised:
        model.save(tmp_path / "new")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_head_of_adapted_model_cannot_change() -> None:
    model = tiny.build("bert", head="sequence-classification")
    add_lora(model.net)
    with pytest.raises(
        ValueError, match=r"num_labels 5: the model has adapters of another head; .*qkv merge"
    ):
        replace_head(model, "sequence-classification", 5)
    assert replace_head(model, "sequence-classification", 2) == (model, ())


# The base model


@pytest.fixture
def adapter_folder(tmp_path: Path) -> Path:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    write_adapter(
        build_adapted(base, "sequence-classification"),
        tmp_path / "adapter",
        base_model_name=str(base),
    )
    return tmp_path / "adapter"


def edit_adapter_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_base_model_may_be_in_the_current_folder(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(adapter_folder.parent)
    edit_adapter_config(adapter_folder, base_model_name_or_path="base")
    assert qkv.load("adapter").base_model_name == "base"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(base_model_name_or_path=None),
            "an adapter without base_model_name_or_path; give its base model",
        ),
        (
            dict(base_model_name_or_path="/gone"),
            "the base model '/gone' is neither a folder nor in the hub's cache",
        ),
        (
            dict(base_model_name_or_path="some/one"),
            "the base model 'some/one' is neither a folder nor in",
        ),
    ],
)
def test_a_missing_base_model_is_an_error(
    adapter_folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit_adapter_config(adapter_folder, **changes)
    with pytest.raises(
        ValueError, match=rf"{adapter_folder}: {message}.*--adapter {adapter_folder}"
    ) as raised:
        qkv.load(adapter_folder)
    assert "\n" not in str(raised.value)
    assert qkv.load(adapter_folder.parent / "base", adapter=adapter_folder).base_model_name == str(
        adapter_folder.parent / "base"
    )


def test_the_base_model_may_be_in_the_hub_cache(
    adapter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = adapter_folder.parent / "hub" / "models--some--one" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    (adapter_folder.parent / "base").rename(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_CACHE", str(adapter_folder.parent / "hub")
    )
    edit_adapter_config(adapter_folder, base_model_name_or_path="some/one")
    assert qkv.load(adapter_folder).base_model_name == "some/one"


def test_an_adapter_is_no_base_model(adapter_folder: Path) -> None:
    shutil.copytree(adapter_folder, adapter_folder.parent / "other")
    with pytest.raises(
        ValueError, match=f"other: an adapter, expected a model for the adapter {adapter_folder}"
    ):
        qkv.load(adapter_folder.parent / "other", adapter=adapter_folder)
    edit_adapter_config(
        adapter_folder.parent / "other", base_model_name_or_path=str(adapter_folder)
    )
    with pytest.raises(
        ValueError, match=f"{adapter_folder}: an adapter, expected a model for the adapter"
    ):
        qkv.load(adapter_folder.parent / "other")


# Invalid adapters


def save_other_model(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "other", "bert", head="pretraining", width=32)


def test_an_adapter_of_another_model_is_an_error(adapter_folder: Path, tmp_path: Path) -> None:
    prefix = r"adapter_model\.safetensors: "
    with pytest.raises(
        ValueError, match=prefix + r".*query has A \[3, 24\] and B \[24, 3\], expected \[r, 32\]"
    ):
        qkv.load(save_other_model(tmp_path), adapter=adapter_folder)
    name = r"base_model\.model\.bert\.encoder\.layer\.0\.attention\.self\.query\.lora_A\.weight \[3, 24\]"
    with pytest.raises(
        ValueError, match=prefix + name + r": this gpt2 has no such module; and \d+ more"
    ):
        qkv.load(save_tiny(tmp_path / "gpt2", "gpt2"), adapter=adapter_folder)


def edit_adapter(adapter_folder: Path, **changes: Tensor | None) -> None:
    path = adapter_folder / "adapter_model.safetensors"
    tensors = load_file(path) | {
        f"base_model.model.{name}": x for name, x in changes.items() if x is not None
    }
    gone = {f"base_model.model.{name}" for name, x in changes.items() if x is None}
    save_file({name: x for name, x in tensors.items() if name not in gone}, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"classifier.bias": torch.ones(4)},
            r"classifier\.bias \[4\]: expected \[3\]; is it the adapter",
        ),
        (
            {"classifier.weight": torch.ones(())},
            r"classifier\.bias \[3\]: expected \[2\]; and 1 more",
        ),
        (
            {"classifier.weight": torch.ones(10**6, 1)},
            r"classifier\.bias \[3\]: expected \[2\]; and 1 more",
        ),
        (
            {"classifier.weight": torch.ones(10**9, 0)},
            r"classifier\.bias \[3\]: expected \[2\]; and 1 more",
        ),
        (
            {"classifier.bias": None},
            r"heads\.sequence_classification\.out\.bias of the head is neither in the adapter",
        ),
        (
            {"classifier.bias": torch.ones(3, dtype=torch.int32)},
            r"classifier\.bias is torch\.int32, expected",
        ),
        (
            {"classifier.wait": torch.ones(3)},
            r"classifier\.wait \[3\]: this bert has no such tensor",
        ),
    ],
)
def test_invalid_saved_tensors_are_errors(
    adapter_folder: Path, changes: dict[str, Tensor | None], message: str
) -> None:
    edit_adapter(adapter_folder, **changes)
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{message}"):
        qkv.load(adapter_folder)


def test_a_tied_tensor_must_be_equal(tmp_path: Path) -> None:
    model = tiny.build("bert")
    add_lora(model.net)
    write_adapter(model, tmp_path)
    table = model.net.get_parameter("encoder.embedding.tokens.weight").detach()
    edit_adapter(tmp_path, **{"cls.predictions.decoder.weight": table.clone()})
    assert lora_layers(read_adapter(tiny.build("bert"), tmp_path).net)
    edit_adapter(tmp_path, **{"cls.predictions.decoder.weight": table + 1})
    with pytest.raises(
        ValueError,
        match=r"decoder\.weight \[53, 24\] differs from encoder\.embedding\.tokens\.weight",
    ):
        read_adapter(tiny.build("bert"), tmp_path)


@pytest.mark.parametrize(
    ("head_config", "message"),
    [
        ({"head": "labels"}, r"head\.json: head is 'labels', expected one of none, masked-lm"),
        (
            {"head": "sequence-classification", "id2label": {"0": "a"}},
            r"head\.json: id2label is .*, expected the names of 3 labels",
        ),
        ({"head": ["lm"]}, r"head\.json: head is \['lm'\]"),
    ],
)
def test_an_invalid_head_json_is_an_error(
    adapter_folder: Path, head_config: dict[str, Any], message: str
) -> None:
    (adapter_folder / "head.json").write_text(json.dumps(head_config))
    with pytest.raises(ValueError, match=message):
        qkv.load(adapter_folder)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_missing_files_are_errors(adapter_folder: Path, name: str) -> None:
    (adapter_folder / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}: No such file"):
        qkv.load(adapter_folder.parent / "base", adapter=adapter_folder)
