"""Sparse Transformer (Child et al. 2019): every token sees few others, in strided or fixed patterns."""

from __future__ import annotations

from dataclasses import replace

from qkv.families.family import Family
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, ByHead, Chunk, Pattern, Spec, Strided, Summary, positive


def sparse(
    vocab: int = 256, width: int = 512, depth: int = 30, heads: int = 8, feed: int | None = None,
    act: str = "gelu_new", length: int = 12288, pattern: str = "fixed", stride: int = 128, cells: int = 8,
    split: str = "merged", eps: float = 1e-5, drop: float = 0.1, attend_drop: float = 0.0, std: float = 0.02,
    tied: bool = True,
) -> Spec:  # fmt: skip
    """`split` is how the two parts of a pattern are shared out: merged in each head, by head, or layer in turn."""
    positive(stride=stride, cells=cells)
    parts: dict[str, tuple[Pattern, Pattern]] = {
        "strided": (Banded(stride), Strided(stride)),
        "fixed": (Chunk(stride), Summary(stride, cells)),
    }
    if pattern not in parts:
        raise ValueError(f"pattern {pattern!r}: expected one of {', '.join(parts)}")
    one, two = parts[pattern]
    rules: dict[str, tuple[Pattern, Pattern]] = {  # of even and odd layers
        "merged": (one | two, one | two),
        "heads": (ByHead((one, two) * (heads // 2) + (one,) * (heads % 2)),) * 2,
        "layers": (one, two),
    }
    if split not in rules:
        raise ValueError(f"split {split!r}: expected one of {', '.join(rules)}")
    spec = gpt2(
        vocab=vocab, width=width, depth=depth, heads=heads, feed=feed, act=act, length=length, eps=eps, drop=drop,
        embed_drop=drop, attend_drop=attend_drop, std=std, tied=tied,
    )  # fmt: skip
    stack = spec.decoder
    assert stack is not None
    turns = [rules[split][i % 2] for i in range(depth)]
    layers = [replace(x, attend=replace(x.attend, pattern=p)) for x, p in zip(stack.layers, turns, strict=True)]
    return replace(spec, family="sparse", decoder=replace(stack, layers=tuple(layers)))


SIZES = {
    "enwik8":  dict(),
    "cifar10": dict(width=256, depth=128, heads=2, length=3072, pattern="strided", split="layers"),
    "music":   dict(width=512, depth=152, heads=4, length=65536, pattern="strided", split="layers"),
}  # fmt: skip

FAMILY = Family(
    name="sparse", make=sparse, sizes=SIZES, config={}, keys="", heads={}, shape="decoder",
    paper="Child et al. 2019, arXiv:1904.10509", purpose="write very long rows: text, images, sound",
    differs="strided and fixed patterns, merged, by head or by layer: no T x T anywhere",
)  # fmt: skip
