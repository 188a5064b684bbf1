"""Tiny random models of every class of transformers that generates, and the same nets of ours beside them."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from qkv.model.build import make_spec
from qkv.model.config import prefix_in, understand
from qkv.model.parameters import fill, skeleton
from qkv.nn.transformer import Transformer

transformers.logging.set_verbosity_error()
VOCAB, START, END, PAD = 23, 2, 3, 1

IDS: dict[str, Any] = dict(
    bos_token_id=START, eos_token_id=END, pad_token_id=PAD, decoder_start_token_id=START
)  # fmt: skip
_GPT2 = IDS | dict(vocab_size=VOCAB, n_positions=48, n_embd=16, n_layer=2, n_head=2)
_BERT = IDS | dict(
    vocab_size=VOCAB, max_position_embeddings=48, hidden_size=16, num_hidden_layers=2, is_decoder=True,
    num_attention_heads=2, intermediate_size=24,
)  # fmt: skip
_BART = IDS | dict(
    vocab_size=VOCAB, max_position_embeddings=48, d_model=16, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
    forced_eos_token_id=None,
)  # fmt: skip
_T5 = IDS | dict(
    vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
    relative_attention_num_buckets=8, relative_attention_max_distance=12,
)  # fmt: skip
_LLAMA = IDS | dict(
    vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=48,
)  # fmt: skip
_XLNET = IDS | dict(vocab_size=VOCAB, d_model=16, n_layer=2, n_head=2, d_inner=24)
_EXPERTS = dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=3, expert_capacity=64)

_GATED = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", _GPT2),
    "gpt": ("OpenAIGPTLMHeadModel", _GPT2),
    "ctrl": ("CTRLLMHeadModel", _GPT2 | dict(dff=24)),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "bert": ("BertLMHeadModel", _BERT),
    "roberta": ("RobertaForCausalLM", _BERT),
    "electra": ("ElectraForCausalLM", _BERT | dict(embedding_size=12)),
    "bart-causal": ("BartForCausalLM", _BART),
    "xlnet": ("XLNetLMHeadModel", _XLNET),
    "xlnet-short": ("XLNetLMHeadModel", _XLNET | dict(mem_len=5)),
    "bart": ("BartForConditionalGeneration", _BART),
    "mbart": ("MBartForConditionalGeneration", _BART),
    "marian": ("MarianMTModel", _BART),
    "t5": ("T5ForConditionalGeneration", _T5),
    "t5-gated": ("T5ForConditionalGeneration", _T5 | _GATED),
    "switch": ("SwitchTransformersForConditionalGeneration", _T5 | _EXPERTS),
}  # fmt: skip
PAIRS = ("bart", "mbart", "marian", "t5", "t5-gated", "switch")
PADLESS = ("xlnet", "xlnet-short", "bart-causal", "gpt", "ctrl")  # the original counts pads


class Both(NamedTuple):
    theirs: Any
    ours: Transformer


@cache
def built(kind: str) -> tuple[Any, Transformer, Any]:
    name, sizes = KINDS[kind]
    made = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = made(made.config_class(**sizes)).eval()
    if kind == "roberta":  # it counts positions after its pad, but forgets it while it generates
        counted = model._prepare_position_ids_for_generation
        model._prepare_position_ids_for_generation = lambda *args: counted(*args) + PAD + 1
    config = model.config.to_dict() | {"architectures": [name]}
    kin, args, _ = understand(config)
    net = skeleton(make_spec(kin, args))
    names = kin.keymap(args, prefix_in(kin, model.state_dict(), args))
    assert isinstance(net, Transformer)
    return model, net.eval(), names


def pair(kind: str, seed: int) -> Both:
    """The original and ours with the same random tensors."""
    model, net, names = built(kind)
    generator = torch.Generator().manual_seed(seed)
    held = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if "logits_bias" in k}
    sinusoids = "embed_positions" if kind == "marian" else "-"
    with torch.no_grad():
        for name, tensor in held.items():
            if sinusoids in name:  # not for learning
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            scale = tensor.ndim == 1 and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if scale else 0.5 * noise)
    tensors = {n: x.detach().clone() for n, x in model.state_dict().items() if sinusoids not in n}
    fill(net, names, tensors, Path(kind))
    return Both(model, net)


def generate(model: Any, prompts: list[list[int]], **settings: Any) -> Any:
    """What the original gives, prompts padded: on the left for a decoder, on the right for an encoder."""
    longest = max(map(len, prompts))
    right = model.config.is_encoder_decoder
    pads = [[PAD] * (longest - len(row)) for row in prompts]
    rows = [row + pad if right else pad + row for row, pad in zip(prompts, pads, strict=True)]
    ids = torch.tensor(rows)
    ones = [[1] * len(row) for row in prompts]
    zeros = [[0] * (longest - len(row)) for row in prompts]
    mask = torch.tensor([a + b if right else b + a for a, b in zip(ones, zeros, strict=True)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(ids, attention_mask=mask, **settings)


def new_ids(rows: Tensor, prompt: int, settings: dict[str, Any]) -> list[list[int]]:
    """What was said after the prompt, up to the end."""
    ends, out = settings.get("eos_token_id", [END]), []
    for row in rows[:, prompt:].tolist():
        stop = next((i + 1 for i, id_ in enumerate(row) if id_ in ends), len(row))
        out.append(row[:stop])
    return out
