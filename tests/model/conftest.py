"""Fixtures of the model tests: folders of tiny models, and `peft`."""

import shutil
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from tests.support import tiny
from tests.support.model_folders import FolderOf

GOLDENS = Path(__file__).parent.parent / "goldens" / "xl"


@pytest.fixture(scope="session")
def get_folder(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Return the folder of a tiny model of a family, written and loaded once."""

    @cache
    def save_and_load(family: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / family
        if family == "transformer-xl":  # no longer written in Hugging Face's format
            shutil.copytree(GOLDENS / "xl-base", folder)
        else:
            tiny.build(family, dtype=torch.float32).save(folder)
        qkv.load(folder)
        return folder

    return save_and_load


@pytest.fixture
def copy_folder(get_folder: FolderOf, tmp_path: Path) -> FolderOf:
    """Return a copy of the folder, which a test may change."""
    return lambda family: Path(
        shutil.copytree(get_folder(family), tmp_path / family, dirs_exist_ok=True)
    )


@pytest.fixture(scope="session")
def peft() -> Any:
    """The package `peft`, the reference for adapters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "peft", reason="needs peft: pip install --no-deps peft accelerate psutil"
        )
