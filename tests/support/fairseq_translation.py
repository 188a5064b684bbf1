"""Random translation checkpoints in the format of fairseq, and the same models of transformers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

WIDTH, HEADS, FFN_WIDTH, DEPTH = 24, 4, 40, 2
SETTINGS: dict[str, Any] = dict(
    arch="transformer_iwslt_de_en", task="translation", source_lang="de", target_lang="en",
    encoder_layers=DEPTH, encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=FFN_WIDTH,
    encoder_attention_heads=HEADS, encoder_normalize_before=False, encoder_learned_pos=False,
    decoder_layers=DEPTH, decoder_embed_dim=WIDTH, decoder_ffn_embed_dim=FFN_WIDTH,
    decoder_attention_heads=HEADS, decoder_normalize_before=False, decoder_learned_pos=False,
    decoder_output_dim=WIDTH, decoder_input_dim=WIDTH, dropout=0.3, attention_dropout=0.1,
    relu_dropout=0.0, adaptive_softmax_cutoff=None, share_decoder_input_output_embed=True,
    share_all_embeddings=False, no_token_positional_embeddings=False, max_source_positions=1024,
    max_target_positions=1024, lr=[0.0005],
)  # fmt: skip
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# Pieces of subword-nmt: the merges below, letters, and their forms at the end of a word.
CODES = [("l", "o"), ("lo", "w</w>"), ("e", "r</w>"), ("n", "e"), ("ne", "w"), ("o", "w</w>")]
LETTERS = "abcdefghilmnorstuwy.,!"
WORDS = [
    *(f"{letter}@@" for letter in LETTERS), *LETTERS, "lo@@", "low", "er", "ne@@", "new@@", "ow",
]  # fmt: skip
BART_SETTINGS: dict[str, Any] = dict(
    activation_fn="gelu", no_scale_embedding=True, encoder_learned_pos=True, decoder_learned_pos=True,
    layernorm_embedding=True,
)  # fmt: skip


def build_fsmt(src_words: list[str], tgt_words: list[str], **changes: Any) -> Any:
    """Return a random FSMT of transformers; both share all embeddings if the words are the same."""
    config = transformers.FSMTConfig(
        langs=["de", "en"], src_vocab_size=len(SPECIAL + src_words),
        tgt_vocab_size=len(SPECIAL + tgt_words), d_model=WIDTH, encoder_layers=DEPTH,
        decoder_layers=DEPTH, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS,
        encoder_ffn_dim=FFN_WIDTH, decoder_ffn_dim=FFN_WIDTH, scale_embedding=True,
        activation_function="relu", tie_word_embeddings=src_words == tgt_words, **changes,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.FSMTForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(0.0, 0.3)
    return model


def to_fairseq_state(model: Any) -> dict[str, Tensor]:
    """Return the state dict of FSMT under fairseq's names, with the buffers of older versions."""
    state = {
        name.removeprefix("model."): x.clone()
        for name, x in model.state_dict().items()
        if "embed_positions" not in name
    }
    for stack in ("encoder", "decoder"):
        state[f"{stack}.version"] = torch.tensor([3.0])
        state[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    return state


def to_fairseq_bart_state(model: Any) -> dict[str, Tensor]:
    """Return the state dict of BART or mBART under fairseq's names."""
    return {
        name.removeprefix("model.").replace("lm_head.", "decoder.output_projection."): x.clone()
        for name, x in model.state_dict().items()
        if name not in ("final_logits_bias", "model.shared.weight")
    }


def write_checkpoint(folder: Path, state: dict[str, Tensor], **changes: Any) -> Path:
    """Write model.pt as fairseq's trainer does; "absent" removes a setting."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in (SETTINGS | changes).items() if value != "absent"}
    checkpoint = {
        "args": argparse.Namespace(**settings),
        "model": state,
        "optimizer_history": [{"criterion_name": "LabelSmoothedCrossEntropyCriterion"}],
        "extra_state": {"epoch": 3},
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(2)}}},
    }
    torch.save(checkpoint, folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder


def write_dictionary(path: Path, words: list[str]) -> None:
    """Write dict.txt: a token and its count a line, without special tokens."""
    path.write_text("".join(f"{word} {len(words) - i}\n" for i, word in enumerate(words)))


def write_codes(path: Path) -> None:
    """Write the codes of subword-nmt."""
    lines = "".join(f"{first} {second}\n" for first, second in CODES)
    path.write_text(f"#version: 0.2\n{lines}")
