"""Tiny random models of every family, and inputs for them. Knows nothing of transformers."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Inputs
from qkv.nn.network import Network
from qkv.nn.transformer import LayerCache
from qkv.spec import Spec, find_patches

VOCAB, WIDTH = 53, 24
_STACK: dict[str, Any] = dict(vocab_size=VOCAB, width=WIDTH, depth=2, heads=4)
_BERT: dict[str, Any] = _STACK | dict(
    ffn_width=40, max_positions=64, type_vocab_size=3, activation="silu"
)
_GPT2: dict[str, Any] = _STACK | dict(ffn_width=40, max_positions=64)
_BART: dict[str, Any] = _STACK | dict(ffn_width=40, decoder_depth=2, decoder_heads=3)
_BART |= dict(decoder_ffn_width=36, max_positions=64)
_T5: dict[str, Any] = _STACK | dict(head_dim=5, ffn_width=40)
_T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=12)
_SWITCH: dict[str, Any] = _T5 | dict(depth=3, decoder_depth=3, num_experts=3, expert_capacity=1000)
_SWITCH |= dict(num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
_XL: dict[str, Any] = _STACK | dict(head_dim=6, ffn_width=40, clamp_len=4)

_RECURRENT: dict[str, Any] = dict(vocab_size=VOCAB, width=WIDTH, embedding_width=20)

# The arguments of each family. The capacity of experts is never exceeded.
SIZES: dict[str, dict[str, Any]] = {
    "bert": _BERT | dict(head="masked-lm"),
    "roberta": _BERT | dict(head="masked-lm", pad_token_id=5),
    "albert": _BERT | dict(head="masked-lm", depth=4, num_groups=2, embedding_width=12),
    "distilbert": _GPT2 | dict(head="masked-lm"),
    "electra": _BERT | dict(head="masked-lm", embedding_width=12),
    "xlnet": _XL | dict(mem_len=5),
    "gpt": _STACK | dict(max_positions=64),
    "gpt2": _GPT2 | dict(scale_attn_by_inverse_layer_idx=True),
    "gpt3": _GPT2 | dict(window=3, depth=3),
    "ctrl": _GPT2,
    "transformer-xl": _XL | dict(
        cutoffs=(10, 20), div_val=2, embedding_width=16, mem_len=5, same_length=False,
    ),
    "sparse": _GPT2 | dict(pattern="fixed", stride=4, num_summary=1),
    "transformer": _BART,
    "bart": _BART,
    "mbart": _BART,
    "marian": _BART | dict(pad_token_id=52, decoder_start_token_id=3),
    "t5": _T5 | dict(decoder_depth=3, feed_forward_proj="gated-gelu"),
    "switch": _SWITCH,
    "vit": dict(image_size=12, patch_size=4, width=16, depth=2, heads=2, ffn_width=28),
    "video-transformer": dict(
        image_size=12, num_channels=2, conv_widths=(8, 16), width=16, depth=2, heads=2, ffn_width=28,
        max_positions=64, head="frame-classification",
    ),
    "vision-encoder-decoder": _BART | dict(image_size=12, patch_size=4),
    "show-attend-tell": dict(
        vocab_size=VOCAB, width=16, embedding_width=14, attention_width=10, image_size=12,
        patch_size=4, conv_widths=(8, 16, 24), feature_width=WIDTH,
    ),
    "clip": dict(
        projection_dim=10,
        text=_STACK | dict(ffn_width=40, max_positions=64, projection_dim=10, eos_token_id=7),
        image=dict(
            image_size=12, patch_size=4, width=16, depth=2, heads=2, ffn_width=28, projection_dim=10,
        ),
    ),
    "llama": _STACK | dict(ffn_width=40, kv_heads=2),
    "modernbert": _STACK | dict(
        depth=3, ffn_width=40, local_attention=4, pad_token_id=4, head="masked-lm",
    ),
    "rnn-encoder-decoder": _RECURRENT | dict(maxout_width=14),
    "lstm-seq2seq": _RECURRENT | dict(depth=2, decoder_vocab_size=VOCAB),
    "bahdanau": _RECURRENT | dict(attention_width=18, maxout_width=14),
    "luong": _RECURRENT | dict(depth=2),
    "lstmn": _RECURRENT | dict(depth=2, attention_width=18),
    "sequence-autoencoder": _RECURRENT,
}  # fmt: skip
FAMILIES = list(SIZES)
CAPTION_FAMILIES = ["vision-encoder-decoder", "show-attend-tell"]
PIXEL_FAMILIES = ["vit", "video-transformer", *CAPTION_FAMILIES]  # whose first stack reads no texts
TEXT_FAMILIES = [name for name in FAMILIES if name not in PIXEL_FAMILIES]
# Their rows have any length.
SEQUENCE_FAMILIES = [name for name in FAMILIES if name not in ("vit", *CAPTION_FAMILIES)]
# Their state has a fixed size: it cannot be rolled back, and there are no position embeddings.
WITHOUT_ATTENTION = ["rnn-encoder-decoder", "lstm-seq2seq", "sequence-autoencoder"]
RECURRENT = ["bahdanau", "luong", "lstmn", *WITHOUT_ATTENTION]
RECURRENT_DECODERS = [*RECURRENT, "show-attend-tell"]
ENCODER_DECODERS = ["transformer", "bart", "mbart", "marian", "t5", "switch", *RECURRENT]

# Causal models, which decode token by token: the families, and encoders with is_decoder.
_DECODER: dict[str, Any] = dict(is_decoder=True, head="lm")
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("gpt", "gpt2", "gpt3", "ctrl", "llama", "transformer-xl", *ENCODER_DECODERS)},
    **{f"{name}-decoder": (name, _DECODER) for name in ("bert", "roberta", "electra")},
    **{f"{name}-cross": (name, _DECODER | dict(add_cross_attention=True))
       for name in ("bert", "roberta", "electra")},
    **{f"sparse-{pattern}-{split}": ("sparse", dict(pattern=pattern, split=split))
       for pattern in ("strided", "fixed") for split in ("merged", "heads", "layers")},
    "gpt2-cross": ("gpt2", dict(add_cross_attention=True)),
    "transformer-xl-same": ("transformer-xl", dict(same_length=True)),
    "transformer-xl-none": ("transformer-xl", dict(mem_len=0)),
    "xlnet-uni": ("xlnet", dict(attn_type="uni")),
    "llama-biases": ("llama", dict(attention_bias=True, kv_heads=None)),
}  # fmt: skip


def build(
    family: str, *, positions: str | None = None, dtype: torch.dtype = torch.float64, **changes: Any
) -> qkv.Model:
    """Return a tiny model in eval mode, all of whose tensors are random."""
    tiny_model = qkv.build(
        family, position_embedding_type=positions, **change_sizes(family, **changes)
    )
    randomize_parameters(tiny_model.net, f"{family} {positions} {sorted(changes.items())}")
    tiny_model.net.to(dtype)
    return tiny_model


def change_sizes(family: str, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a family with changes; a change to a stack goes to CLIP's text encoder."""
    if family != "clip":
        return SIZES[family] | changes
    top_level = {key: value for key, value in changes.items() if key in (*SIZES[family], "head")}
    text = {key: value for key, value in changes.items() if key not in top_level}
    return SIZES[family] | {"text": SIZES[family]["text"] | text} | top_level


def randomize_parameters(net: nn.Module, seed: str = "") -> None:
    """Fill all parameters with normal noise, the weights of norms around one."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    with torch.no_grad():
        for name, tensor in net.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            is_norm_weight = tensor.dim() == 1 and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if is_norm_weight else 0.3 * noise)


def random_ids(*shape: int, seed: int = 0, low: int = 8) -> Tensor:
    """Return random token ids without special tokens."""
    return torch.randint(low, VOCAB - 1, shape, generator=torch.Generator().manual_seed(seed))


def build_inputs(tiny_model: qkv.Model) -> dict[str, Any]:
    """Return the arguments of a call: token ids, those of a decoder, images or clips."""
    if tiny_model.family.name in PIXEL_FAMILIES:
        inputs = {"pixel_values": build_pixel_values(tiny_model, random_ids(2, 9))}
        if tiny_model.family.name in CAPTION_FAMILIES:
            inputs["decoder_input_ids"] = random_ids(2, 5, seed=1)
        return inputs
    inputs = {"input_ids": random_ids(2, 9)}
    if tiny_model.family.name in ENCODER_DECODERS:
        inputs["decoder_input_ids"] = random_ids(2, 5, seed=1)
    if tiny_model.family.name == "clip":
        inputs["input_ids"][:, 4] = 7  # EOS
        pixels = torch.arange(2 * 3 * 12 * 12, dtype=torch.float64)
        inputs["pixel_values"] = pixels.reshape(2, 3, 12, 12).sin()
    return inputs


def build_pixel_values(tiny_model: qkv.Model, ids: Tensor) -> Tensor:
    """Return an image, or a clip of T frames, for each row of ids (B, T)."""
    patches = find_patches(tiny_model.spec)
    assert patches is not None
    shape = [int(axis) for axis in patches.pixel_shape if axis != "T"]
    pixels = torch.arange(math.prod(shape), dtype=tiny_model.dtype).reshape(shape)
    numbers = ids if "T" in patches.pixel_shape else ids.sum(1)
    return (pixels + numbers[..., None, None, None]).sin()


def build_batch(
    tiny_model: qkv.Model,
    input_ids: Tensor,
    decoder_input_ids: Tensor | None = None,
    **settings: Any,
) -> Batch:
    """Return a batch for the network; `settings` are those of Inputs.create, for both stacks.

    An encoder-decoder without `decoder_input_ids` reads the same ids in both. A model of images reads
    those of the ids."""
    if patches := find_patches(tiny_model.spec) if isinstance(tiny_model.spec, Spec) else None:
        pixel_values = build_pixel_values(tiny_model, input_ids)
        if tiny_model.family.name in CAPTION_FAMILIES:
            images = Inputs.create(pixel_values=pixel_values, num_patches=patches.num_tokens)
            decoder_ids = input_ids if decoder_input_ids is None else decoder_input_ids
            return Batch(encoder=images, decoder=Inputs.create(decoder_ids, **settings))
        settings |= dict(pixel_values=pixel_values, num_patches=patches.num_tokens)
        return Batch(encoder=Inputs.create(**settings))
    inputs = Inputs.create(input_ids, **settings)
    if tiny_model.family.name in ENCODER_DECODERS:
        decoder_ids = input_ids if decoder_input_ids is None else decoder_input_ids
        return Batch(encoder=inputs, decoder=Inputs.create(decoder_ids, **settings))
    is_decoder_only = isinstance(tiny_model.spec, Spec) and tiny_model.spec.encoder is None
    return Batch(decoder=inputs) if is_decoder_only else Batch(encoder=inputs)


def create_caches(tiny_model: qkv.Model, batch_size: int) -> list[LayerCache]:
    """Return the empty caches of every layer."""
    assert isinstance(tiny_model.net, Network)
    return tiny_model.net.create_caches(batch_size)
