"""export_ctranslate2: write a model in CTranslate2's format, as its own converters do. Does not depend
on the ctranslate2 package."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.export.ctranslate2_support import find_unsupported_parts, iter_norms
from qkv.files import save_json
from qkv.model.file_names import list_model_files
from qkv.model.foreign.ctranslate2_spec import (
    CTRANSLATE2_REVISIONS,
    DEFAULT_NORM_EPS,
    build_position_table,
    describe_spec,
    list_stacks,
    to_scalar_variable,
    to_variable_name,
)
from qkv.model.model import Model
from qkv.nn.lora import lora_layers
from qkv.spec import DualSpec, SinusoidalPositions, Spec
from qkv.staging import replace_nothing, write_folder
from qkv.text import Tokenizer
from qkv.weights.formats.ctranslate2 import (
    CTRANSLATE2_QUANTIZATIONS,
    MAX_VARIABLE_BYTES,
    save_ctranslate2_model,
)
from qkv.weights.names_table import NamesTable

DEFAULT_BOS_TOKEN, DEFAULT_EOS_TOKEN = "<s>", "</s>"
MAX_SINUSOIDAL_POSITIONS = 1024  # of a family without `max_positions`


def export_ctranslate2(model: Model, folder: Path, *, quantization: str | None = None) -> None:
    """Write model.bin, config.json and the vocabulary for CTranslate2, and the tokenizer files.

    `quantization` is int8, int8_float32, int8_float16, int8_bfloat16, int16, float16, bfloat16 or
    float32; None keeps the dtype of the weights. A model that the format cannot hold is an error, and
    nothing is written."""
    folder = Path(folder)
    if quantization is not None and quantization not in CTRANSLATE2_QUANTIZATIONS:
        known = ", ".join(CTRANSLATE2_QUANTIZATIONS)
        raise ValueError(f"quantization {quantization!r}: expected one of {known}")
    spec, tokenizer = model.spec, model.tokenizer
    parts = find_unsupported_parts(spec)
    if lora_layers(model.net):
        parts.append("adapters (call merge_lora first)")
    if parts or isinstance(spec, DualSpec):
        raise ValueError(
            f"CTranslate2's format cannot hold this {model.family.name} model: it has "
            f"{', '.join(parts)}; export it to hf, qkv or onnx"
        )
    if tokenizer is None:
        raise ValueError(
            f"{folder}: not written, because the model has no tokenizer, from which CTranslate2 "
            "needs the vocabulary; set model.tokenizer"
        )
    starts_from_zero = _starts_from_zero(model)
    variables = _build_variables(model, spec, starts_from_zero)
    for name, tensor in variables.items():
        if tensor.numel() * tensor.element_size() > MAX_VARIABLE_BYTES:
            raise ValueError(
                f"{name} has more than 4 GiB, the limit of CTranslate2's format; export a half "
                "precision model"
            )
    name = describe_spec(spec).name
    vocabularies = _build_vocabularies(spec, tokenizer, starts_from_zero)
    config = _build_config(model, spec, tokenizer, starts_from_zero)
    with write_folder(folder, replace_ctranslate2) as staged:
        for key, tokens in vocabularies.items():
            (staged / f"{key}.json").write_bytes(json.dumps(tokens, indent=2).encode())
        save_ctranslate2_model(
            staged / "model.bin",
            spec=name,
            revision=CTRANSLATE2_REVISIONS[name],
            variables=variables,
            quantization=quantization,
        )
        if model.generation_config is not None:
            save_json(model.generation_config, staged / "generation_config.json")
        save_json(dict(sorted(config.items())), staged / "config.json")
        model.save_tokenizer_and_pooling(staged)


def replace_ctranslate2(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the files of a CTranslate2 model that another one must not have."""
    if not (folder / "model.bin").is_file():
        return replace_nothing(folder, names)
    return [
        *list_model_files(folder),
        *(path.name for path in folder.glob("*vocabulary.*") if path.suffix in (".json", ".txt")),
    ]


def _starts_from_zero(model: Model) -> bool:
    """Return whether the decoder starts with the pad token, the last of the vocabulary, and its
    embedding is zero, as in Marian."""
    start = model.args.get("decoder_start_token_id")
    if start is None or start != model.args.get("pad_token_id"):
        return False
    parameters = dict(model.net.named_parameters(remove_duplicate=False))
    tables = [parameters[f"{stack}.embedding.tokens.weight"] for stack in ("encoder", "decoder")]
    return all(len(table) == start + 1 and not table[start].any() for table in tables)


def _build_variables(model: Model, spec: Spec, starts_from_zero: bool) -> dict[str, Tensor]:
    """Return the tensors and scalars of model.bin."""
    _, scalars, names_table = describe_spec(spec, starts_from_zero=starts_from_zero)
    parameters = {
        name: p.detach() for name, p in model.net.named_parameters(remove_duplicate=False)
    }
    lm_bias = parameters.get("heads.lm.out.bias")
    if lm_bias is not None and not lm_bias.any():  # BART's final_logits_bias
        del parameters["heads.lm.out.bias"]
    variables = {
        to_variable_name(mapping.checkpoint_name): mapping.to_checkpoint(parameters)
        for mapping in NamesTable(names_table).map_parameters(parameters)
    }
    for name, stack in list_stacks(spec).items():
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            count = model.args.get("max_positions", MAX_SINUSOIDAL_POSITIONS)
            table = build_position_table(stack, count, model.dtype)
            if table is not None:
                variables[f"{name}/position_encodings/encodings"] = table
    return variables | {
        to_variable_name(name): to_scalar_variable(name, value) for name, value in scalars.items()
    }


def _build_vocabularies(
    spec: Spec, tokenizer: Tokenizer, starts_from_zero: bool
) -> dict[str, list[str]]:
    """Return the vocabularies by file name, without the pad token of a decoder that starts from
    zero."""
    source_tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    tokens = {"encoder": source_tokens, "decoder": _list_target_tokens(tokenizer)}
    lists = [
        fill_vocabulary(tokens[name], stack.embedding.vocab_size)[
            : -1 if starts_from_zero else None
        ]
        for name, stack in list_stacks(spec).items()
    ]
    if len(lists) == 1:
        return {"vocabulary": lists[0]}
    if lists[0] == lists[1]:
        return {"shared_vocabulary": lists[0]}
    return {"source_vocabulary": lists[0], "target_vocabulary": lists[1]}


def _list_target_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the tokens of the target side, which may have a vocabulary of its own."""
    tokens: dict[int, str] = {}
    for token_id in range(len(tokenizer)):
        with suppress(ValueError):  # an id without a token
            tokens[token_id] = tokenizer.convert_ids_to_tokens(token_id)
    return tokens


def fill_vocabulary(tokens: Mapping[int, str], size: int) -> list[str]:
    """Return `size` tokens by id; an id without a token has a name such as `<extra_id_0>`."""
    vocabulary: list[str] = []
    extra = 0
    for token_id in range(size):
        if token_id not in tokens:
            vocabulary.append(f"<extra_id_{extra}>")
            extra += 1
        else:
            vocabulary.append(tokens[token_id])
    return vocabulary


def _build_config(
    model: Model, spec: Spec, tokenizer: Tokenizer, starts_from_zero: bool
) -> dict[str, Any]:
    """Return config.json, as CTranslate2's converters write it; it has a string for each token."""
    config: dict[str, Any] = dict(
        bos_token=DEFAULT_BOS_TOKEN,
        eos_token=DEFAULT_EOS_TOKEN,
        unk_token=tokenizer.unk_token or "",
        layer_norm_epsilon=_get_norm_eps(spec),
        multi_query_attention=spec.encoder is None,
    )
    if spec.decoder is not None:
        is_pad_stored = spec.encoder is not None and not starts_from_zero
        bos_token = tokenizer.bos_token or (tokenizer.pad_token if is_pad_stored else None)
        config["bos_token"] = bos_token or DEFAULT_BOS_TOKEN
        config["eos_token"] = tokenizer.eos_token or DEFAULT_EOS_TOKEN
    if spec.decoder is None or spec.encoder is None:
        return config
    start = tokenizer.eos_token_id if starts_from_zero else model.args["decoder_start_token_id"]
    token = None if start is None else tokenizer.convert_ids_to_tokens(start)
    return config | dict(decoder_start_token=token, add_source_bos=False, add_source_eos=False)


def _get_norm_eps(spec: Spec) -> float | None:
    """Return `layer_norm_epsilon` of config.json, as CTranslate2's converters write it: None for the
    default, except in encoders and in decoders with RMS norm."""
    (norm,) = {*iter_norms(spec)}
    is_decoder = spec.encoder is None
    is_stated = spec.decoder is None or (is_decoder and norm.type == "rms")
    return norm.eps if is_stated or norm.eps != DEFAULT_NORM_EPS[norm.type] else None
