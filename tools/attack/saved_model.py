"""Small models that attacks save, what a reader finds in a folder, and whether that is right."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import qkv

TEXTS = [
    "the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tall tree",
    "we saw the cat and the dog near the river",
]  # fmt: skip
NOTHING = "nothing"
KILLED = "killed"
SAVES: dict[str, Callable[[qkv.Model, Path], None]] = {
    "one file": lambda model, folder: model.save(folder),
    "shards": lambda model, folder: model.save(folder, max_shard_size=20_000),
    "int8": lambda model, folder: model.save(folder, quantization="int8"),
}


def build_model(width: int, vocab_size: int, seed: int) -> qkv.Model:
    """Return a random model with a tokenizer and generation settings of its own."""
    tokenizer = qkv.Tokenizer.train(
        TEXTS * 5, type="bpe", vocab_size=vocab_size, template="gpt", model_max_length=32
    )
    torch.manual_seed(seed)
    model = qkv.build(
        "gpt2", vocab_size=len(tokenizer), width=width, depth=2, heads=4, max_positions=32
    )
    model.tokenizer = tokenizer
    model.generation_config = {"max_new_tokens": width}
    return model


def describe_folder(folder: Path) -> str:
    """Return a digest of the model that a reader finds: weights, config, tokenizer and settings.

    An absent or empty folder is "nothing"; a folder that does not open gives its error."""
    if not folder.exists() or not any(folder.iterdir()):
        return NOTHING
    try:
        model = qkv.load(folder)
    except (ValueError, OSError) as error:
        return f"unreadable: {error}"
    if model.tokenizer is None:
        return "a model without its tokenizer"
    digest = hashlib.sha256()
    facts: list[Any] = [model.family.name, sorted(model.args.items()), model.generation_config]
    facts += [len(model.tokenizer), [model.tokenizer.encode(text) for text in TEXTS]]
    digest.update(repr(facts).encode())
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def list_files(folder: Path) -> list[str]:
    """Return the paths of all files and folders below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def restore_folder(folder: Path, source: Path | None) -> None:
    """Make `folder` a copy of `source`, or remove it."""
    shutil.rmtree(folder, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, folder)


class SavedModels:
    """An old and a new model of different sizes, saved in each way."""

    def __init__(self, folder: Path) -> None:
        self.model = build_model(32, 120, seed=1)
        old_model = build_model(24, 90, seed=0)
        self.old: dict[str, Path | None] = {NOTHING: None}
        self.states = {NOTHING: NOTHING}
        self.new_states, self.new_sizes = {}, {}
        for way, save in SAVES.items():
            save(old_model, folder / f"old {way}")
            self.old[way] = folder / f"old {way}"
            self.states[way] = describe_folder(folder / f"old {way}")
            save(self.model, folder / f"new {way}")
            self.new_states[way] = describe_folder(folder / f"new {way}")
            self.new_sizes[way] = [
                path.stat().st_size for path in (folder / f"new {way}").iterdir()
            ]

    def find_problem(
        self, target: Path, old_way: str, way: str, error: str, *, may_leave_files: bool
    ) -> str | None:
        """Return what is wrong after a save that ended with `error` ("": it returned)."""
        state = describe_folder(target)
        if error == KILLED:
            if state not in (self.states[old_way], self.new_states[way]):
                return f"neither the old nor the new model: {state}"
            return self.find_problem_of_next_save(target, way)
        if not error and state != self.new_states[way]:
            return f"the save raised no error, but the folder is not the new model: {state}"
        if error and not error.startswith(("OSError", "ValueError", "PermissionError")):
            return f"the save raised {error}"
        if error and state == self.states[old_way]:
            if not may_leave_files and (stray := find_stray_files(target, self.old[old_way])):
                return f"an error left files: {', '.join(stray)}; error: {error}"
        elif error and state != self.new_states[way]:
            return f"neither the old nor the new model: {state}; error: {error}"
        elif error and "unchanged" in error:
            return f"the new model is in place, but the error says it is not: {error}"
        return self.find_problem_of_next_save(target, way)

    def find_problem_of_next_save(self, target: Path, way: str) -> str | None:
        """Save again without a fault; return what is wrong then."""
        SAVES[way](self.model, target)
        state = describe_folder(target)
        if state != self.new_states[way]:
            return f"the same save again wrote something else: {state}"
        if stray := [name for name in list_files(target.parent) if is_temporary(name)]:
            return f"the same save again left temporary files: {', '.join(stray)}"
        return None


def find_stray_files(target: Path, old: Path | None) -> list[str]:
    """Return the files next to and in `target` that were not there before a save."""
    old_files = [] if old is None else list_files(old)
    allowed = {target.name, *(f"{target.name}/{name}" for name in old_files)}
    return [name for name in list_files(target.parent) if name not in allowed]


def is_temporary(name: str) -> bool:
    """Return whether the name of a file is one that a save uses before it is complete."""
    return ".tmp" in name or any(part.startswith(".") for part in Path(name).parts)
