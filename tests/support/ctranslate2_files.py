"""Random models in the format of CTranslate2, and their logits in plain torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPE_CODES = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}
ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.gelu, lambda x: x * torch.sigmoid(1.702 * x),
)  # fmt: skip
SOURCE, TARGET = [5, 9, 3, 11, 2], [1, 7, 4, 9]


def encode_string(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


def encode_variable(name: str, tensor: Tensor, version: int = 6) -> bytes:
    """Return a variable of model.bin; before version 4 only the size of an item is stored."""
    shape = struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
    size = (DTYPE_CODES[tensor.dtype], tensor.nbytes)
    if version < 4:
        size = (tensor.element_size(), tensor.numel())
    data = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
    return encode_string(name) + shape + struct.pack("<BI", *size) + data


def encode_model(
    variables: dict[str, Tensor], aliases: dict[str, str] | None = None, *,
    version: int = 6, spec: str = "TransformerSpec", revision: int = 7,
) -> bytes:  # fmt: skip
    """Return model.bin; there are aliases from version 3 on."""
    data = struct.pack("<I", version) + encode_string(spec)
    data += struct.pack("<II", revision, len(variables))
    data += b"".join(encode_variable(name, x, version) for name, x in variables.items())
    if version >= 3:
        pairs = (aliases or {}).items()
        names = (encode_string(alias) + encode_string(name) for alias, name in pairs)
        data += struct.pack("<I", len(pairs)) + b"".join(names)
    return data


def write_model(
    folder: Path,
    variables: dict[str, Tensor],
    aliases: dict[str, str] | None = None,
    **options: Any,
) -> Path:
    """Write model.bin; `options` are those of encode_model."""
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(encode_model(variables, aliases, **options))
    return folder


def build_translator(
    *, positions: int = 0, embed_norm: bool = False, final_norm: bool = True, bias: bool = True,
    share: str = "", first: str = "embeddings_0", **numbers: Any,
) -> tuple[dict[str, Tensor], dict[str, str]]:  # fmt: skip
    """Return random variables and aliases; `numbers` are added for the encoder and the decoder."""
    width = 16
    depths = (2, 3)
    ffn_widths = (20, 28)
    tensors: dict[str, Tensor] = {}

    def linear(at: str, inner: int, outer: int) -> None:
        tensors[f"{at}/weight"], tensors[f"{at}/bias"] = (
            torch.randn(outer, inner) / 3,
            torch.randn(outer) / 3,
        )

    def norm(at: str) -> None:
        tensors[f"{at}/gamma"], tensors[f"{at}/beta"] = torch.randn(width), torch.randn(width)

    for side, depth, ffn_width, vocab, table in zip(
        ("encoder", "decoder"),
        depths,
        ffn_widths,
        (13, 13 if share else 12),
        (first, "embeddings"),
        strict=True,
    ):
        tensors[f"{side}/{table}/weight"] = torch.randn(vocab, width) / 3
        if positions:
            tensors[f"{side}/position_encodings/encodings"] = torch.randn(positions, width)
        for at in [f"{side}/layernorm_embedding"] * embed_norm + [
            f"{side}/layer_norm"
        ] * final_norm:
            norm(at)
        for i in range(depth):
            at = f"{side}/layer_{i}"
            linear(f"{at}/self_attention/linear_0", width, 3 * width)
            linear(f"{at}/self_attention/linear_1", width, width)
            linear(f"{at}/ffn/linear_0", width, ffn_width)
            linear(f"{at}/ffn/linear_1", ffn_width, width)
            norm(f"{at}/self_attention/layer_norm")
            norm(f"{at}/ffn/layer_norm")
            if side == "decoder":
                linear(f"{at}/attention/linear_0", width, width)
                linear(f"{at}/attention/linear_1", width, 2 * width)
                linear(f"{at}/attention/linear_2", width, width)
                norm(f"{at}/attention/layer_norm")
        for key, value in numbers.items():
            tensors[f"{side}/{key}"] = (
                value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.int8)
            )
    linear("decoder/projection", width, 13 if share else 12)
    if not bias:
        del tensors["decoder/projection/bias"]
    aliases = {}
    if share:
        aliases["decoder/projection/weight"] = "decoder/embeddings/weight"
    if share == "all":
        aliases[f"encoder/{first}/weight"] = "decoder/embeddings/weight"
    return {key: x for key, x in tensors.items() if key not in aliases}, aliases


def compute_logits(
    variables: dict[str, Tensor],
    aliases: dict[str, str],
    source: Sequence[int] = SOURCE,
    target: Sequence[int] = TARGET,
) -> Tensor:
    """Return the logits after each target token, as CTranslate2 computes them, in plain torch."""
    all_variables = variables | {
        alias: variables[variable_name] for alias, variable_name in aliases.items()
    }
    all_variables = {
        key.replace("embeddings_0", "embeddings"): x for key, x in all_variables.items()
    }
    width = all_variables["decoder/embeddings/weight"].shape[1]
    encoder_states = torch.empty(0)

    def read_number(at: str, key: str, default: int) -> int:
        return int(all_variables.get(f"{at.split('/')[0]}/{key}", torch.tensor(default)))

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, all_variables[f"{at}/weight"], all_variables.get(f"{at}/bias"))

    def norm(x: Tensor, at: str) -> Tensor:
        gamma = all_variables.get(f"{at}/gamma")
        return x if gamma is None else F.layer_norm(x, (width,), gamma, all_variables[f"{at}/beta"])

    def embed(ids: Sequence[int], side: str) -> Tensor:
        x, scale = (
            all_variables[f"{side}/embeddings/weight"][list(ids)],
            all_variables.get(f"{side}/scale_embeddings"),
        )
        if scale is None or scale.dtype == torch.int8:
            scale = torch.tensor(math.sqrt(width) if scale is None or scale else 1.0)
        rates = torch.exp(torch.arange(width // 2) * -math.log(10000) / (width / 2 - 1))
        angles = torch.arange(1, len(ids) + 1)[:, None] * rates
        waves = torch.cat([angles.sin(), angles.cos()], -1)
        positions = all_variables.get(f"{side}/position_encodings/encodings", waves)[: len(ids)]
        return norm(x * scale + positions, f"{side}/layernorm_embedding")

    def step(x: Tensor, at: str, inner: Callable[[Tensor, str], Tensor]) -> Tensor:
        if read_number(at, "pre_norm", 1):
            return x + inner(norm(x, f"{at}/layer_norm"), at)
        return norm(x + inner(x, at), f"{at}/layer_norm")

    def attention(q: Tensor, k: Tensor, v: Tensor, at: str, causal: bool = False) -> Tensor:
        heads = read_number(at, "num_heads", 8)
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)

    def self_attention(x: Tensor, at: str) -> Tensor:
        q, k, v = linear(x, f"{at}/linear_0").chunk(3, -1)
        return linear(attention(q, k, v, at, at.startswith("decoder")), f"{at}/linear_1")

    def cross_attention(x: Tensor, at: str) -> Tensor:
        k, v = linear(encoder_states, f"{at}/linear_1").chunk(2, -1)
        return linear(attention(linear(x, f"{at}/linear_0"), k, v, at), f"{at}/linear_2")

    def feed_forward(x: Tensor, at: str) -> Tensor:
        return linear(
            ACTIVATIONS[read_number(at, "activation", 0)](linear(x, f"{at}/linear_0")),
            f"{at}/linear_1",
        )

    def stack(ids: Sequence[int], side: str) -> Tensor:
        x = embed(ids, side)
        for i in range(
            sum(f"{side}/layer_{i}/ffn/linear_0/weight" in all_variables for i in range(9))
        ):
            x = step(x, f"{side}/layer_{i}/self_attention", self_attention)
            x = step(x, f"{side}/layer_{i}/attention", cross_attention) if side == "decoder" else x
            x = step(x, f"{side}/layer_{i}/ffn", feed_forward)
        return norm(x, f"{side}/layer_norm")

    encoder_states = stack(source, "encoder")
    return linear(stack(target, "decoder"), "decoder/projection")
