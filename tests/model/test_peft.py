"""Adapters against PEFT, in both directions: adapters of layers, and of a model with a new head."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import qkv
from qkv.families import get_family
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import merge_lora
from tests.support import compare, tiny
from tests.support.adapters import (
    NUM_LABELS,
    build_adapted,
    randomize_trainable_parameters,
    run,
    save_tiny,
)

ADAPTERS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "bert": ("bert", {}, "BertForMaskedLM", dict(target_modules=["query", "value"])),
    "bert-bare": ("bert", dict(head="none"), "BertModel", dict(target_modules=["query", "dense"])),
    "bert-root": ("bert", {}, "BertForMaskedLM", dict(target_modules=["key"], use_rslora=True)),
    "bert-ranks": (
        "bert", {}, "BertForMaskedLM",
        dict(target_modules=["query", "key"], rank_pattern={"query": 5}, alpha_pattern={"layer.0.*key": 3}),
    ),
    "albert": ("albert", {}, "AlbertForMaskedLM", dict(target_modules=["query", "ffn"])),
    "distilbert": ("distilbert", {}, "DistilBertForMaskedLM", dict(target_modules=["q_lin", "lin2"])),
    "gpt2": (
        "gpt2", {}, "GPT2LMHeadModel",
        dict(target_modules=["c_attn", "attn.c_proj", "c_fc"], fan_in_fan_out=True),
    ),
    "bart": ("bart", {}, "BartForConditionalGeneration", dict(target_modules=["q_proj", "v_proj", "fc1"])),
    "t5": ("t5", {}, "T5ForConditionalGeneration", dict(target_modules=["q", "v", "wi_0", "wo"])),
    "llama": ("llama", {}, "LlamaForCausalLM", dict(target_modules=["q_proj", "k_proj", "gate_proj"])),
    "modernbert": ("modernbert", {}, "ModernBertForMaskedLM", dict(target_modules=["Wqkv", "Wi"])),
    "clip": ("clip", {}, "CLIPModel", dict(target_modules=["q_proj", "fc2"])),
}  # fmt: skip
FP32 = ("t5", "llama", "modernbert")  # transformers computes their norms or angles in fp32
# Family, head of the base model, new head, and options: target modules, modules_to_save, tolerance.
NEW_HEADS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
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


def run_all_outputs(model: qkv.Model) -> dict[str, Tensor]:
    with torch.no_grad():
        return model(**tiny.build_inputs(model))


def load_in_transformers(model: qkv.Model, name: str, folder: Path) -> Any:
    """Return the same model in transformers."""
    model.save(folder)
    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float64).eval()


def run_in_transformers(net: Any, model: qkv.Model) -> Tensor:
    """Return the first output of the same model in transformers."""
    with torch.no_grad():
        out = net(**tiny.build_inputs(model))
    return out["logits_per_image"] if model.family.name == "clip" else out[0]


@pytest.mark.parametrize("case", ADAPTERS)
def test_peft_agrees_in_both_directions(peft: Any, tmp_path: Path, case: str) -> None:
    family, changes, class_name, settings = ADAPTERS[case]
    model = tiny.build(family, **changes)
    base = load_in_transformers(model, class_name, tmp_path / "base")
    wrapped = peft.get_peft_model(
        base, peft.LoraConfig(r=3, lora_alpha=7, **settings), autocast_adapter_dtype=False
    )
    wrapped.to(torch.float64).eval()
    randomize_trainable_parameters(wrapped)
    expected = run_in_transformers(wrapped, model)
    wrapped.save_pretrained(tmp_path / "theirs")

    plain = run_all_outputs(model)
    read_adapter(model, tmp_path / "theirs")
    key = "last_hidden_state" if model.args.get("head") == "none" else "logits"
    assert compare.max_difference(run_all_outputs(model)[key], plain[key]) > 1e-3
    tolerance = 1e-5 if family in FP32 else 1e-9
    assert compare.max_difference(run_all_outputs(model)[key], expected) < tolerance

    write_adapter(model, tmp_path / "ours")
    ours, theirs = (
        load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("ours", "theirs")
    )
    compare.assert_bitwise_equal(ours, theirs, because=compare.COPIED)
    fresh = load_in_transformers(tiny.build(family, **changes), class_name, tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(
        fresh, tmp_path / "ours", autocast_adapter_dtype=False
    ).eval()
    actual = run_in_transformers(loaded.to(torch.float64), model)
    assert compare.max_difference(actual, expected) < 1e-12

    merge_lora(model.net)
    assert compare.max_difference(run_all_outputs(model)[key], expected) < tolerance


def make_input_ids(model: qkv.Model) -> Tensor:
    ids = tiny.random_ids(2, 9)
    if model.family.name in tiny.ENCODER_DECODERS:
        ids[:, -1] = model.args["eos_token_id"]  # read by the classification head
    return ids


def load_with_new_head(name: str, base: Path) -> Any:
    """Load the base model into a class of Hugging Face; a new head is random."""
    labels = {} if "Question" in name else {"num_labels": NUM_LABELS}
    model = getattr(transformers, name).from_pretrained(base, dtype=torch.float64, **labels).eval()
    model.config.pad_token_id = model.config.pad_token_id or 0
    return model


@pytest.mark.parametrize("case", NEW_HEADS)
def test_a_new_head_agrees_with_peft_in_both_directions(
    peft: Any, tmp_path: Path, case: str
) -> None:
    family, base_head, head, options = NEW_HEADS[case]
    tolerance = options.get("tolerance", 1e-9)
    base = save_tiny(tmp_path / "base", family, head=base_head)
    name = get_family(family).heads[head]
    model = build_adapted(base, head, options.get("target_modules"))
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    ids = make_input_ids(model)
    net = peft.PeftModel.from_pretrained(
        load_with_new_head(name, base), tmp_path / "ours", autocast_adapter_dtype=False
    )
    assert compare.max_difference(run(net.double().eval(), ids), run(model, ids)) < tolerance
    loaded = qkv.load(tmp_path / "ours", dtype=torch.float64)
    assert loaded.base_model_name == str(base)
    compare.assert_bitwise_equal(run(loaded, ids), run(model, ids), because=compare.SAME_KERNELS)
    assert {*loaded.adapter_parameters_to_save} == {*model.adapter_parameters_to_save} != set()

    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    same = {key: config[key] for key in ("r", "target_modules", "fan_in_fan_out", "task_type")}
    settings = peft.LoraConfig(lora_alpha=5, modules_to_save=options.get("modules_to_save"), **same)
    net = (
        peft.get_peft_model(load_with_new_head(name, base), settings, autocast_adapter_dtype=False)
        .double()
        .eval()
    )
    randomize_trainable_parameters(net)
    net.save_pretrained(tmp_path / "theirs")
    loaded_peft = qkv.load(base, adapter=tmp_path / "theirs", dtype=torch.float64)
    assert loaded_peft.args["head"] == head
    assert compare.max_difference(run(loaded_peft, ids), run(model, ids)) > 1e-3
    assert compare.max_difference(run(loaded_peft, ids), run(net, ids)) < tolerance
    merge_lora(loaded_peft.net)
    assert compare.max_difference(run(loaded_peft, ids), run(net, ids)) < tolerance


def test_peft_finds_the_base_model_of_our_adapter(peft: Any, tmp_path: Path) -> None:
    base = save_tiny(tmp_path / "base", "bert", head="pretraining")
    model = build_adapted(base, "sequence-classification")
    write_adapter(model, tmp_path / "ours", base_model_name=str(base))
    loaded_peft = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        tmp_path / "ours", num_labels=NUM_LABELS, dtype=torch.float64
    )
    ids = make_input_ids(model)
    expected = run(loaded_peft.double().eval(), ids)
    assert compare.max_difference(expected, run(model, ids)) < 1e-9
