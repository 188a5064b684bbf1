"""Tiny models of every family with every tensor random, and rows for them. Needs no original beside it."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Rows
from qkv.nn.transformer import Memory, Transformer

VOCAB, WIDTH = 53, 24
_ONE: dict[str, Any] = dict(vocab=VOCAB, width=WIDTH, depth=2, heads=4)
_BERT: dict[str, Any] = _ONE | dict(feed=40, length=64, types=3, act="silu")
_GPT2: dict[str, Any] = _ONE | dict(feed=40, length=64)
_BART: dict[str, Any] = _ONE | dict(feed=40, decoder_depth=2, decoder_heads=3, decoder_feed=36, length=64)
_T5: dict[str, Any] = _ONE | dict(head_dim=5, feed=40, buckets=8, reach=12)
_XL: dict[str, Any] = _ONE | dict(head_dim=6, feed=40, clamp=4)

# Our arguments, family by family. Experts have room for all.
SIZES: dict[str, dict[str, Any]] = {
    "bert": _BERT | dict(head="masked-lm"),
    "roberta": _BERT | dict(head="masked-lm", pad=5),
    "albert": _BERT | dict(head="masked-lm", depth=4, groups=2, embed_width=12),
    "distilbert": _GPT2 | dict(head="masked-lm"),
    "electra": _BERT | dict(head="masked-lm", embed_width=12),
    "xlnet": _XL | dict(memory=5),
    "gpt": _ONE | dict(length=64),
    "gpt2": _GPT2 | dict(scaled_by_layer=True),
    "gpt3": _GPT2 | dict(band=3, depth=3),
    "ctrl": _GPT2,
    "transformer-xl": _XL | dict(cutoffs=(10, 20), divide=2, embed_width=16, memory=5, same_length=False),
    "sparse": _GPT2 | dict(pattern="fixed", stride=4, cells=1),
    "transformer": _BART,
    "bart": _BART,
    "mbart": _BART,
    "marian": _BART | dict(pad=52, start=3),
    "t5": _T5 | dict(decoder_depth=3, feed_kind="gated-gelu"),
    "switch": _T5 | dict(depth=3, decoder_depth=3, experts=3, capacity=1000, sparse=1, decoder_sparse=1),
    "clip": dict(
        text=_ONE | dict(feed=40, length=64, project=10, end=7), project=10,
        image=dict(image=12, patch=4, width=16, depth=2, heads=2, feed=28, project=10),
    ),
    "llama": _ONE | dict(feed=40, kv_heads=2),
    "modernbert": _ONE | dict(depth=3, feed=40, window=4, pad=4, head="masked-lm"),
}  # fmt: skip
FAMILIES = list(SIZES)
PAIRS = ["transformer", "bart", "mbart", "marian", "t5", "switch"]  # an encoder and a decoder

# What decodes one token at a time: the families, and encoders asked to be decoders.
_WRITER: dict[str, Any] = dict(decoder=True, head="lm")
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("gpt", "gpt2", "gpt3", "ctrl", "llama", "transformer-xl", *PAIRS)},
    **{f"{name}-decoder": (name, _WRITER) for name in ("bert", "roberta", "electra")},
    **{f"{name}-cross": (name, _WRITER | dict(cross=True)) for name in ("bert", "roberta", "electra")},
    **{f"sparse-{p}-{s}": ("sparse", dict(pattern=p, split=s))
       for p in ("strided", "fixed") for s in ("merged", "heads", "layers")},
    "gpt2-cross": ("gpt2", dict(cross=True)),
    "transformer-xl-same": ("transformer-xl", dict(same_length=True)),
    "transformer-xl-none": ("transformer-xl", dict(memory=0)),
    "xlnet-uni": ("xlnet", dict(attend_kind="uni")),
    "llama-biases": ("llama", dict(attend_bias=True, kv_heads=None)),
}  # fmt: skip


def model(
    family: str, *, positions: str | None = None, dtype: torch.dtype = torch.float64, **changes: Any
) -> qkv.Model:
    """A tiny model in eval mode, every tensor random and away from any symmetric value."""
    made = qkv.build(family, positions=positions, **sizes(family, **changes))
    randomise(made.net, f"{family} {positions} {sorted(changes.items())}")
    made.net.to(dtype)
    return made


def sizes(family: str, **changes: Any) -> dict[str, Any]:
    """The arguments, changed; CLIP has those of a stack in its text tower."""
    if family != "clip":
        return SIZES[family] | changes
    inner = {key: value for key, value in changes.items() if key not in (*SIZES[family], "head")}
    outer = {key: value for key, value in changes.items() if key not in inner}
    return SIZES[family] | {"text": SIZES[family]["text"] | inner} | outer


def randomise(net: nn.Module, seed: str = "") -> None:
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    with torch.no_grad():
        for name, tensor in net.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
            scale = tensor.dim() == 1 and name.endswith("weight")
            tensor.copy_(1 + 0.2 * noise if scale else 0.3 * noise)


def ids(*shape: int, seed: int = 0, low: int = 8) -> Tensor:
    """Random tokens, none of them a pad or an end."""
    return torch.randint(low, VOCAB - 1, shape, generator=torch.Generator().manual_seed(seed))


def batch(made: qkv.Model, tokens: Tensor, target: Tensor | None = None, **more: Any) -> Batch:
    """A batch for the net: source and target for a pair, rows for others; `more` goes to both Rows."""
    if made.family.name not in PAIRS:
        return Batch(rows=Rows.of(tokens, **more))
    return Batch(rows=Rows.of(tokens, **more), target=Rows.of(tokens if target is None else target, **more))


def memory(made: qkv.Model, rows: int) -> list[Memory]:
    """Empty Slots for so many rows."""
    assert isinstance(made.net, Transformer)
    return made.net.memory(rows)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference; infinite for other shapes or for what is not a number."""
    if ours.shape != theirs.shape:
        return float("inf")
    far = (ours.detach() - theirs.detach()).abs().max().item() if ours.numel() else 0.0
    return far if far == far else float("inf")


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float = 1e-9) -> None:
    """Asserts that all tensors of the second are in the first, no further apart than that."""
    far = {name: apart(ours[name], value) for name, value in theirs.items()}
    assert theirs
    assert max(far.values()) <= within, far
