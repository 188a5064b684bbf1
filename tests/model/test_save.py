"""`Model.save` is one step: whatever interrupts it, a folder holds the old model or the new one, with
its config and tokenizer; files of the user stay."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli import main
from qkv.model.adapters.write import write_adapter
from qkv.model.transforms.pooling import Pooling
from qkv.nn.lora import add_lora
from qkv.staging import finish_save, sweep
from tests.support import saved_models
from tests.support.errors import assert_error
from tests.support.text_oracle import write_marian
from tools.attack.file_events import Ending, fork, run_at_every_event

Save = Callable[[Path], object]
TEXT = "the cat sat on the mat"


@cache
def build(name: str) -> qkv.Model:
    """Return a model; those of different names differ in sizes, tokenizer and config."""
    if name == "tall":
        return saved_models.build("gpt2", depth=3)
    if name == "bert":
        return saved_models.build("bert")
    if name == "pooled":
        model = qkv.build(**saved_models.build("bert").args | {"family": "bert", "head": "none"})
        model.tokenizer = saved_models.build("bert").tokenizer
        model.pooling = Pooling("mean", True, None)
        return model
    model = saved_models.build("gpt2")
    if name == "words":
        model = saved_models.build("gpt2", depth=1)
        model.tokenizer = qkv.Tokenizer.train(saved_models.TEXTS, type="word", vocab_size=60)
    return model


def save_model(name: str, folder: Path, max_shard_size: int = 10**9) -> None:
    build(name).save(folder, max_shard_size=max_shard_size)


SAVES: dict[str, Save] = {
    "small": partial(save_model, "small"),
    "sharded": partial(save_model, "small", max_shard_size=20_000),
    "tall-sharded": partial(save_model, "tall", max_shard_size=30_000),
    "words": partial(save_model, "words"),
    "bert": partial(save_model, "bert"),
    "pooled": partial(save_model, "pooled"),
    "native": lambda folder: build("small").save(folder, format="qkv", quantization="int8"),
}


def describe(folder: Path) -> str:
    """Return a hash of what `load` reads: weights, config, generation config, pooling, tokenizer."""
    model = qkv.load(folder)
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.detach().numpy().tobytes())
    tokenizer = model.tokenizer
    ids = None if tokenizer is None else tokenizer.encode(TEXT)
    digest.update(json.dumps([model.config, model.generation_config, ids], default=str).encode())
    digest.update(repr((model.pooling, tokenizer and len(tokenizer))).encode())
    return digest.hexdigest()


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@cache
def describe_save(save: Save, folder: Path) -> tuple[str, list[str]]:
    save(folder)
    return describe(folder), list_files(folder)


def check_save(
    old: Save | None, new: Save, memory_path: Path, fault: str = "kill"
) -> list[tuple[Ending, str]]:
    """Interrupt a save at every file event; return the endings, each with "old" or "new"."""
    folder = memory_path / "parent" / "folder"
    new_hash, new_files = describe_save(new, memory_path / "new")
    hashes = {new_hash: "new"}
    if old is not None:
        old_hash, _ = describe_save(old, memory_path / "old")
        hashes[old_hash] = "old"

    def reset() -> None:
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.parent.mkdir()
        if old is not None:
            shutil.copytree(memory_path / "old", folder)
            (folder / "README.md").write_text("mine")

    outcomes = []
    action = partial(new, folder)
    for ending in run_at_every_event(action, folder.parent, fault, reset=reset):
        outcome = "old" if old is None and not folder.exists() else hashes[describe(folder)]
        outcomes.append((ending, outcome))
        new(folder)
        assert describe(folder) == new_hash
        readme = [] if old is None else ["README.md"]
        assert list_files(folder) == sorted([*readme, *new_files])
        assert os.listdir(folder.parent) == ["folder"]
    return outcomes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (None, "small"), ("small", "tall-sharded"), ("tall-sharded", "small"), ("small", "words"),
        ("pooled", "bert"),
        *(pytest.param(*names, marks=pytest.mark.slow)
          for names in ((None, "pooled"), ("small", "small"), ("bert", "pooled"))),
    ],
)  # fmt: skip
def test_a_killed_save_leaves_the_old_or_the_new_model(
    old: str | None, new: str, memory_path: Path
) -> None:
    outcomes = [x for _, x in check_save(old and SAVES[old], SAVES[new], memory_path)]  # type: ignore[arg-type]
    if old != new:
        assert outcomes == sorted(outcomes, key=["old", "new"].index)
        assert {*outcomes} == {"old", "new"}


def test_an_error_leaves_the_old_or_the_new_model_and_says_which(memory_path: Path) -> None:
    outcomes = check_save(SAVES["sharded"], SAVES["words"], memory_path, "ENOSPC")
    for ending, outcome in outcomes:
        is_unchanged = "its files are unchanged" in ending.error
        assert is_unchanged == (outcome == "old"), ending
    assert {outcome for _, outcome in outcomes} == {"old", "new"}


def test_a_killed_save_of_an_adapter_is_all_or_nothing(memory_path: Path) -> None:
    build("small").save(memory_path / "base")
    saves: list[Save] = []
    for seed in (1, 2):
        model = qkv.load(memory_path / "base")
        torch.manual_seed(seed)
        add_lora(model.net, r=seed, target_modules=("q,k,v",))
        for name, parameter in model.named_parameters():
            if "lora" in name:
                torch.nn.init.normal_(parameter)
        model.base_model_name = str(memory_path / "base")
        saves.append(partial(write_adapter, model))
    outcomes = [x for _, x in check_save(saves[0], saves[1], memory_path)]
    assert {*outcomes} == {"old", "new"}
    assert_error(lambda: saves[0](memory_path / "base"), "the folder holds a model")


@pytest.mark.parametrize(
    ("to", "is_empty"), [("hf", False), ("qkv", True), ("ctranslate2", True), ("tokenizer", False)]
)
def test_the_same_command_goes_on_after_a_kill(to: str, is_empty: bool, memory_path: Path) -> None:
    build("small").save(memory_path / "source")
    (memory_path / "text.txt").write_text("\n".join(saved_models.TEXTS))
    target = memory_path / "parent" / "target"

    def run(folder: Path = target) -> None:
        if to == "tokenizer":
            words = ["tokenizer", "train", str(memory_path / "text.txt"), "--out", str(folder)]
            words += ["--type", "bpe", "--vocab-size", "60"]
        else:
            words = ["export", str(memory_path / "source"), str(folder), "--to", to]
        assert main(words) == 0

    def reset() -> None:
        shutil.rmtree(target.parent, ignore_errors=True)
        target.parent.mkdir()
        if is_empty:
            target.mkdir()

    run(memory_path / "done")
    outcomes = []
    for _ in run_at_every_event(run, target.parent, reset=reset):
        finish_save(target)
        is_done = target.exists() and read_files(target) == read_files(memory_path / "done")
        if not is_done:
            run()
        assert read_files(target) == read_files(memory_path / "done")
        for folder in (target, target.parent):
            sweep(folder)
        assert not any(target.parent.rglob(".qkv*"))
        outcomes.append(is_done)
    assert outcomes == sorted(outcomes)
    assert {*outcomes} == {False, True}


def read_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_save_keeps_the_files_of_the_user(tmp_path: Path) -> None:
    SAVES["pooled"](tmp_path)
    notes = ["README.md", "notes/config.json", "1_Pooling/notes.txt", "training.log"]
    for name in notes:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    SAVES["small"](tmp_path)
    assert qkv.load(tmp_path).pooling is None
    SAVES["words"](tmp_path / "other")
    expected = {*notes, "notes", "1_Pooling", *list_files(tmp_path / "other")}
    SAVES["words"](tmp_path)
    shutil.rmtree(tmp_path / "other")
    assert {*list_files(tmp_path)} == expected
    assert {(tmp_path / name).read_text() for name in notes} == {"mine"}


def test_files_of_another_kind_of_tokenizer_are_removed(tmp_path: Path) -> None:
    write_marian(tmp_path / "marian")
    model = saved_models.build("gpt2", depth=1)
    model.tokenizer = qkv.Tokenizer.load(tmp_path / "marian")
    expected, files = describe_save(model.save, tmp_path / "new")
    SAVES["small"](tmp_path / "small")
    for first, second in ((SAVES["small"], model.save), (model.save, SAVES["small"])):
        shutil.rmtree(tmp_path / "folder", ignore_errors=True)
        first(tmp_path / "folder")
        second(tmp_path / "folder")
        other = tmp_path / ("new" if second == model.save else "small")
        assert describe(tmp_path / "folder") == describe(other)
        assert list_files(tmp_path / "folder") == list_files(other)
    assert expected != describe(tmp_path / "small")
    assert "source.spm" in files
    assert "tokenizer.json" not in files


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_a_folder_without_a_model_keeps_its_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    (tmp_path / "vocab.txt").write_text("words")
    assert_error(lambda: SAVES["small"](tmp_path), f"{name} would be replaced", "another folder")
    assert list_files(tmp_path) == sorted([name, "vocab.txt"])
    (tmp_path / name).rename(tmp_path / "mine.json")
    SAVES["small"](tmp_path)
    assert (tmp_path / "vocab.txt").read_text() == "words"
    assert (tmp_path / "mine.json").read_text() == '{"mine": 1}'


def test_a_model_without_tokenizer_keeps_the_tokenizer_of_the_folder(tmp_path: Path) -> None:
    SAVES["small"](tmp_path)
    model = qkv.load(tmp_path)
    model.tokenizer = None
    model.save(tmp_path)
    assert qkv.load(tmp_path).tokenizer is not None


def test_a_model_keeps_the_tokenizer_that_it_was_loaded_with(tmp_path: Path) -> None:
    SAVES["small"](tmp_path / "a")
    before = qkv.load(tmp_path / "a")
    SAVES["words"](tmp_path / "a")
    expected = build("small").tokenizer
    assert expected is not None
    assert before.tokenizer is not None
    assert before.tokenizer.encode(TEXT) == expected.encode(TEXT)
    lost = qkv.load(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    lost.save(tmp_path / "b")
    before.save(tmp_path / "c")
    SAVES["words"](tmp_path / "words")
    SAVES["small"](tmp_path / "small")
    assert describe(tmp_path / "b") == describe(tmp_path / "words")
    assert describe(tmp_path / "c") == describe(tmp_path / "small")


def test_two_savers_and_readers(memory_path: Path) -> None:
    """Readers meet one of the saved models, whole; each save succeeds."""
    folder = memory_path / "folder"
    saves = [SAVES["sharded"], SAVES["words"], SAVES["pooled"]]
    hashes = {describe_save(save, memory_path / str(i))[0] for i, save in enumerate(saves)}

    def save_all(saver: int) -> None:
        for i in range(8):
            saves[(i + saver) % 3](folder)

    saves[0](folder)
    children = [fork(partial(save_all, saver)) for saver in range(2)]
    seen = []
    while children:
        seen.append(describe(folder))
        for child in [*children]:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0
                children.remove(child)
    assert {*seen} <= hashes
    assert not [*folder.glob(".qkv*")]
