"""JSON and text files: errors of one line for invalid files."""

import json
import os
from pathlib import Path

import pytest
import torch

from qkv.files import MAX_TEXT_BYTES, read_json_object, read_text_file, save_json
from qkv.weights.tensors import write_tensors
from tests.support.errors import assert_error


def test_json_round_trip_keeps_order(tmp_path: Path) -> None:
    data = {"zwei": [1, 2.5, None], "eins": {"ü": True}}
    save_json(data, tmp_path / "config.json")
    assert list(read_json_object(tmp_path / "config.json").items()) == list(data.items())
    text = (tmp_path / "config.json").read_bytes().decode("utf-8")
    assert text == json.dumps(data, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty", "copy it again"]),
        (b'{"a": [1, 2', ["not JSON", "line 1 column", "truncated or damaged"]),
        (b'{"a": "\xff"}', ["not UTF-8", "byte 7"]),
        (b"[1, 2]", ["a JSON list", "expected an object"]),
        (b"9" * 5000, ["not JSON"]),
        (b'{"a":' * 100_000, ["nested too deep"]),
    ],
)
def test_invalid_json_is_an_error(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert_error(lambda: read_json_object(path), str(path), *words)


def test_json_must_be_a_regular_file(tmp_path: Path) -> None:
    assert_error(
        lambda: read_json_object(tmp_path / "config.json"),
        "config.json: No such file",
        "is the path right",
    )
    assert_error(lambda: read_json_object(tmp_path), "expected a regular file")
    os.mkfifo(tmp_path / "pipe")
    assert_error(lambda: read_json_object(tmp_path / "pipe"), "pipe", "expected a regular file")


def test_a_large_json_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_TEXT_BYTES + 1)
    assert_error(lambda: read_json_object(path), "67108865 bytes", "expected at most 67108864")


@pytest.mark.parametrize("mask", [0o022, 0o007, 0o077])
def test_files_follow_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path, {"x": torch.zeros(2)})
        write_tensors(tmp_path, {"x": torch.zeros(2)})  # replaces the first
        save_json({}, tmp_path / "config.json")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    assert_error(lambda: read_json_object(path), "not readable", "permissions")


def test_text_keeps_line_ends(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\n\r\n")
    assert read_text_file(tmp_path / "text") == "a\r\nb\n\r\n"
