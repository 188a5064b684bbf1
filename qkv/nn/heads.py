"""Prediction heads on the last hidden states; `PredictionHead` implements nearly all of them.

B batch, T tokens, W width, K starts."""

from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.kernels.vocab_linear import VocabLinear
from qkv.nn.embedding import AdaptiveEmbedding, build_norm, get_activation
from qkv.spec import AdaptiveSoftmaxSpec, HeadSpec, SpanBeamSpec


class PredictionHead(nn.Module):
    """Pooling of the states, then dropout, dense layer, activation, norm, dropout and projection."""

    def __init__(self, spec: HeadSpec, width: int, token_embedding: nn.Module) -> None:
        super().__init__()
        if spec.pooling in ("eos", "first_eos") and spec.eos_token_id is None:
            raise ValueError(
                f"eos_token_id is None, expected an id: the head {spec.name!r} reads the state of EOS; "
                "use a tokenizer with EOS"
            )
        inner = spec.dense_width or width
        self.spec = spec
        self.dense = (
            nn.Linear(width, inner, bias=spec.dense_bias) if spec.dense_width else nn.Identity()
        )
        self.activation = get_activation(spec.activation)
        self.norm = build_norm(spec.norm, inner)
        self.dropout = nn.Dropout(spec.dropout)
        self.classifier_dropout = nn.Dropout(spec.classifier_dropout)
        has_bias = bool(spec.bias)
        self.out = (
            VocabLinear(inner, spec.out_features, bias=has_bias)
            if spec.out_features
            else nn.Identity()
        )
        if spec.bias == "fixed":
            self.out.bias.requires_grad_(False)
        if spec.tie_embeddings:
            check_tied_width(token_embedding, inner)
            self.out.weight = token_embedding.weight

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x = self.dropout(pool_states(self.spec, out, batch))
        x = self.classifier_dropout(self.norm(self.activation(self.dense(x))))
        x = self.out(x * self.spec.scale)
        if len(self.spec.outputs) == 1:
            return {self.spec.outputs[0]: x.squeeze(-1) if self.spec.squeeze else x}
        return dict(zip(self.spec.outputs, x.unbind(-1), strict=True))


def check_tied_width(token_embedding: nn.Module, width: int) -> None:
    """Raise ValueError if a projection from this width cannot share the weight of the embedding."""
    assert isinstance(token_embedding.weight, nn.Parameter)
    embedding_width = token_embedding.weight.shape[1]
    if embedding_width != width:
        raise ValueError(
            f"tie_embeddings is true with embeddings of width {embedding_width} and outputs of width "
            f"{width}, expected equal widths: change one of them, or set it to false"
        )


def pool_states(spec: HeadSpec, out: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the states that a head reads: (B, T, W) without pooling, else (B, W)."""
    hidden = out["last_hidden_state"]
    if spec.pooling in out:
        return out[spec.pooling]
    if spec.pooling == "none":
        indices = batch.logit_positions
        return hidden if indices is None else hidden.flatten(0, 1)[indices]
    if spec.pooling == "patch_mean":
        return hidden[:, 1:].mean(1)
    mask = mask_or_ones(batch.last_stack_inputs, hidden)
    if spec.pooling in ("mean", "mean_sqrt_len_tokens"):
        length = mask.sum(1, keepdim=True)
        divisor = length if spec.pooling == "mean" else length.to(hidden.dtype).sqrt()
        return (hidden * mask[..., None]).sum(1) / divisor
    if spec.pooling == "weightedmean":
        weights = mask.cumsum(1) * mask  # the n-th token counts n times
        return (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
    if spec.pooling == "max":
        return hidden.masked_fill(~mask[..., None].bool(), torch.finfo(hidden.dtype).min).amax(1)
    if spec.pooling == "first":
        return gather_states(hidden, mask.int().argmax(1))
    if spec.pooling == "mc_token" and batch.mc_token_ids is not None:
        return gather_states(hidden, batch.mc_token_ids)
    if spec.pooling in ("last", "mc_token"):
        return gather_states(hidden, last_true_index(mask))
    inputs = batch.encoder or batch.decoder  # BART's decoder reads the shifted ids of the encoder
    assert inputs is not None
    assert inputs.input_ids is not None
    input_ids = inputs.input_ids
    if spec.pooling == "max_id":  # EOS has the largest id in the first CLIP checkpoints
        return gather_states(hidden, input_ids.argmax(1))
    is_eos = torch.eq(input_ids, cast(int, spec.eos_token_id))
    is_first = spec.pooling == "first_eos"
    return gather_states(hidden, is_eos.int().argmax(1) if is_first else last_true_index(is_eos))


def mask_or_ones(inputs: Inputs | None, like: Tensor) -> Tensor:
    """Return the attention mask (B, T), or all true if there is none."""
    if inputs is None or inputs.attention_mask is None:
        return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    return inputs.attention_mask


def gather_states(hidden: Tensor, index: Tensor) -> Tensor:
    """Gather (B, T, W) at index (B,) -> (B, W)."""
    return hidden.gather(1, index[:, None, None].expand(-1, 1, hidden.shape[-1]))[:, 0]


def last_true_index(flags: Tensor) -> Tensor:
    """Return the index of the last true flag of each row."""
    return (flags * torch.arange(1, flags.shape[1] + 1, device=flags.device)).argmax(1)


class AdaptiveSoftmax(nn.Module):
    """Adaptive softmax, which returns log-probabilities: the first band predicts its tokens and the
    other bands, each other band predicts its tokens."""

    def __init__(self, spec: AdaptiveSoftmaxSpec, width: int, token_embedding: nn.Module) -> None:
        super().__init__()
        assert isinstance(token_embedding, AdaptiveEmbedding)
        self.cutoffs = token_embedding.cutoffs
        sizes = token_embedding.sizes
        num_bands = len(self.cutoffs) - 1
        self.tables = nn.ModuleList(nn.Linear(size, count) for count, size in sizes)
        has_projections = len(token_embedding.projections) > 0
        tables = [min(i, len(sizes) - 1) for i in range(num_bands)] if has_projections else []
        self.projections = nn.ModuleList(nn.Linear(sizes[i][1], width, bias=False) for i in tables)
        self.clusters = nn.Linear(sizes[0][1], num_bands - 1) if num_bands > 1 else None
        if spec.tie_embeddings:
            for table, embedding in zip(self.tables, token_embedding.tables, strict=True):
                table.weight = embedding.weight
        for band, projection in enumerate(self.projections):
            if spec.tie_projections[band]:
                projection.weight = token_embedding.projections[tables[band]].weight

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        hidden = out["last_hidden_state"]
        if batch.logit_positions is not None:
            hidden = hidden.flatten(0, 1)[batch.logit_positions]
        parts: list[Tensor] = []
        x = hidden
        for i, (low, high) in enumerate(pairwise(self.cutoffs)):
            table: Any = self.tables[min(i, len(self.tables) - 1)]
            tokens = slice(low, high) if len(self.tables) == 1 else slice(None)
            x = hidden @ cast(Tensor, self.projections[i].weight) if len(self.projections) else x
            scores = F.linear(x, table.weight[tokens], table.bias[tokens])
            if i == 0 and self.clusters is not None:
                scores = torch.cat([scores, self.clusters(x)], dim=-1)
            cluster = parts[0][..., self.cutoffs[1] + i - 1, None] if i else 0.0
            parts.append(scores.log_softmax(-1) + cluster)
        return {"logits": torch.cat([parts[0][..., : self.cutoffs[1]], *parts[1:]], dim=-1)}


class SpanBeam(nn.Module):
    """XLNet's answer head: start_logits (B, T), end_logits (B, K, T) for the K best starts, and the
    logits of answerability (B,)."""

    def __init__(self, spec: SpanBeamSpec, width: int, token_embedding: nn.Module) -> None:
        super().__init__()
        self.num_starts = spec.num_starts
        self.start = nn.Linear(width, 1)
        self.end_dense = nn.Linear(2 * width, width)
        self.end_out = nn.Linear(width, 1)
        self.end_norm = nn.LayerNorm(width, eps=spec.eps)
        self.answer_dense = nn.Linear(2 * width, width)
        self.answer_out = nn.Linear(width, 1, bias=False)

    def forward(self, out: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        x = out["last_hidden_state"]  # (B, T, W)
        start = self.start(x)[..., 0]  # (B, T)
        mask = mask_or_ones(batch.last_stack_inputs, x)
        probs = start.masked_fill(~mask, torch.finfo(x.dtype).min).softmax(-1)
        best = probs.topk(min(self.num_starts, x.shape[1]), dim=-1).indices  # (B, K)
        start_states = x.gather(1, best[..., None].expand(-1, -1, x.shape[-1]))[:, :, None]
        start_states = start_states.expand(-1, -1, x.shape[1], -1)  # (B, K, T, W)
        pairs = torch.cat(
            [x[:, None].expand_as(start_states), start_states], dim=-1
        )  # (B, K, T, 2W)
        end = self.end_out(self.end_norm(torch.tanh(self.end_dense(pairs))))[..., 0]
        start_mean = torch.einsum("bt,btw->bw", probs, x)
        last = gather_states(x, last_true_index(mask))
        answer = self.answer_out(
            torch.tanh(self.answer_dense(torch.cat([start_mean, last], dim=-1)))
        )
        return {"start_logits": start, "end_logits": end, "logits": answer[:, 0]}


HEAD_MODULES = {
    HeadSpec: PredictionHead,
    AdaptiveSoftmaxSpec: AdaptiveSoftmax,
    SpanBeamSpec: SpanBeam,
}
