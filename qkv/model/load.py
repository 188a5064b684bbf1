"""Whatever lies in a folder, opened: Hugging Face's and our own by `model`, adapters by `adapter`, fairseq's
and CTranslate2's here.

Knows how those programs state sizes and name tensors; imports none of them, and runs no code in a file."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from qkv.model.adapters.config import base_of, is_adapter
from qkv.model.adapters.read import read_adapter
from qkv.model.build import make_spec
from qkv.model.config import prefix_in, understand
from qkv.model.ctranslate2 import (
    is_ctranslate2,
    open_ctranslate2,
)
from qkv.model.device import pick_device
from qkv.model.fairseq import (
    is_fairseq,
    open_fairseq,
)
from qkv.model.hub import find
from qkv.model.limits import check_size
from qkv.model.model import Model, tokenizer_files
from qkv.model.parameters import apart, fill, newer_name, skeleton
from qkv.model.transforms.pooling import read_vector
from qkv.weights.int8 import from_int8
from qkv.weights.names_table import KeyMap
from qkv.weights.tensors import nonfinite, read_json, read_tensors


def load(
    folder_or_id: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Opens a folder of Hugging Face's, ours, CTranslate2's or fairseq's, or fetches one by its hub id.

    `adapter` is put onto it. A folder that is an adapter itself is opened with the model it names."""
    place = pick_device(device, dtype)
    path, named = find(folder_or_id, revision), str(folder_or_id)
    if is_adapter(path) and adapter is None:
        adapter, (named, path) = path, base_of(path)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter itself, expected a model to put {adapter} on; qkv merge it first"
        )
    if is_fairseq(path) or is_ctranslate2(path):
        model = (open_fairseq if is_fairseq(path) else open_ctranslate2)(path)
        model.net.to(device=place, dtype=dtype)
    else:
        model = load_folder(path, device=device, dtype=dtype)
    if adapter is not None:
        home = find(adapter, None)
        model = read_adapter(model, home)
        model.base = named
        if tokenizer_files(home):
            model.home = home
    return model


# --- fairseq ---


# --- CTranslate2 ---


def load_folder(
    folder_or_id: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Opens a Hugging Face folder, or fetches one by its hub id into the hub's cache."""
    place_on = pick_device(device, dtype)
    folder = find(folder_or_id, revision)
    config = read_json(folder / "config.json")
    try:
        kin, args, positions = understand(config)
        vector = read_vector(folder)
        spec = make_spec(kin, args, positions, vector)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    tensors = {newer_name(name): x for name, x in read_tensors(folder).items()}
    if config.get("model_type") == "qkv" and config.pop("weights", None) is not None:
        tensors = from_int8(tensors, folder)
    try:
        check_size(spec, len(tensors))
        net = skeleton(spec)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    if args.get("tied") and config.get("model_type") != "qkv" and apart(kin, args, net, tensors):
        args = {**args, "tied": False}  # the config says tied, the file holds two different tables
        net = skeleton(make_spec(kin, args, positions, vector))
    if config.get("model_type") == "qkv":
        names = KeyMap("\n".join(f"{name} {name}" for name, _ in net.named_parameters()))
        prefix, spare = None, fill(net, names, tensors, folder)
    else:
        prefix = prefix_in(kin, tensors, args)
        spare = fill(net, kin.keymap(args, prefix), tensors, folder)
    for name in nonfinite(dict(net.named_parameters())):
        warnings.warn(f"{folder}: {name} holds values that are not finite", stacklevel=2)
    net = net.to(device=place_on, dtype=dtype)
    beside = folder / "generation_config.json"
    return Model(
        kin, args, net.eval(), config, positions=positions, vector=vector, prefix=prefix, spare=spare,
        home=folder, generation=read_json(beside) if beside.exists() else None,
    )  # fmt: skip
