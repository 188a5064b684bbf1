"""Tiny random models of the classes of transformers that generate, and the same networks in qkv."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from qkv.model.build import build_model_spec
from qkv.model.config import detect_prefix, parse_config
from qkv.model.parameters import build_meta_network, load_parameters
from qkv.nn.network import Network

transformers.logging.set_verbosity_error()
VOCAB = 23
PAD = 1
BOS = 2
EOS = 3

SPECIAL_TOKENS: dict[str, Any] = dict(
    bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, decoder_start_token_id=BOS
)  # fmt: skip
_GPT2 = SPECIAL_TOKENS | dict(vocab_size=VOCAB, n_positions=48, n_embd=16, n_layer=2, n_head=2)
_BERT = SPECIAL_TOKENS | dict(
    vocab_size=VOCAB, max_position_embeddings=48, hidden_size=16, num_hidden_layers=2, is_decoder=True,
    num_attention_heads=2, intermediate_size=24,
)  # fmt: skip
_BART = SPECIAL_TOKENS | dict(
    vocab_size=VOCAB, max_position_embeddings=48, d_model=16, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
    forced_eos_token_id=None,
)  # fmt: skip
_T5 = SPECIAL_TOKENS | dict(
    vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_decoder_layers=2, num_heads=2,
    relative_attention_num_buckets=8, relative_attention_max_distance=12,
)  # fmt: skip
_LLAMA = SPECIAL_TOKENS | dict(
    vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=48,
)  # fmt: skip
_XLNET = SPECIAL_TOKENS | dict(vocab_size=VOCAB, d_model=16, n_layer=2, n_head=2, d_inner=24)
_EXPERTS = dict(
    num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=3, expert_capacity=64
)

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
ENCODER_DECODERS = ("bart", "mbart", "marian", "t5", "t5-gated", "switch")
NO_PADDING = (
    "xlnet",
    "xlnet-short",
    "bart-causal",
    "gpt",
    "ctrl",
)  # transformers counts padding as tokens


class ModelPair(NamedTuple):
    reference: Any
    net: Network


@cache
def build_pair(kind: str) -> tuple[Any, Network, Any]:
    """Return a model of transformers, the network of qkv for it, and the table of parameter names."""
    class_name, sizes = KINDS[kind]
    model_class = getattr(transformers, class_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_class(model_class.config_class(**sizes)).eval()
    if kind == "roberta":  # its positions start after the padding id, except in generate
        prepare_position_ids = model._prepare_position_ids_for_generation
        model._prepare_position_ids_for_generation = lambda *args: (
            prepare_position_ids(*args) + PAD + 1
        )
    config = model.config.to_dict() | {"architectures": [class_name]}
    family, args, _ = parse_config(config)
    net = build_meta_network(build_model_spec(family, args))
    names = family.build_names_table(args, detect_prefix(family, model.state_dict(), args))
    assert isinstance(net, Network)
    return model, net.eval(), names


def randomize_pair(kind: str, seed: int) -> ModelPair:
    """Return a model of transformers and the network of qkv with the same random parameters."""
    model, net, names = build_pair(kind)
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors |= {name: tensor for name, tensor in model.named_buffers() if "logits_bias" in name}
    sinusoids = "embed_positions" if kind == "marian" else "-"
    with torch.no_grad():
        for name, tensor in tensors.items():
            if sinusoids in name:  # constants
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            is_scale = tensor.ndim == 1 and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if is_scale else 0.5 * noise)
    state_dict = {
        name: tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if sinusoids not in name
    }
    load_parameters(net, names, state_dict, Path(kind))
    return ModelPair(model, net)


def generate(model: Any, prompts: list[list[int]], **settings: Any) -> Any:
    """Return the output of model.generate; a decoder is padded on the left, an encoder on the right."""
    max_length = max(map(len, prompts))
    pads_right = model.config.is_encoder_decoder
    input_ids = []
    attention_mask = []
    for prompt in prompts:
        num_pads = max_length - len(prompt)
        pads = [PAD] * num_pads
        ones = [1] * len(prompt)
        zeros = [0] * num_pads
        input_ids.append(prompt + pads if pads_right else pads + prompt)
        attention_mask.append(ones + zeros if pads_right else zeros + ones)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.generate(
            torch.tensor(input_ids), attention_mask=torch.tensor(attention_mask), **settings
        )


def get_new_token_ids(
    rows: Tensor, prompt_length: int, settings: dict[str, Any]
) -> list[list[int]]:
    """Return the tokens after the prompt, up to and including EOS."""
    eos_token_id = settings.get("eos_token_id", [EOS])
    output = []
    for row in rows[:, prompt_length:].tolist():
        stop = next((i + 1 for i, token_id in enumerate(row) if token_id in eos_token_id), len(row))
        output.append(row[:stop])
    return output
