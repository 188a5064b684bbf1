"""AttentionBias: the attention mask and the bias of the scores, in the form that each kernel needs.

B batch, H heads, T queries, S keys; n blocks of b queries and m keys."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.kernels.block_sparse import BlockLayout, build_block_layout, gather_rows, is_block_sparse
from qkv.kernels.partial_attention import min_score
from qkv.spec import Causal, Full, Pattern, PerHead

MIN_BLOCK_SPARSE_LENGTH = 256
ALL = slice(None)


@dataclass(frozen=True, kw_only=True)
class AttentionBias:
    """The mask and bias of one attention pattern, computed once per forward pass and shared by layers.

    The mask is: pattern(q, k) & k is a token & same document & permutation mask."""

    pattern: Pattern
    q_positions: Tensor  # (B|1, T)
    k_positions: Tensor  # (B|1, S), -1 for padding
    has_no_padding: bool = False  # no key is padding
    new_k_positions: Tensor | None = None  # (B|1, T), positions of keys that are not cached yet
    document_ids: tuple[Tensor, Tensor] | None = None  # of queries and keys; -1: any document
    permutation_mask: Tensor | None = None  # (B, T, S)
    position_bias: Tensor | None = None  # (B|1, H, T, S), added to the scores
    # Kernels may apply the pattern to indices: they equal the positions, and nothing is cached.
    supports_pattern_kernels: bool = False
    contiguous: bool = False  # query t of T and key s of S have the distance S - T + t - s
    max_distance: int = 0  # upper bound of the distance between two positions
    token_type_ids: tuple[Tensor, Tensor] | None = None  # of queries and keys
    cu_seqlens: Tensor | None = None  # starts of packed documents, if only documents are masked
    dtype: torch.dtype = torch.float32
    cached_tensors: dict[str, Tensor | None] = field(
        default_factory=dict
    )  # the dense mask and bias
    block_layouts: dict[Pattern, BlockLayout] = field(default_factory=dict)

    @property
    def kernel_name(self) -> str:
        """The kernel for this bias, selected on the host: full, causal, packed, blocks or mask."""
        is_pattern_only = (
            self.position_bias is None
            and self.permutation_mask is None
            and self.supports_pattern_kernels
        )
        is_plain = isinstance(self.pattern, Causal | Full)
        if is_pattern_only and is_plain and self.is_unmasked:
            return "causal" if isinstance(self.pattern, Causal) else "full"
        if is_pattern_only and is_plain and self.cu_seqlens is not None:
            return "packed"
        if is_pattern_only and is_block_sparse(self.pattern):
            is_long = self.q_positions.shape[1] >= MIN_BLOCK_SPARSE_LENGTH
            return "blocks" if is_long else "mask"
        return "mask"

    @property
    def is_unmasked(self) -> bool:
        """Whether the pattern alone decides what a token attends to: one document, no padding before it."""
        return self.has_no_padding and self.document_ids is None

    def block_layout(self, pattern: Pattern) -> BlockLayout:
        """Return the blocks of the pattern, or of the pattern of one head."""
        if pattern not in self.block_layouts:
            self.block_layouts[pattern] = build_block_layout(
                pattern, self.compute_visibility, self.k_positions
            )
        return self.block_layouts[pattern]

    def compute_visibility(self, pattern: Pattern, q: Tensor, k: Tensor) -> Tensor:
        """Return whether queries at indices q (1, n, b) may attend to keys at indices k (B|1, n, m):
        (B|1, n, b, m)."""
        keys = gather_rows(self.k_positions.int(), k)[
            ..., None, :
        ]  # int32 needs half the memory of int64
        is_visible: Tensor = pattern(gather_rows(self.q_positions.int(), q)[..., :, None], keys)
        if not self.has_no_padding:
            is_visible = is_visible & (keys >= 0)
        if self.document_ids is not None:
            q_documents = gather_rows(self.document_ids[0], q)[..., :, None]
            k_documents = gather_rows(self.document_ids[1], k)[..., None, :]
            is_visible = is_visible & ((q_documents == k_documents) | (k_documents < 0))
        return is_visible

    @property
    def mask(self) -> Tensor | None:
        """The dense mask (B|1, H|1, T, S), true where queries attend; None: everywhere. Computed once."""
        if "mask" not in self.cached_tensors:
            self.cached_tensors["mask"] = self.compute_mask(ALL)
        return self.cached_tensors["mask"]

    def get_mask(self, rows: slice, columns: slice = ALL) -> Tensor | None:
        """Return the mask of some queries and keys; the dense mask is not computed for them."""
        if (rows, columns) == (ALL, ALL):
            return self.mask
        if "mask" in self.cached_tensors:
            return None if self.mask is None else self.mask[:, :, rows, columns]
        return self.compute_mask(rows, columns)

    def compute_mask(self, rows: slice, columns: slice = ALL) -> Tensor | None:
        is_last_query = isinstance(self.pattern, Causal) and self.q_positions.shape[1] == 1
        attends_to_all = is_last_query or isinstance(self.pattern, Full)
        if attends_to_all and self.is_unmasked and self.permutation_mask is None:
            return None
        patterns = self.pattern.patterns if isinstance(self.pattern, PerHead) else (self.pattern,)
        positions = (self.q_positions, self.k_positions)
        q, k = (torch.arange(x.shape[1], device=x.device)[None, None] for x in positions)
        q, k = q[..., rows], k[..., columns]
        mask = torch.cat([self.compute_visibility(pattern, q, k) for pattern in patterns], dim=1)
        if self.permutation_mask is not None:
            mask = mask & self.permutation_mask[:, None, rows, columns]
        return mask

    def get_score_bias(
        self,
        layer_bias: Tensor | None,
        heads: slice = ALL,
        rows: slice = ALL,
        columns: slice = ALL,
    ) -> Tensor | None:
        """Return the bias of the scores of a layer, including its `layer_bias`; None: no bias.

        That of some heads, queries or keys is computed alone."""
        if (heads, rows, columns) != (ALL, ALL, ALL):
            terms = (self.position_bias, layer_bias)
            parts = [select_heads(x, heads)[:, :, rows, columns] for x in terms if x is not None]
            mask = self.get_mask(rows, columns)
            mask = None if mask is None else select_heads(mask, heads)
            return self.apply_mask(sum(parts[1:], parts[0]) if parts else None, mask)
        if layer_bias is not None:
            if self.position_bias is not None:
                layer_bias = layer_bias + self.position_bias
            return self.apply_mask(layer_bias, self.mask)
        if "bias" not in self.cached_tensors:
            self.cached_tensors["bias"] = self.apply_mask(self.position_bias, self.mask)
        return self.cached_tensors["bias"]

    def apply_mask(self, scores: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """Return the scores with `min_score` where masked; -inf would give NaN for queries without keys."""
        if scores is None:
            if mask is None:
                return None
            scores = torch.zeros((), dtype=self.dtype, device=mask.device)
        scores = to_autocast_dtype(scores)
        masked = scores if mask is None else scores.masked_fill(~mask, min_score(scores.dtype))
        return align_rows(masked)


def select_heads(x: Tensor, heads: slice) -> Tensor:
    """Return the part of some heads, or the part that all heads share: (B|1, H|1, T, S)."""
    return x if x.shape[1] == 1 else x[:, heads]


def to_autocast_dtype(scores: Tensor) -> Tensor:
    """Cast to the dtype of autocast, once for all layers."""
    device = scores.device.type
    is_autocast = torch.is_autocast_enabled(device)
    return scores.to(torch.get_autocast_dtype(device)) if is_autocast else scores


def align_rows(scores: Tensor) -> Tensor:
    """On a GPU, align each row to 16 bytes.

    Otherwise, torch copies the bias in every layer and recompiles for every value of S % 8."""
    keys = scores.shape[-1]
    return F.pad(scores, (0, 8 - keys % 8))[..., :keys] if scores.is_cuda else scores
