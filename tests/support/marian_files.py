"""Random models in Marian's own format, and the same models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
import yaml  # type: ignore[import-untyped]
from torch import Tensor

WIDTH, HEADS, FFN_WIDTH, DEPTH = 24, 4, 40, 2
# The settings of an OPUS-MT model that matter, as Marian dumps them into the file.
SETTINGS: dict[str, Any] = {
    "bert-train-type-embeddings": True, "dec-cell": "gru", "dec-depth": DEPTH, "dim-emb": WIDTH,
    "enc-depth": DEPTH, "enc-type": "bidirectional", "factors-combine": "sum",
    "layer-normalization": False, "lemma-dim-emb": 0, "right-left": False,
    "tied-embeddings": False, "tied-embeddings-all": True, "tied-embeddings-src": False,
    "transformer-aan-nogate": False, "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-ffn": FFN_WIDTH, "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2, "transformer-heads": HEADS, "transformer-no-projection": False,
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "", "transformer-preprocess": "", "transformer-tied-layers": [],
    "transformer-train-positions": False, "type": "transformer", "ulr": False,
    "version": "v1.9.0 ba94c5b9 2020-05-17 10:42:17 +0100",
}  # fmt: skip
DECODER_YML = """relative-paths: true
models:
  - {model}
vocabs:
  - {source}
  - {target}
beam-size: 6
normalize: 1
word-penalty: 0
mini-batch: 1
maxi-batch: 1
maxi-batch-sort: src
"""
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}


def build_marian(vocab_size: int, target_size: int | None = None, **changes: Any) -> Any:
    """Return a random Marian of transformers, with Marian's own positions and the zero row of the pad.

    With `target_size`, source and target have embeddings of their own."""
    size = max(vocab_size, target_size or 0)
    config = transformers.MarianConfig(
        vocab_size=size + 1, decoder_vocab_size=size + 1, d_model=WIDTH, encoder_layers=DEPTH,
        decoder_layers=DEPTH, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN_WIDTH, decoder_ffn_dim=FFN_WIDTH, scale_embedding=True,
        activation_function="swish", pad_token_id=size, decoder_start_token_id=size,
        eos_token_id=0, forced_eos_token_id=None, max_position_embeddings=64,
        share_encoder_decoder_embeddings=target_size is None, **changes,
    )  # fmt: skip
    torch.manual_seed(2)
    model = transformers.MarianMTModel(config).eval()
    rates = 10000.0 ** (-torch.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    angles = torch.arange(64)[:, None] * rates
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6  # as in marian-dev
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(0.0, 0.3)
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(torch.cat([angles.sin(), angles.cos()], dim=1))
            stack.embed_tokens.weight[size:] = 0.0
        if target_size is not None:
            model.model.encoder.embed_tokens.weight[vocab_size:] = 0.0
            model.model.decoder.embed_tokens.weight[target_size:] = 0.0
        model.final_logits_bias.normal_(0.0, 0.3)
        model.final_logits_bias[:, target_size or vocab_size :] = -1e4
    return model


def to_marian(model: Any, vocab_size: int, target_size: int | None = None) -> dict[str, Tensor]:
    """Return the tensors of a model under Marian's names, in its layout."""
    net = model.model
    tensors = {"decoder_ff_logit_out_b": model.final_logits_bias[:, : target_size or vocab_size]}
    if target_size is None:
        tensors["Wemb"] = net.shared.weight[:vocab_size]
    else:
        tensors["encoder_Wemb"] = net.encoder.embed_tokens.weight[:vocab_size]
        tensors["decoder_Wemb"] = net.decoder.embed_tokens.weight[:target_size]
    for stack in ("encoder", "decoder"):
        for index, layer in enumerate(getattr(net, stack).layers, 1):
            prefix = f"{stack}_l{index}"
            attentions = {"self": "self_attn", "context": "encoder_attn"}
            for part, module in attentions.items():
                if not hasattr(layer, module):
                    continue
                for projection, letter in PROJECTIONS.items():
                    linear = getattr(getattr(layer, module), projection)
                    tensors[f"{prefix}_{part}_W{letter}"] = linear.weight.T
                    tensors[f"{prefix}_{part}_b{letter}"] = linear.bias[None]
                norm = getattr(layer, f"{module}_layer_norm")
                tensors[f"{prefix}_{part}_Wo_ln_scale"] = norm.weight[None]
                tensors[f"{prefix}_{part}_Wo_ln_bias"] = norm.bias[None]
            for number, linear in ((1, layer.fc1), (2, layer.fc2)):
                tensors[f"{prefix}_ffn_W{number}"] = linear.weight.T
                tensors[f"{prefix}_ffn_b{number}"] = linear.bias[None]
            tensors[f"{prefix}_ffn_ffn_ln_scale"] = layer.final_layer_norm.weight[None]
            tensors[f"{prefix}_ffn_ffn_ln_bias"] = layer.final_layer_norm.bias[None]
    return {name: x.detach().clone().contiguous() for name, x in tensors.items()}


def write_npz(
    path: Path, tensors: dict[str, Tensor], sizes: tuple[int, int], **changes: Any
) -> Path:
    """Write an .npz file with its settings, which end with a zero byte."""
    path.parent.mkdir(parents=True, exist_ok=True)
    keys = {key.replace("_", "-"): value for key, value in changes.items()}
    settings = {**SETTINGS, "dim-vocabs": list(sizes), **keys}
    text = yaml.safe_dump(settings).replace(
        "transformer-tied-layers: []", "transformer-tied-layers:\n  []"
    )
    header = "# Model configuration file created at 2020-05-17\n"
    data = numpy.frombuffer((header + text).encode() + b"\0", dtype=numpy.int8)
    arrays = {name: x.numpy() for name, x in tensors.items()}
    contents: dict[str, Any] = {"special:model.yml": data, **arrays}
    numpy.savez(path, **contents)
    return path
