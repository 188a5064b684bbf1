"""GPT-3 (Brown et al. 2020): GPT-2 at scale, with dense and locally banded layers in turn."""

from __future__ import annotations

from dataclasses import replace

from qkv.families.family import Family
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, Spec, causal


def gpt3(
    vocab: int = 50257, width: int = 768, depth: int = 12, heads: int = 12, head_dim: int | None = None,
    feed: int | None = None, act: str = "gelu_new", length: int = 2048, band: int = 256, eps: float = 1e-5,
    drop: float = 0.0, embed_drop: float = 0.0, attend_drop: float = 0.0, std: float = 0.02, tied: bool = True,
) -> Spec:  # fmt: skip
    spec = gpt2(
        vocab=vocab, width=width, depth=depth, heads=heads if head_dim is None else 1, feed=feed, act=act,
        length=length, eps=eps, drop=drop, embed_drop=embed_drop, attend_drop=attend_drop, std=std, tied=tied,
    )  # fmt: skip
    stack = spec.decoder
    assert stack is not None
    patterns = [causal if i % 2 == 0 else Banded(band) for i in range(depth)]
    attends = [replace(x.attend, pattern=p, scale=None) for x, p in zip(stack.layers, patterns, strict=True)]
    if head_dim is not None:
        attends = [replace(attend, heads=heads, head_dim=head_dim) for attend in attends]
    layers = tuple(replace(x, attend=attend) for x, attend in zip(stack.layers, attends, strict=True))
    return replace(spec, family="gpt3", decoder=replace(stack, layers=layers))


SIZES = {
    "small":  dict(),
    "medium": dict(width=1024, depth=24, heads=16),
    "large":  dict(width=1536, depth=24, heads=16),
    "xl":     dict(width=2048, depth=24, heads=24, head_dim=128),
    "2.7b":   dict(width=2560, depth=32, heads=32),
    "6.7b":   dict(width=4096, depth=32, heads=32),
    "13b":    dict(width=5140, depth=40, heads=40, head_dim=128),
    "175b":   dict(width=12288, depth=96, heads=96),
}  # fmt: skip

FAMILY = Family(
    name="gpt3", make=gpt3, sizes=SIZES, config={}, keys="", heads={}, shape="decoder",
    paper="Brown et al. 2020, arXiv:2005.14165", purpose="write, from a few examples",
    differs="dense and locally banded layers in turn (Sparse Transformer's idea)",
)  # fmt: skip
