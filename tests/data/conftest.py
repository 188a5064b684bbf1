"""Fixtures of the data tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shards import TEXTS, prepare, read_files


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Return a function that writes a file below tmp_path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="session")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished shards; tests must not change it."""
    folder = tmp_path_factory.mktemp("shards") / "deep" / "finished"
    prepare(folder, TEXTS)
    return folder


@pytest.fixture
def copied_folder(finished_folder: Path, tmp_path: Path) -> Path:
    """A copy of the finished shards, which tests may damage."""
    folder = tmp_path / "copied"
    folder.mkdir()
    for name, content in read_files(finished_folder).items():
        (folder / name).write_bytes(content)
    return folder
