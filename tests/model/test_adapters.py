"""Adapters and their models: new heads against PEFT both ways, where a base is found, what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.families import family as family_of
from qkv.model.adapters.names import usual
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.model.transforms.heads import headed
from qkv.model.transforms.pooling import Vector
from qkv.nn.lora import adapters, add_lora, merge
from qkv.text import Tokenizer
from tests.nn.test_lora import peft as peft
from tests.support import tiny

LABELS = 3


def stir(net: torch.nn.Module) -> None:
    """What learns becomes random: adapters start as zeros."""
    dice = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn(p.shape, generator=dice))


def saved(folder: Path, family: str, **changes: Any) -> Path:
    tiny.model(family, **changes).save(folder)
    return folder


def adapted(base: Path, head: str, where: list[str] | None = None) -> qkv.Model:
    """A saved model with another head, and random adapters."""
    made, fresh = headed(qkv.load(base), head, LABELS if head in ("label", "tag") else 0)
    add_lora(made.net.double(), rank=3, alpha=7.0, where=where or usual(made), whole=fresh)
    made.beside = fresh
    stir(made.net)
    return made


def run(made: qkv.Model, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out = made.run(ids)
    return out["start" if "start" in out else "logits"]


def rows(made: qkv.Model) -> Tensor:
    ids = tiny.ids(2, 9)
    if made.family.name in tiny.PAIRS:
        ids[:, -1] = made.args["end"]  # where these read their label
    return ids


# PEFT itself

# The base and its head, the new head, and where theirs differs: layers, modules that it saves, digits.
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "bert": ("bert", "pretrain", "label", {}),
    "tag": ("bert", "masked-lm", "tag", {}),
    "span": ("bert", "masked-lm", "span", {}),
    "roberta": ("roberta", "masked-lm", "label", {}),
    "distilbert": ("distilbert", "masked-lm", "label", {}),
    "gpt2": ("gpt2", "lm", "label", {}),
    "bart": ("bart", "lm", "label", dict(whole=["classification_head"])),
    "modernbert": ("modernbert", "masked-lm", "label", dict(near=1e-5)),
    "xlnet": (
        "xlnet", "lm", "label",
        dict(where=["up", "down"], whole=["logits_proj", "sequence_summary"], near=1e-6),
    ),
}  # fmt: skip


def theirs(name: str, base: Path) -> Any:
    """Their class on this base; what it has not is random."""
    import transformers

    labels = {} if "Question" in name else {"num_labels": LABELS}
    model = getattr(transformers, name).from_pretrained(base, dtype=torch.float64, **labels).eval()
    model.config.pad_token_id = model.config.pad_token_id or 0
    return model


def run_theirs(net: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        out = net(input_ids=ids)
    return out["start_logits" if "start_logits" in out else "logits"]


@pytest.mark.parametrize("case", CASES)
def test_peft_agrees_both_ways_on_a_new_head(peft: Any, tmp_path: Path, case: str) -> None:
    family, before, head, odd = CASES[case]
    near, base = odd.get("near", 1e-9), saved(tmp_path / "base", family, head=before)
    name = family_of(family).heads[head]
    made = adapted(base, head, odd.get("where"))
    write_adapter(made, tmp_path / "ours", base=str(base))
    ids = rows(made)
    net = peft.PeftModel.from_pretrained(theirs(name, base), tmp_path / "ours", autocast_adapter_dtype=False)
    assert tiny.apart(run_theirs(net.double().eval(), ids), run(made, ids)) < near
    again = qkv.load(tmp_path / "ours", dtype=torch.float64)
    assert again.base == str(base)
    assert tiny.apart(run(again, ids), run(made, ids)) == 0
    assert {*again.beside} == {*made.beside} != set()

    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    same = {key: config[key] for key in ("r", "target_modules", "fan_in_fan_out", "task_type")}
    settings = peft.LoraConfig(lora_alpha=5, modules_to_save=odd.get("whole"), **same)
    net = peft.get_peft_model(theirs(name, base), settings, autocast_adapter_dtype=False).double().eval()
    stir(net)
    net.save_pretrained(tmp_path / "theirs")
    opened = qkv.load(base, adapter=tmp_path / "theirs", dtype=torch.float64)
    assert opened.args["head"] == head
    assert tiny.apart(run(opened, ids), run(made, ids)) > 1e-3
    assert tiny.apart(run(opened, ids), run_theirs(net, ids)) < near
    merge(opened.net)
    assert tiny.apart(run(opened, ids), run_theirs(net, ids)) < near


def test_peft_finds_the_base_of_ours(peft: Any, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "bert", head="pretrain")
    made = adapted(base, "label")
    write_adapter(made, tmp_path / "ours", base=str(base))
    opened = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", num_labels=LABELS, dtype=torch.float64
    )
    assert tiny.apart(run_theirs(opened.double().eval(), rows(made)), run(made, rows(made))) < 1e-9


def test_a_pooler_that_the_file_holds_is_kept(tmp_path: Path) -> None:
    """A model of masked words, with the rest of its pretraining in the file, as bert-base-uncased has it."""
    base = saved(tmp_path / "base", "bert", head="pretrain")
    config = json.loads((base / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (base / "config.json").write_text(json.dumps(config))
    model, whole = qkv.load(base), load_file(base / "model.safetensors")
    assert not any("pooler" in name for name, _ in model.net.named_parameters())
    made, fresh = headed(model, "label", LABELS)
    assert fresh == ("heads.label.out.weight", "heads.label.out.bias")
    assert torch.equal(made.net.get_parameter("heads.pooler.dense.weight"), whole["bert.pooler.dense.weight"])


def test_labels_are_not_taken_for_tags(tmp_path: Path) -> None:
    """Both are called classifier by others."""
    _, fresh = headed(qkv.load(saved(tmp_path, "bert", head="label", labels=LABELS)), "tag", LABELS)
    assert fresh == ("heads.tag.out.weight", "heads.tag.out.bias")


# Models


def test_a_model_without_a_class_keeps_our_names(tmp_path: Path) -> None:
    made = tiny.model("bert", positions="alibi", head="label")
    made.save(tmp_path / "base")
    add_lora(made.net)
    stir(made.net)
    write_adapter(made, tmp_path / "ours", base=str(tmp_path / "base"))
    held = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert "base_model.model.encoder.layers.0.attend.q.lora_A.weight" in held
    ids = tiny.ids(2, 9)
    assert tiny.apart(run(qkv.load(tmp_path / "ours"), ids), run(made, ids)) == 0


def test_labels_and_tokenizer_go_with_an_adapter(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "bert", head="pretrain")
    made = adapted(base, "label")
    made.config["id2label"] = {"0": "no", "1": "yes", "2": "maybe"}
    made.config["problem_type"] = "single_label_classification"
    made.tokenizer = Tokenizer.train(["the cat sat on the mat"], kind="word", vocab=30, purpose="bert")
    write_adapter(made, tmp_path / "ours", base=str(base))
    again = qkv.load(tmp_path / "ours")
    assert again.config["id2label"] == made.config["id2label"]
    assert again.config["problem_type"] == made.config["problem_type"]
    assert again.config["architectures"] == ["BertForSequenceClassification"]
    assert again.tokenizer is not None
    assert again.tokenizer.encode("the cat").ids == made.tokenizer.encode("the cat").ids
    merge(again.net)
    again.save(tmp_path / "plain")
    plain = qkv.load(tmp_path / "plain", dtype=torch.float64)
    assert plain.tokenizer is not None
    assert plain.config["id2label"] == made.config["id2label"]
    assert tiny.apart(run(plain, tiny.ids(2, 9)), run(made, tiny.ids(2, 9))) < 1e-9


def test_a_vector_goes_with_an_adapter(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "bert", head="none")
    made, fresh = headed(qkv.load(base), None, 0, Vector("mean"))
    assert fresh == ()
    add_lora(made.net.double())
    stir(made.net)
    write_adapter(made, tmp_path / "ours", base=str(base))
    with torch.no_grad():
        out = [each.run(tiny.ids(2, 9))["vector"] for each in (made, qkv.load(tmp_path / "ours"))]
    assert tiny.apart(*out) == 0


def test_coarse_models_stay_coarse(tmp_path: Path) -> None:
    base = saved(tmp_path / "base", "bert", head="pretrain", dtype=torch.bfloat16)
    write_adapter(adapted(base, "label"), tmp_path / "ours")
    again = qkv.load(base, adapter=tmp_path / "ours")
    kinds = {name: p.dtype for name, p in again.net.named_parameters()}
    fine = {name for name, kind in kinds.items() if kind == torch.float32}
    assert fine == {name for name in kinds if "lora_" in name}
    assert {*kinds.values()} == {torch.bfloat16, torch.float32}


def test_adapters_are_saved_or_merged_before_the_model(tmp_path: Path) -> None:
    made = tiny.model("bert")
    add_lora(made.net)
    with pytest.raises(
        ValueError, match="the model has adapters on it: merge or write_adapter first"
    ) as raised:
        made.save(tmp_path / "new")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "new").exists()


def test_a_head_does_not_change_under_adapters() -> None:
    made = tiny.model("bert", head="label")
    add_lora(made.net)
    with pytest.raises(ValueError, match=r"labels 5: the model has adapters of another head; .*qkv merge"):
        headed(made, "label", 5)
    assert headed(made, "label", 2) == (made, ())


# Where the base is


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    base = saved(tmp_path / "base", "bert", head="pretrain")
    write_adapter(adapted(base, "label"), tmp_path / "ours", base=str(base))
    return tmp_path / "ours"


def config_of(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_base_is_found_from_here(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ours.parent)
    config_of(ours, base_model_name_or_path="base")
    assert qkv.load("ours").base == "base"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(base_model_name_or_path=None), "an adapter that does not say of which model; name its model"),
        (dict(base_model_name_or_path="/gone"), "an adapter of '/gone', which is no folder here and not in"),
        (dict(base_model_name_or_path="some/one"), "an adapter of 'some/one', which is no folder here and"),
    ],
)
def test_a_base_that_is_not_there_is_asked_for(ours: Path, changes: dict[str, Any], said: str) -> None:
    config_of(ours, **changes)
    with pytest.raises(ValueError, match=rf"{ours}: {said}.*--adapter {ours}") as raised:
        qkv.load(ours)
    assert "\n" not in str(raised.value)
    assert qkv.load(ours.parent / "base", adapter=ours).base == str(ours.parent / "base")


def test_a_base_is_found_in_the_hubs_cache(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = ours.parent / "hub" / "models--some--one" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    (ours.parent / "base").rename(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(ours.parent / "hub"))
    config_of(ours, base_model_name_or_path="some/one")
    assert qkv.load(ours).base == "some/one"


def test_an_adapter_is_no_base(ours: Path) -> None:
    shutil.copytree(ours, ours.parent / "other")
    with pytest.raises(ValueError, match=f"other: an adapter itself, expected a model to put {ours} on"):
        qkv.load(ours.parent / "other", adapter=ours)
    config_of(ours.parent / "other", base_model_name_or_path=str(ours))
    with pytest.raises(ValueError, match=f"{ours}: an adapter itself, expected a model to put"):
        qkv.load(ours.parent / "other")


# What is refused


def other(tmp_path: Path) -> Path:
    return saved(tmp_path / "other", "bert", head="pretrain", width=32)


def test_an_adapter_of_another_model_names_the_first_tensor(ours: Path, tmp_path: Path) -> None:
    front = r"adapter_model\.safetensors: "
    with pytest.raises(
        ValueError, match=front + r".*query has A \[3, 24\] and B \[24, 3\], expected \[r, 32\]"
    ):
        qkv.load(other(tmp_path), adapter=ours)
    name = r"base_model\.model\.bert\.encoder\.layer\.0\.attention\.self\.query\.lora_A\.weight \[3, 24\]"
    with pytest.raises(
        ValueError, match=front + name + r": there is no such module in this gpt2; and \d+ more"
    ):
        qkv.load(saved(tmp_path / "gpt2", "gpt2"), adapter=ours)


def edited(ours: Path, **changes: Tensor | None) -> None:
    path = ours / "adapter_model.safetensors"
    tensors = load_file(path) | {
        f"base_model.model.{name}": x for name, x in changes.items() if x is not None
    }
    gone = {f"base_model.model.{name}" for name, x in changes.items() if x is None}
    save_file({name: x for name, x in tensors.items() if name not in gone}, path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"classifier.bias": torch.ones(4)}, r"classifier\.bias \[4\]: expected \[3\]; is it the adapter"),
        ({"classifier.weight": torch.ones(())}, r"classifier\.bias \[3\]: expected \[2\]; and 1 more"),
        ({"classifier.weight": torch.ones(10**6, 1)}, r"classifier\.bias \[3\]: expected \[2\]; and 1 more"),
        ({"classifier.weight": torch.ones(10**9, 0)}, r"classifier\.bias \[3\]: expected \[2\]; and 1 more"),
        ({"classifier.bias": None}, r"heads\.label\.out\.bias of its head is neither in the file nor in the"),
        (
            {"classifier.bias": torch.ones(3, dtype=torch.int32)},
            r"classifier\.bias is torch\.int32, expected",
        ),
        ({"classifier.wait": torch.ones(3)}, r"classifier\.wait \[3\]: there is no such tensor in this bert"),
    ],
)
def test_a_whole_tensor_without_a_place_is_named(
    ours: Path, changes: dict[str, Tensor | None], said: str
) -> None:
    edited(ours, **changes)
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{said}"):
        qkv.load(ours)


def test_a_tied_tensor_is_read_where_it_is_the_same(tmp_path: Path) -> None:
    made = tiny.model("bert")
    add_lora(made.net)
    write_adapter(made, tmp_path)
    table = made.net.get_parameter("encoder.embed.tokens.weight").detach()
    edited(tmp_path, **{"cls.predictions.decoder.weight": table.clone()})
    assert adapters(read_adapter(tiny.model("bert"), tmp_path).net)
    edited(tmp_path, **{"cls.predictions.decoder.weight": table + 1})
    with pytest.raises(
        ValueError, match=r"decoder\.weight \[53, 24\] differs from encoder\.embed\.tokens\.weight"
    ):
        read_adapter(tiny.model("bert"), tmp_path)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"head": "labels"}, r"head\.json: head is 'labels', expected one of none, masked-lm"),
        (
            {"head": "label", "id2label": {"0": "a"}},
            r"head\.json: id2label is .*, expected the names of 3 labels",
        ),
        ({"head": ["label"]}, r"head\.json: head is \['label'\]"),
    ],
)
def test_a_head_that_is_not_known_is_named(ours: Path, told: dict[str, Any], said: str) -> None:
    (ours / "head.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match=said):
        qkv.load(ours)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_missing_files_are_named(ours: Path, name: str) -> None:
    (ours / name).unlink()
    with pytest.raises(ValueError, match=rf"{name}: No such file"):
        qkv.load(ours.parent / "base", adapter=ours)
