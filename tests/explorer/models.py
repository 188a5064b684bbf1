"""Tiny random models with tokenizers for the tests of the explorer, and the inputs that they read."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

import qkv
from qkv.explorer.explorer import Explorer, NamedModel
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.images import reads_clips
from qkv.explorer.inputs.trace_inputs import TraceInputs, UserInput
from qkv.explorer.trace.trace import Trace
from tests.support import saved_models, tiny

TEXT, SECOND_TEXT, TARGET = "the cat sat on the mat", "a bird sang", "we saw the dog"
SCORES = ("dot", "general", "additive", "concat", "cosine", "gaussian")
SELECTIONS = ("hard", "gumbel", "local-p", "top-k", "sparsemax", "entmax15")
SELECTION_SETTINGS: dict[str, Any] = {
    "top-k": dict(name="top-k", k=2),
    "local-p": dict(name="local-p", window=2),
}

# name -> (family, changes of its arguments)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in tiny.FAMILIES
        if name not in tiny.WITHOUT_ATTENTION
    },
    "video-transformer": ("video-transformer", dict(num_channels=3)),
    **{f"bert-{name}": ("bert", dict(positions=name)) for name in ("t5", "alibi", "rotary", "xl")},
    **{
        name: (family, changes)
        for name, (family, changes) in tiny.CAUSAL.items()
        if name.startswith(("sparse", "transformer-xl-", "xlnet-", "bert-decoder", "llama-"))
    },
    **{f"gpt2-{name}": ("gpt2", dict(attention_score=name)) for name in SCORES},
    **{
        f"transformer-{name}": (
            "transformer", dict(attention_select=SELECTION_SETTINGS.get(name, name)),
        )
        for name in SELECTIONS
    },
    "luong-additive-hard": ("luong", dict(attention_score="additive", attention_select="hard")),
    "show-attend-tell-hard": ("show-attend-tell", dict(attention_select="hard")),
}  # fmt: skip


@cache
def train_tokenizer(template: str = "gpt") -> qkv.Tokenizer:
    return qkv.Tokenizer.train(saved_models.TEXTS, type="bpe", vocab_size=90, template=template)


@cache
def build_model(name: str, dtype: torch.dtype = torch.float64) -> qkv.Model:
    """Return a random model of MODELS with a tokenizer; do not change it."""
    return build_changed_model(name, dtype)


def build_changed_model(
    name: str, dtype: torch.dtype = torch.float64, **generation_config: Any
) -> qkv.Model:
    """Return a new model of MODELS, with defaults of its folder for generation."""
    family, changes = MODELS.get(name, (name, {}))
    model = build_tiny_model(family, dtype, **changes)
    model.generation_config = {"max_new_tokens": 6} | generation_config
    return model


def build_tiny_model(family: str, dtype: torch.dtype = torch.float64, **changes: Any) -> qkv.Model:
    """Return a random model with a tokenizer, whose special tokens are those of the model."""
    template = saved_models.TEMPLATES.get(family, "gpt")
    template = "seq2seq" if family in tiny.ENCODER_DECODERS and template == "gpt" else template
    template = "bos-eos" if family in (*tiny.CAPTION_FAMILIES, "clip") else template
    tokenizer = train_tokenizer(template)
    defaults = qkv.families.get_family(family).defaults
    sizes = {} if family in ("vit", "video-transformer") else {"vocab_size": len(tokenizer)}
    sizes |= {"decoder_vocab_size": len(tokenizer)} if family == "lstm-seq2seq" else {}
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        if name in defaults:
            token = name.removeprefix("decoder_").replace("start", "pad")
            token_id = getattr(tokenizer, token)
            sizes |= {} if token_id is None else {name: token_id}
    model = tiny.build(family, dtype=dtype, **(sizes | changes))
    model.tokenizer = tokenizer
    return model


def build_image(color: tuple[int, int, int] = (200, 30, 10)) -> Any:
    """Return a Pillow image of two colors."""
    image = Image.new("RGB", (20, 16), color)
    image.paste((10, 90, 220), (0, 0, 9, 11))
    return image


def build_clip(num_frames: int = 6) -> Any:
    """Return the frames of a clip whose color changes: (T, H, W, 3)."""
    return np.stack([np.asarray(build_image((40 * i, 30, 10))) for i in range(num_frames)])


def build_user_input(builder: InputBuilder) -> UserInput:
    """Return a text, an image and a target, as far as a model reads them."""
    reads = builder.describe_inputs()
    image = build_clip() if reads_clips(builder.model) else build_image()
    return UserInput(
        text=TEXT if reads["text"] else "",
        target=TARGET if reads["target"] else None,
        image=image if reads["image"] else None,
    )


def build_trace_inputs(name: str) -> TraceInputs:
    builder = InputBuilder(model=build_model(name))
    return builder.build(build_user_input(builder))


def build_trace(name: str) -> Trace:
    """Return a new trace of a model of MODELS."""
    return Trace(build_model(name), build_trace_inputs(name))


def build_explorer(name: str = "bert", other: str | None = None) -> Explorer:
    """Return an explorer of models of MODELS."""
    named = [
        NamedModel(name=x, inputs=InputBuilder(model=build_model(x, torch.float32)))
        for x in (name, other)
        if x is not None
    ]
    return Explorer(*named)
