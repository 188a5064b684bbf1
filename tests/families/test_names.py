"""Names tables in both directions: saved tensors equal those of transformers, and it loads ours."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from tests.support import compare
from tests.support.oracle.cases import CASES, Case
from tests.support.oracle.models import build_reference, save_reference

FILE, BIN = "model.safetensors", "pytorch_model.bin"


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    compare.assert_bitwise_equal(actual, expected, because=compare.COPIED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_saved_tensors_and_config_equal_the_originals(case: Case, tmp_path: Path) -> None:
    original = save_reference(case, tmp_path / "original")
    saved = tmp_path / "saved"
    qkv.load(original).save(saved)
    assert_same_tensors(load_file(saved / FILE), load_file(original / FILE))
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (original, saved)
    )
    changed = {
        key: (value, after.get(key))
        for key, value in before.items()
        if after.get(key, ...) != value
    }
    assert not changed
    model_class = getattr(transformers, case.class_name)
    model, info = model_class.from_pretrained(saved, output_loading_info=True)
    assert not any(info.values()), info
    assert_same_tensors(dict(model.state_dict()), dict(build_reference(case).state_dict()))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shards_load(case: Case, tmp_path: Path) -> None:
    original = save_reference(case, tmp_path / "original", max_shard_size="10KB")
    shards = list(original.glob("model-*.safetensors"))
    assert len(shards) > 1
    qkv.load(original).save(tmp_path / "saved")
    assert_same_tensors(
        load_file(tmp_path / "saved" / FILE),
        {k: v for shard in shards for k, v in load_file(shard).items()},
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pytorch_bin_file_loads(case: Case, tmp_path: Path) -> None:
    original = save_reference(case, tmp_path / "original")
    expected = load_file(original / FILE)
    (original / FILE).unlink()
    model = build_reference(case)
    tensors = dict(model.state_dict())  # tied tensors under every name
    torch.save(
        {k: tensors[k] for k in tensors.keys() - {*(model._keys_to_ignore_on_save or ())}},
        original / BIN,
    )
    qkv.load(original).save(tmp_path / "saved")
    assert_same_tensors(load_file(tmp_path / "saved" / FILE), expected)


def test_tied_tensors_that_differ_are_an_error(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.class_name == "T5Model")
    folder = save_reference(case, tmp_path)
    tensors = load_file(folder / FILE)
    save_file(
        {**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"] + 1}, folder / FILE
    )
    with pytest.raises(ValueError, match=r"encoder\.embed_tokens\.weight differs"):
        qkv.load(folder)
