"""Models for tests in a browser: one tiny random model of each architecture, with a tokenizer.

Does not depend on browsers."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any

import tokenizers
import torch
from torch import Tensor

import qkv
from qkv.explorer.explorer import NamedModel
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from tests.support import tiny
from tests.support.text_oracle import CORPUS

TEXT = "The quick brown fox jumps over the lazy dog."
PAIR = "Run, rabbit run."
TARGET = "one two three four"
GERMAN = "Die Katze sitzt auf der Matte."
MAX_NEW_TOKENS = 12
VOCAB_SIZE = 400
TEMPLATES = {
    "bert": "bert", "clip": "bos-eos", "transformer": "seq2seq", "t5": "t5", "bahdanau": "seq2seq",
}  # fmt: skip
# Changes to the tiny sizes of a family.
CHANGES: dict[str, dict[str, Any]] = {
    "transformer-xl": dict(cutoffs=(100, 200), mem_len=12),
}
# What each model reads when its page opens.
GIVEN: dict[str, dict[str, str]] = {
    "bert": dict(text=TEXT, text_pair=PAIR),
    "transformer": dict(text=TEXT, target=TARGET),
    "transformer-xl": dict(text=TEXT, text_pair=PAIR),
    "vit": {},
    "video-transformer": {},
    "show-attend-tell": {},
    "builtin:translate": dict(text=GERMAN),
}


@cache
def train_tokenizer(
    template: str, extra_tokens: tuple[str, ...] = (), type_name: str = "byte"
) -> qkv.Tokenizer:
    """Return a tokenizer whose tokens are bytes and frequent words, or characters, and `extra_tokens`; one
    of characters has their characters instead."""
    if type_name == "char":
        return qkv.Tokenizer.train([*CORPUS, *extra_tokens], type="char", template=template)
    tokenizer = qkv.Tokenizer.train(CORPUS, vocab_size=VOCAB_SIZE, template=template)
    if not extra_tokens:
        return tokenizer
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        path = f"{folder}/tokenizer.json"
        backend = tokenizers.Tokenizer.from_file(path)
        backend.add_tokens([*extra_tokens])
        backend.save(path)
        return qkv.Tokenizer.load(folder)


@cache
def load_model(name: str, extra_tokens: tuple[str, ...] = (), type_name: str = "byte") -> qkv.Model:
    """Return the tiny model of a family with a tokenizer, or a built-in model.

    `extra_tokens` and `type_name` are those of the tokenizer."""
    if name.startswith("builtin:"):
        return qkv.load(name)
    if name in ("vit", "video-transformer"):
        return tiny.build(name, dtype=torch.float32, num_channels=3)
    tokenizer = train_tokenizer(TEMPLATES.get(name, "gpt"), extra_tokens, type_name)
    sizes: dict[str, Any] = dict(vocab_size=len(tokenizer))
    if extra_tokens:
        sizes |= dict(max_positions=512)
    if name in ("transformer", "bahdanau"):
        sizes |= dict(
            pad_token_id=tokenizer.pad_token_id, decoder_start_token_id=tokenizer.pad_token_id
        )
    if name in ("transformer", "bahdanau", "clip"):
        sizes |= dict(eos_token_id=tokenizer.eos_token_id)
    model = tiny.build(name, dtype=torch.float32, **sizes, **CHANGES.get(name, {}))
    model.tokenizer = tokenizer
    model.generation_config = {**(model.generation_config or {}), "max_new_tokens": MAX_NEW_TOKENS}
    return model


def name_model(model: qkv.Model, name: str) -> NamedModel:
    """Return a model with its name on the page."""
    return NamedModel(name=name, inputs=InputBuilder(model=model))


@cache
def compute_weights(name: str) -> dict[str, Tensor]:
    """Return the attention weights (H, T, S) by path of what the model of a page reads first."""
    model = load_model(name)
    user_input = UserInput(**GIVEN.get(name, {"text": TEXT}))
    inputs = InputBuilder(model=model).build(user_input)
    arguments: dict[str, Any] = {**inputs.arguments}
    for segment in inputs.memory_segments:
        arguments["mems"] = model(torch.tensor([[*segment]])).mems
    with torch.no_grad(), qkv.look(model) as weights:
        model(**arguments)
    return {path: layer_weights[0] for path, layer_weights in weights.items()}


def split_tokens(name: str, text: str) -> list[str]:
    """Return the tokens of a text, as the page shows them."""
    tokenizer = load_model(name).tokenizer
    assert tokenizer is not None
    texts = [
        tokenizer.decode([token_id], skip_special_tokens=True).strip()
        or ("␣" if token_id not in tokenizer.special_token_ids.values() else None)
        or tokenizer.convert_ids_to_tokens(token_id)
        for token_id in tokenizer(text)["input_ids"]
    ]
    return texts
