"""Layer and Stack, an encoder or a decoder of attention layers.

    x -> pre-norm -> sublayer -> dropout -> + -> post-norm      the unused norm is an Identity
    |_______________________________________|

B batch, T tokens, M cached tokens, P targets, W width."""

from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.kernels.bias import AttentionBias
from qkv.nn.attention import Attention
from qkv.nn.attention_record import RecordingKernel
from qkv.nn.cache import Cache, KVCache, SegmentMemory
from qkv.nn.embedding import Embedding, build_norm
from qkv.nn.feed_forward import FeedForward, MixtureOfExperts
from qkv.nn.relative_position import POSITION_BIASES
from qkv.nn.selections import SampleStatistics
from qkv.spec import (
    FeedForwardSpec,
    LayerSpec,
    Pattern,
    PositionIds,
    StackSpec,
    full,
)

SAMPLE_OUTPUTS = {"attention_log_probs", "attention_entropy"}  # of hard attention, for REINFORCE


class LayerCache(NamedTuple):
    """The caches of one layer."""

    attention: Cache
    cross_attention: Cache


# Inputs of cross-attention: the encoder states, or None if their keys are cached, and the bias.
CrossInputs = tuple[Tensor | None, AttentionBias]


class Layer(nn.Module):
    """Self-attention, cross-attention if there is one, and feed-forward."""

    def __init__(self, spec: LayerSpec, width: int) -> None:
        super().__init__()
        self.attention = Attention(spec.attention, width)
        self.cross_attention = (
            Attention(spec.cross_attention, width) if spec.cross_attention else None
        )
        if isinstance(spec.feed_forward, FeedForwardSpec):
            self.feed_forward: FeedForward | MixtureOfExperts = FeedForward(
                spec.feed_forward, width
            )
        else:
            self.feed_forward = MixtureOfExperts(spec.feed_forward, width)
        skip_cross = spec.cross_attention is None
        attention_norms = build_norms(spec, width, skip=spec.skip_first_norm)
        cross_attention_norms = build_norms(spec, width, skip=skip_cross)
        feed_forward_norms = build_norms(spec, width)
        self.pre_attention_norm, self.post_attention_norm = attention_norms
        self.pre_cross_attention_norm, self.post_cross_attention_norm = cross_attention_norms
        self.pre_feed_forward_norm, self.post_feed_forward_norm = feed_forward_norms
        self.dropout = nn.Dropout(spec.dropout)
        attention_dropout = spec.attention_output_dropout
        self.attention_dropout = nn.Dropout(
            spec.dropout if attention_dropout is None else attention_dropout
        )

    def forward(
        self, x: Tensor, bias: AttentionBias, key_states: Tensor | None, cross: CrossInputs | None,
        cache: LayerCache | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """Return the output and, if any, router logits and statistics of hard attention (B, T).

        With segment recurrence or a query stream, keys and values are computed from `key_states`
        instead of x."""
        y = self.pre_attention_norm(x)
        context = y if key_states is None else self.pre_attention_norm(key_states)
        self_cache = cache.attention if cache and key_states is None else None
        y, statistics = self.attention(y, context, bias, self_cache)
        samples = [] if statistics is None else [statistics]
        x = self.post_attention_norm(x + self.attention_dropout(y))
        if self.cross_attention is not None and cross is not None:
            cross_cache = cache.cross_attention if cache else None
            y, statistics = self.cross_attention(
                self.pre_cross_attention_norm(x), *cross, cross_cache
            )
            samples += [] if statistics is None else [statistics]
            x = self.post_cross_attention_norm(x + self.dropout(y))
        y, router_logits = self.feed_forward(self.pre_feed_forward_norm(x))
        extras = sum_statistics(samples)
        if router_logits is not None:
            extras["router_logits"] = router_logits
        return self.post_feed_forward_norm(x + self.dropout(y)), extras


def sum_statistics(samples: list[SampleStatistics]) -> dict[str, Tensor]:
    """Return the outputs of hard attention: the statistics of samples (B, T), summed."""
    if not samples:
        return {}
    log_probs, entropy = (torch.stack(tensors).sum(0) for tensors in zip(*samples, strict=True))
    return {"attention_log_probs": log_probs, "attention_entropy": entropy}


def build_norms(spec: LayerSpec, width: int, skip: bool = False) -> tuple[nn.Module, nn.Module]:
    """Return the norms before and after a sublayer; at least one is an Identity."""
    norms = {} if skip else {spec.norm_position: spec.norm}
    return build_norm(norms.get("pre"), width), build_norm(norms.get("post"), width)


class Stack(nn.Module):
    """An encoder or a decoder: embedding, layers and final norm."""

    def __init__(self, spec: StackSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layer_order = spec.layer_order or tuple(range(len(spec.layers)))
        self.embedding = Embedding(spec)
        bias = spec.position_bias
        self.position_bias = POSITION_BIASES[type(bias)](bias) if bias else None
        layers = [Layer(layer, spec.width) for layer in spec.layers]
        self.layers = nn.ModuleList(layers)
        self.final_norm = build_norm(spec.final_norm, spec.width)
        self.dropout = nn.Dropout(spec.dropout)
        first = layers[0].attention.relative if layers else None
        for relative in (layer.attention.relative for layer in layers):
            if first is not None and relative is not None and first.spec.share_biases:
                relative.u = first.u  # content and position biases of Transformer-XL
                relative.v = first.v

    def forward(
        self, inputs: Inputs, batch: Batch, encoder_outputs: Inputs | None = None,
        caches: list[LayerCache] | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return `last_hidden_state` (B, T, W) and, if any, `mems` and the extra outputs."""
        is_recurrent = self.spec.recurrence is not None
        has_caches = caches is not None
        if is_recurrent and caches is None:
            caches = self.create_caches(inputs.batch_size, batch.mems)
        cache: Cache = caches[0].attention if caches else KVCache()
        if inputs.offset_by_cache and len(cache):
            has_no_mask = inputs.attention_mask is None and inputs.document_ids is None
            contiguous = inputs.contiguous and not has_caches and has_no_mask
            position_ids = inputs.position_ids + cache.get_next_positions()
            inputs = replace(inputs, position_ids=position_ids, contiguous=contiguous)
        x = self.embedding(inputs)
        patterns = {layer.attention.pattern for layer in self.spec.layers}
        biases = {p: self.build_attention_bias(p, inputs, batch, cache, x) for p in patterns}
        cross = self.build_cross_inputs(inputs, encoder_outputs, caches, x)
        if batch.target_positions is not None:
            num_targets = batch.target_positions.shape[1]
            x = torch.cat([x, self.embedding.query.expand(len(x), num_targets, -1)], dim=1)
        hidden_states, mems = [x], []
        extras: dict[str, list[Tensor]] = {}  # outputs of the layers besides their states
        for depth, index in enumerate(self.layer_order):
            layer_cache = caches[depth] if caches else None
            key_states = None
            if is_recurrent and layer_cache:
                positions = inputs.masked_position_ids.expand(len(x), -1)
                layer_cache.attention.update({"states": x[:, : inputs.length]}, positions)
                key_states = layer_cache.attention.read("states")
                mems.append(self.update_mems(key_states, inputs))
            bias = biases[self.spec.layers[index].attention.pattern]
            x, layer_extras = self.layers[index](x, bias, key_states, cross, layer_cache)
            hidden_states.append(x)
            for name, tensor in layer_extras.items():
                extras.setdefault(name, []).append(tensor)
        hidden_states[-1] = x = self.dropout(self.final_norm(x))
        out = {"last_hidden_state": x if batch.target_positions is None else x[:, inputs.length :]}
        extras["hidden_states"] = hidden_states
        stacked = {"mems": mems} | {
            name: tensors for name, tensors in extras.items() if name in batch.extra_outputs
        }
        out |= {name: torch.stack(tensors) for name, tensors in stacked.items() if tensors}
        for name in SAMPLE_OUTPUTS & out.keys():
            out[name] = sum_over_layers(out[name], inputs.attention_mask)
        return out

    def build_attention_bias(
        self, pattern: Pattern, inputs: Inputs, batch: Batch, cache: Cache, x: Tensor
    ) -> AttentionBias:
        """Return the bias of self-attention; cached tokens come before the tokens of the inputs."""
        targets = batch.target_positions
        cached = len(cache)
        new = inputs.masked_position_ids
        k = cache.get_key_positions(new, len(x))
        q = inputs.position_ids
        if targets is not None:
            q = append_targets(q.expand(len(x), -1), targets)
        memory_length: PositionIds = cached
        if self.spec.recurrence is not None and cached:  # of each row, without padding
            memory_length = (k[:, :cached] >= 0).sum(1)[:, None, None, None]
        permutation_mask = batch.permutation_mask
        if permutation_mask is not None:  # all queries may attend to cached tokens
            ones = permutation_mask.new_ones(*permutation_mask.shape[:2], cached)
            permutation_mask = torch.cat([ones, permutation_mask], dim=2)

        def split_queries_and_keys(
            ids: Tensor | None, cached_id: int
        ) -> tuple[Tensor, Tensor] | None:
            if ids is None:
                return None
            keys = torch.cat([ids.new_full((len(ids), cached), cached_id), ids], dim=1)
            return (ids if targets is None else append_targets(ids, targets)), keys

        is_uncached = cache.positions is None
        has_no_targets = targets is None  # no query stream
        return AttentionBias(
            pattern=pattern.with_memory(memory_length),
            q_positions=q,
            k_positions=k,
            new_k_positions=new,
            has_no_padding=inputs.attention_mask is None and (is_uncached or cache.has_no_padding),
            token_type_ids=split_queries_and_keys(inputs.token_type_ids, 0),
            document_ids=split_queries_and_keys(inputs.document_ids, -1),
            permutation_mask=permutation_mask,
            position_bias=self.position_bias(q, k).to(x.dtype) if self.position_bias else None,
            contiguous=inputs.contiguous and has_no_targets,
            supports_pattern_kernels=is_uncached and inputs.contiguous and has_no_targets,
            cu_seqlens=inputs.cu_seqlens if is_uncached and has_no_targets else None,
            max_distance=inputs.max_distance + cached,
            dtype=x.dtype,
        )

    def build_cross_inputs(
        self,
        inputs: Inputs,
        encoder_outputs: Inputs | None,
        caches: list[LayerCache] | None,
        x: Tensor,
    ) -> CrossInputs | None:
        """Return the inputs of cross-attention: the encoder states and their bias, or the cached keys."""
        positions = inputs.position_ids
        bias = AttentionBias(
            pattern=full, q_positions=positions, k_positions=positions, supports_pattern_kernels=True,
            dtype=x.dtype,
        )  # fmt: skip
        cache: Cache = caches[0].cross_attention if caches else KVCache()
        if cache.positions is not None:
            # Beams share the keys of their source, and full attention reads no query positions.
            q = positions[:1, :1]
            return None, replace(
                bias,
                q_positions=q,
                k_positions=cache.positions,
                has_no_padding=cache.has_no_padding,
            )
        if encoder_outputs is None:
            return None
        documents = None
        if inputs.document_ids is not None and encoder_outputs.document_ids is not None:
            documents = (inputs.document_ids, encoder_outputs.document_ids)
        return encoder_outputs.inputs_embeds, replace(
            bias, k_positions=encoder_outputs.masked_position_ids,
            has_no_padding=encoder_outputs.attention_mask is None, document_ids=documents,
        )  # fmt: skip

    def create_caches(self, batch_size: int, mems: Tensor | None = None) -> list[LayerCache]:
        """Return an empty cache per layer; with segment recurrence, it holds `mems` or zeros.

        States that are zero in all layers are padding, except where the first memory is of zeros."""
        recurrence = self.spec.recurrence
        if recurrence is None:
            return [LayerCache(KVCache(), KVCache()) for _ in self.layer_order]
        if recurrence.starts_with_zeros and mems is None:
            like = next(self.embedding.parameters())
            length = recurrence.memory_length or 0
            mems = like.new_zeros(len(self.layer_order), batch_size, length, self.spec.width)
        if mems is None or not mems.shape[2]:
            return [LayerCache(SegmentMemory(), KVCache()) for _ in self.layer_order]
        mask = None if recurrence.starts_with_zeros else (mems != 0).any(-1).any(0)
        return [LayerCache(SegmentMemory(states, mask), KVCache()) for states in mems]

    def get_attention_kernels(self) -> dict[str, RecordingKernel]:
        """Return the modules from which `look` computes weights, by path; shared layers occur once per
        depth."""
        kernels: dict[str, RecordingKernel] = {}
        for depth, index in enumerate(self.layer_order):
            for part in ("attention", "cross_attention"):
                attention = getattr(self.layers[index], part)
                if attention is not None:
                    kernels[f"layers.{depth}.{part}"] = attention.kernel
        return kernels

    def update_mems(self, states: Tensor, inputs: Inputs) -> Tensor:
        """Return the memory for the next segment: the last states, with only the first `reuse_length`
        states of this segment. Rows with padding are moved to the right, after zeros."""
        recurrence = self.spec.recurrence
        assert recurrence is not None
        is_token = inputs.attention_mask
        length = inputs.length
        reuse_length = min(recurrence.reuse_length or length, length)
        if is_token is None:
            states = states[:, : states.shape[1] - length + reuse_length]
        else:
            is_token = is_token & (is_token.cumsum(1) <= reuse_length)
            is_kept = F.pad(is_token, (states.shape[1] - length, 0), value=True)
            order = is_kept.int().argsort(dim=1, stable=True)[:, length - reuse_length :]
            states = states.masked_fill(~is_kept[..., None], 0)
            states = states.gather(1, order[..., None].expand(-1, -1, states.shape[2]))
        is_unlimited = not recurrence.memory_length and not recurrence.starts_with_zeros
        if not is_unlimited:
            states = states[:, max(states.shape[1] - (recurrence.memory_length or 0), 0) :]
        return states.detach()


def sum_over_layers(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the sum over layers, with zeros for padding: (L, B, T + P) -> (B, T + P)."""
    total = x.sum(0)
    if attention_mask is None:
        return total
    is_token = F.pad(attention_mask, (0, total.shape[1] - attention_mask.shape[1]), value=True)
    return total.masked_fill(~is_token, 0)


def append_targets(x: Tensor, target_positions: Tensor) -> Tensor:
    """Append the values of the targets of the query stream: (B, T) -> (B, T + P)."""
    return torch.cat([x, x.gather(1, target_positions)], dim=1)
