"""Loading of models in CTranslate2's format: encoder-decoders, decoders and encoders.

A file does not name its family. The arguments are found from its variables; then its scalars and names
must be those that CTranslate2 has for the resulting Spec."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from qkv.families import get_family
from qkv.model.build import build_model_spec
from qkv.model.config import build_hf_config
from qkv.model.foreign.checkpoint import (
    ForeignCheckpoint,
    build_foreign_model,
    complete_arguments,
)
from qkv.model.foreign.ctranslate2_arguments import CTranslate2File, infer_arguments
from qkv.model.foreign.ctranslate2_spec import (
    describe_spec,
    find_scalar_problems,
    from_variable_name,
)
from qkv.model.foreign.tokenizer import build_tokenizer, build_word_tokenizer
from qkv.model.limits import check_argument_combinations, check_argument_types
from qkv.model.model import Model
from qkv.spec import Spec
from qkv.text import Tokenizer
from qkv.text.load import TOKENIZER_FORMATS
from qkv.weights.formats.checkpoint import CheckpointData
from qkv.weights.formats.ctranslate2 import read_ctranslate2

# The first revision of each spec that is read, and the number of heads if the file has none.
CTRANSLATE2_SPECS = {
    "TransformerBase": (2, 8),
    "TransformerBig": (2, 16),
    "TransformerSpec": (2, 8),
    "TransformerDecoderSpec": (1, 8),
    "TransformerEncoderSpec": (1, 8),
}
STACK_SCALARS = ("num_heads", "pre_norm", "activation")  # before revision 5, one for both stacks
# The special tokens of config.json, with their defaults.
CTRANSLATE2_SPECIAL_TOKENS = dict(
    unk_token="<unk>", bos_token="<s>", eos_token="</s>", decoder_start_token="<s>"
)
ZERO_START_TOKEN = "<pad>"  # the token of a decoder that starts from zero
PAD_TOKENS = ("<pad>", "[PAD]", "<blank>")


def is_ctranslate2(path: str | Path) -> bool:
    """Return whether a folder has a model.bin of CTranslate2, by its first four bytes."""
    file = Path(path) / "model.bin"
    if not file.is_file():
        return False
    try:
        with file.open("rb") as start:
            return 2 <= int.from_bytes(start.read(4), "little") <= 6
    except OSError:
        return False


def load_ctranslate2(folder: str | Path) -> Model:
    """Load a model of CTranslate2."""
    return build_foreign_model(map_ctranslate2(read_ctranslate2(Path(folder))))


def map_ctranslate2(data: CheckpointData) -> ForeignCheckpoint:
    """Return the family, the arguments and the tensors of a CTranslate2 model."""
    path = data.path
    file = _parse_variables(data)
    family_name, args = infer_arguments(file)
    family = get_family(family_name)
    token_ids = _find_token_ids(data, file)
    args |= {name: i for name, i in token_ids.items() if name in family.defaults}
    args = complete_arguments(family, path, **args)
    try:
        check_argument_types(family, args)
        check_argument_combinations(family, args)
        spec = build_model_spec(family, args)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    assert isinstance(spec, Spec)
    description = describe_spec(spec, starts_from_zero=file.starts_from_zero)
    problems = find_scalar_problems(file.scalars, description.scalars)
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    tensors = dict(file.tensors)
    if args.get("lm_bias") == "fixed":  # BART's final_logits_bias, which is not stored if zero
        projection = tensors["decoder.projection.weight"]
        tensors.setdefault("decoder.projection.bias", projection.new_zeros(len(projection)))
    config = build_hf_config(family, args) if family.model_types else {}
    config |= {name: i for name, i in token_ids.items() if i is not None}
    # Copies of a tensor must be equal when they are read.
    names_table = description.names_table.replace(" copy", " alias")
    return ForeignCheckpoint(
        path,
        family,
        args,
        config,
        names_table,
        tensors,
        tokenizer=_load_tokenizer(data, file),
        generation_config=data.generation_config or None,
    )


def _load_tokenizer(data: CheckpointData, file: CTranslate2File) -> Tokenizer | None:
    """Return the tokenizer of the files beside a model; without files, texts are tokens of the
    vocabulary, separated by spaces."""
    folder = data.path.parent
    if any(all((folder / name).is_file() for name in names) for names in TOKENIZER_FORMATS):
        return Tokenizer.load(folder)
    sizes = [len(file.get_tokens(stack)) for stack in file.stacks]
    start = [ZERO_START_TOKEN] if file.starts_from_zero else []
    vocabularies = {
        side: [*vocabulary[:size], *start]
        for side, size in (("source", sizes[0]), ("target", sizes[-1]))
        if (vocabulary := data.get_vocabulary(side)) is not None
    }
    tokens = _find_special_tokens(data, file)
    special_tokens = {
        name.removesuffix("_token"): token
        for name, token in tokens.items()
        if token is not None and name != "decoder_start_token"
    }
    if len(sizes) == 2:
        if data.config.get("add_source_bos"):
            warnings.warn(
                f"{folder}: add_source_bos is set; begin every source with {tokens['bos_token']}",
                stacklevel=5,
            )
        return build_tokenizer(
            replace(data, vocabularies=vocabularies),
            (sizes[0] + len(start), sizes[1] + len(start)),
            special_tokens=special_tokens,
            add_source_eos=bool(data.config.get("add_source_eos") or start),
        )
    if not vocabularies:
        return None
    return build_word_tokenizer(data.path, vocabularies["target"], special_tokens)


def _parse_variables(data: CheckpointData) -> CTranslate2File:
    """Return tensors, all of the widest dtype, and scalars, with the names of the names table."""
    path, spec, revision = data.path, data.config["spec"], data.config["revision"]
    first_revision, default_heads = CTRANSLATE2_SPECS.get(spec, (0, 0))
    if not first_revision or revision < first_revision:
        known = ", ".join(f"{name} ({first})" for name, (first, _) in CTRANSLATE2_SPECS.items())
        raise ValueError(
            f"{path}: {spec!r}, revision {revision}; supported, with the first revision: {known}"
        )
    variables = {from_variable_name(name): x for name, x in data.tensors.items()}
    variables.pop("unk_token", None)
    tensors = {name: x for name, x in variables.items() if x.dim()}
    scalars = {name: x for name, x in variables.items() if not x.dim()}
    stacks = dict.fromkeys(name.partition(".")[0] for name in tensors if ".layer_0." in name)
    numbers: dict[str, float] = {}
    for stack in stacks:
        numbers |= {f"{stack}.num_heads": default_heads, f"{stack}.pre_norm": 1}
        numbers[f"{stack}.activation"] = 0
        for key in STACK_SCALARS:
            if key in scalars:
                numbers[f"{stack}.{key}"] = scalars[key].item()
        numbers[f"{stack}.scale_embeddings"] = _find_embedding_scale(stack, tensors, scalars)
    for key in STACK_SCALARS:
        scalars.pop(key, None)
    numbers |= {
        name: x.item()
        for name, x in scalars.items()
        if not name.endswith(("multiply_by_sqrt_depth", "scale_embeddings"))
    }
    dtype = reduce(torch.promote_types, {x.dtype for x in tensors.values()} or {torch.float32})
    eps = data.config.get("layer_norm_epsilon")
    if eps is not None and (not isinstance(eps, int | float) or isinstance(eps, bool)):
        raise ValueError(f"{path}: layer_norm_epsilon is {eps!r}, expected a number")
    return CTranslate2File(
        path=path,
        tensors={name: x.to(dtype) for name, x in tensors.items()},
        scalars=numbers,
        norm_eps=None if eps is None else float(eps),
    )


def _find_embedding_scale(
    stack: str, tensors: Mapping[str, Tensor], scalars: Mapping[str, Tensor]
) -> float:
    """Return the factor of token embeddings, which files have as a factor or a flag."""
    names = (f"{stack}.embeddings_0.weight", f"{stack}.embeddings.weight")
    table = next((tensors[name] for name in names if name in tensors), None)
    root = 1.0 if table is None else table.shape[-1] ** 0.5
    flag = "multiply_by_sqrt_depth"
    keys = ("scale_embeddings", f"embeddings.{flag}", f"embeddings_0.{flag}")
    scale = next((scalars[f"{stack}.{key}"] for key in keys if f"{stack}.{key}" in scalars), None)
    if scale is None:
        return root
    return float(scale) if scale.is_floating_point() else (root if scale else 1.0)


def _find_special_tokens(data: CheckpointData, file: CTranslate2File) -> dict[str, str | None]:
    """Return the special tokens that config.json and the vocabulary have for these stacks."""
    names = ["unk_token"]
    if "decoder" in file.stacks:
        names += ["bos_token", "eos_token"]
    if len(file.stacks) == 2:
        names.append("decoder_start_token")
    tokens = {name: data.config.get(name, CTRANSLATE2_SPECIAL_TOKENS[name]) for name in names}
    for name, token in tokens.items():
        if token is not None and not isinstance(token, str):
            raise ValueError(f"{data.path.parent}: {name} is {token!r}, expected a token")
    vocabulary = {*(data.get_vocabulary("target") or [])}
    pad_token = next((token for token in PAD_TOKENS if token in vocabulary), None)
    return tokens | {"pad_token": ZERO_START_TOKEN if file.starts_from_zero else pad_token}


def _find_token_ids(data: CheckpointData, file: CTranslate2File) -> dict[str, int | None]:
    """Return the ids of the special tokens in the target vocabulary.

    A decoder that starts from zero has an additional last token, with which it starts."""
    count = len(file.get_tokens(file.stacks[-1]))
    vocabulary = (data.get_vocabulary("target") or [])[:count]
    first_ids = {token: i for i, token in reversed([*enumerate(vocabulary)])}
    tokens = _find_special_tokens(data, file)
    token_ids = {f"{name}_id": first_ids.get(token or "") for name, token in tokens.items()}
    if file.starts_from_zero:
        token_ids |= {"decoder_start_token_id": count, "pad_token_id": count}
    return token_ids
