"""Fuzzed files: every reader accepts a file, or refuses it with one line in little time and memory.

No code is run, no process or connection is started, and no file is written."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import torch

import qkv
from qkv.data.read.corpus import Corpus
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora
from qkv.text import Tokenizer
from qkv.train.recipe import read_recipe
from qkv.weights.tensors import read_tensors
from tools.attack.case import Case
from tools.attack.mutate import mutate_file
from tools.attack.saved_model import TEXTS, build_model

TIMEOUT = 20.0  # seconds
MEMORY = 1 << 30  # bytes
REFUSALS = (ValueError, OSError)
WRITE_MODES = set("wax+")
FORBIDDEN_EVENTS = (
    "socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate",
    "pickle.find_class", "ctypes.dlopen",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A folder with files, one of which is mutated, and the call that reads them."""

    folder: Path
    read: Callable[[Path], object]


class ForbiddenError(BaseException):
    """A reader did what no reader may do."""


def watch(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook that refuses what a reader may not do."""
    if event in FORBIDDEN_EVENTS:
        raise ForbiddenError(f"{event} {args}"[:300])
    if event == "open" and isinstance(args[1], str) and WRITE_MODES & set(args[1]):
        raise ForbiddenError(f"opened for writing: {args[0]}")


def attack_model_files(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Fuzzed weights, configs and tokenizers of models, and adapters."""
    return iterate_cases(write_models(folder), rng)


def attack_data_files(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Fuzzed tables, texts and recipes."""
    return iterate_cases(write_data(folder), rng)


def iterate_cases(targets: list[Target], rng: random.Random) -> Iterator[Case]:
    """Yield a mutation of a random file of a random target, without end."""
    torch.set_num_threads(1)
    for target in targets:
        target.read(target.folder)  # also imports what reading needs
    while True:
        target = rng.choice(targets)
        name = rng.choice(sorted(path.name for path in target.folder.iterdir()))
        seed = rng.getrandbits(64)
        yield Case(
            name=f"{target.folder.name}: {name}",
            run=partial(run_case, target, name, seed),
            timeout=TIMEOUT,
            memory=MEMORY,
        )


def run_case(target: Target, name: str, seed: int, folder: Path) -> str | None:
    """Mutate a file and read it; return what is wrong."""
    copy = folder / target.folder.name
    shutil.copytree(target.folder, copy)
    data = mutate_file(name, (copy / name).read_bytes(), random.Random(seed))
    (copy / name).write_bytes(data)
    warnings.simplefilter("ignore")
    sys.addaudithook(watch)
    try:
        target.read(copy)
    except REFUSALS as error:
        if len(str(error).splitlines()) != 1:
            return f"the message is not one line: {error}"
    return None


def write_models(folder: Path) -> list[Target]:
    """Write one model in several formats, a SentencePiece tokenizer and an adapter."""
    model = build_model(24, 90, seed=0)
    model.save(folder / "one file")
    model.save(folder / "shards", max_shard_size=20_000)
    model.save(folder / "int8", quantization="int8")
    shutil.copytree(folder / "one file", folder / "torch")
    loaded = qkv.load(folder / "one file")
    add_lora(loaded.net, r=2, target_modules=["o"])
    write_adapter(loaded, folder / "adapter", base_model_name="base")
    tensors = read_tensors(folder / "torch")
    torch.save(dict(tensors), folder / "torch" / "pytorch_model.bin")
    (folder / "torch" / "model.safetensors").unlink()
    write_sentencepiece(folder / "sentencepiece")
    targets = [Target(folder / name, use_model) for name in ("one file", "shards", "int8", "torch")]
    base = folder / "one file"
    return [
        *targets,
        Target(folder / "adapter", lambda path: qkv.load(base, adapter=path)),
        Target(folder / "sentencepiece", use_tokenizer),
    ]


def write_sentencepiece(folder: Path) -> None:
    """Train a SentencePiece model, with the config of a T5 tokenizer."""
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20), model_prefix=str(folder / "spiece"), vocab_size=60,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    config = {"tokenizer_class": "T5Tokenizer", "model_max_length": 64, "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def use_model(folder: Path) -> None:
    """Load a model, and use it and its tokenizer."""
    model = qkv.load(folder)
    if model.tokenizer is not None:
        ids = model.tokenizer.encode(TEXTS[0])[:8]
        model.tokenizer.decode(ids)
        if ids and max(ids) < model.args["vocab_size"]:
            with torch.no_grad():
                model(torch.tensor([ids]))


def use_tokenizer(folder: Path) -> None:
    """Load a tokenizer and use it."""
    tokenizer = Tokenizer.load(folder)
    tokenizer.decode(tokenizer.encode(TEXTS[0]))


def write_data(folder: Path) -> list[Target]:
    """Write a table in every format of data, and a recipe."""
    rows = [{"text": text, "label": f"a{i % 2}", "n": i} for i, text in enumerate(TEXTS * 3)]
    lines = [f"{row['text']}\t{row['label']}" for row in rows]
    jsonl = "".join(json.dumps(row) + "\n" for row in rows)
    words = [f"{word} O\n" for word in TEXTS[0].split()]
    texts = {
        "data.txt": "\n".join(TEXTS), "data.tsv": "\n".join(["text\tlabel", *lines]), "data.jsonl": jsonl,
        "data.csv": "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows),
        "data.json": json.dumps(rows), "data.conll": "".join(words) + "\n" + "".join(words),
    }  # fmt: skip
    targets = []
    for name, text in texts.items():
        targets += [write_target(folder, name, text.encode(), read_corpus)]
    targets += [write_target(folder, "data.jsonl.gz", gzip.compress(jsonl.encode()), read_corpus)]
    recipe = (Path(qkv.__file__).parent / "recipes" / "shakespeare.toml").read_bytes()
    targets += [write_target(folder, "recipe.toml", recipe, read_recipe)]
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return targets
    (folder / "data.parquet").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "data.parquet" / "data.parquet")
    return [*targets, Target(folder / "data.parquet", partial(read_file, read_corpus))]


def write_target(folder: Path, name: str, data: bytes, read: Callable[[Path], object]) -> Target:
    """Write a folder with one file."""
    (folder / name).mkdir()
    (folder / name / name).write_bytes(data)
    return Target(folder / name, partial(read_file, read))


def read_file(read: Callable[[Path], object], folder: Path) -> None:
    """Read the only file of a folder."""
    (file,) = folder.iterdir()
    read(file)


def read_corpus(path: Path) -> None:
    """Read all records of a file."""
    for _ in Corpus(path):
        pass
