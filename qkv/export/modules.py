"""Modules that map plain tensors to plain tensors, for tracing. The network itself is unchanged.

Keys and values of a cache are (B, H, S, D) outside, as in Hugging Face's files, and (B, S, H, D) inside.
B batch, T new tokens, S cached tokens, H heads, D head dimension."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.batch import Batch, Inputs
from qkv.model.inputs import shift_tokens_right
from qkv.model.model import CHOICE_INPUTS
from qkv.nn.cache import Cache, KVCache
from qkv.nn.network import DualEncoder, Network
from qkv.nn.transformer import LayerCache
from qkv.spec import DualSpec, Spec, find_patches

Tensors = dict[str, Tensor]
HEAD_OUTPUTS = (
    "logits", "prediction_logits", "seq_relationship_logits", "mc_logits", "start_logits",
    "end_logits", "sentence_embedding", "text_embeds", "image_embeds",
)  # fmt: skip
BODY_OUTPUTS = ("last_hidden_state", "pooler_output")  # outputs of a model without a head


def count_positions(attention_mask: Tensor) -> Tensor:
    """Return positions (B, T) counted over the tokens of each row."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


def build_inputs(
    input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
) -> Inputs:
    """Return the inputs of a stack. Unlike `Inputs.create`, this does not read the mask."""
    mask = attention_mask.bool()
    return Inputs(
        input_ids=input_ids,
        attention_mask=mask,
        token_type_ids=token_type_ids,
        position_ids=count_positions(mask),
        contiguous=False,
        max_distance=input_ids.shape[1] - 1,
    )


class ForwardModule(nn.Module):
    """One forward pass: the outputs of the head, or the hidden states of a model without a head."""

    def __init__(self, net: Network | DualEncoder) -> None:
        super().__init__()
        self.net = net
        self.spec = net.spec
        self.is_multiple_choice = isinstance(self.spec, Spec) and self.spec.is_multiple_choice

    def forward(self, inputs: Tensors) -> Tensors:
        rows = inputs
        if self.is_multiple_choice:
            rows = {k: x.flatten(0, 1) if k in CHOICE_INPUTS else x for k, x in inputs.items()}
        batch = self.build_batch(rows)
        # Without caches, XLNet neither reads nor returns a memory.
        out = self.net(batch) if isinstance(self.net, DualEncoder) else self.net(batch, [])
        if "scaled_image_embeds" in out:  # both towers of a dual encoder
            embeds = {name: out[name] for name in ("text_embeds", "image_embeds")}
            logits = {"logits_per_image": out["logits"], "logits_per_text": out["logits"].T}
            return logits | embeds
        selected = {name: out[name] for name in HEAD_OUTPUTS if name in out}
        selected = selected or {name: out[name] for name in BODY_OUTPUTS if name in out}
        if self.is_multiple_choice:
            sizes = inputs["input_ids"].shape[:2]
            selected = {name: x.unflatten(0, sizes) for name, x in selected.items()}
            scores = selected.pop("mc_logits").squeeze(-1)
            selected["mc_logits" if "logits" in selected else "logits"] = scores
        return selected

    def build_batch(self, inputs: Tensors) -> Batch:
        """Return the batch; an encoder-decoder with a classifier computes its decoder inputs."""
        text = image = None
        if "input_ids" in inputs:
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            text = build_inputs(ids, mask, inputs.get("token_type_ids"))
        if "pixel_values" in inputs:
            image = self.build_image_inputs(inputs["pixel_values"])
        if isinstance(self.spec, DualSpec):
            return Batch(encoder=text, image=image)
        mc_token_ids = inputs.get("mc_token_ids")
        if self.spec.encoder is None:
            return Batch(decoder=text, mc_token_ids=mc_token_ids)
        shift = self.spec.shift_right
        decoder = None
        if self.spec.decoder is not None and shift is not None and text is not None:
            decoder = shift_tokens_right(text, shift)
        return Batch(encoder=text or image, decoder=decoder, mc_token_ids=mc_token_ids)

    def build_image_inputs(self, pixel_values: Tensor) -> Inputs:
        patches = find_patches(self.spec)
        assert patches is not None
        length = patches.num_tokens or pixel_values.shape[1]
        positions = torch.arange(length, device=pixel_values.device)[None]
        return Inputs(position_ids=positions, pixel_values=pixel_values)


class EncoderModule(nn.Module):
    """The encoder of an encoder-decoder."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.encoder = net.encoder

    def forward(self, inputs: Tensors) -> Tensors:
        assert self.encoder is not None
        source = build_inputs(inputs["input_ids"], inputs["attention_mask"])
        return {"last_hidden_state": self.encoder(source, Batch())["last_hidden_state"]}


class DecoderModule(nn.Module):
    """A decoder with a language model head: new tokens after cached ones.

    `attention_mask` covers the cached and the new tokens, and padding may be anywhere."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net
        self.depth = len(net.last_stack.layer_order)

    def forward(self, inputs: Tensors) -> Tensors:
        input_ids, position_ids = inputs["input_ids"], inputs["position_ids"]
        mask = inputs["attention_mask"].bool()  # (B, S + T)
        # Indices, because slices would bind the length of the mask to those of the other inputs.
        cached = inputs["past_key_values.0.key"].shape[2]
        indices = torch.arange(cached + input_ids.shape[1], device=mask.device)
        # Cached tokens have the positions before those of the new tokens, wherever these begin.
        count = mask.long().cumsum(1)
        positions = count + (position_ids[:, -1:] - count[:, -1:])
        positions = positions.masked_fill(~mask, -1)[:, indices[:cached]]
        caches = [
            LayerCache(read_cache(inputs, f"past_key_values.{i}.", positions), KVCache())
            for i in range(self.depth)
        ]
        new = Inputs(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=mask[:, indices[cached:]],
            contiguous=False,
            offset_by_cache=False,
        )
        outputs = {"logits": self.net(Batch(decoder=new), caches)["logits"]}
        for i, cache in enumerate(caches):
            outputs |= write_cache(cache.attention, f"present.{i}.")
        return outputs


class Seq2SeqDecoderModule(nn.Module):
    """The decoder of an encoder-decoder: the first tokens after `encoder_hidden_states`, or new tokens
    after cached ones. The tokens of the decoder have no padding."""

    def __init__(self, net: Network, output: str) -> None:
        super().__init__()
        self.net = net
        self.output = output
        self.depth = len(net.last_stack.layer_order)

    def forward(self, inputs: Tensors) -> Tensors:
        input_ids = inputs["input_ids"]
        states = inputs.get("encoder_hidden_states")
        mask = inputs["encoder_attention_mask"].bool()
        cached = 0 if states is not None else inputs["past_key_values.0.decoder.key"].shape[2]
        positions = torch.arange(cached + input_ids.shape[1], device=input_ids.device)
        positions = positions.expand(input_ids.shape[0], -1)
        source = None
        caches = [LayerCache(KVCache(), KVCache()) for _ in range(self.depth)]
        if states is not None:
            source = Inputs(
                position_ids=count_positions(mask), inputs_embeds=states, attention_mask=mask
            )
        else:
            source_positions = count_positions(mask).masked_fill(~mask, -1)
            names = [f"past_key_values.{i}." for i in range(self.depth)]
            caches = [
                LayerCache(
                    read_cache(inputs, f"{name}decoder.", positions[:, :cached]),
                    read_cache(inputs, f"{name}encoder.", source_positions),
                )
                for name in names
            ]
        new = Inputs(
            input_ids=input_ids,
            position_ids=positions[:, cached:],
            contiguous=False,
            offset_by_cache=False,
        )
        out = self.net(Batch(decoder=new, encoder_hidden_states=source), caches)
        outputs = {self.output: out[self.output]}
        for i, cache in enumerate(caches):
            outputs |= write_cache(cache.attention, f"present.{i}.decoder.")
            if states is not None:
                outputs |= write_cache(cache.cross_attention, f"present.{i}.encoder.")
        return outputs


def read_cache(inputs: Tensors, prefix: str, positions: Tensor) -> KVCache:
    """Return the cache of a layer from the inputs `prefix`key and `prefix`value."""
    k, v = (inputs[f"{prefix}{kind}"].transpose(1, 2) for kind in ("key", "value"))
    return KVCache({"k": k, "v": v}, positions)


def write_cache(cache: Cache, prefix: str) -> Tensors:
    """Return the outputs `prefix`key and `prefix`value of the cache of a layer."""
    names = {"k": "key", "v": "value"}
    return {f"{prefix}{name}": cache.read(kind).transpose(1, 2) for kind, name in names.items()}
