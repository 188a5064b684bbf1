"""The files of a model folder, and which of them a save replaces or removes. Reads no weights.

A save over a model replaces the files of its kind and removes those that the new model lacks: old
shards, the files of another tokenizer, a pooling. All other files are the user's and stay. A folder
that holds no model has no file that may be replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from qkv.image_tokenizer import IMAGE_TOKENIZER_FILES
from qkv.staging import replace_nothing
from qkv.text.files import TOKENIZER_FILES, states_model_type
from qkv.weights.tensors import list_weight_files

CONFIG_FILES = ("config.json", "generation_config.json", "preprocessor_config.json")
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
ADAPTER_HEAD_FILE = (
    "head.json"  # written by qkv: the head and its label names, which PEFT does not save
)
ADAPTER_FILES = (ADAPTER_CONFIG_FILE, *ADAPTER_WEIGHT_FILES, ADAPTER_HEAD_FILE)
MODULES_FILE = "modules.json"
POOLING_FOLDER, DENSE_FOLDER = "1_Pooling", "2_Dense"


def replace_model(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the files of the model or adapter in a folder; raise ValueError if it holds neither and
    a new file has the name of an old one.

    A new model without a tokenizer keeps the tokenizer of the folder."""
    if not holds_model(folder) and not (folder / ADAPTER_CONFIG_FILE).exists():
        return replace_nothing(folder, names)
    return [
        name
        for name in list_model_files(folder)
        if name not in TOKENIZER_FILES or not TOKENIZER_FILES.isdisjoint(names)
    ]


def replace_adapter(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the files of the adapter in a folder; raise ValueError if it holds a model."""
    if holds_model(folder):
        raise ValueError(
            f"{folder}: not written, because the folder holds a model, which qkv.load would read "
            "instead of the adapter; choose another folder"
        )
    return replace_model(folder, names)


def holds_model(folder: Path) -> bool:
    """Return whether a folder has weights, or a config.json that states a model."""
    return bool(list_weight_files(folder)) or states_model_type(folder)


def list_model_files(folder: Path) -> Iterator[str]:
    """Yield the names of all files that a save of a model or adapter writes and that exist."""
    names = [*CONFIG_FILES, *TOKENIZER_FILES, *IMAGE_TOKENIZER_FILES, MODULES_FILE]
    names += list_weight_files(folder)
    if (folder / ADAPTER_CONFIG_FILE).exists():
        names += ADAPTER_FILES
    if (folder / MODULES_FILE).exists():
        names += [f"{POOLING_FOLDER}/config.json", f"{DENSE_FOLDER}/config.json"]
        if (folder / DENSE_FOLDER).is_dir():
            names += [f"{DENSE_FOLDER}/{name}" for name in list_weight_files(folder / DENSE_FOLDER)]
    return (name for name in names if (folder / name).is_file())
