"""Files of weights: what is written comes back bit for bit, and what is wrong is refused in one line."""

import argparse
import json
import os
import pickle
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save, save_file
from torch import Tensor

import qkv.weights.tensors as tensor_files
from qkv.weights.tensors import (
    HEADS,
    TEXT_BYTES,
    nonfinite,
    read_json,
    read_tensors,
    read_text,
    read_torch,
    write_json,
    write_tensors,
)

Form = Literal["safetensors", "bin"]
WHOLE = 10**9
LAYOUTS: list[tuple[Form, int]] = [("safetensors", WHOLE), ("safetensors", 40), ("bin", WHOLE), ("bin", 40)]


class Killed(BaseException):
    """Nothing runs after it: as good as a kill, for one who looks at the folder."""


class Code:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo this must not run",)


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {
        "a.weight": torch.randn(3, 4),
        "a.bias": torch.randn(4).to(torch.bfloat16),
        "half": torch.randn(2, 5).half(),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False]),
        "eight": torch.randn(9).to(torch.float8_e4m3fn),
    }


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors agree in names, types, shapes and every bit."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].contiguous().flatten().view(torch.uint8).equal(right[name].flatten().view(torch.uint8))
        for name in left
    )


def refused(call: Callable[[], object], *words: str) -> str:
    """The message of the ValueError that the call ends in: one line, with these words."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call()
    message = str(caught.value)
    for word in words:
        assert word in message
    return message


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def header(entries: dict[str, tuple[str, list[int], list[int]]], size: int) -> bytes:
    """A safetensors file of zeros with any header at all."""
    rows = {name: dict(dtype=d, shape=s, data_offsets=o) for name, (d, s, o) in entries.items()}
    text = json.dumps(rows).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def write_index(folder: Path, weight_map: object) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


# JSON


def test_json_comes_back_in_order(tmp_path: Path) -> None:
    data = {"zwei": [1, 2.5, None], "eins": {"ü": True}}
    write_json(tmp_path / "new" / "config.json", data)
    assert list(read_json(tmp_path / "new" / "config.json").items()) == list(data.items())
    text = (tmp_path / "new" / "config.json").read_bytes().decode("utf-8")
    assert text == json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    assert names(tmp_path / "new") == ["config.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty", "copy it again"]),
        (b'{"a": [1, 2', ["not JSON", "line 1 column", "cut or damaged"]),
        (b'{"a": "\xff"}', ["not UTF-8", "byte 7"]),
        (b"[1, 2]", ["a JSON list", "expected an object"]),
        (b"9" * 5000, ["not JSON"]),
        (b'{"a":' * 100_000, ["nested too deep"]),
    ],
)
def test_json_that_is_wrong(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    refused(lambda: read_json(path), str(path), *words)


def test_json_that_is_no_file(tmp_path: Path) -> None:
    refused(lambda: read_json(tmp_path / "config.json"), "config.json: No such file", "is the path right")
    refused(lambda: read_json(tmp_path), "expected a regular file")
    os.mkfifo(tmp_path / "pipe")
    refused(lambda: read_json(tmp_path / "pipe"), "pipe", "expected a regular file")


def test_json_too_large(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(TEXT_BYTES + 1)
    refused(lambda: read_json(path), "67108865 bytes", "expected at most 67108864")


@pytest.mark.parametrize("mask", [0o022, 0o007, 0o077])
def test_files_are_for_whom_the_user_lets_read(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path, {"x": torch.zeros(2)})
        write_tensors(tmp_path, {"x": torch.zeros(2)})  # in the place of the first
        write_json(tmp_path / "config.json", {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    path.chmod(0)
    refused(lambda: read_json(path), "not readable", "permissions")


def test_text_keeps_its_line_ends(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\r\nb\n\r\n")
    assert read_text(tmp_path / "text") == "a\r\nb\n\r\n"


# Round trips


@pytest.mark.parametrize(("form", "shard_bytes"), LAYOUTS)
def test_tensors_come_back(tmp_path: Path, tensors: dict[str, Tensor], form: Form, shard_bytes: int) -> None:
    written = write_tensors(tmp_path / "model", tensors, form=form, shard_bytes=shard_bytes)
    assert sorted(written) == names(tmp_path / "model")
    assert same(read_tensors(tmp_path / "model"), tensors)
    for name in written:
        if not name.endswith(".json"):
            part = read_tensors(tmp_path / "model" / name)
            assert same(part, {each: tensors[each] for each in part})


def test_layout_is_that_of_hugging_face(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    assert write_tensors(tmp_path, tensors) == ["model.safetensors"]
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    written = write_tensors(tmp_path, tensors, shard_bytes=60)
    assert written == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = read_json(tmp_path / written[-1])
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    assert index["weight_map"] == {name: written[place > 1] for place, name in enumerate(tensors)}
    assert write_tensors(tmp_path, tensors, form="bin") == ["pytorch_model.bin"]
    assert write_tensors(tmp_path, tensors, form="bin", shard_bytes=0)[::7] == [
        "pytorch_model-00001-of-00007.bin",
        "pytorch_model.bin.index.json",
    ]


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_shared_and_strided_memory(tmp_path: Path, form: Form) -> None:
    base = torch.randn(1000, 8)
    tensors = {
        "base": base,
        "tied": base,
        "rows": base[2:5],
        "turned": base.T,
        "column": base[:, 1],
        "spread": base[0].expand(3, 8),
        "parameter": torch.nn.Parameter(base + 1),
    }
    write_tensors(tmp_path, tensors, form=form)
    read = read_tensors(tmp_path)
    assert same(tensors, read)
    assert not any(tensor.requires_grad for tensor in read.values())
    write_tensors(tmp_path, {"rows": base[2:5]}, form=form)
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) < base.nbytes / 4


def test_tensors_survive_the_file_they_were_read_from(tmp_path: Path) -> None:
    old = {"a": torch.randn(64, 64)}
    write_tensors(tmp_path, old)
    read = read_tensors(tmp_path)
    write_tensors(tmp_path, {name: tensor * 2 for name, tensor in read.items()})
    assert same(read, old)
    assert read_tensors(tmp_path)["a"].equal(old["a"] * 2)


def test_preference(tmp_path: Path) -> None:
    for value, (form, shard_bytes) in reversed(list(enumerate(LAYOUTS))):
        made = tmp_path / str(value)
        write_tensors(
            made, {"a": torch.tensor([value]), "b": torch.zeros(99)}, form=form, shard_bytes=shard_bytes
        )
        for entry in list(made.iterdir()):
            entry.rename(tmp_path / entry.name)
        assert read_tensors(tmp_path)["a"].item() == value


def test_pytorch_before_zip_files(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    del tensors["eight"]  # of which that form knew nothing
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert same(read_tensors(tmp_path), tensors)


def test_npz(tmp_path: Path) -> None:
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(5)}
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    np.savez_compressed(tmp_path / "b.npz", **arrays)  # type: ignore[arg-type]
    for name in ("a.npz", "b.npz"):
        read = read_tensors(tmp_path / name)
        assert same(read, {name: torch.from_numpy(array) for name, array in arrays.items()})


def test_header_length_may_look_like_a_pickle(tmp_path: Path) -> None:
    for size in range(1, 100):
        data = save({"n" * size: torch.zeros(2)})
        (tmp_path / "model.safetensors").write_bytes(data)
        assert read_tensors(tmp_path)["n" * size].shape == (2,)
        if data[0] == 0x80:
            return
    pytest.fail("no header was 128 bytes long")


def test_both_ways_with_transformers(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = dict(
        vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    model = BertModel(BertConfig(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for size in ("5GB", "3KB"):
        model.save_pretrained(tmp_path / size, max_shard_size=size)
        assert same(read_tensors(tmp_path / size), weights)
    assert len(names(tmp_path / "3KB")) > 4
    for form, shard_bytes in LAYOUTS:
        theirs = tmp_path / f"{form}{shard_bytes}"
        write_tensors(theirs, weights, form=form, shard_bytes=max(shard_bytes, 3000))
        model.config.save_pretrained(theirs)
        opened = BertModel.from_pretrained(theirs, use_safetensors=form == "safetensors")
        assert same(weights, {name: parameter.detach() for name, parameter in opened.named_parameters()})


# What is not weights


def test_folder_without_weights(tmp_path: Path) -> None:
    refused(lambda: read_tensors(tmp_path), "no weights", *HEADS, "holds nothing")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.bin").write_text("")
    refused(lambda: read_tensors(tmp_path), "the folder holds model.bin, tokenizer.json")


def test_path_that_is_no_weights(tmp_path: Path) -> None:
    refused(lambda: read_tensors(tmp_path / "nowhere"), "neither a folder nor a file", ".safetensors, .bin")
    refused(lambda: read_tensors(tmp_path / "nowhere.bin"), "No such file")
    os.mkfifo(tmp_path / "model.safetensors")
    refused(lambda: read_tensors(tmp_path), "model.safetensors", "expected a regular file")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("gone")
    refused(lambda: read_tensors(tmp_path), "model.safetensors: No such file")


HUGE = 1 << 40


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"abc", ["of no known form", "cut or damaged"]),
        (struct.pack("<Q", 1 << 50) + b'{"a":', ["header", "cut or damaged"]),
        (struct.pack("<Q", 80) + b'{"a":', ["header", "cut or damaged"]),
        (header({"a": ("F32", [HUGE], [0, 4 * HUGE])}, 16), ["not fully covered", "cut or damaged"]),
        (header({"a": ("F32", [1], [0, 4])}, 8), ["not fully covered"]),
        (header({"a": ("F32", [1], [0, 4]), "b": ("F32", [1], [8, 12])}, 12), ["invalid offset"]),
        (header({"a": ("F32", [2], [0, 8]), "b": ("F32", [1], [4, 8])}, 8), ["invalid offset"]),
        (header({"a": ("F32", [3], [0, 4])}, 4), ["invalid shape"]),
        (header({"a": ("F99", [1], [0, 4])}, 4), ["invalid JSON"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["a Git LFS pointer", "git lfs pull"]),
        (pickle.dumps({"a": 1}), ["a pickle, expected a safetensors file", "ending of what it is"]),
    ],
)
def test_safetensors_that_are_wrong(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(lambda: read_tensors(tmp_path), str(path), *words)


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_cut_anywhere(tmp_path: Path, tensors: dict[str, Tensor], form: Form) -> None:
    (name,) = write_tensors(tmp_path, tensors, form=form)
    data = (tmp_path / name).read_bytes()
    for length in range(0, len(data), max(1, len(data) // 40)):
        (tmp_path / name).write_bytes(data[:length])
        refused(lambda: read_tensors(tmp_path), name)


def test_endings_that_lie(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, tmp_path / "a.safetensors")
    refused(lambda: read_tensors(tmp_path / "a.safetensors"), "a zip file, expected a safetensors file")
    save_file(tensors, tmp_path / "a.bin")
    refused(
        lambda: read_tensors(tmp_path / "a.bin"), "a safetensors file, expected a file written by torch.save"
    )
    refused(lambda: read_torch(tmp_path / "a.bin"), "ending of what it is")
    np.save(tmp_path / "a", np.zeros(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    refused(lambda: read_tensors(tmp_path / "a.npz"), "expected an .npz file")
    (tmp_path / "a.pt").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(lambda: read_tensors(tmp_path / "a.pt"), "a Git LFS pointer", "git lfs pull")


def test_npz_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([Code()], dtype=object))
    refused(lambda: read_tensors(path), "allow_pickle=False", "expected arrays of numbers")
    np.savez(path, a=np.array(["text"]))
    refused(lambda: read_tensors(path), "expected arrays of numbers")
    np.savez(path, a=np.zeros(100))
    path.write_bytes(path.read_bytes()[:200])
    refused(lambda: read_tensors(path), "cut or damaged")


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_is_not_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], protocol: int, zipped: bool
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": Code()}, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    refused(lambda: read_tensors(tmp_path), str(path), "holds more than tensors", "not opened")
    path.write_bytes(pickle.dumps({"a": Code()}, protocol))
    refused(lambda: read_tensors(tmp_path), str(path), "holds more than tensors", "not opened")
    assert capfd.readouterr().out == ""


def test_checkpoint_of_training(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"a": torch.ones(2)}, "args": argparse.Namespace(heads=8)}, path)
    refused(lambda: read_torch(path), "holds more than tensors (GLOBAL argparse.Namespace)", "not opened")
    refused(lambda: read_tensors(path), "argparse.Namespace")
    found = read_torch(path, allow=(argparse.Namespace,))
    assert isinstance(found, dict)
    assert found["args"].heads == 8
    assert found["model"]["a"].equal(torch.ones(2))
    refused(lambda: read_torch(path), "argparse.Namespace")  # allowed once is not allowed for ever
    torch.save({"model": {"a": torch.ones(2)}, "step": 3, "b": torch.ones(2)}, path)
    refused(lambda: read_tensors(path), "more than tensors (model, step)", "is it a checkpoint?")
    torch.save([torch.ones(2)], path)
    refused(lambda: read_tensors(path), "holds a list", "state dict")


# Shards


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder of two shards, `a` in the first and `b` in the second."""
    folder = tmp_path / "model"
    write_tensors(folder, {"a": torch.ones(2), "b": torch.ones(3)}, shard_bytes=0)
    return folder


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret.safetensors",
        "..",
        ".",
        "",
        "sub/x.safetensors",
        "..\\x.bin",
        "a\0b",
        "x" * 300,
    ],
)
def test_shard_names_that_lead_elsewhere(sharded: Path, name: str) -> None:
    save_file({"a": torch.ones(2)}, sharded.parent / "secret.safetensors")
    write_index(sharded, {"a": name})
    refused(lambda: read_tensors(sharded), "shards are missing or wrong", "not opened" if name else "")


def test_shard_link_out_of_the_folder(sharded: Path) -> None:
    save_file({"a": torch.ones(2)}, sharded.parent / "secret.safetensors")
    (sharded / FIRST).unlink()
    (sharded / FIRST).symlink_to("../secret.safetensors")
    refused(lambda: read_tensors(sharded), FIRST, "leads out of the folder", "not opened")


def test_shard_link_inside_the_folder(sharded: Path) -> None:
    (sharded / FIRST).rename(sharded / "kept")
    (sharded / FIRST).symlink_to("kept")
    assert read_tensors(sharded).keys() == {"a", "b"}


def test_cache_of_the_hub(sharded: Path, tmp_path: Path) -> None:
    home = tmp_path / "hub" / "models--some--model"
    snapshot = home / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for number, name in enumerate(names(sharded)):
        (sharded / name).rename(home / "blobs" / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert read_tensors(snapshot).keys() == {"a", "b"}
    (home / "blobs" / "0").rename(home.parent / "other")
    (snapshot / FIRST).unlink()
    (snapshot / FIRST).symlink_to("../../../other")
    refused(lambda: read_tensors(snapshot), FIRST, "leads out of the folder")


def test_all_that_is_wrong_with_shards_is_told_at_once(sharded: Path) -> None:
    os.mkfifo(sharded / "pipe.safetensors")
    (sharded / "folder.bin").mkdir()
    (sharded / "loop.bin").symlink_to("loop.bin")
    weight_map = {
        "a": FIRST,
        "b": FIRST,
        "c": SECOND,
        "d": "gone.safetensors",
        "e": "pipe.safetensors",
        "f": "folder.bin",
        "g": "../g.bin",
        "h": "loop.bin",
        "i": "model.safetensors.index.json",
    }
    index = write_index(sharded, weight_map)
    refused(
        lambda: read_tensors(sharded),
        f"{index}: shards are missing or wrong",
        f"b is not in {FIRST}",
        f"c is not in {SECOND}",
        "gone.safetensors: No such file",
        "pipe.safetensors: a folder, pipe or device",
        "folder.bin: a folder, pipe or device",
        "'../g.bin': not a plain file name",
        "loop.bin: ",
        "index.json: neither a folder nor a file of weights",
    )


def test_index_chooses_among_shards_and_drops_nothing(sharded: Path) -> None:
    save_file({"a": torch.zeros(2), "extra": torch.ones(1)}, sharded / SECOND)
    write_index(sharded, {"unseen": SECOND, "a": FIRST})
    refused(lambda: read_tensors(sharded), f"unseen is not in {SECOND}")
    write_index(sharded, {"extra": SECOND, "a": FIRST})
    read = read_tensors(sharded)
    assert read.keys() == {"a", "extra"}
    assert read["a"].equal(torch.ones(2))
    save_file({"b": torch.zeros(2), "extra": torch.ones(1)}, sharded / SECOND)
    assert read_tensors(sharded).keys() == {"a", "b", "extra"}


@pytest.mark.parametrize("weight_map", [None, ["a"], {"a": 3}, "model.bin"])
def test_index_without_a_map(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    refused(lambda: read_tensors(sharded), "no weight_map")


# Writing that fails


@pytest.fixture
def little_disk() -> Iterator[None]:
    """Files cannot grow past 20 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("little_disk")
@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("shard_bytes", [WHOLE, 4_000])
def test_full_disk_leaves_the_old(tmp_path: Path, form: Form, shard_bytes: int) -> None:
    old = {"a": torch.ones(1000)}
    for before, _ in LAYOUTS[::2]:
        write_tensors(tmp_path, old, form=before)
        held = names(tmp_path)
        with pytest.raises(OSError, match="not written, what was there is as before") as caught:
            write_tensors(tmp_path, old | {"b": torch.zeros(100_000)}, form=form, shard_bytes=shard_bytes)
        assert "\n" not in str(caught.value)
        assert names(tmp_path) == held
        assert same(read_tensors(tmp_path), old)


@pytest.mark.usefixtures("little_disk")
def test_full_disk_leaves_the_old_json(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"a": 1})
    with pytest.raises(OSError, match="not written"):
        write_json(tmp_path / "config.json", {"a": "long" * 10_000})
    with pytest.raises(TypeError):
        write_json(tmp_path / "config.json", {"a": object()})
    assert read_json(tmp_path / "config.json") == {"a": 1}
    assert names(tmp_path) == ["config.json"]


@pytest.mark.parametrize("after", LAYOUTS)
@pytest.mark.parametrize("before", LAYOUTS)
def test_kill_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, before: tuple[Form, int], after: tuple[Form, int]
) -> None:
    old = {"a": torch.zeros(10), "b": torch.zeros(10)}
    new = {name: tensor + 1 for name, tensor in old.items()}
    outcomes = []
    for step in range(100):
        folder = tmp_path / str(step)
        write_tensors(folder, old, form=before[0], shard_bytes=before[1])
        with pytest.MonkeyPatch.context() as patch:
            kill_at(step, patch)
            try:
                write_tensors(folder, new, form=after[0], shard_bytes=after[1])
                outcomes.append("done")
            except Killed:
                found = read_tensors(folder)
                assert same(found, old) or same(found, new)
                outcomes.append("new" if same(found, new) else "old")
        written = write_tensors(folder, new, form=after[0], shard_bytes=after[1])
        assert names(folder) == sorted(written)
        assert same(read_tensors(folder), new)
        if outcomes[-1] == "done":
            break
    assert outcomes == sorted(outcomes, key=["old", "new", "done"].index)
    assert outcomes[0] == "old"
    assert outcomes[-1] == "done"


def kill_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """From this step on, nothing is synced, renamed or removed any more."""
    left = step

    def until(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **options)

        return call

    patch.setattr(tensor_files, "_sync", until(tensor_files._sync))
    patch.setattr(Path, "replace", until(Path.replace))
    patch.setattr(Path, "unlink", until(Path.unlink))


def test_other_files_stay(tmp_path: Path) -> None:
    others = [
        "adapter_model.safetensors",
        "config.json",
        "model.notes.tmp",
        "model.fp16.safetensors",
        "optimizer.bin",
    ]
    for name in others:
        (tmp_path / name).write_text("{}")
    left_behind = [
        "model.safetensors.tmp",
        "pytorch_model-00001-of-00009.bin",
        "model-2-00001-of-00002.safetensors",
    ]
    for name in left_behind:
        (tmp_path / name).write_text("")
    write_tensors(tmp_path, {"a": torch.ones(2)}, form="bin")
    assert names(tmp_path) == sorted([*others, "pytorch_model.bin"])


# Numbers


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_nonfinite(dtype: torch.dtype) -> None:
    values = torch.linspace(-1, 1, 50)
    tensors = {
        "good": values.to(dtype),
        "nan": values.clone().index_fill_(0, torch.tensor(3), torch.nan).to(dtype),
    }
    if dtype != torch.float8_e4m3fn:  # has no infinity
        tensors["inf"] = values.clone().index_fill_(0, torch.tensor(49), torch.inf).to(dtype)
        tensors["-inf"] = values.clone().index_fill_(0, torch.tensor(0), -torch.inf).to(dtype)
    tensors |= {"extremes": torch.tensor([torch.finfo(dtype).min, torch.finfo(dtype).max], dtype=dtype)}
    tensors |= {
        "empty": torch.empty(0, dtype=dtype),
        "whole": torch.tensor([1, 2]),
        "bool": torch.tensor(True),
    }
    assert nonfinite(tensors) == [name for name in tensors if name in ("nan", "inf", "-inf")]


def test_nonfinite_in_the_rarest_floats() -> None:
    exponents = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    fours = torch.tensor([1, 255], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert nonfinite({"a": exponents, "b": exponents[:1], "c": fours}) == ["a"]
