"""Names tables in both directions: saved tensors equal those of transformers, and it loads ours."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkv
from tests.support import oracle
from tests.support.oracle import CASES, Case, Row

FILE, BIN = "model.safetensors", "pytorch_model.bin"


def assert_same(ours: Row, theirs: Row) -> None:
    assert ours.keys() == theirs.keys(), f"only one side has: {sorted(ours.keys() ^ theirs.keys())}"
    different = [
        n for n in ours if ours[n].dtype != theirs[n].dtype or not torch.equal(ours[n], theirs[n])
    ]
    assert not different


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_and_save(case: Case, tmp_path: Path) -> None:
    theirs = oracle.save(case, tmp_path / "theirs")
    ours = tmp_path / "ours"
    qkv.load(theirs).save(ours)
    assert_same(load_file(ours / FILE), load_file(theirs / FILE))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (theirs, ours))
    changed = {
        key: (value, after.get(key))
        for key, value in before.items()
        if after.get(key, ...) != value
    }
    assert not changed
    model_class = getattr(transformers, case.kind)
    model, info = model_class.from_pretrained(ours, output_loading_info=True)
    assert not any(info.values()), info
    assert_same(dict(model.state_dict()), dict(oracle.make(case).state_dict()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_shards(case: Case, tmp_path: Path) -> None:
    theirs = oracle.save(case, tmp_path / "theirs", max_shard_size="10KB")
    shards = list(theirs.glob("model-*.safetensors"))
    assert len(shards) > 1
    qkv.load(theirs).save(tmp_path / "ours")
    assert_same(
        load_file(tmp_path / "ours" / FILE),
        {k: v for shard in shards for k, v in load_file(shard).items()},
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load_bin(case: Case, tmp_path: Path) -> None:
    theirs = oracle.save(case, tmp_path / "theirs")
    expected = load_file(theirs / FILE)
    (theirs / FILE).unlink()
    model = oracle.make(case)
    tensors = dict(model.state_dict())  # tied tensors under every name
    torch.save(
        {k: tensors[k] for k in tensors.keys() - {*(model._keys_to_ignore_on_save or ())}},
        theirs / BIN,
    )
    qkv.load(theirs).save(tmp_path / "ours")
    assert_same(load_file(tmp_path / "ours" / FILE), expected)


def test_tied_tensors_that_differ_are_an_error(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.kind == "T5Model")
    folder = oracle.save(case, tmp_path)
    tensors = load_file(folder / FILE)
    save_file(
        {**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"] + 1}, folder / FILE
    )
    with pytest.raises(ValueError, match=r"encoder\.embed_tokens\.weight differs"):
        qkv.load(folder)
