"""Reader of fairseq checkpoints (.pt): settings, tensors, dictionaries and BPE files beside them.

Settings are an argparse.Namespace, a dict or an object of omegaconf. Executes no code of a checkpoint:
classes of fairseq and omegaconf are replaced by one that only stores its attributes."""

from __future__ import annotations

import argparse
import pickletools
import re
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.files import DAMAGED_FILE_HINT, read_text_file
from qkv.weights.formats.checkpoint import CheckpointData
from qkv.weights.torch_file import check_dense_tensors, list_pickles, read_torch_file

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]  # the first ids of every dictionary
CHECKPOINT_NAMES = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt", "checkpoint.pt")
BPE_CODE_NAMES = ("bpecodes", "code", "codes", "bpe.codes", "bpe.code", "codes.bpe")
SENTENCEPIECE_NAMES = (
    "sentencepiece.bpe.model", "sentence.bpe.model", "spm.model", "sentencepiece.model",
)  # fmt: skip
# Modules of classes that checkpoints refer to and whose objects are not needed, except settings.
INERT_MODULES = (
    "fairseq", "omegaconf", "hydra", "numpy", "typing", "enum", "operator", "_operator", "examples",
)  # fmt: skip
PYTHON2_BUILTINS = {"unicode": "str", "long": "int"}
INERT_BUILTINS = ("bool", "dict", "float", "int", "list", "object", "str", "tuple", "type")
GENERATION_KEYS = {  # key of fairseq's `generation` settings: key of generation_config.json
    "beam": "num_beams",
    "lenpen": "length_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
MAX_SETTINGS_DEPTH = 20  # omegaconf has two levels for each level of the settings
MAX_SETTINGS = 100_000
GENERATION_DEFAULTS_OF_FAIRSEQ = {"beam": 5, "lenpen": 1.0, "max_len_b": 200}


class InertObject:
    """Stands for an object of another library in a pickle; it stores attributes and does nothing."""

    def __init__(self, *args: object) -> None:
        self.__dict__["args"] = args

    def __setstate__(self, state: object) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


def find_fairseq_file(path: Path) -> Path:
    """Return the file itself, or the checkpoint of a folder."""
    if not path.is_dir():
        return path
    files = sorted(path.glob("*.pt"))
    preferred = [path / name for name in CHECKPOINT_NAMES if path / name in files]
    if preferred or len(files) == 1:
        return (preferred or files)[0]
    listing = ", ".join(file.name for file in files) or "none"
    raise ValueError(f"{path}: several .pt files ({listing}); pass the path of one of them")


def read_fairseq(path: Path) -> CheckpointData:
    """Read a .pt file, or that of a folder, and the files of the tokenizer beside it.

    `config` has the settings of the model and the task under their flat names, such as
    encoder_embed_dim."""
    path = find_fairseq_file(path)
    names = [name for name in list_pickle_globals(path) if _is_inert(name)]
    inert_types = [(InertObject, name) for name in names]
    checkpoint = read_torch_file(path, allowed_types=(argparse.Namespace, *inert_types))
    if not isinstance(checkpoint, dict) or not _is_state_dict(checkpoint.get("model")):
        raise ValueError(f"{path}: not a fairseq checkpoint; expected `model` with tensors by name")
    check_dense_tensors(path, checkpoint["model"])
    settings, generation = _read_settings(checkpoint, path)
    folder = path.parent
    tokenizer_files = {
        kind: folder / name
        for kind, names in (("bpe_codes", BPE_CODE_NAMES), ("sentencepiece", SENTENCEPIECE_NAMES))
        for name in reversed(names)
        if (folder / name).is_file()
    }
    return CheckpointData(
        path=path,
        config=settings,
        tensors=upgrade_tensor_names(checkpoint["model"], path),
        vocabularies=_read_dictionaries(folder, settings),
        tokenizer_files=tokenizer_files,
        generation_config=_convert_generation_settings(generation),
    )


def list_pickle_globals(path: Path) -> list[str]:
    """Return the names of the classes and functions that the pickles of a torch file refer to."""
    names: dict[str, None] = {}
    try:
        for stream, num_pickles in list_pickles(path):
            names |= dict.fromkeys(_iterate_globals(stream, num_pickles))
    except Exception:  # a damaged file; `read_torch_file` reports it
        return []
    return list(names)


def _iterate_globals(file: Any, num_pickles: int) -> Iterable[str]:
    for _ in range(num_pickles):
        strings: list[str] = []
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "GLOBAL":
                module, _, name = str(argument).partition(" ")
                if module == "__builtin__":  # the names of Python 2
                    module, name = "builtins", PYTHON2_BUILTINS.get(name, name)
                yield f"{module}.{name}"
            elif opcode.name == "STACK_GLOBAL" and len(strings) > 1:
                yield f"{strings[-2]}.{strings[-1]}"
            elif isinstance(argument, str):
                strings.append(argument)


def _is_inert(name: str) -> bool:
    module, _, rest = name.partition(".")
    is_type = (module == "builtins" and rest in INERT_BUILTINS) or name == "collections.defaultdict"
    return module in INERT_MODULES or is_type


def _is_state_dict(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(name, str) and isinstance(x, Tensor) for name, x in value.items())
    )


def _to_plain(value: object) -> Any:
    """Return settings as plain dicts, lists and values; None for what is too deep or too many.

    A pickle may refer to an object many times, or in a circle."""
    value_count = count(1)

    def convert(value: Any, depth: int) -> Any:
        if depth == 0 or next(value_count) > MAX_SETTINGS:
            return None
        if isinstance(value, argparse.Namespace):
            return convert(vars(value), depth)
        if isinstance(value, InertObject):
            attributes = vars(value)
            if "_content" in attributes:  # omegaconf's DictConfig and ListConfig
                return convert(attributes["_content"], depth - 1)
            if "_val" in attributes:  # omegaconf's nodes
                return convert(attributes["_val"], depth - 1)
            args = attributes.get("args", ())
            return convert(args[0], depth - 1) if len(args) == 1 else None  # a member of an enum
        if isinstance(value, dict):
            return {
                str(convert(key, depth - 1)): convert(item, depth - 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [convert(item, depth - 1) for item in value]
        return value

    return convert(value, MAX_SETTINGS_DEPTH)


def _read_settings(
    checkpoint: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of model and task, and those of generation."""
    if checkpoint.get("args"):
        settings = _to_plain(checkpoint["args"])
        generation = settings
    else:
        cfg = _to_plain(checkpoint.get("cfg"))
        cfg = cfg if isinstance(cfg, dict) else {}
        task = cfg.get("task")
        settings = cfg.get("model")
        generation = cfg.get("generation")
        if isinstance(settings, dict) and isinstance(task, dict):
            languages = {key: task[key] for key in ("source_lang", "target_lang") if key in task}
            settings = {**languages, **_flatten(settings)}
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: neither args nor cfg.model; expected the training settings")
    return settings, generation if isinstance(generation, dict) else {}


def _flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of newer files, encoder.embed_dim, as those of older: encoder_embed_dim."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{name}": item for name, item in value.items()}
        else:
            flat[key] = value
    # References to other settings are not resolved: the tensors have the sizes.
    return {
        key: value
        for key, value in flat.items()
        if not (isinstance(value, str) and value.startswith("${"))
    }


def _convert_generation_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of generation_config.json; missing ones are fairseq's defaults."""
    known = GENERATION_DEFAULTS_OF_FAIRSEQ | {
        key: value
        for key, value in settings.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    config = {key: known[name] for name, key in GENERATION_KEYS.items() if name in known}
    return config | {"max_new_tokens": int(known["max_len_b"])}


def upgrade_tensor_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Return the tensors with the names and splits of the newest fairseq, without buffers."""
    upgraded: dict[str, Tensor] = {}
    norms = {
        "encoder": ("self_attn_layer_norm", "final_layer_norm"),
        "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    }
    is_encoder_only = any(".sentence_encoder." in name for name in tensors)
    for old_name, tensor in tensors.items():
        if old_name.endswith((".version", "._float_tensor", ".embed_positions.weights")):
            continue
        name = old_name
        if is_encoder_only:  # the oldest versions call RoBERTa's encoder `decoder`
            name = re.sub(r"^decoder\.", "encoder.", name)
            name = name.replace(".layernorm_embedding.", ".emb_layer_norm.")
        if match := re.fullmatch(r"(encoder|decoder)(.*)\.layer_norms\.(\d)\.(\w+)", name):
            name = f"{match[1]}{match[2]}.{norms[match[1]][int(match[3])]}.{match[4]}"
        if name == "decoder.embed_out":
            name = "decoder.output_projection.weight"
        module, is_fused, leaf = name.partition(".in_proj_")  # before 0.8: q, k and v in one
        if is_fused:
            chunks = zip("qkv", tensor.chunk(3), strict=False)
            parts = {f"{module}.{letter}_proj.{leaf}": chunk for letter, chunk in chunks}
        else:
            parts = {name: tensor}
        for part_name, part in parts.items():
            if part_name in upgraded:
                raise ValueError(
                    f"{path}: {part_name} occurs twice, once under an older name; is the file damaged?"
                )
            upgraded[part_name] = part
    return upgraded


def _read_dictionaries(folder: Path, settings: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the dictionaries of both languages, or that which they share; empty without files."""
    sides = {"source": settings.get("source_lang"), "target": settings.get("target_lang")}
    paths = {side: folder / f"dict.{language}.txt" for side, language in sides.items()}
    if all(path.is_file() for path in paths.values()):
        vocabularies = {side: read_dictionary(path) for side, path in paths.items()}
        if vocabularies["source"] == vocabularies["target"]:
            return {"shared": vocabularies["source"]}
        return vocabularies
    files = sorted(folder.glob("dict*.txt"))
    return {"shared": read_dictionary(files[0])} if len(files) == 1 else {}


def read_dictionary(path: Path) -> list[str]:
    """Return the tokens of dict.txt in the order of their ids: special tokens, then `token count`."""
    tokens = list(SPECIAL_TOKENS)
    known = set(tokens)
    for number, line in enumerate(read_text_file(path).removesuffix("\n").split("\n"), 1):
        content = line.rstrip("\r ")
        is_overwriting = content.endswith(" #fairseq:overwrite")
        token, _, count = content.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not token or not count.isdecimal():
            raise ValueError(
                f"{path}: line {number} is {line[:80]!r}, expected `token count`; {DAMAGED_FILE_HINT}"
            )
        if token in known and not is_overwriting:
            raise ValueError(f"{path}: {token!r} on line {number} occurs twice, expected once")
        known.add(token)
        tokens.append(token)
    return tokens
