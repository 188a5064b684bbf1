"""Transformer-XL against tensors that its original gave; `tools/make_xl_goldens.py` made and names them."""

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
    """Inputs and results, and for every further name of a tied tensor its first."""
    with safe_open(folder / "golden.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["tied"])  # noqa: SIM118


def run(model: qkv.Model, ids: Tensor, memory: Tensor | None) -> Tensors:
    """Every output under the golden file's name."""
    with qkv.look(model) as seen:
        out = model.run(ids, memory=memory, keep=("hiddens",))
    weights = [seen[f"decoder.layers.{n}.attend"] for n in range(len(seen))]
    found = {"logits": out["logits"], "last_hidden_state": out["hidden"], "hidden_states": out["hiddens"]}
    found |= {"attentions": torch.stack(weights), "mems": out["memory"]}
    if "pad_token_id" in model.config:
        mask = before_pads(ids, model.config["pad_token_id"])
        found["logits"] = model.run(ids, mask=mask, memory=memory)["logits"]
    return found


def before_pads(ids: Tensor, pad: int) -> Tensor:
    """The original's classifier reads the token before the first pad; the last one where there is none."""
    first = (ids == pad).int().argmax(1)  # 0: none, or in front
    return torch.arange(ids.shape[1]) < torch.where(first == 0, ids.shape[1], first)[:, None]


def check(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        words = partial("{}: {}".format, name)
        torch.testing.assert_close(value, theirs[name], atol=2e-5, rtol=1e-4, msg=words)


def test_the_goldens_are_there() -> None:
    assert len(FOLDERS) == 9


@CASES
def test_numbers(folder: Path) -> None:
    theirs, tied = golden(folder)
    model = qkv.load(folder)
    first = run(model, theirs["ids"], None)
    second = run(model, theirs["ids2"], first["mems"])
    for found, suffix in ((first, ""), (second, "2")):
        if f"mems{suffix}" not in theirs:  # the original gives none where it remembers nothing
            assert found.pop("mems").numel() == 0
        check(found, {name: theirs[name + suffix] for name in found})
        assert ("mems" in found) == ("mems" in theirs)

    pairs = [(first["logits"], theirs["projection"]), (second["logits"], theirs["projection2"])]
    torch.stack([(logits * weight).sum() for logits, weight in pairs]).sum().backward()
    size = theirs["logits"].numel() ** 0.5  # of the sum that was differentiated, and of its rounding
    here = model.theirs(
        {name: p.grad / size for name, p in model.net.named_parameters() if p.grad is not None}
    )
    there = {name.removeprefix("grad."): x / size for name, x in theirs.items() if name.startswith("grad.")}
    check({tied.get(name, name): value for name, value in here.items()}, there)


@CASES
def test_looking_changes_nothing(folder: Path) -> None:
    theirs, _ = golden(folder)
    model = qkv.load(folder)
    memory = model.run(theirs["ids"])["memory"]
    with qkv.look(model):
        seen = model.run(theirs["ids2"], memory=memory, keep=("hiddens",))
    unseen = model.run(theirs["ids2"], memory=memory, keep=("hiddens",))
    assert all(torch.equal(seen[name], unseen[name]) for name in unseen)


@CASES
def test_padded_row_equals_row_alone(folder: Path) -> None:
    model = qkv.load(folder, dtype=torch.float64)
    ids = golden(folder)[0]["ids"]
    for mask in (torch.arange(5) < 3, torch.arange(5) >= 2):
        rows = ids[:, :5]
        both = torch.stack([torch.ones_like(mask), mask])
        together = model.run(rows[:2], mask=both)["hidden"][1, mask]
        alone = model.run(rows[1:2, mask])["hidden"][0]
        torch.testing.assert_close(together, alone, atol=1e-9, rtol=0)


@CASES
def test_a_tied_tensor_may_lie_in_the_file_once(folder: Path, tmp_path: Path) -> None:
    theirs, tied = golden(folder)
    tensors = load_file(folder / FILE)
    assert tied.keys() <= tensors.keys()
    shutil.copy(folder / "config.json", tmp_path)
    save_file({name: x for name, x in tensors.items() if name not in tied}, tmp_path / FILE)
    every, first = qkv.load(folder), qkv.load(tmp_path)
    for one, two in zip(every.net.parameters(), first.net.parameters(), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(every.run(theirs["ids"])["logits"], first.run(theirs["ids"])["logits"])


@CASES
def test_saved_as_ours_and_opened_again(folder: Path, tmp_path: Path) -> None:
    theirs, _ = golden(folder)
    model = qkv.load(folder)
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "qkv"
    assert config["family"] == "transformer-xl"
    again = qkv.load(tmp_path)
    assert again.spec == model.spec
    one, two = model.run(theirs["ids"]), again.run(theirs["ids"])
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    ours = dict(again.net.named_parameters())
    assert all(torch.equal(p, ours[name]) for name, p in model.net.named_parameters())


@CASES
def test_their_form_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="transformer-xl"):
        qkv.load(folder).save(tmp_path / "new", form="hf")
    assert not (tmp_path / "new").exists()
