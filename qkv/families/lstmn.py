"""LSTMN: an LSTM that attends to all its earlier states instead of keeping one.

paper    Cheng et al. 2016, arXiv:1601.06733
purpose  translate
differs  attends to its earlier states, in encoder and decoder; shallow fusion with the source"""

from typing import Any

from qkv import spec as s
from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, recurrent, uniform_init


def lstmn(attention_width: int | None = None, init_bound: float = 0.08, **sizes: Any) -> s.Spec:
    """Return the spec. `attention_width`: the width of the hidden layer of the score of the source;
    None: the width of the model."""
    if sizes["cell"] != "lstm":
        raise ValueError(f"cell is {sizes['cell']!r}, expected 'lstm', whose gates an LSTMN has")
    width = sizes["width"]
    attention = s.RecurrentAttentionSpec(score_width=attention_width)
    source = s.RecurrentSourceSpec(width=width, state_width=width, attention=attention)
    output = s.RecurrentOutputSpec(width=width, parts=("state", "context"), activation="tanh")
    return change_stacks(
        recurrent(**sizes),
        uniform_init(init_bound),
        {"cell": "lstmn"},
        cell="lstmn",
        source=source,
        output=output,
    )


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="lstmn", doc=__doc__, shape="encoder-decoder", build_spec=lstmn, base_function=recurrent,
    sizes=SIZES, default_overrides=dict(width=450, embedding_width=300, family="lstmn"),
    heads={"none": "", "lm": ""},
)  # fmt: skip
