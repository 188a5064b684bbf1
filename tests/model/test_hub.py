"""A hub id loads from the hub's cache, offline; a missing one gives an error of one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

CODE = (
    "import sys, qkv; print(qkv.load(sys.argv[1], revision=sys.argv[2] if sys.argv[2:] else None))"
)


def load_in_new_process(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `qkv.load` in a process whose hub cache is in this folder."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CODE, *arguments]
    root = Path(__file__).resolve().parent.parent.parent
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A cache in the hub's layout: snapshots whose files are links to blobs."""
    repository = tmp_path / "hub" / "models--someone--tiny"
    snapshot = repository / "snapshots" / "abc"
    qkv.build("bert", "tiny", vocab_size=50, width=32, ffn_width=40, head="masked-lm").save(
        snapshot
    )
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        blob = repository / "blobs" / str(number)
        file.rename(blob)
        file.symlink_to(Path("..", "..", "blobs", str(number)))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    return tmp_path


def test_a_hub_id_loads_from_the_cache(home: Path) -> None:
    for revision in ((), ("main",)):
        process = load_in_new_process(home, "someone/tiny", *revision)
        assert "qkv.Model(bert" in process.stdout, process.stderr


def test_a_missing_hub_id_gives_an_error_of_one_line(home: Path) -> None:
    message = load_in_new_process(home, "someone/else").stderr.strip().splitlines()[-1]
    assert message.startswith(
        "ValueError: someone/else: no such folder, and the download from the hub failed"
    )
