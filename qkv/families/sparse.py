"""Sparse Transformer: every token sees few others, in strided or fixed patterns.

paper    Child et al. 2019, arXiv:1904.10509
purpose  write very long rows: text, images, sound
differs  strided and fixed patterns, merged, by head or by layer: no T x T on long rows"""

from typing import Any

from qkv.families.family import Family, one_of
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, ByHead, Chunk, Spec, Strided, Summary, patterned


def sparse(
    pattern: str = "fixed", stride: int = 128, cells: int = 8, split: str = "merged", **sizes: Any
) -> Spec:
    """`split` is how the two parts of a pattern are shared out: merged in each head, by head, or by layer."""
    chunk, cell = Chunk(stride), Summary(stride, cells)  # by cells alone, the first tokens would see nobody
    parts = {"strided": (Banded(stride), Strided(stride)), "fixed": (chunk, cell | Banded(1))}
    one, two = one_of("pattern", pattern, parts)
    by_head = ByHead(tuple((one, two)[i % 2] for i in range(sizes["heads"])))
    merged = chunk | cell if pattern == "fixed" else one | two
    turns = {"merged": (merged,), "heads": (by_head,), "layers": (one, two)}
    return patterned(gpt2(**sizes), one_of("split", split, turns))


SIZES = {
    "enwik8":  {},
    "cifar10": dict(width=256, depth=128, heads=2, length=3072, pattern="strided", split="layers"),
    "music":   dict(width=512, depth=152, heads=4, length=65536, pattern="strided", split="layers"),
}  # fmt: skip

FAMILY = Family(
    name="sparse", doc=__doc__, make=sparse, base=gpt2, sizes=SIZES, shape="decoder",
    heads={"none": "", "lm": ""},
    given=dict(vocab=256, width=512, depth=30, heads=8, length=12288, attend_drop=0.0, family="sparse"),
)  # fmt: skip
