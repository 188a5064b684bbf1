"""Small models that attacks save, and what a reader finds in a folder."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import torch

import qkv

TEXTS = [
    "the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tall tree",
    "we saw the cat and the dog near the river",
]  # fmt: skip
NOTHING = "nothing"


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
