"""Small valid files of every kind that qkv reads, and the calls that read them."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkv
from qkv.data.encode.images import ImageProcessor
from qkv.data.read.corpus import Corpus
from qkv.export.ctranslate2 import export_ctranslate2
from qkv.files import read_json_object
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora
from qkv.spec import Spec
from qkv.train.recipe import read_recipe
from qkv.weights.tensors import read_tensors

GOLDENS = Path(__file__).resolve().parents[2] / "tests" / "goldens" / "pipelines"
GOLDEN_MODELS = ("bert-label", "roberta", "bart", "marian", "mbart", "t5")
TEXTS = ["The cat sat on the mat, and the dog lay on the rug.", "Wo ist der Bahnhof? 12 345 é 中文"]
ROWS = [{"text": text, "label": f"a{i % 2}", "n": i} for i, text in enumerate(TEXTS * 3)]
UNSUPPORTED_FILES = {  # files of other libraries, which are refused by name
    "model.gguf": b"GGUF\x03\0\0\0" + bytes(range(64)),
    "model.onnx": b"\x08\x07\x12\x07pytorch" + bytes(64),
    "model.h5": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "flax_model.msgpack": b"\x81\xa6params\x81" + bytes(64),
    "model.ckpt.index": bytes(64),
    "model.tflite": b"\x1c\0\0\0TFL3" + bytes(64),
}


@dataclass(frozen=True)
class Target:
    """A folder of valid files, one of which is changed, and the call that reads the folder."""

    kind: str
    folder: Path
    read: Callable[[Path], object]
    names: tuple[str, ...] = ()  # files that are changed; empty: all
    is_refused: bool = False  # of a format that qkv does not read

    def list_files(self) -> list[str]:
        """Return the names of the files that are changed."""
        return list(self.names) or sorted(path.name for path in self.folder.iterdir())


def use_model(folder: Path) -> None:
    """Load a model and its tokenizer, and compute one batch."""
    model = qkv.load(folder)
    tokenizer = model.tokenizer
    if tokenizer is None:
        return
    ids = tokenizer.encode(TEXTS[0])[:8]
    tokenizer.decode(ids)
    is_single_stack = isinstance(model.spec, Spec) and not (
        model.spec.encoder and model.spec.decoder
    )
    if is_single_stack and ids and max(ids) < model.args["vocab_size"]:
        model(torch.tensor([ids]))


def use_translator(folder: Path) -> None:
    """Load a translation model with its generation_config.json, and translate."""
    qkv.task("translate", qkv.load(folder))("a", max_new_tokens=3)


def use_tokenizer(folder: Path) -> None:
    """Load a tokenizer and encode a text."""
    tokenizer = qkv.Tokenizer.load(folder)
    for text in TEXTS:
        tokenizer.decode(tokenizer.encode(text))


def read_only_file(read: Callable[[Path], object], folder: Path) -> None:
    """Read the only file of a folder."""
    (file,) = folder.iterdir()
    read(file)


def read_corpus(path: Path) -> None:
    """Read all records of a file."""
    for _ in Corpus(path):
        pass


def read_image_settings(path: Path) -> None:
    """Read a preprocessor_config.json, and process an image with it."""
    ImageProcessor.from_config(read_json_object(path))(GOLDENS / "images" / "small.png")


def write_targets(root: Path) -> list[Target]:
    """Write the files of all kinds below a folder."""
    return [
        *write_model_targets(root),
        *write_weight_targets(root),
        *write_tokenizer_targets(root),
        *write_data_targets(root),
        *write_image_targets(root),
        *write_foreign_targets(root),
    ]


def write_model_targets(root: Path) -> Iterator[Target]:
    """Yield models of Hugging Face and qkv, and an adapter."""
    for name in GOLDEN_MODELS:
        folder = _copy_golden(name, root / name)
        yield Target(f"model {name}", folder, use_model)
    yield Target("CLIP", _copy_golden("clip", root / "clip"), use_model)
    marian = root / "marian"
    yield Target("generation_config.json", marian, use_translator, ("generation_config.json",))
    model = qkv.load(root / "bert-label")
    model.save(root / "shards", max_shard_size=10_000)
    yield Target("shards", root / "shards", use_model)
    model.save(root / "int8", quantization="int8")
    yield Target("int8", root / "int8", use_model)
    add_lora(model.net, r=2, target_modules=["q", "v"])
    write_adapter(model, root / "adapter", base_model_name="base")
    base = root / "bert-label"
    yield Target("adapter", root / "adapter", lambda folder: qkv.load(base, adapter=folder))


def write_weight_targets(root: Path) -> Iterator[Target]:
    """Yield files of tensors in the formats of torch and NumPy."""
    tensors = {name: x.clone() for name, x in read_tensors(root / "bert-label").items()}
    for kind, suffix, is_zip in (("torch zip", "bin", True), ("torch legacy", "pt", False)):
        path = _make_folder(root / kind) / f"model.{suffix}"
        torch.save(tensors, path, _use_new_zipfile_serialization=is_zip)
        yield Target(kind, path.parent, partial(read_only_file, read_tensors))
    path = _make_folder(root / "npz") / "model.npz"
    np.savez_compressed(path, *(x.numpy() for x in tensors.values()))
    yield Target("npz", path.parent, partial(read_only_file, read_tensors))


def write_tokenizer_targets(root: Path) -> Iterator[Target]:
    """Yield tokenizers in the formats of older files, and trained ones."""
    for name, file_names in (
        ("bert-label", ("vocab.txt", "tokenizer_config.json")),
        ("roberta", ("vocab.json", "merges.txt", "tokenizer_config.json")),
        ("t5", ("spiece.model", "tokenizer_config.json")),
        ("mbart", ("sentencepiece.bpe.model", "tokenizer_config.json")),
        ("marian", ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")),
    ):
        folder = _make_folder(root / f"tokenizer {name}")
        for file in file_names:
            shutil.copy(GOLDENS / name / file, folder)
        yield Target(f"tokenizer {file_names[0]}", folder, use_tokenizer)
    for tokenizer_type in ("bpe", "byte", "unigram", "wordpiece"):
        folder = root / f"tokenizer {tokenizer_type}"
        qkv.Tokenizer.train(TEXTS * 5, type=tokenizer_type, vocab_size=300, template="bert").save(
            folder
        )
        yield Target("tokenizer.json", folder, use_tokenizer)


def write_data_targets(root: Path) -> Iterator[Target]:
    """Yield tables, texts and a recipe."""
    jsonl = "".join(json.dumps(row) + "\n" for row in ROWS)
    tagged = "".join(f"{word} O\n" for word in TEXTS[0].split())
    quoted = "".join('"{text}",{label},{n}\n'.format(**row) for row in ROWS)
    contents: dict[str, bytes] = {
        "data.txt": "\n".join(TEXTS).encode(),
        "data.csv": f"text,label,n\n{quoted}".encode(),
        "data.tsv": "".join("{text}\t{label}\t{n}\n".format(**row) for row in ROWS).encode(),
        "data.jsonl": jsonl.encode(),
        "data.json": json.dumps(ROWS).encode(),
        "data.conll": f"{tagged}\n{tagged}".encode(),
        "data.jsonl.gz": gzip.compress(jsonl.encode()),
    }
    for name, content in contents.items():
        yield _write_file(root, name, content, read_corpus)
    recipe = Path(qkv.__file__).parent / "recipes" / "shakespeare.toml"
    yield _write_file(root, "recipe.toml", recipe.read_bytes(), read_recipe)


def write_image_targets(root: Path) -> Iterator[Target]:
    """Yield images in several formats, and image settings."""
    try:
        from PIL import Image
    except ImportError:
        return
    process = ImageProcessor.from_config({})
    with Image.open(GOLDENS / "images" / "small.png") as image:
        pixels = image.convert("RGB")
    for suffix in ("png", "jpeg", "gif", "webp", "tiff", "bmp"):
        path = _make_folder(root / suffix) / f"image.{suffix}"
        pixels.save(path)
        yield Target(suffix.upper(), path.parent, partial(read_only_file, process))
    settings = (GOLDENS / "clip" / "preprocessor_config.json").read_bytes()
    yield _write_file(root, "preprocessor_config.json", settings, read_image_settings)


def write_foreign_targets(root: Path) -> Iterator[Target]:
    """Yield models of CTranslate2, fairseq and Marian, and files of unsupported formats."""
    export_ctranslate2(qkv.load(root / "marian"), root / "ctranslate2")
    yield Target("CTranslate2", root / "ctranslate2", use_model)
    for name, content in UNSUPPORTED_FILES.items():
        yield replace(_write_file(root, name, content, read_tensors), is_refused=True)
    try:
        from tests.support import fairseq_files, marian_files
    except ImportError:  # their oracle is transformers
        return
    torch.manual_seed(0)
    roberta = fairseq_files.build_roberta()
    state = fairseq_files.to_fairseq(roberta)
    path = _make_folder(root / "fairseq") / "model.pt"
    fairseq_files.write_fairseq(path, state)
    yield Target("fairseq", path.parent, use_model)
    marian: Any = marian_files.build_marian(31)
    tensors = marian_files.to_marian(marian, 31)
    marian_files.write_npz(root / "marian npz" / "model.npz", tensors, (31, 31))
    vocabulary = "".join(f'"w{i}": {i}\n' for i in range(29))
    (root / "marian npz" / "vocab.yml").write_text(f"</s>: 29\n<unk>: 30\n{vocabulary}")
    yield Target("Marian", root / "marian npz", use_model)


def _copy_golden(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDENS / name, folder, ignore=lambda *_: ["golden.safetensors"]))


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _write_file(root: Path, name: str, content: bytes, read: Callable[[Path], object]) -> Target:
    (_make_folder(root / name) / name).write_bytes(content)
    return Target(name, root / name, partial(read_only_file, read))
