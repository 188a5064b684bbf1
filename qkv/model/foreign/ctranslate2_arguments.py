"""The family and the arguments of a CTranslate2 model, found from its tensors and scalars."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.families.family import Args
from qkv.model.foreign.checkpoint import check_heads, get_matrix
from qkv.model.foreign.ctranslate2_spec import CTRANSLATE2_ACTIVATIONS, DEFAULT_NORM_EPS
from qkv.nn.embedding import sinusoids

SINUSOIDAL_LAYOUTS = ("halves", "pairs", "ends")
SINUSOIDAL_OFFSETS = (0, 1, 2)
LEARNED_POSITION_OFFSET = 2  # of BART and mBART
LM_PROJECTION = "decoder.projection"


class CTranslate2File(NamedTuple):
    """Tensors and scalars of a model.bin, with the names of the names table."""

    path: Path
    tensors: dict[str, Tensor]
    scalars: dict[str, float]
    norm_eps: float | None  # None: the default

    @property
    def stacks(self) -> list[str]:
        """The stacks of the model: "encoder", "decoder" or both."""
        prefixes = {name.partition(".")[0] for name in self.tensors if ".layer_0." in name}
        return [stack for stack in ("encoder", "decoder") if stack in prefixes]

    @property
    def starts_from_zero(self) -> bool:
        """Whether the first input of the decoder is a vector of zeros."""
        return bool(self.scalars.get("decoder.start_from_zero_embedding"))

    def has(self, name: str) -> bool:
        return name in self.tensors

    def get_tokens(self, stack: str) -> Tensor:
        """Return the token embedding of a stack."""
        name = "encoder.embeddings_0" if stack == "encoder" else "decoder.embeddings"
        return get_matrix(self.tensors, f"{name}.weight", self.path)

    def get_norm_eps(self, norm_type: str) -> float:
        return DEFAULT_NORM_EPS[norm_type] if self.norm_eps is None else self.norm_eps


def infer_arguments(file: CTranslate2File) -> tuple[str, Args]:
    """Return the name of a family and its arguments, without special tokens.

    An encoder-decoder of no other family is a `transformer`."""
    stacks = file.stacks
    if not stacks:
        raise ValueError(f"{file.path}: no layers, expected encoder/layer_0 or decoder/layer_0")
    sizes = {stack: _read_sizes(file, stack) for stack in stacks}
    has_position_bias = file.has(f"{stacks[0]}.layer_0.self_attention.relative_attention_bias")
    if has_position_bias:
        return "t5", _infer_t5(file, sizes)
    if len(stacks) == 2:
        return _infer_encoder_decoder(file, sizes)
    if stacks == ["encoder"]:
        return _infer_encoder(file, sizes["encoder"])
    if "decoder.layer_0.self_attention.rotary_dim" in file.scalars:
        return "llama", _infer_llama(file, sizes["decoder"])
    return _infer_gpt(file, sizes["decoder"])


def _read_sizes(file: CTranslate2File, stack: str) -> Args:
    """Return the arguments of a stack that all families have."""
    vocab_size, width = file.get_tokens(stack).shape
    heads = int(file.scalars[f"{stack}.num_heads"])
    activation = file.scalars[f"{stack}.activation"]
    names_by_number = {number: name for name, number in reversed(CTRANSLATE2_ACTIVATIONS.items())}
    if activation not in names_by_number:
        last = max(names_by_number)
        raise ValueError(f"{file.path}: {stack}/activation is {activation}, expected 0 to {last}")
    layers = {
        match[1] for name in file.tensors if (match := re.match(rf"{stack}\.layer_(\d+)\.", name))
    }
    linear = get_matrix(file.tensors, f"{stack}.layer_0.ffn.linear_0.weight", file.path)
    return dict(
        vocab_size=vocab_size + file.starts_from_zero,
        width=width,
        depth=len(layers),
        heads=heads,
        ffn_width=len(linear),
        activation=names_by_number[int(activation)],
    )


def _read_head_dim(file: CTranslate2File, stack: str, heads: int) -> int:
    output = get_matrix(file.tensors, f"{stack}.layer_0.self_attention.linear_1.weight", file.path)
    check_heads(output.shape[1], heads, file.path)
    return output.shape[1] // heads


def _is_tied(file: CTranslate2File, stack: str = "decoder") -> bool:
    projection = get_matrix(file.tensors, f"{LM_PROJECTION}.weight", file.path)
    return torch.equal(projection, file.get_tokens(stack))


def find_sinusoids(table: Tensor) -> tuple[str, int] | None:
    """Return the layout and offset of a table of sinusoidal positions; None if it is another table."""
    tolerance = max(1e-6, 2 * torch.finfo(table.dtype).eps)
    for layout in SINUSOIDAL_LAYOUTS:
        for offset in SINUSOIDAL_OFFSETS:
            expected = sinusoids(torch.arange(len(table)) + offset, table.shape[1], layout)
            if torch.allclose(table.double(), expected, atol=tolerance, rtol=0):
                return layout, offset
    return None


def _read_positions(file: CTranslate2File, stack: str) -> Args:
    """Return the arguments of BART's positions; without a table, CTranslate2 computes them."""
    table = file.tensors.get(f"{stack}.position_encodings.encodings")
    if table is None:
        return dict(sinusoidal="ends", position_offset=1, max_positions=1024)
    default = (None, LEARNED_POSITION_OFFSET)
    layout, offset = (find_sinusoids(table) if table.dim() == 2 else None) or default
    return dict(sinusoidal=layout, position_offset=offset, max_positions=len(table))


def _infer_encoder_decoder(file: CTranslate2File, sizes: dict[str, Args]) -> tuple[str, Args]:
    arguments = {}
    for stack, args in sizes.items():
        check_heads(args["width"], args["heads"], file.path)
        arguments[stack] = args | dict(
            scale_embedding=file.scalars[f"{stack}.scale_embeddings"] != 1,
            norm_position="pre" if file.scalars[f"{stack}.pre_norm"] else "post",
            embedding_norm=file.has(f"{stack}.layernorm_embedding.weight"),
            final_norm=file.has(f"{stack}.layer_norm.weight"),
            norm_eps=file.get_norm_eps("layer"),
            **_read_positions(file, stack),
        )
    encoder, decoder = arguments.values()
    may_differ = ("vocab_size", "depth", "heads", "ffn_width")
    problems = [
        f"{name} is {value!r} in the encoder and {decoder[name]!r} in the decoder, expected the same"
        for name, value in encoder.items()
        if name not in may_differ and decoder[name] != value
    ]
    if problems:
        raise ValueError(f"{file.path}: {'; '.join(problems)}")
    is_tied = _is_tied(file)
    is_shared = torch.equal(file.get_tokens("encoder"), file.get_tokens("decoder"))
    args = {
        **encoder,
        **{f"decoder_{name}": decoder[name] for name in may_differ},
        "tie_embeddings": is_tied,
        "share_embeddings": is_tied and is_shared,
    }
    if args["share_embeddings"]:
        del args["decoder_vocab_size"]
    family = _choose_bart_family(file, args)
    if family == "transformer":
        args["lm_bias"] = file.has(f"{LM_PROJECTION}.bias")
    return family, args


def _choose_bart_family(file: CTranslate2File, args: Args) -> str:
    if file.starts_from_zero:
        return "marian"
    if args["sinusoidal"] is None and args["embedding_norm"]:
        return "bart" if args["norm_position"] == "post" else "mbart"
    return "transformer"


def _infer_t5(file: CTranslate2File, sizes: dict[str, Args]) -> Args:
    args = {**sizes["encoder"]}
    activation = args.pop("activation")
    is_gated = file.has("encoder.layer_0.ffn.linear_0_noact.weight")
    attention = "encoder.layer_0.self_attention"
    table = get_matrix(file.tensors, f"{attention}.relative_attention_bias", file.path)
    args |= dict(
        head_dim=_read_head_dim(file, "encoder", args["heads"]),
        norm_eps=file.get_norm_eps("rms"),
        relative_attention_num_buckets=len(table),
        relative_attention_max_distance=int(
            file.scalars.get(f"{attention}.relative_attention_max_distance", 128)
        ),
        feed_forward_proj=_format_feed_forward(activation, is_gated),
    )
    if "decoder" not in sizes:
        return args | dict(head="encoder")
    return args | dict(
        decoder_depth=sizes["decoder"]["depth"],
        tie_embeddings=_is_tied(file, "encoder"),
        scale_decoder_outputs="decoder.scale_outputs" in file.scalars,
    )


def _format_feed_forward(activation: str, is_gated: bool) -> str:
    """Return T5's `feed_forward_proj`, in which "gated-gelu" is the tanh approximation."""
    if not is_gated:
        return activation
    return "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"


def _infer_encoder(file: CTranslate2File, sizes: Args) -> tuple[str, Args]:
    """Return BERT with its pooler, or DistilBERT's encoder, which has none."""
    check_heads(sizes["width"], sizes["heads"], file.path)
    positions = get_matrix(file.tensors, "encoder.position_encodings.encodings", file.path)
    types = file.tensors.get("encoder.embeddings_1.weight")
    args = sizes | dict(
        max_positions=len(positions),
        type_vocab_size=0 if types is None else len(types),
        norm_eps=file.get_norm_eps("layer"),
        head="none",
    )
    return "bert" if file.has("pooler_dense.weight") else "distilbert", args


def _infer_gpt(file: CTranslate2File, sizes: Args) -> tuple[str, Args]:
    """Return GPT-2, GPT (post-norm) or CTRL (sinusoidal positions)."""
    check_heads(sizes["width"], sizes["heads"], file.path)
    positions = get_matrix(file.tensors, "decoder.position_encodings.encodings", file.path)
    eps = file.get_norm_eps("layer")
    args = sizes | dict(
        max_positions=len(positions),
        norm_eps=eps,
        tie_embeddings=_is_tied(file),
        lm_bias=file.has(f"{LM_PROJECTION}.bias"),
    )
    default_scale = (args["width"] // args["heads"]) ** -0.5
    scales = [
        file.scalars.get(f"decoder.layer_{i}.self_attention.queries_scale", default_scale)
        for i in range(args["depth"])
    ]
    if scales[0] == 1:
        args["scale_attn_weights"] = False
    if scales[-1] < scales[0]:
        args["scale_attn_by_inverse_layer_idx"] = True
    if find_sinusoids(positions) == ("halves", 0):
        return "ctrl", args | dict(layer_norm_eps=eps)
    return "gpt2" if file.scalars["decoder.pre_norm"] else "gpt", args


def _infer_llama(file: CTranslate2File, sizes: Args) -> Args:
    attention = "decoder.layer_0.self_attention"
    scalars = file.scalars
    rope: Args = dict(rope_theta=scalars.get(f"{attention}.rotary_base", 10000.0))
    if f"{attention}.rotary_scaling_type" in scalars:
        factor = scalars.get(f"{attention}.rotary_scaling_factor", 1.0)
        rope |= dict(rope_type="linear", factor=factor)
    heads: int = sizes["heads"]
    return sizes | dict(
        kv_heads=int(scalars.get(f"{attention}.num_heads_kv", heads)),
        head_dim=_read_head_dim(file, "decoder", heads),
        norm_eps=file.get_norm_eps("rms"),
        rope_parameters=rope,
        attention_bias=file.has(f"{attention}.linear_0.bias"),
        ffn_bias=file.has("decoder.layer_0.ffn.linear_0.bias"),
        tie_embeddings=_is_tied(file),
    )
