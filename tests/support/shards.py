"""Encoders, texts and folders of token shards."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.store.prepare import prepare_shards
from qkv.data.store.shards import Shards

BYTE_FIELDS = {"tokens": 256}


def encode_bytes(texts: list[str]) -> list[dict[str, list[int]]]:
    """Encode texts as their bytes."""
    return [{"tokens": list(text.encode())} for text in texts]


def encode_slowly(texts: list[str]) -> list[dict[str, list[int]]]:
    """Encode slowly enough to be killed; each process logs its batches."""
    time.sleep(0.05)
    with (Path(os.environ["LOG_FOLDER"]) / str(os.getpid())).open("a") as file:
        file.write(".")
    return encode_bytes(texts)


def exit_process(texts: list[str]) -> list[dict[str, list[int]]]:
    os._exit(1)


def raise_error(texts: list[str]) -> list[dict[str, list[int]]]:
    raise ValueError(f"cannot encode: {texts[0]}")


def encode_quickly(texts: list[str]) -> list[dict[str, np.ndarray[Any, Any]]]:
    return [{"tokens": np.frombuffer(text.encode(), np.uint8)} for text in texts]


def sample_texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of many lengths, some of them empty."""
    rng = random.Random(seed)
    return ["".join(rng.choices("abcdeé ", k=rng.choice([0, 3, 40, 600]))) for _ in range(count)]


def prepare(folder: Path, texts: Any, encode: Any = encode_bytes, **options: Any) -> Shards:
    defaults: dict[str, Any] = dict(
        field_sizes=BYTE_FIELDS, provenance={"corpus": "1"}, shard_tokens=2**20
    )
    return prepare_shards(texts, encode, folder, **defaults | options)


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


TEXTS = sample_texts(20_000)  # about 3 MB: 20 batches, three shards
