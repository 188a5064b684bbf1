"""Adapters: new heads against PEFT both ways, search for the base model, invalid files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.families import get_family
from qkv.model.adapters.names import find_default_target_modules
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.model.transforms.heads import replace_head
from qkv.model.transforms.pooling import Pooling
from qkv.nn.lora import add_lora, lora_layers, merge_lora
from qkv.text import Tokenizer
from tests.nn.test_lora import peft as peft
from tests.support import compare, tiny

LABELS = 3


def randomize_trained(net: torch.nn.Module) -> None:
    """Set trained parameters to random values: adapters start as zeros."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator))


def save_tiny(folder: Path, family: str, **changes: Any) -> Path:
    tiny.build(family, **changes).save(folder)
    return folder


def build_adapted(base: Path, head: str, target_modules: list[str] | None = None) -> qkv.Model:
    """Return a saved model with another head and random adapters."""
    model, new_parameters = replace_head(
        qkv.load(base), head, LABELS if head.endswith("-classification") else 0
    )
    add_lora(
        model.net.double(),
        r=3,
        lora_alpha=7.0,
        target_modules=target_modules or find_default_target_modules(model),
        modules_to_save=new_parameters,
    )
    model.adapter_parameters_to_save = new_parameters
    randomize_trained(model.net)
    return model


def run(model: qkv.Model, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out = model(ids)
    return out["start_logits" if "start_logits" in out else "logits"]


def make_input_ids(model: qkv.Model) -> Tensor:
    ids = tiny.random_ids(2, 9)
    if model.family.name in tiny.ENCODER_DECODERS:
        ids[:, -1] = model.args["eos_token_id"]  # read by the classification head
    return ids


# PEFT itself

# Family, head of the base model, new head, and options: target modules, modules_to_save, tolerance.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "bert": ("bert", "pretraining", "sequence-classification", {}),
    "tag": ("bert", "masked-lm", "token-classification", {}),
    "span": ("bert", "masked-lm", "question-answering", {}),
    "roberta": ("roberta", "masked-lm", "sequence-classification", {}),
    "distilbert": ("distilbert", "masked-lm", "sequence-classification", {}),
    "gpt2": ("gpt2", "lm", "sequence-classification", {}),
    "bart": ("bart", "lm", "sequence-classification", dict(modules_to_save=["classification_head"])),
    "modernbert": ("modernbert", "masked-lm", "sequence-classification", dict(tolerance=1e-5)),
    "xlnet": (
        "xlnet", "lm", "sequence-classification",
        dict(
            target_modules=["up", "down"], modules_to_save=["logits_proj", "sequence_summary"],
            tolerance=1e-6,
        ),
    ),
}  # fmt: skip


def load_original(name: str, base: Path) -> Any:
    """Load the base model into a class of Hugging Face; a new head is random."""
    import transformers

    labels = {} if "Question" in name else {"num_labels": LABELS}
    model = getattr(transformers, name).from_pretrained(base, dtype=torch.float64, **labels).eval()
    model.config.pad_token_id = model.config.pad_token_id or 0
    return model


def run_original(net: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out = net(input_ids=ids)
    return out["start_logits" if "start_logits" in out else "logits"]


@pytest.mark.parametrize("case", CASES)
def test_new_head_agrees_with_peft_both_ways(peft: Any, tmp_path: Path, case: str) -> None:
    family, base_head, head, options = CASES[case]
    tolerance = options.get("tolerance", 1e-9)
    base = save_tiny(tmp_path / "base", family, head=base_head)
    name = get_family(family).heads[head]
    model = build_adapted(base, head, options.get("target_modules"))
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    ids = make_input_ids(model)
    net = peft.PeftModel.from_pretrained(
        load_original(name, base), tmp_path / "ours", autocast_adapter_dtype=False
    )
    assert (
        compare.max_difference(run_original(net.double().eval(), ids), run(model, ids)) < tolerance
    )
    loaded = qkv.load(tmp_path / "ours", dtype=torch.float64)
    assert loaded.base_model_name == str(base)
    assert compare.max_difference(run(loaded, ids), run(model, ids)) == 0
    assert {*loaded.adapter_parameters_to_save} == {*model.adapter_parameters_to_save} != set()

    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    same = {key: config[key] for key in ("r", "target_modules", "fan_in_fan_out", "task_type")}
    settings = peft.LoraConfig(lora_alpha=5, modules_to_save=options.get("modules_to_save"), **same)
    net = (
        peft.get_peft_model(load_original(name, base), settings, autocast_adapter_dtype=False)
        .double()
        .eval()
    )
    randomize_trained(net)
    net.save_pretrained(tmp_path / "theirs")
    loaded_peft = qkv.load(base, adapter=tmp_path / "theirs", dtype=torch.float64)
    assert loaded_peft.args["head"] == head
    assert compare.max_difference(run(loaded_peft, ids), run(model, ids)) > 1e-3
    assert compare.max_difference(run(loaded_peft, ids), run_original(net, ids)) < tolerance
    merge_lora(loaded_peft.net)
    assert compare.max_difference(run(loaded_peft, ids), run_original(net, ids)) < tolerance


def test_peft_finds_the_base_of_ours(peft: Any, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    model = build_adapted(base, "sequence-classification")
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    loaded_peft = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", num_labels=LABELS, dtype=torch.float64
    )
    ids = make_input_ids(model)
    expected = run_original(loaded_peft.double().eval(), ids)
    assert compare.max_difference(expected, run(model, ids)) < 1e-9


def test_pooler_of_the_checkpoint_is_kept(tmp_path: Path) -> None:
    """A masked language model with other pretraining heads in the file, as bert-base-uncased."""
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    config = json.loads((base / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (base / "config.json").write_text(json.dumps(config))
    model, tensors = qkv.load(base), load_file(base / "model.safetensors")
    assert not any("pooler" in name for name, _ in model.net.named_parameters())
    model, new_parameters = replace_head(model, "sequence-classification", LABELS)
    assert new_parameters == (
        "heads.sequence_classification.out.weight",
        "heads.sequence_classification.out.bias",
    )
    assert torch.equal(
        model.net.get_parameter("heads.pooler.dense.weight"), tensors["bert.pooler.dense.weight"]
    )


def test_classifier_of_another_head_is_not_copied(tmp_path: Path) -> None:
    """Both are called classifier in checkpoints."""
    _, new_parameters = replace_head(
        qkv.load(save_tiny(tmp_path, "bert", head="sequence-classification", num_labels=LABELS)),
        "token-classification",
        LABELS,
    )
    assert new_parameters == (
        "heads.token_classification.out.weight",
        "heads.token_classification.out.bias",
    )


# Models


def test_model_without_hf_class_keeps_parameter_names(tmp_path: Path) -> None:
    model = tiny.build("bert", positions="alibi", head="sequence-classification")
    model.save(tmp_path / "base")
    add_lora(model.net)
    randomize_trained(model.net)
    write_adapter(model, tmp_path / "ours", base_model_name=str(tmp_path / "base"))
    tensors = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert "base_model.model.encoder.layers.0.attention.q.lora_A.weight" in tensors
    ids = tiny.random_ids(2, 9)
    assert compare.max_difference(run(qkv.load(tmp_path / "ours"), ids), run(model, ids)) == 0


def test_labels_and_tokenizer_go_with_an_adapter(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    model = build_adapted(base, "sequence-classification")
    model.config["id2label"] = {"0": "no", "1": "yes", "2": "maybe"}
    model.config["problem_type"] = "single_label_classification"
    model.tokenizer = Tokenizer.train(
        ["the cat sat on the mat"], type="word", vocab_size=30, template="bert"
    )
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    loaded = qkv.load(tmp_path / "ours")
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
    randomize_trained(model.net)
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    with torch.no_grad():
        out = [
            each(tiny.random_ids(2, 9))["sentence_embedding"]
            for each in (model, qkv.load(tmp_path / "ours"))
        ]
    assert compare.max_difference(*out) == 0


def test_adapters_of_bfloat16_models_are_float32(tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining", dtype=torch.bfloat16)
    write_adapter(build_adapted(base, "sequence-classification"), tmp_path / "ours")
    loaded = qkv.load(base, adapter=tmp_path / "ours")
    dtypes = {name: p.dtype for name, p in loaded.net.named_parameters()}
    float32_names = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert float32_names == {name for name in dtypes if "lora_" in name}
    assert {*dtypes.values()} == {torch.bfloat16, torch.float32}


def test_model_with_adapters_cannot_be_saved(tmp_path: Path) -> None:
    model = tiny.build("bert")
    add_lora(model.net)
    with pytest.raises(
        ValueError, match="the model has adapters; merge them or use write_adapter"
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
def ours(tmp_path: Path) -> Path:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    write_adapter(
        build_adapted(base, "sequence-classification"), tmp_path / "ours", base_model_name=str(base)
    )
    return tmp_path / "ours"


def edit_adapter_config(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_base_model_in_the_current_folder(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ours.parent)
    edit_adapter_config(ours, base_model_name_or_path="base")
    assert qkv.load("ours").base_model_name == "base"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(base_model_name_or_path=None),
            "an adapter that does not name its base model; give its base model",
        ),
        (
            dict(base_model_name_or_path="/gone"),
            "an adapter of '/gone', which is no folder here and not in",
        ),
        (
            dict(base_model_name_or_path="some/one"),
            "an adapter of 'some/one', which is no folder here and",
        ),
    ],
)
def test_missing_base_model(ours: Path, changes: dict[str, Any], message: str) -> None:
    edit_adapter_config(ours, **changes)
    with pytest.raises(ValueError, match=rf"{ours}: {message}.*--adapter {ours}") as raised:
        qkv.load(ours)
    assert "\n" not in str(raised.value)
    assert qkv.load(ours.parent / "base", adapter=ours).base_model_name == str(ours.parent / "base")


def test_base_model_in_the_hub_cache(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = ours.parent / "hub" / "models--some--one" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    (ours.parent / "base").rename(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(ours.parent / "hub"))
    edit_adapter_config(ours, base_model_name_or_path="some/one")
    assert qkv.load(ours).base_model_name == "some/one"


def test_adapter_is_no_base_model(ours: Path) -> None:
    shutil.copytree(ours, ours.parent / "other")
    with pytest.raises(
        ValueError, match=f"other: an adapter itself, expected a model to put {ours} on"
    ):
        qkv.load(ours.parent / "other", adapter=ours)
    edit_adapter_config(ours.parent / "other", base_model_name_or_path=str(ours))
    with pytest.raises(ValueError, match=f"{ours}: an adapter itself, expected a model to put"):
        qkv.load(ours.parent / "other")


# Invalid adapters


def save_other_model(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "other", "bert", head="pretraining", width=32)


def test_adapter_of_another_model(ours: Path, tmp_path: Path) -> None:
    prefix = r"adapter_model\.safetensors: "
    with pytest.raises(
        ValueError, match=prefix + r".*query has A \[3, 24\] and B \[24, 3\], expected \[r, 32\]"
    ):
        qkv.load(save_other_model(tmp_path), adapter=ours)
    name = r"base_model\.model\.bert\.encoder\.layer\.0\.attention\.self\.query\.lora_A\.weight \[3, 24\]"
    with pytest.raises(
        ValueError, match=prefix + name + r": there is no such module in this gpt2; and \d+ more"
    ):
        qkv.load(save_tiny(tmp_path / "gpt2", "gpt2"), adapter=ours)


def edit_adapter(ours: Path, **changes: Tensor | None) -> None:
    path = ours / "adapter_model.safetensors"
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
            r"heads\.sequence_classification\.out\.bias of its head is neither in the file",
        ),
        (
            {"classifier.bias": torch.ones(3, dtype=torch.int32)},
            r"classifier\.bias is torch\.int32, expected",
        ),
        (
            {"classifier.wait": torch.ones(3)},
            r"classifier\.wait \[3\]: there is no such tensor in this bert",
        ),
    ],
)
def test_invalid_saved_tensor(ours: Path, changes: dict[str, Tensor | None], message: str) -> None:
    edit_adapter(ours, **changes)
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{message}"):
        qkv.load(ours)


def test_tied_tensor_must_be_equal(tmp_path: Path) -> None:
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
def test_invalid_head_json(ours: Path, head_config: dict[str, Any], message: str) -> None:
    (ours / "head.json").write_text(json.dumps(head_config))
    with pytest.raises(ValueError, match=message):
        qkv.load(ours)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_missing_files(ours: Path, name: str) -> None:
    (ours / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}: No such file"):
        qkv.load(ours.parent / "base", adapter=ours)
