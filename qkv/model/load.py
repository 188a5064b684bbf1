"""load: load a model from a folder of Hugging Face, qkv, PEFT, fairseq, Marian or CTranslate2, or from
the Hugging Face hub. Executes no code of a checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from qkv.files import read_json_object
from qkv.model.adapters.config import find_base_model, is_adapter
from qkv.model.adapters.read import read_adapter
from qkv.model.build import build_model_spec
from qkv.model.config import detect_prefix, parse_config
from qkv.model.device import DEFAULT_DEVICE, pick_device
from qkv.model.foreign.formats import find_foreign_format
from qkv.model.hub import find_model_folder
from qkv.model.limits import check_layer_count
from qkv.model.model import Model, list_tokenizer_files
from qkv.model.parameters import (
    build_meta_network,
    has_untied_weights,
    load_parameters,
    upgrade_norm_name,
)
from qkv.model.transforms.sentence_transformers import (
    find_transformer_folder,
    read_dense_tensors,
    read_pooling,
)
from qkv.weights.int8 import dequantize_int8
from qkv.weights.names_table import NamesTable
from qkv.weights.tensors import find_nonfinite, read_tensors


def load(
    name_or_path: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str = DEFAULT_DEVICE,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model from a folder (Hugging Face, qkv, CTranslate2, fairseq or Marian), or download it
    by its hub id.

    `adapter` is the folder of an adapter to add. A folder with only an adapter is loaded with its base
    model."""
    target_device = pick_device(device, dtype)
    path = find_model_folder(name_or_path, revision)
    base_model_name = str(name_or_path)
    if is_adapter(path) and adapter is None:
        adapter = path
        base_model_name, path = find_base_model(path)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter, expected a model for the adapter {adapter}; run `qkv merge` on it first"
        )
    if foreign_format := find_foreign_format(path):
        model = foreign_format.load(path)
        model.net.to(device=target_device, dtype=dtype)
    else:
        model = load_hf_folder(path, device=device, dtype=dtype)
    if adapter is not None:
        adapter_folder = find_model_folder(adapter, None)
        model = read_adapter(model, adapter_folder)
        model.base_model_name = base_model_name
        if list_tokenizer_files(adapter_folder):
            model.tokenizer_folder = adapter_folder
    return model


def load_hf_folder(
    name_or_path: str | Path,
    *,
    device: str = DEFAULT_DEVICE,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Load a folder in Hugging Face's or qkv's format, or download it by its hub id."""
    target_device = pick_device(device, dtype)
    root = find_model_folder(name_or_path, revision)
    folder = find_transformer_folder(root)
    config = read_json_object(folder / "config.json")
    is_native = config.get("model_type") == "qkv"
    try:
        family, args, position_embedding_type = parse_config(config)
        pooling = read_pooling(root)
        spec = build_model_spec(family, args, position_embedding_type, pooling)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    tensors = {upgrade_norm_name(name): x for name, x in read_tensors(folder).items()}
    if is_native and config.pop("weights", None) is not None:
        tensors = dequantize_int8(tensors, folder)
    if pooling is not None and pooling.dense is not None and not is_native:
        tensors |= read_dense_tensors(root)
    try:
        check_layer_count(spec, len(tensors))
        net = build_meta_network(spec)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    if (
        args.get("tie_embeddings")
        and not is_native
        and has_untied_weights(family, args, net, tensors)
    ):
        args = {
            **args,
            "tie_embeddings": False,
        }  # tied in the config, but the checkpoint has two different tables
        net = build_meta_network(build_model_spec(family, args, position_embedding_type, pooling))
    if is_native:
        checkpoint_prefix = None
        names_table = NamesTable("\n".join(f"{name} {name}" for name, _ in net.named_parameters()))
    else:
        checkpoint_prefix = detect_prefix(family, tensors, args)
        names_table = family.build_names_table(args, checkpoint_prefix)
    extra_tensors = load_parameters(net, names_table, tensors, folder)
    for name in find_nonfinite(dict(net.named_parameters())):
        warnings.warn(f"{folder}: {name} holds values that are not finite", stacklevel=2)
    net = net.to(device=target_device, dtype=dtype)
    generation_config_path = folder / "generation_config.json"
    has_generation_config = generation_config_path.exists()
    return Model(
        family,
        args,
        net.eval(),
        config,
        position_embedding_type=position_embedding_type,
        pooling=pooling,
        checkpoint_prefix=checkpoint_prefix,
        extra_tensors=extra_tensors,
        tokenizer_folder=folder,
        generation_config=read_json_object(generation_config_path)
        if has_generation_config
        else None,
    )
