"""The folder of an unfinished training of word vectors: the encoded corpus, and a checkpoint.

    vectors.bin.training/
        config.json              the settings and the fingerprint of the corpus
        vocabulary.json          words and counts
        corpus.ids               int32
        checkpoint.safetensors   both tables, and the number of the next block

The first three files appear together, when the corpus is encoded; the checkpoint is replaced in one step.
A process that is killed loses what it trained after the last checkpoint. The checkpoint of a finished
training is that of its vectors, until they are written."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from qkv.files import DAMAGED_FILE_HINT, read_json_object, save_json
from qkv.staging import sweep, write_file, write_folder
from qkv.words.config import WordsConfig
from qkv.words.update import VectorTables
from qkv.words.vocabulary import WordVocabulary

CONFIG_FILE = "config.json"
VOCABULARY_FILE = "vocabulary.json"
IDS_FILE = "corpus.ids"
CHECKPOINT_FILE = "checkpoint.safetensors"


@contextmanager
def lock_training_folder(folder: Path) -> Iterator[None]:
    """Let only one process use the folder at a time."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(
            f"{folder}: in use by another process; wait for it, or choose another output file"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def prepare_folder(
    folder: Path,
    config: WordsConfig,
    fingerprint: str,
    encode: Callable[[Path], tuple[WordVocabulary, int]],
) -> None:
    """Encode the corpus into a new folder, or check that an old one is of the same training."""
    settings = {**asdict(config), "corpus": fingerprint}
    sweep(folder.parent)
    if not folder.exists():
        with write_folder(folder) as staged:
            vocabulary, num_words = encode(staged / IDS_FILE)
            content = {"words": list(vocabulary.words), "counts": list(vocabulary.counts)}
            (staged / VOCABULARY_FILE).write_text(json.dumps(content), encoding="utf-8")
            save_json({**settings, "num_words": num_words}, staged / CONFIG_FILE)
        return
    if not (folder / CONFIG_FILE).is_file():
        raise ValueError(f"{folder}: not the folder of a training of word vectors; move it away")
    saved = read_json_object(folder / CONFIG_FILE)
    different = [name for name, value in settings.items() if saved.get(name) != value]
    if different:
        raise ValueError(
            f"{folder}: an unfinished training with another {', '.join(different)}; repeat its command "
            "to finish it, or remove this folder"
        )


def read_corpus(folder: Path) -> tuple[WordVocabulary, NDArray[np.int32], int]:
    """Return the vocabulary, the ids of the corpus (a memory map) and its number of words."""
    try:
        content = json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8"))
        vocabulary = WordVocabulary(content["words"], content["counts"])
        num_words: Any = read_json_object(folder / CONFIG_FILE)["num_words"]
        ids: NDArray[np.int32] = np.memmap(folder / IDS_FILE, np.int32, mode="r")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: {error}; remove this folder to start the training again"
        ) from None
    return vocabulary, ids, int(num_words)


def write_checkpoint_file(folder: Path, tables: VectorTables, next_block: int) -> None:
    """Replace the checkpoint in one step."""
    tensors = {"inputs": tables.inputs, "outputs": tables.outputs}
    with write_file(folder / CHECKPOINT_FILE) as temporary:
        try:
            save_file(tensors, temporary, metadata={"next_block": str(next_block)})
        except SafetensorError as error:  # such as a full disk
            raise OSError(str(error)) from None


def read_checkpoint_file(folder: Path, shape: tuple[int, int]) -> tuple[VectorTables, int] | None:
    """Return the tables of the checkpoint and the number of the next block; None without one."""
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tables = VectorTables(file.get_tensor("inputs"), file.get_tensor("outputs"))
            next_block = int((file.metadata() or {})["next_block"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}; {DAMAGED_FILE_HINT}, or remove it") from None
    if {tuple(tables.inputs.shape), tuple(tables.outputs.shape)} != {shape} or next_block < 0:
        raise ValueError(f"{path}: not of this training; remove it")
    return tables, next_block


def remove_folder(folder: Path) -> None:
    """Remove the folder of a training that is finished."""
    shutil.rmtree(folder, ignore_errors=True)
