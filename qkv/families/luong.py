"""Luong: attention after each step of a deep LSTM, global or in a window, with input feeding.

paper    Luong et al. 2015, arXiv:1508.04025
purpose  translate
differs  simpler scores, global or in a window (local-m, local-p); the last output enters the next step"""

from typing import Any

from qkv import spec as s
from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, recurrent, uniform_init


def luong(input_feeding: bool = True, init_bound: float = 0.1, **sizes: Any) -> s.Spec:
    """Return the spec with global attention and the general score.

    Other scores and local attention: attention_score, attention_select = "local-m" or "local-p"."""
    width = sizes["width"]
    attention = s.RecurrentAttentionSpec(score=s.ScoreSpec(name="general"), place="after")
    source = s.RecurrentSourceSpec(width=width, state_width=width, attention=attention)
    output = s.RecurrentOutputSpec(
        width=width, parts=("context", "state"), activation="tanh", bias=False
    )
    return change_stacks(
        recurrent(**sizes),
        uniform_init(init_bound),
        {},
        source=source,
        output=output,
        input_feeding=input_feeding,
    )


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="luong", doc=__doc__, shape="encoder-decoder", build_spec=luong, base_function=recurrent,
    sizes=SIZES,
    default_overrides=dict(
        vocab_size=50000, depth=4, reverse_source=True, dropout=0.2, family="luong",
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
