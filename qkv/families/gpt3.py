"""GPT-3: GPT-2 at scale, with dense and locally banded layers in turn.

paper    Brown et al. 2020, arXiv:2005.14165
purpose  write, from a few examples
differs  dense and locally banded layers in turn (Sparse Transformer's idea)"""

from typing import Any

from qkv.families.family import Family
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, Spec, causal, patterned


def gpt3(band: int = 256, **sizes: Any) -> Spec:
    return patterned(gpt2(**sizes), (causal, Banded(band)))


SIZES = {
    "small":  {},
    "medium": dict(width=1024, depth=24, heads=16),
    "large":  dict(width=1536, depth=24, heads=16),
    "xl":     dict(width=2048, depth=24, heads=24, head_dim=128),
    "2.7b":   dict(width=2560, depth=32, heads=32),
    "6.7b":   dict(width=4096, depth=32, heads=32),
    "13b":    dict(width=5140, depth=40, heads=40, head_dim=128),
    "175b":   dict(width=12288, depth=96, heads=96),
}  # fmt: skip

FAMILY = Family(
    name="gpt3", doc=__doc__, make=gpt3, base=gpt2, sizes=SIZES, shape="decoder",
    heads={"none": "", "lm": ""},
    given=dict(length=2048, drop=0.0, embed_drop=0.0, attend_drop=0.0, family="gpt3"),
)  # fmt: skip
