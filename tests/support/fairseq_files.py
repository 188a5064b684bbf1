"""Random RoBERTa checkpoints in the format of fairseq; older names of its tensors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

WIDTH, HEADS, FFN_WIDTH, DEPTH, VOCAB, MAX_POSITIONS = 24, 4, 40, 3, 31, 22
SETTINGS: dict[str, Any] = dict(
    arch="roberta_small", encoder_layers=DEPTH, encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=FFN_WIDTH,
    encoder_attention_heads=HEADS, activation_fn="gelu", pooler_activation_fn="tanh", dropout=0.2,
    attention_dropout=0.3, pooler_dropout=0.4, max_positions=MAX_POSITIONS - 2, encoder_layers_to_keep=None,
    lr=[0.001],
)  # fmt: skip
# A part of a name of Hugging Face, and that of fairseq.
NAMES = {
    "roberta.embeddings.word_embeddings": "encoder.sentence_encoder.embed_tokens",
    "roberta.embeddings.position_embeddings": "encoder.sentence_encoder.embed_positions",
    "roberta.embeddings.LayerNorm": "encoder.sentence_encoder.emb_layer_norm",
    "roberta.encoder.layer": "encoder.sentence_encoder.layers",
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
    "lm_head": "encoder.lm_head",
    "classifier": "classification_heads.topic",
}


def build_roberta(class_name: str = "RobertaForMaskedLM", **changes: Any) -> Any:
    """Return a random RoBERTa of Hugging Face, with zero token types, which fairseq lacks."""
    config = transformers.RobertaConfig(
        vocab_size=changes.pop("vocab_size", VOCAB), hidden_size=WIDTH, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=FFN_WIDTH, max_position_embeddings=MAX_POSITIONS, type_vocab_size=1, layer_norm_eps=1e-5,
        pad_token_id=1, **changes,
    )  # fmt: skip
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
        model.roberta.embeddings.token_type_embeddings.weight.zero_()
    return model


def to_fairseq(model: Any) -> dict[str, Tensor]:
    """Return the state dict of a Hugging Face model under fairseq's names."""
    tensors = {}
    for key, tensor in model.state_dict().items():
        name = key
        for hf_part, fairseq_part in NAMES.items():
            if name.startswith(hf_part) or f".{hf_part}." in name:
                name = name.replace(hf_part, fairseq_part, 1)
        # Untied, only the bias of `decoder` is used.
        if "token_type" not in key and key != "lm_head.bias":
            tensors[name.replace("lm_head.decoder", "lm_head")] = tensor.clone()
    tensors["encoder.sentence_encoder.version"] = torch.tensor([3.0])
    return tensors


def fuse_projections(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fuse q, k and v, as the oldest versions (2018) did."""
    tensors = {
        key: x for key, x in state.items() if ".q_proj." not in key and ".k_proj." not in key
    }
    for key in [key for key in tensors if ".v_proj." in key]:
        parts = [state[key.replace("v_proj", f"{name}_proj")] for name in "qkv"]
        tensors[key.replace("v_proj.", "in_proj_")] = torch.cat(parts)
        del tensors[key]
    return tensors


def write_fairseq(path: Path, state: dict[str, Tensor], **changes: Any) -> Path:
    """Write a checkpoint with SETTINGS and changes; "absent" removes a setting."""
    settings = {key: value for key, value in (SETTINGS | changes).items() if value != "absent"}
    torch.save(
        {"args": argparse.Namespace(**settings), "model": state, "extra_state": {"epoch": 3}}, path
    )
    return path
