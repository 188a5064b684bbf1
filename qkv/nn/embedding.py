"""Embeddings, norms and activations. Does not depend on attention.

B batch, T tokens, W width."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Inputs, count_in_documents, find_document_starts
from qkv.nn.patches import build_patch_embedding
from qkv.spec import AnyStackSpec, EmbeddingSpec, LearnedPositions, NormSpec, SinusoidalPositions

tanh_gelu = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x, "relu": F.relu, "relu2": lambda x: F.relu(x) ** 2, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "gelu": F.gelu, "gelu_python": F.gelu, "gelu_new": tanh_gelu,
    "gelu_fast": tanh_gelu, "gelu_pytorch_tanh": tanh_gelu,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "silu": F.silu, "swish": F.silu,
    "mish": F.mish, "unit": partial(F.normalize, dim=-1),  # "unit" normalizes the vector
}  # fmt: skip


def get_activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r}: expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def build_norm(spec: NormSpec | None, width: int) -> nn.Module:
    """Return a LayerNorm or RMSNorm, or an Identity if `spec` is None."""
    if spec is None:
        return nn.Identity()
    if spec.type == "rms":
        return nn.RMSNorm(width, eps=spec.eps)
    return nn.LayerNorm(width, eps=spec.eps, bias=spec.bias)


def angle_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype for angles, which need more precision than the weights."""
    return torch.float32 if device.type == "mps" else torch.float64


def sinusoids(
    positions: Tensor, width: int, layout: str = "halves", base: float = 10000.0
) -> Tensor:
    """Return sinusoidal position embeddings (..., W): sines then cosines, or alternating."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=angle_dtype(positions.device))
    frequencies = base ** (-steps / (width - 2 if layout == "ends" else width))
    angles = positions[..., None] * frequencies  # (..., W/2)
    parts = [angles.sin(), angles.cos()]
    if layout == "pairs":
        return torch.stack(parts, dim=-1).flatten(-2)[..., :width]
    return torch.cat(parts, dim=-1)[..., :width]


class AdaptiveEmbedding(nn.Module):
    """Adaptive input embedding (Baevski and Auli 2018): one table per band of token frequency, narrower
    for rarer tokens, each projected to the same width."""

    def __init__(self, spec: EmbeddingSpec, width: int) -> None:
        super().__init__()
        first = spec.width or width
        self.cutoffs = (0, *(spec.cutoffs or ()), spec.vocab_size)
        is_divided = spec.div_val > 1
        bands = (
            [high - low for low, high in pairwise(self.cutoffs)]
            if is_divided
            else [spec.vocab_size]
        )
        self.sizes = [(count, first // spec.div_val**i) for i, count in enumerate(bands)]
        self.tables = nn.ModuleList(nn.Embedding(count, size) for count, size in self.sizes)
        widths = [size for _, size in self.sizes] if is_divided or first != width else []
        self.projections = nn.ModuleList(nn.Linear(size, width, bias=False) for size in widths)
        self.scale = math.sqrt(width)

    def forward(self, input_ids: Tensor) -> Tensor:
        out = torch.zeros((), device=input_ids.device)
        low = 0
        for i, (count, _) in enumerate(self.sizes):
            x = self.tables[i]((input_ids - low).clamp(0, count - 1))
            x = self.projections[i](x) if len(self.projections) else x
            out = torch.where(
                (input_ids >= low)[..., None], x, out.to(x.dtype)
            )  # later bands overwrite earlier ones
            low += count
        return out * self.scale


class Embedding(nn.Module):
    """The input of the first layer: token or patch embedding, positions, token types, norm, projection."""

    def __init__(self, stack: AnyStackSpec) -> None:
        super().__init__()
        spec = stack.embedding
        width = spec.width or stack.input_width
        is_adaptive = spec.cutoffs is not None
        self.spec = spec
        if spec.patches:
            self.patches = build_patch_embedding(spec.patches, width)
        elif is_adaptive:
            self.tokens: nn.Module = AdaptiveEmbedding(spec, stack.input_width)
        else:
            self.tokens = nn.Embedding(spec.vocab_size, width, padding_idx=spec.padding_idx)
        if isinstance(spec.positions, LearnedPositions):
            is_padded = spec.positions.padding_idx is not None
            self.positions = nn.Embedding(
                spec.positions.count,
                width,
                padding_idx=spec.positions.offset - 1 if is_padded else None,
            )
        num_types = 0 if spec.token_types == "tokens" else spec.token_types
        self.token_types = nn.Embedding(num_types, width) if num_types else None
        self.norm = build_norm(spec.norm, width)
        self.dropout = nn.Dropout(spec.dropout)
        is_projected = spec.width and not is_adaptive
        self.projection = nn.Linear(width, stack.input_width) if is_projected else nn.Identity()
        if spec.query_stream:
            self.query = nn.Parameter(torch.empty(1, 1, width))

    def forward(self, inputs: Inputs) -> Tensor:
        spec = self.spec
        if spec.patches:
            x = self.patches(inputs.pixel_values)
        elif inputs.inputs_embeds is None:
            x = self.tokens(inputs.input_ids) * spec.scale
        else:
            x = (
                inputs.inputs_embeds * spec.scale
                if spec.scale_inputs_embeds
                else inputs.inputs_embeds
            )
        if spec.token_types == "tokens" and inputs.token_type_ids is not None:
            x = x + self.tokens(inputs.token_type_ids) * spec.scale
        if self.token_types is not None:
            types = inputs.token_type_ids
            x = x + (self.token_types(types) if types is not None else self.token_types.weight[0])
        if spec.positions is not None:
            if isinstance(spec.positions, SinusoidalPositions):
                positions = inputs.position_ids + spec.positions.offset
                x = x + sinusoids(positions, x.shape[-1], spec.positions.layout).to(x.dtype)
            else:
                positions = skip_padding_idx(inputs, spec.positions.padding_idx)
                x = x + self.positions(positions + spec.positions.offset)
        return self.projection(self.dropout(self.norm(x)))


def skip_padding_idx(inputs: Inputs, padding_idx: int | None) -> Tensor:
    """Return the positions without those of tokens with the id `padding_idx`, which have -1.

    Given positions are not changed, and cached tokens are all counted, as in transformers."""
    if padding_idx is None or inputs.input_ids is None or not inputs.offset_by_cache:
        return inputs.position_ids
    is_skipped = inputs.input_ids == padding_idx
    if inputs.attention_mask is not None:  # padding is not counted in any case
        is_skipped = is_skipped & inputs.attention_mask
    documents = inputs.document_ids
    starts = None if documents is None else find_document_starts(documents)
    num_skipped = count_in_documents(is_skipped, starts)
    return torch.where(is_skipped, -1, inputs.position_ids - num_skipped)
