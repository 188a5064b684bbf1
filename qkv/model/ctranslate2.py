"""Encoder-decoders that CTranslate2 converted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.families import family
from qkv.families.family import Args
from qkv.model.foreign import Foreign, _arguments, _check_heads, _open, _table
from qkv.model.model import Model
from qkv.weights.formats.ctranslate2 import read_ctranslate2
from qkv.weights.tensors import read_json


def is_ctranslate2(path: str | Path) -> bool:
    """Is it a folder whose model.bin begins as CTranslate2's do? Four bytes are read."""
    file = Path(path) / "model.bin"
    if not file.is_file():
        return False
    try:
        with file.open("rb") as start:
            return 2 <= int.from_bytes(start.read(4), "little") <= 6
    except OSError:
        return False


def open_ctranslate2(folder: str | Path) -> Model:
    """An encoder-decoder that CTranslate2 converted, as a model of the `transformer` family."""
    return _open(read_transformer(Path(folder)))


# Its names with dots for slashes, weight and bias for gamma and beta.
CTRANSLATE2 = """
    @.embed.tokens                       @.embeddings
    @.embed.positions.weight             @.position_encodings.encodings
    @.embed.norm                         @.layernorm_embedding
    @.layers.{}.attend.q,k,v             @.layer_{}.self_attention.linear_0
    @.layers.{}.attend.o                 @.layer_{}.self_attention.linear_1
    @.layers.{}.SIDE_attend              @.layer_{}.self_attention.layer_norm
    decoder.layers.{}.cross.q            decoder.layer_{}.attention.linear_0
    decoder.layers.{}.cross.k,v          decoder.layer_{}.attention.linear_1
    decoder.layers.{}.cross.o            decoder.layer_{}.attention.linear_2
    decoder.layers.{}.SIDE_cross         decoder.layer_{}.attention.layer_norm
    @.layers.{}.feed.(up|down)           @.layer_{}.ffn.(linear_0|linear_1)
    @.layers.{}.SIDE_feed                @.layer_{}.ffn.layer_norm
    @.norm                               @.layer_norm
    heads.lm.out                         decoder.projection
"""


HEADS = dict(TransformerBase=8, TransformerBig=16, TransformerSpec=8)  # where the file does not say


ACTS = dict(enumerate(("relu", "gelu_new", "silu", "gelu", "quick_gelu", "tanh", "sigmoid")))


# Numbers beside the tensors: those that must be as they are here, and those that change no output.
CTRANSLATE2_ONLY = dict(
    alibi=0, layer_norm_use_residual=0, multi_query_attention=0, scale_outputs=1, sliding_window=0,
    start_from_zero_embedding=0,
)  # fmt: skip


CTRANSLATE2_IDLE = {
    "alibi_use_positive_positions", "alignment_heads", "alignment_layer", "embeddings_merge",
    "keep_in_float32", "scale_alibi",
}  # fmt: skip


CTRANSLATE2_CONFIG = dict(layer_norm_epsilon=(None, 1e-5), multi_query_attention=(None, False))


# The tokens that a newer config.json names, and what they are where it does not.
CTRANSLATE2_TOKENS = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", decoder_start_token="<s>")


def read_transformer(folder: Path) -> Foreign:
    """The settings and the variables of an encoder-decoder that CTranslate2 converted."""
    spec, revision, variables, vocabularies = read_ctranslate2(folder)
    path = folder / "model.bin"
    if spec not in HEADS or revision < 2:
        known = ", ".join(HEADS)
        raise ValueError(f"{path}: {spec!r}, revision {revision}; supported: {known}, revision 2 or later")
    stated = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    wrong = [
        f"{key} is {stated[key]!r}, supported: {' or '.join(map(repr, allowed))}"
        for key, allowed in CTRANSLATE2_CONFIG.items()
        if key in stated and stated[key] not in allowed
    ]
    tensors, numbers = _sorted_out(variables)
    encoder, decoder = (_side(side, tensors, numbers, HEADS[spec], path) for side in ("encoder", "decoder"))
    apart = ("depth", "heads", "feed")  # in these the two may differ
    wrong += [
        f"{name} is {value!r} in the encoder and {decoder[name]!r} in the decoder, expected the same"
        for name, value in encoder.items()
        if name not in apart and decoder[name] != value
    ]
    wrong += _odd(numbers)
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    source, target = tensors["encoder.embeddings.weight"], tensors["decoder.embeddings.weight"]
    tied = torch.equal(_table(tensors, "decoder.projection.weight", path), target)
    kin = family("transformer")
    args = _arguments(
        kin, path, vocab=len(source), target_vocab=len(target), tied=tied,
        shared=tied and torch.equal(source, target), lm_bias="decoder.projection.bias" in tensors,
        **encoder, **{f"decoder_{name}": decoder[name] for name in apart},
    )  # fmt: skip
    table = CTRANSLATE2.replace("SIDE", args["norms"])
    return Foreign(path, kin, args, {**stated, **_token_ids(stated, vocabularies)}, table, tensors)


def _sorted_out(variables: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors, all of the widest dtype among them, and the numbers; names as in the table."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, float] = {}
    wide = torch.float16
    for name, x in variables.items():
        new = name.replace("/embeddings_0/", "/embeddings/").replace("/", ".")
        new = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", new))
        if x.dim() == 0:
            numbers[new] = x.item()
        elif new != "unk_token":
            tensors[new] = x
            wide = torch.promote_types(wide, x.dtype)
    return {name: x.to(wide) for name, x in tensors.items()}, numbers


def _side(
    side: str, tensors: Mapping[str, Tensor], numbers: dict[str, float], heads: int, path: Path
) -> Args:
    """What the encoder or the decoder says of itself; the numbers it says it with are taken out."""

    def said(name: str, default: float) -> float:
        return numbers.pop(f"{side}.{name}", numbers.get(name, default))  # before revision 5, one for both

    width = _table(tensors, f"{side}.embeddings.weight", path).shape[1]
    act, scale = said("activation", 0), said("embeddings.multiply_by_sqrt_depth", 1)
    scale = said("scale_embeddings", scale)
    if act not in ACTS:
        raise ValueError(f"{path}: {side}/activation is {act}, expected 0 to {len(ACTS) - 1}")
    if isinstance(scale, float) and scale != 1 and abs(scale - width**0.5) > 1e-3:
        raise ValueError(f"{path}: {side}/scale_embeddings is {scale}, supported: 1 or {width}**0.5")
    _check_heads(width, heads := int(said("num_heads", heads)), path)
    layers = {found[1] for name in tensors if (found := re.match(rf"{side}\.layer_(\d+)\.", name))}
    feed = len(_table(tensors, f"{side}.layer_0.ffn.linear_0.weight", path))
    places = tensors.get(f"{side}.position_encodings.encodings")
    return dict(
        width=width, depth=len(layers), feed=feed, heads=heads, act=ACTS[int(act)],
        scaled=scale != 1 if isinstance(scale, float) else bool(scale),  # the number itself, or a flag
        norms="before" if said("pre_norm", 1) else "after",
        embed_norm=f"{side}.layernorm_embedding.weight" in tensors,
        final_norm=f"{side}.layer_norm.weight" in tensors,
        sinusoid="ends" if places is None else None, offset=1 if places is None else 0,
        length=1 if places is None else len(places),
    )  # fmt: skip


def _odd(numbers: Mapping[str, float]) -> list[str]:
    """The numbers that say something which no part of the network does."""
    wrong = []
    for name, value in numbers.items():
        last = name.rpartition(".")[2]
        if last in CTRANSLATE2_ONLY and value != CTRANSLATE2_ONLY[last]:
            wrong.append(f"{name} is {value}, supported: {CTRANSLATE2_ONLY[last]}")
        elif last not in {*CTRANSLATE2_ONLY, *CTRANSLATE2_IDLE, "num_heads", "pre_norm", "activation"}:
            wrong.append(f"{name} is {value}, which is not supported")
    return wrong


def _token_ids(stated: Mapping[str, Any], vocabularies: Mapping[str, list[str]]) -> dict[str, int]:
    """Where the special tokens stand in the target's vocabulary."""
    words = vocabularies.get("target", vocabularies.get("shared", []))
    tokens = {f"{name}_id": stated.get(name, usual) for name, usual in CTRANSLATE2_TOKENS.items()}
    return {name: words.index(token) for name, token in tokens.items() if token in words}
