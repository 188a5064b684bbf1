"""Invalid config.json files, folders and options give an error of one line; no code is run."""

import os
import warnings
from typing import Any

import pytest
import torch

import qkv
from tests.support import tiny
from tests.support.limits import get_error_message
from tests.support.model_folders import (
    DEEP_JSON,
    FILE,
    FolderOf,
    assert_load_fails,
    change_config,
)

# The content of config.json, and words of the error message (~ is a space).
INVALID_CONFIG_FILES = {
    "empty": (b"", "config.json empty"),
    "blank": (b" \n", "config.json not~JSON"),
    "list": (b'[{"model_type": "bert"}]', "config.json list object"),
    "number": (b"12", "config.json int object"),
    "null": (b"null", "config.json object"),
    "cut": (b'{"model_type": "bert", "vocab_si', "config.json not~JSON"),
    "latin": ('{"model_type": "bért"}'.encode("latin-1"), "config.json UTF-8"),
    "utf-16": ('{"model_type": "bert"}'.encode("utf-16"), "config.json UTF-8"),
    "deep": (DEEP_JSON, "config.json deep"),
    "deep list": (b"[" * 10_000, "config.json deep"),
    "digits": (b'{"model_type": "bert", "vocab_size": ' + b"9" * 10_000 + b"}", "config.json"),
    "no kind": (b"{}", "config.json model_type None"),
    "numeric kind": (b'{"model_type": 5}', "config.json model_type 5"),
    "kinds": (b'{"model_type": ["bert"]}', "config.json model_type bert"),
    "unknown kind": (b'{"model_type": "rocket"}', "config.json model_type rocket bert gpt2"),
    "unknown family": (
        b'{"model_type": "qkv", "format_version": 2, "family": "rocket"}',
        "config.json family rocket bert",
    ),
    "of version 0.2": (
        b'{"model_type": "qkv", "family": "bert"}',
        "config.json format_version is None, expected 2 saved by qkv 0.2",
    ),
    "no family": (b'{"model_type": "qkv", "format_version": 2}', "config.json family None"),
    "arguments": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": [1]}',
        "config.json arguments [1]",
    ),
    "argument": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": {"wings": 2}}',
        "config.json wings",
    ),
    "head": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": {"head": ["x"]}}',
        "config.json head ['x']",
    ),
    "positions": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": "gps"}',
        "config.json position_embedding_type gps",
    ),
    "positions [5]": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": [5]}',
        "config.json position_embedding_type [5]",
    ),
    "positions 5": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": 5}',
        "config.json position_embedding_type 5",
    ),
}


@pytest.mark.parametrize(
    ("content", "words"), INVALID_CONFIG_FILES.values(), ids=INVALID_CONFIG_FILES
)
def test_an_invalid_config_json_is_an_error(
    copy_folder: FolderOf, content: bytes, words: str
) -> None:
    broken = copy_folder("bert")
    (broken / "config.json").write_bytes(content)
    assert_load_fails(broken, *(word.replace("~", " ") for word in words.split()))


def test_a_config_json_must_be_a_regular_file(copy_folder: FolderOf) -> None:
    path = copy_folder("bert") / "config.json"
    path.unlink()
    assert_load_fails(path.parent, "config.json")
    os.mkfifo(path)
    assert_load_fails(path.parent, "config.json")
    path.unlink()
    path.mkdir()
    assert_load_fails(path.parent, "config.json")


@pytest.mark.parametrize(
    "model_folder", ["no/such/folder", "./none", "/none", "no-such-model", "a b", "a/b/c", "~x"]
)
def test_a_missing_folder_is_an_error(model_folder: str) -> None:
    assert model_folder.strip("./~") in get_error_message(lambda: qkv.load(model_folder))


def test_a_file_instead_of_a_folder_is_an_error(copy_folder: FolderOf) -> None:
    assert FILE in get_error_message(lambda: qkv.load(copy_folder("bert") / FILE))


@pytest.mark.parametrize(
    "names", [["BertForRockets"], "BertModel", 5, [5], [None], [["BertModel"]], {"a": 1}, True]
)
def test_invalid_architectures_are_errors(copy_folder: FolderOf, names: object) -> None:
    assert_load_fails(
        change_config(copy_folder("bert"), architectures=names),
        "config.json",
        "architectures",
        repr(names),
    )


def test_remote_code_is_never_run(copy_folder: FolderOf) -> None:
    model_folder = copy_folder("bert")
    marker = model_folder / "ran"
    (model_folder / "modeling_rocket.py").write_text(f"open({str(marker)!r}, 'w')")
    auto = {
        "AutoModel": "modeling_rocket.RocketModel",
        "AutoConfig": "modeling_rocket.RocketConfig",
    }
    change_config(model_folder, auto_map=auto, trust_remote_code=True)
    with pytest.warns(UserWarning, match=r"config\.json: auto_map is ignored") as caught:
        model = qkv.load(model_folder)
    assert len(caught) == 1
    assert model.config["auto_map"] == auto
    assert not marker.exists()


def test_a_key_with_two_values_is_an_error(copy_folder: FolderOf) -> None:
    path = copy_folder("bert") / "config.json"
    text = path.read_text()
    path.write_text(text.replace("{", '{"vocab_size": 53, ', 1))
    qkv.load(path.parent)
    path.write_text(text.replace("{", '{"vocab_size": 54, ', 1))
    assert_load_fails(path.parent, "config.json", "'vocab_size' occurs twice")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"device": "quantum"}, "device quantum"), ({"device": "cuda:99"}, "device cuda:99"),
     ({"dtype": torch.int64}, "dtype int64"), ({"dtype": "float16"}, "dtype float16")],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_errors(
    get_folder: FolderOf, options: dict[str, Any], words: str
) -> None:
    message = get_error_message(lambda: qkv.load(get_folder("bert"), **options))
    assert all(word in message for word in words.split()), message


def test_loading_a_valid_folder_gives_no_warning(get_folder: FolderOf) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in tiny.FAMILIES:
            qkv.load(get_folder(family))
