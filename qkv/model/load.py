"""load: load a model from a folder of Hugging Face, qkv, PEFT, fairseq, Marian or CTranslate2, or from
the Hugging Face hub. Executes no code of a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families.family import Args, Family
from qkv.files import read_json_object
from qkv.image_tokenizer import find_image_tokenizer
from qkv.model.adapters.config import find_base_model, is_adapter
from qkv.model.adapters.read import read_adapter
from qkv.model.build import build_model_spec
from qkv.model.config import build_hf_config, detect_prefix, find_body_prefixes, parse_config
from qkv.model.device import DEFAULT_DEVICE, pick_device
from qkv.model.foreign.formats import find_foreign_format
from qkv.model.hub import find_model_folder, find_run_model
from qkv.model.label_names import (
    check_label_names,
    check_label_order,
    complete_label_names,
    set_label_names,
    warn_about_renamed_labels,
)
from qkv.model.limits import check_layer_count
from qkv.model.model import Model
from qkv.model.parameters import (
    build_meta_network,
    count_head_labels,
    has_untied_weights,
    load_parameters,
    upgrade_norm_name,
    warn_about_nonfinite,
)
from qkv.model.preprocessing import PREPROCESSOR_FILE
from qkv.model.training_checkpoint import load_checkpoint_weights
from qkv.model.transforms.heads import SENTENCE_EMBEDDING, replace_head
from qkv.model.transforms.sentence_transformers import (
    find_transformer_folder,
    read_dense_tensors,
    read_pooling,
)
from qkv.spec import find_patches
from qkv.staging import read_folder
from qkv.text.files import TokenizerFiles
from qkv.weights.int8 import dequantize_int8
from qkv.weights.names_table import NamesTable
from qkv.weights.tensors import read_tensors


def load(
    name_or_path: str | Path,
    *,
    family: str | None = None,
    head: str | None = None,
    label_names: Sequence[str] | None = None,
    adapter: str | Path | None = None,
    device: str = DEFAULT_DEVICE,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model from a folder (Hugging Face, qkv, CTranslate2, fairseq or Marian), or download it
    by its hub id.

    `head` replaces the head of the model; a warning lists the parameters that the files lack and that
    are newly initialized. `label_names` are the labels of the head, by id. `family` is the family of a
    folder whose config.json does not state it. `adapter` is the folder of an adapter to add. A folder
    with only an adapter is loaded with its base model, a checkpoint of a run (RUN/checkpoints/STEP) with
    the config and tokenizer of the run."""
    if label_names is not None:
        check_label_names(label_names)
    model = load_folder(
        name_or_path,
        family=family,
        head=head,
        adapter=adapter,
        device=device,
        dtype=dtype,
        revision=revision,
    )
    try:
        loaded = model
        if label_names is not None and head in (None, loaded.args.get("head")):
            check_label_order(loaded.config, label_names)
            warn_about_renamed_labels(loaded, label_names, str(name_or_path))
        model, _ = replace_head(loaded, head, len(label_names or ()))
        if model is not loaded:
            model.to(device=loaded.device, dtype=loaded.dtype)
        if label_names is not None:
            if not has_label_head(model):
                raise ValueError(
                    f"label_names with the head {model.args['head']!r}, which has no labels; "
                    "set head='sequence-classification' or another head with labels"
                )
            set_label_names(model, label_names)
    except ValueError as error:
        raise ValueError(f"{name_or_path}: {error}") from None
    warn_about_heads(model, str(name_or_path))
    return model


def has_label_head(model: Model) -> bool:
    """Return whether the number of labels is a size of the model."""
    num_labels = model.args.get("num_labels", 0) + 1
    build_spec = model.family.build_spec
    return build_spec(**model.args) != build_spec(**model.args | {"num_labels": num_labels})


def warn_about_heads(model: Model, name: str) -> None:
    """Warn about parameters that the files lack, and about tensors that the model does not use."""
    parameters = dict(model.net.named_parameters())
    new = [name for name in model.new_parameters if parameters[name].requires_grad]
    if new:
        warnings.warn(
            f"{name}: {list_names(new)} newly initialized: train the model before using it",
            stacklevel=3,
        )
    names_table = model.family.build_names_table(model.args, model.checkpoint_prefix)
    mappings = {name: names_table.find_parameter(name) for name in sorted(model.extra_tensors)}
    extra = [name for name, row in mappings.items() if not row or row[1] not in ("copy", "keep")]
    if extra:
        warnings.warn(
            f"{name}: {list_names(extra)} not used with the head {model.args['head']!r}: kept aside, "
            "and written back by save",
            stacklevel=3,
        )


def list_names(names: Sequence[str], max_listed: int = 6) -> str:
    """Return the subject of a sentence: the first names, the number of others, and the verb."""
    more = f" and {len(names) - max_listed} more" if len(names) > max_listed else ""
    return f"{', '.join(names[:max_listed])}{more} {'are' if len(names) > 1 else 'is'}"


def load_folder(
    name_or_path: str | Path,
    *,
    family: str | None = None,
    head: str | None = None,
    adapter: str | Path | None = None,
    device: str = DEFAULT_DEVICE,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
) -> Model:
    """Load a model with the head of its files; `family` and `head` are used if they state none."""
    target_device = pick_device(device, dtype)
    path = find_model_folder(name_or_path, revision)
    if run_model := find_run_model(path):
        model = load_folder(
            run_model, family=family, head=head, adapter=adapter, device=device, dtype=dtype
        )
        load_checkpoint_weights(model, path)
        return model
    base_model_name = str(name_or_path)
    if is_adapter(path) and adapter is None:
        adapter = path
        base_model_name, path = find_base_model(path)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter, expected a model for the adapter {adapter}; run `qkv merge` on it first"
        )
    with read_folder(path):
        if foreign_format := find_foreign_format(path):
            model = foreign_format.load(path)
            model.net.to(device=target_device, dtype=dtype)
        else:
            model = load_hf_folder(path, family=family, head=head, device=device, dtype=dtype)
    if adapter is not None:
        adapter_folder = find_model_folder(adapter, None)
        with read_folder(adapter_folder):
            model = read_adapter(model, adapter_folder)
            tokenizer_files = TokenizerFiles.read(adapter_folder)
        model.base_model_name = base_model_name
        if tokenizer_files.contents:
            model.tokenizer_files = tokenizer_files
    return model


def state_class(
    config: dict[str, Any],
    family: Family,
    args: Args,
    extra_tensors: Mapping[str, Tensor],
    names_table: NamesTable,
) -> dict[str, Any]:
    """Return the config with the class of the head, if it states no class of the family.

    A class with unknown heads, which `save` writes back, is kept."""
    class_names = config.get("architectures") or [""]
    has_unknown_heads = any(names_table.find_parameter(name) is None for name in extra_tensors)
    if family.find_head(class_names[0]) is not None or has_unknown_heads:
        return config
    hf_config = build_hf_config(family, args, config.get("model_type"))
    return {**config, "architectures": hf_config["architectures"]}


def load_hf_folder(
    folder: Path,
    *,
    family: str | None = None,
    head: str | None = None,
    device: str = DEFAULT_DEVICE,
    dtype: torch.dtype | None = None,
) -> Model:
    """Load a folder in Hugging Face's or qkv's format."""
    target_device = pick_device(device, dtype)
    root = folder  # with the files of sentence-transformers, if there are any
    folder = find_transformer_folder(root)
    config = read_json_object(folder / "config.json")
    is_native = config.get("model_type") == "qkv"
    if "auto_map" in config:
        warnings.warn(
            f"{folder / 'config.json'}: auto_map is ignored: code of a checkpoint is never run",
            stacklevel=4,
        )
    try:
        stated_head = "none" if head == SENTENCE_EMBEDDING else head
        definition, args, variant = parse_config(config, family, stated_head)
        pooling = read_pooling(root)
        spec = build_model_spec(definition, args, variant, pooling)
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
    if is_native:
        checkpoint_prefix = None
        names_table = NamesTable("\n".join(f"{name} {name}" for name, _ in net.named_parameters()))
    else:
        if args.get("tie_embeddings") and has_untied_weights(definition, args, net, tensors):
            args = args | {"tie_embeddings": False}
            net = build_meta_network(build_model_spec(definition, args, variant, pooling))
        num_labels = count_head_labels(definition, args, net, tensors)
        if num_labels is not None:
            warnings.warn(
                f"{folder}: the head has {num_labels} labels, config.json has {args['num_labels']}: "
                "labels without a name are called LABEL_0, LABEL_1, ...",
                stacklevel=4,
            )
            args = args | {"num_labels": num_labels}
            config = complete_label_names(config, num_labels)
            net = build_meta_network(build_model_spec(definition, args, variant, pooling))
        checkpoint_prefix = detect_prefix(definition, tensors, args)
        names_table = definition.build_names_table(args, checkpoint_prefix)
    body_prefixes = ("",) if is_native else find_body_prefixes(definition, config, args, tensors)
    loaded = load_parameters(net, names_table, tensors, folder, body_prefixes)
    if not is_native and head is not None:
        config = state_class(config, definition, args, loaded.extra_tensors, names_table)
    warn_about_nonfinite(folder, dict(net.named_parameters()), stacklevel=4)
    net = net.to(device=target_device, dtype=dtype)
    generation_config_path = folder / "generation_config.json"
    has_generation_config = generation_config_path.exists()
    preprocessor_path = folder / PREPROCESSOR_FILE
    return Model(
        definition,
        args,
        net.eval(),
        config,
        variant=variant,
        pooling=pooling,
        checkpoint_prefix=checkpoint_prefix,
        extra_tensors=loaded.extra_tensors,
        new_parameters=loaded.new_parameters,
        tokenizer_files=TokenizerFiles.read(folder),
        generation_config=read_json_object(generation_config_path)
        if has_generation_config
        else None,
        preprocessor_config=read_json_object(preprocessor_path)
        if find_patches(spec) is not None and preprocessor_path.is_file()
        else None,
        image_tokenizer=find_image_tokenizer(folder),
    )
