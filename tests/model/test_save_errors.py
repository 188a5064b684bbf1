"""`Model.save` fails with one line and leaves files as they were."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from tests.support import tiny
from tests.support.limits import get_error_message


def build_bert() -> qkv.Model:
    return tiny.build("bert", dtype=torch.float32)


def test_a_file_in_the_way_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    message = get_error_message(lambda: build_bert().save(tmp_path / "file"), (ValueError, OSError))
    assert "file" in message
    assert (tmp_path / "file").read_text() == "content"
    assert "file" in get_error_message(
        lambda: build_bert().save(tmp_path / "file" / "x"), (ValueError, OSError)
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert tmp_path.name in get_error_message(
        lambda: build_bert().save(tmp_path / "x"), (ValueError, OSError)
    )


@pytest.mark.parametrize("file_format", ["rocket", "", None, 5])
def test_an_unknown_format_is_an_error(file_format: Any, tmp_path: Path) -> None:
    message = get_error_message(lambda: build_bert().save(tmp_path / "x", format=file_format))
    assert repr(file_format) in message
    assert "hf" in message
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("family", "changes", "word"),
    [
        ("gpt3", {}, "gpt3"), ("sparse", {}, "sparse"), ("transformer-xl", {}, "transformer-xl"),
        ("transformer", {"norm_position": "pre"}, "norm_position='pre'"),
        ("transformer", {"sinusoidal": None}, "sinusoidal=None"),
        ("transformer", {"positions": "alibi"}, "alibi"), ("gpt2", {"positions": "alibi"}, "alibi"),
    ],
)  # fmt: skip
def test_a_model_without_hf_class_is_not_saved_in_hf_format(
    family: str, changes: Any, word: str, tmp_path: Path
) -> None:
    model = tiny.build(family, dtype=torch.float32, **changes)
    assert word in get_error_message(lambda: model.save(tmp_path / "x", format="hf"))
    assert not (tmp_path / "x").exists()
