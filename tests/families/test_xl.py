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

FOLDERS = sorted((Path(__file__).parent.parent / "goldens" / "xl").iterdir())
CASES = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
FILE = "model.safetensors"
Tensors = dict[str, Tensor]


def golden(folder: Path) -> tuple[Tensors, dict[str, str]]:
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


def check(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        message = partial("{}: {}".format, name)
        torch.testing.assert_close(value, theirs[name], atol=2e-5, rtol=1e-4, msg=message)


def test_all_goldens_are_present() -> None:
    assert len(FOLDERS) == 9


@CASES
def test_numbers(folder: Path) -> None:
    theirs, tied = golden(folder)
    model = qkv.load(folder)
    first = run(model, theirs["ids"], None)
    second = run(model, theirs["ids2"], first["mems"])
    for outputs, suffix in ((first, ""), (second, "2")):
        if f"mems{suffix}" not in theirs:  # the original returns none if mem_len is 0
            assert outputs.pop("mems").numel() == 0
        check(outputs, {name: theirs[name + suffix] for name in outputs})
        assert ("mems" in outputs) == ("mems" in theirs)

    pairs = [(first["logits"], theirs["projection"]), (second["logits"], theirs["projection2"])]
    torch.stack([(logits * weight).sum() for logits, weight in pairs]).sum().backward()
    size = (
        theirs["logits"].numel() ** 0.5
    )  # the scale of the differentiated sum, and of its rounding error
    actual = model.to_checkpoint_tensors(
        {name: p.grad / size for name, p in model.net.named_parameters() if p.grad is not None}
    )
    expected = {
        name.removeprefix("grad."): x / size
        for name, x in theirs.items()
        if name.startswith("grad.")
    }
    check({tied.get(name, name): value for name, value in actual.items()}, expected)


@CASES
def test_looking_changes_nothing(folder: Path) -> None:
    theirs, _ = golden(folder)
    model = qkv.load(folder)
    mems = model(theirs["ids"])["mems"]
    with qkv.look(model):
        recorded = model(theirs["ids2"], mems=mems, extra_outputs=("hidden_states",))
    plain = model(theirs["ids2"], mems=mems, extra_outputs=("hidden_states",))
    assert all(torch.equal(recorded[name], plain[name]) for name in plain)


@CASES
def test_padded_row_equals_row_alone(folder: Path) -> None:
    model = qkv.load(folder, dtype=torch.float64)
    ids = golden(folder)[0]["ids"]
    for mask in (torch.arange(5) < 3, torch.arange(5) >= 2):
        rows = ids[:, :5]
        both = torch.stack([torch.ones_like(mask), mask])
        together = model(rows[:2], attention_mask=both)["last_hidden_state"][1, mask]
        alone = model(rows[1:2, mask])["last_hidden_state"][0]
        torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)


@CASES
def test_a_tied_tensor_may_be_stored_once(folder: Path, tmp_path: Path) -> None:
    theirs, tied = golden(folder)
    tensors = load_file(folder / FILE)
    assert tied.keys() <= tensors.keys()
    shutil.copy(folder / "config.json", tmp_path)
    save_file({name: x for name, x in tensors.items() if name not in tied}, tmp_path / FILE)
    original = qkv.load(folder)
    reduced = qkv.load(tmp_path)
    for p, q in zip(original.net.parameters(), reduced.net.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(original(theirs["ids"])["logits"], reduced(theirs["ids"])["logits"])


@CASES
def test_save_and_load(folder: Path, tmp_path: Path) -> None:
    theirs, _ = golden(folder)
    model = qkv.load(folder)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "qkv"
    assert config["family"] == "transformer-xl"
    reloaded = qkv.load(tmp_path)
    assert reloaded.spec == model.spec
    before = model(theirs["ids"])
    after = reloaded(theirs["ids"])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    ours = dict(reloaded.net.named_parameters())
    assert all(torch.equal(p, ours[name]) for name, p in model.net.named_parameters())


@CASES
def test_hf_format_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transformer-xl"):
        qkv.load(folder).save(tmp_path / "new", file_format="hf")
    assert not (tmp_path / "new").exists()
