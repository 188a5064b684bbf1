"""Transformer-XL against outputs of its original code; see `tools/make_xl_goldens.py`."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from tests.support import compare

FOLDERS = sorted((Path(__file__).parent.parent / "goldens" / "xl").iterdir())
CASES = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
FILE = "model.safetensors"
Tensors = dict[str, Tensor]


def read_golden(folder: Path) -> tuple[Tensors, dict[str, str]]:
    """Return inputs and outputs, and for each further name of a tied tensor its first name."""
    with safe_open(folder / "golden.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["tied"])


def run(model: qkv.Model, ids: Tensor, mems: Tensor | None) -> Tensors:
    """Return all outputs under the names of the golden file."""
    with qkv.look(model) as recorded:
        out = model(ids, mems=mems, extra_outputs=("hidden_states",))
    weights = [recorded[f"decoder.layers.{n}.attention"] for n in range(len(recorded))]
    names = ("logits", "last_hidden_state", "hidden_states", "mems")
    outputs = {name: out[name] for name in names} | {"attentions": torch.stack(weights)}
    if "pad_token_id" in model.config:
        mask = mask_before_padding(ids, model.config["pad_token_id"])
        outputs["logits"] = model(ids, attention_mask=mask, mems=mems)["logits"]
    return outputs


def mask_before_padding(ids: Tensor, pad_token_id: int) -> Tensor:
    """Return a mask that ends before the first pad, where the original's classifier reads."""
    first = (ids == pad_token_id).int().argmax(1)  # 0: no pad, or at the start
    return torch.arange(ids.shape[1]) < torch.where(first == 0, ids.shape[1], first)[:, None]


def assert_all_close(actual: Tensors, expected: Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        message = partial("{}: {}".format, name)
        torch.testing.assert_close(value, expected[name], atol=2e-5, rtol=1e-4, msg=message)


def test_all_goldens_are_present() -> None:
    assert len(FOLDERS) == 9


@CASES
def test_outputs_and_gradients_match_the_reference(folder: Path) -> None:
    golden, tied = read_golden(folder)
    model = qkv.load(folder)
    first = run(model, golden["ids"], None)
    second = run(model, golden["ids2"], first["mems"])
    for outputs, suffix in ((first, ""), (second, "2")):
        if f"mems{suffix}" not in golden:  # the original returns none if mem_len is 0
            assert outputs.pop("mems").numel() == 0
        assert_all_close(outputs, {name: golden[name + suffix] for name in outputs})
        assert ("mems" in outputs) == ("mems" in golden)

    pairs = [(first["logits"], golden["projection"]), (second["logits"], golden["projection2"])]
    torch.stack([(logits * weight).sum() for logits, weight in pairs]).sum().backward()
    # The scale of the differentiated sum, and of its rounding error.
    size = golden["logits"].numel() ** 0.5
    actual = model.to_checkpoint_tensors(
        {name: p.grad / size for name, p in model.net.named_parameters() if p.grad is not None}
    )
    expected = {
        name.removeprefix("grad."): x / size
        for name, x in golden.items()
        if name.startswith("grad.")
    }
    assert_all_close({tied.get(name, name): value for name, value in actual.items()}, expected)


@CASES
def test_look_does_not_change_outputs(folder: Path) -> None:
    golden, _ = read_golden(folder)
    model = qkv.load(folder)
    mems = model(golden["ids"])["mems"]
    with qkv.look(model):
        recorded = model(golden["ids2"], mems=mems, extra_outputs=("hidden_states",))
    plain = model(golden["ids2"], mems=mems, extra_outputs=("hidden_states",))
    compare.assert_bitwise_equal(recorded, plain, because=compare.SAME_KERNELS)


@CASES
def test_padded_row_equals_row_alone(folder: Path) -> None:
    model = qkv.load(folder, dtype=torch.float64)
    ids = read_golden(folder)[0]["ids"]
    for mask in (torch.arange(5) < 3, torch.arange(5) >= 2):
        rows = ids[:, :5]
        both = torch.stack([torch.ones_like(mask), mask])
        together = model(rows[:2], attention_mask=both)["last_hidden_state"][1, mask]
        alone = model(rows[1:2, mask])["last_hidden_state"][0]
        torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)


@CASES
def test_a_tied_tensor_may_be_stored_once(folder: Path, tmp_path: Path) -> None:
    golden, tied = read_golden(folder)
    tensors = load_file(folder / FILE)
    assert tied.keys() <= tensors.keys()
    shutil.copy(folder / "config.json", tmp_path)
    save_file({name: x for name, x in tensors.items() if name not in tied}, tmp_path / FILE)
    original = qkv.load(folder)
    reduced = qkv.load(tmp_path)
    compare.assert_bitwise_equal(
        dict(reduced.net.named_parameters()),
        dict(original.net.named_parameters()),
        because=compare.COPIED,
    )
    compare.assert_bitwise_equal(
        reduced(golden["ids"]), original(golden["ids"]), because=compare.SAME_KERNELS
    )


@CASES
def test_a_saved_model_loads_with_the_same_outputs(folder: Path, tmp_path: Path) -> None:
    golden, _ = read_golden(folder)
    model = qkv.load(folder)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "qkv"
    assert config["family"] == "transformer-xl"
    reloaded = qkv.load(tmp_path)
    assert reloaded.spec == model.spec
    compare.assert_bitwise_equal(
        reloaded(golden["ids"]), model(golden["ids"]), because=compare.SAME_KERNELS
    )
    compare.assert_bitwise_equal(
        dict(reloaded.net.named_parameters()),
        dict(model.net.named_parameters()),
        because=compare.COPIED,
    )


@CASES
def test_saving_in_hf_format_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transformer-xl"):
        qkv.load(folder).save(tmp_path / "new", format="hf")
    assert not (tmp_path / "new").exists()
