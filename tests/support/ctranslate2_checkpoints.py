"""Tiny random checkpoints of transformers with a tokenizer, and their conversion by ctranslate2."""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.support.tiny import randomize_parameters

VOCAB = 53
_BART: dict[str, Any] = dict(
    vocab_size=VOCAB, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=36, max_position_embeddings=64,
    forced_eos_token_id=None,
)  # fmt: skip
_T5: dict[str, Any] = dict(
    vocab_size=VOCAB, d_model=24, num_layers=2, num_decoder_layers=3, num_heads=4, d_ff=40,
    relative_attention_num_buckets=8, relative_attention_max_distance=12,
    decoder_start_token_id=1, pad_token_id=1, eos_token_id=2,
)  # fmt: skip
# `position_embedding_type` is a key of published files that the converter reads.
_BERT: dict[str, Any] = dict(
    vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=40, max_position_embeddings=66, position_embedding_type="absolute",
)  # fmt: skip
_LLAMA: dict[str, Any] = dict(
    vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=40,
)  # fmt: skip

# name: class in transformers, its config. `normalize_before` is a key of published files.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", _BART | dict(normalize_before=False)),
    "mbart": ("MBartForConditionalGeneration", _BART | dict(normalize_before=True, scale_embedding=True)),
    "marian": ("MarianMTModel", _BART | dict(
        pad_token_id=VOCAB - 1, decoder_start_token_id=VOCAB - 1, eos_token_id=0,
        scale_embedding=True, activation_function="swish",
    )),
    "t5": ("T5ForConditionalGeneration", _T5 | dict(d_kv=6)),
    "t5-gated": ("T5ForConditionalGeneration", _T5 | dict(d_kv=5, feed_forward_proj="gated-gelu")),
    "mt5": ("MT5ForConditionalGeneration", _T5 | dict(d_kv=6)),
    "gpt2": ("GPT2LMHeadModel", dict(
        vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=2,
    )),
    "llama": ("LlamaForCausalLM", _LLAMA | dict(num_key_value_heads=2)),
    "llama-tied": ("LlamaForCausalLM", _LLAMA | dict(tie_word_embeddings=True, rms_norm_eps=1e-5)),
    "bert": ("BertModel", _BERT | dict(type_vocab_size=3)),
    "distilbert": ("DistilBertModel", dict(
        vocab_size=VOCAB, dim=24, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=64,
    )),
    "roberta": ("RobertaModel", _BERT | dict(type_vocab_size=1)),
    "xlm-roberta": ("XLMRobertaForSequenceClassification", _BERT | dict(type_vocab_size=1)),
}  # fmt: skip
ENCODERS = ("bert", "distilbert", "roberta", "xlm-roberta")
DECODERS = ("gpt2", "llama", "llama-tied")
ENCODER_DECODERS = tuple(name for name in CASES if name not in (*ENCODERS, *DECODERS))


def write_checkpoint(name: str, folder: Path) -> transformers.PreTrainedModel:
    """Write a random checkpoint with a tokenizer and return its model."""
    class_name, settings = CASES[name]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**settings)).eval()
    randomize_parameters(model, name)
    if name == "marian":  # in published checkpoints, the decoder starts from zero
        model.get_input_embeddings().weight.data[-1] = 0
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
    write_tokenizer(name, folder)
    return model


def write_tokenizer(name: str, folder: Path) -> None:
    words = [f"w{i}" for i in range(VOCAB)]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *words][:VOCAB]
    if name == "marian":
        tokens = ["</s>", "<unk>", *words[: VOCAB - 3], "<pad>"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    has_bos = name not in ("marian", "t5", "t5-gated", "mt5")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>" if has_bos else None,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    ).save_pretrained(folder)


def convert(source: Path, target: Path, quantization: str | None = None) -> Path:
    """Convert a checkpoint by ctranslate2's own converter."""
    ctranslate2 = import_ctranslate2()
    converter = ctranslate2.converters.TransformersConverter(str(source))
    with contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        converter.convert(str(target), quantization=quantization, force=True)
    return target


def import_ctranslate2() -> Any:
    """Return the ctranslate2 package; skip the test without it."""
    pytest.importorskip("ctranslate2.converters", reason="needs the ctranslate2 package")
    return import_module("ctranslate2")
