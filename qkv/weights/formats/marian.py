"""Reader of Marian's models: an .npz file with its settings, decoder.yml and vocabularies beside it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.files import DAMAGED_FILE_HINT, read_json_object, read_text_file
from qkv.weights.formats.checkpoint import CheckpointData
from qkv.weights.formats.yaml import parse_yaml_mapping
from qkv.weights.npz import read_npz

SETTINGS_NAME = "special:model.yml"
DECODER_FILE = "decoder.yml"
GENERATION_KEYS_OF_MARIAN = {"beam-size": "num_beams", "normalize": "length_penalty"}
SIDES = ("source", "target")


def has_marian_settings(path: Path) -> bool:
    """Return whether a file is an .npz with the settings of Marian."""
    if path.suffix != ".npz" or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{SETTINGS_NAME}.npy" in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def list_marian_files(folder: Path) -> list[Path]:
    """Return the models of a folder."""
    return [path for path in sorted(folder.glob("*.npz")) if has_marian_settings(path)]


def read_marian(path: Path) -> CheckpointData:
    """Read an .npz file, or that of a folder, and the files of the tokenizer beside it.

    Vocabularies that are SentencePiece models are in `tokenizer_files`, not in `vocabularies`."""
    folder = path if path.is_dir() else path.parent
    decoder_file = folder / DECODER_FILE
    decoder = _read_yaml(decoder_file) if decoder_file.is_file() else {}
    if path.is_dir():
        path = _choose_file(folder, decoder)
    tensors, settings = _read_npz(path)
    vocabularies, tokenizer_files = _read_vocabularies(folder, decoder, settings)
    generation = {
        key: value
        for name, key in GENERATION_KEYS_OF_MARIAN.items()
        if isinstance(value := decoder.get(name), int | float)
    }
    return CheckpointData(
        path=path,
        config=settings,
        tensors=tensors,
        vocabularies=vocabularies,
        tokenizer_files=tokenizer_files,
        generation_config=generation,
    )


def _choose_file(folder: Path, decoder: Mapping[str, Any]) -> Path:
    """Return the first model of decoder.yml, or model.npz, or the only .npz file."""
    files = list_marian_files(folder)
    names = [*_list_names(decoder.get("models")), "model.npz"]
    preferred = [folder / name for name in names if folder / name in files]
    if preferred or len(files) == 1:
        return (preferred or files)[0]
    listing = ", ".join(file.name for file in files)
    raise ValueError(f"{folder}: several .npz files ({listing}); pass the path of one of them")


def _read_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = read_npz(path, lambda name: name == SETTINGS_NAME or not name.startswith("special:"))
    if SETTINGS_NAME not in tensors:
        raise ValueError(f"{path}: no {SETTINGS_NAME}, expected the settings of Marian")
    settings_bytes = tensors.pop(SETTINGS_NAME).numpy().tobytes()
    text = settings_bytes.rstrip(b"\0").decode("utf-8", "replace")
    try:
        return tensors, dict(parse_yaml_mapping(text))
    except ValueError as error:
        raise ValueError(f"{path}: {SETTINGS_NAME}: {error}") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    text = read_text_file(path)
    try:
        return dict(parse_yaml_mapping(text))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _list_names(value: object) -> list[str]:
    """Return the file names of a list of paths, which may be those of another machine."""
    items = value if isinstance(value, list) else [value]
    return [Path(str(item)).name for item in items if item]


def _read_vocabularies(
    folder: Path, decoder: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[dict[str, list[str]], dict[str, Path]]:
    """Return the vocabularies of source and target, and the SentencePiece models of both."""
    paths: list[Path] = []
    for names in (_list_names(decoder.get("vocabs")), _list_names(settings.get("vocabs"))):
        if len(names) == len(SIDES) and all((folder / name).is_file() for name in names):
            paths = [folder / name for name in names]
            break
    if not paths:
        candidates = [
            *folder.glob("*vocab*.yml"),
            *folder.glob("*vocab*.yaml"),
            *folder.glob("*vocab*.spm"),
        ]
        paths = candidates * 2 if len(candidates) == 1 else []
    files = {
        f"{side}_sentencepiece": folder / f"{side}.spm"
        for side in SIDES
        if (folder / f"{side}.spm").is_file()
    }
    vocabularies: dict[str, list[str]] = {}
    for side, path in zip(SIDES, paths, strict=False):
        if path.suffix == ".spm":
            files[f"{side}_sentencepiece"] = path
        else:
            vocabularies[side] = read_marian_vocabulary(path)
    return vocabularies, files


def read_marian_vocabulary(path: Path) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids: YAML, JSON or a token a line."""
    text = read_text_file(path)
    if path.suffix not in (".yml", ".yaml", ".json"):
        return text.removesuffix("\n").split("\n")
    is_json = text.lstrip().startswith("{")
    ids: Mapping[str, Any] = read_json_object(path) if is_json else _read_yaml(path)
    tokens = sorted(ids, key=lambda token: str(ids[token]).zfill(20))
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(
            f"{path}: ids are not 0 to {len(tokens) - 1}, expected one token for each id; "
            f"{DAMAGED_FILE_HINT}"
        )
    return tokens
