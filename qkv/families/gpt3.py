"""GPT-3: GPT-2 at scale, with alternating dense and locally banded attention layers.

paper    Brown et al. 2020, arXiv:2005.14165
purpose  generate text from few examples (in-context learning)
differs  alternating dense and locally banded attention layers, as in Sparse Transformer"""

from typing import Any

from qkv.families.family import Family
from qkv.families.gpt2 import gpt2
from qkv.spec import Banded, Spec, causal, with_patterns


def gpt3(window: int = 256, **args: Any) -> Spec:
    return with_patterns(gpt2(**args), (causal, Banded(window)))


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
    name="gpt3", doc=__doc__, shape="decoder", build_spec=gpt3, base_function=gpt2, sizes=SIZES,
    default_overrides=dict(
        max_positions=2048, dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0, family="gpt3"
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
