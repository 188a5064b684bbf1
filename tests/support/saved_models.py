"""Tiny models of every family with tokenizers of their own, whose special tokens have other ids than
those of published vocabularies."""

from __future__ import annotations

from typing import Any

import torch

import qkv
from qkv.families import get_family
from tests.support import tiny

TEXTS = [
    "the cat sat on the mat", "the dog lay on the rug", "a bird sang in the tall tree",
    "we saw the cat and the dog near the river",
] * 5  # fmt: skip
TEMPLATES = dict(
    bert="bert", albert="bert", distilbert="bert", electra="bert", modernbert="bert",
    roberta="roberta", xlnet="xlnet", gpt="gpt", gpt2="gpt", ctrl="gpt", llama="llama",
    bart="bos-eos", mbart="seq2seq", marian="seq2seq", transformer="seq2seq", t5="t5", switch="t5",
)  # fmt: skip
ENCODERS = ("bert", "roberta", "albert", "distilbert", "electra", "modernbert")
DECODERS = ("gpt", "gpt2", "ctrl", "llama")
SEQ2SEQ = ("bart", "mbart", "marian", "transformer", "t5", "switch")


def build(family: str, **changes: Any) -> qkv.Model:
    """Return a random model of a family with a tokenizer trained on TEXTS, as a run trains it."""
    tokenizer = qkv.Tokenizer.train(
        TEXTS, type="bpe", vocab_size=90, template=TEMPLATES[family], model_max_length=32
    )
    defaults = get_family(family).defaults
    sizes = tiny.SIZES[family] | {"vocab_size": len(tokenizer)} | changes
    # transformers creates one cache layer per encoder layer of T5.
    sizes |= {"decoder_depth": sizes["depth"]} if "decoder_depth" in sizes else {}
    for name in ("pad_token_id", "eos_token_id"):
        if name in defaults and getattr(tokenizer, name) is not None:
            sizes[name] = getattr(tokenizer, name)
    if "decoder_start_token_id" in defaults:
        sizes["decoder_start_token_id"] = tokenizer.pad_token_id
    model = qkv.build(family, **sizes)
    tiny.randomize_parameters(model.net, family)
    vary_generated_ids(model)
    model.tokenizer = tokenizer
    return model


@torch.no_grad()
def vary_generated_ids(model: qkv.Model) -> None:
    """Enlarge the token embeddings, so that a random model does not repeat one token."""
    for name, parameter in model.named_parameters():
        if name.endswith("embedding.tokens.weight"):
            parameter.mul_(8)
