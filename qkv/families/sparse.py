"""Sparse Transformer: strided or fixed attention patterns, in which a token attends to few others.

paper    Child et al. 2019, arXiv:1904.10509
purpose  generate very long sequences: text, images, audio
differs  two sparse attention patterns, together or alternating by head or layer; no T x T tensor"""

from typing import Any

from qkv.families.family import Family, lookup
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, Chunk, ChunkEnds, PerHead, Spec, Strided, with_patterns


def sparse(
    pattern: str = "fixed",
    stride: int = 128,
    num_summary: int = 8,
    split: str = "merged",
    **args: Any,
) -> Spec:
    """Return the spec. `num_summary`: positions at the end of a chunk that later chunks attend to.

    `split`: the two parts of a pattern are merged in each head, or alternate by heads or layers."""
    chunk = Chunk(stride)
    chunk_ends = ChunkEnds(stride, num_summary)
    patterns = {
        "strided": (Banded(stride), Strided(stride)),
        # Without Banded(1), the tokens before the end of the first chunk would have no key.
        "fixed": (chunk, chunk_ends | Banded(1)),
    }
    first, second = lookup("pattern", pattern, patterns)
    merged = chunk | chunk_ends if pattern == "fixed" else first | second
    by_head = PerHead(tuple((first, second)[i % 2] for i in range(args["heads"])))
    splits = {"merged": (merged,), "heads": (by_head,), "layers": (first, second)}
    return with_patterns(gpt2(**args), lookup("split", split, splits))


SIZES = {
    "enwik8":  {},
    "cifar10": dict(width=256, depth=128, heads=2, max_positions=3072, pattern="strided", split="layers"),
    "music":   dict(width=512, depth=152, heads=4, max_positions=65536, pattern="strided", split="layers"),
}  # fmt: skip

FAMILY = Family(
    name="sparse", doc=__doc__, shape="decoder", build_spec=sparse, base_function=gpt2, sizes=SIZES,
    default_overrides=dict(
        vocab_size=256, width=512, depth=30, heads=8, max_positions=12288, attention_dropout=0.0,
        family="sparse",
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
