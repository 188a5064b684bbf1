"""Networks: Network (an encoder, a decoder or both, and heads) and DualEncoder (CLIP)."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.batch import Batch
from qkv.nn.heads import HEAD_MODULES
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import LayerCache, Stack
from qkv.spec import AnyStackSpec, DualSpec, RecurrentStackSpec, Spec


class Network(nn.Module):
    """An encoder, a decoder or both, and the heads on the last stack."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = build_stack(spec.encoder) if spec.encoder else None
        self.decoder = build_stack(spec.decoder) if spec.decoder else None
        if self.encoder and self.decoder and spec.share_embeddings:
            self.decoder.embedding.tokens = self.encoder.embedding.tokens
        if self.encoder and self.decoder and spec.share_layers:
            self.decoder.layers = self.encoder.layers
        stack = self.last_stack
        tokens = nn.Identity() if stack.spec.embedding.patches else stack.embedding.tokens
        heads = {
            head.name: HEAD_MODULES[type(head)](head, stack.spec.output_width, tokens)
            for head in spec.heads
        }
        self.heads = nn.ModuleDict(heads)

    @property
    def last_stack(self) -> Stack | RecurrentStack:
        """The stack whose states the heads read."""
        stack = self.decoder or self.encoder
        assert stack is not None
        return stack

    def forward(self, batch: Batch, caches: list[LayerCache] | None = None) -> dict[str, Tensor]:
        """Return the labels of the batch, the outputs of the stacks and those of the heads."""
        out = dict(batch.labels)
        inputs = batch.encoder
        encoder_outputs = batch.encoder_hidden_states
        is_seq2seq = self.encoder is not None and self.decoder is not None
        if is_seq2seq and encoder_outputs is None and inputs is not None:
            assert self.encoder is not None
            outputs = self.encoder(inputs, batch)
            encoder_outputs = replace(
                inputs,
                inputs_embeds=outputs["last_hidden_state"],
                final_states=outputs.pop("final_states", None),
            )
            out |= {f"encoder_{name}": x for name, x in outputs.items()}
        out |= self.last_stack(batch.last_stack_inputs, batch, encoder_outputs, caches)
        for head in self.heads.values():
            out |= head(out, batch)
        return out

    def create_caches(self, batch_size: int) -> list[LayerCache]:
        """Return caches for decoding `batch_size` rows one token at a time."""
        return self.last_stack.create_caches(batch_size)


def build_stack(spec: AnyStackSpec) -> Stack | RecurrentStack:
    """Return the stack of a spec."""
    return RecurrentStack(spec) if isinstance(spec, RecurrentStackSpec) else Stack(spec)


class DualEncoder(nn.Module):
    """A text encoder and an image encoder with a common embedding space; logits of all pairs (CLIP)."""

    def __init__(self, spec: DualSpec) -> None:
        super().__init__()
        self.spec = spec
        self.text = Network(spec.text) if spec.text else None
        self.image = Network(spec.image) if spec.image else None
        has_scale = spec.logit_scale is not None
        self.logit_scale = nn.Parameter(torch.empty(())) if has_scale else None

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        has_text = self.text is not None and batch.encoder is not None
        out = self.text(batch) if self.text is not None and has_text else dict(batch.labels)
        if self.image is not None and batch.image is not None:
            out |= self.image(replace(batch, encoder=batch.image))
        if self.logit_scale is not None:
            names = [name for name in ("text_embeds", "image_embeds") if name in out]
            out |= {name: F.normalize(out[name], dim=-1) for name in names}
            if len(names) == 2:
                out["scaled_image_embeds"] = self.logit_scale.exp() * out["image_embeds"]
                out["logits"] = out["scaled_image_embeds"] @ out["text_embeds"].T
        return out


def build_network(spec: Spec | DualSpec) -> Network | DualEncoder:
    """Return the network of a spec, with torch's default initialization."""
    return DualEncoder(spec) if isinstance(spec, DualSpec) else Network(spec)
