"""Bahdanau: the first attention; a decoder looks at the states of a bidirectional encoder in every step.

paper    Bahdanau et al. 2014, arXiv:1409.0473
purpose  translate
differs  additive attention to a bidirectional encoder before each step of a GRU; maxout"""

from typing import Any

from qkv import spec as s
from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, orthogonal_init, recurrent


def bahdanau(
    attention_width: int | None = 1000,
    maxout_width: int = 500,
    init_std: float = 0.01,
    **sizes: Any,
) -> s.Spec:
    """Return the spec. `attention_width`: the width of the hidden layer of the additive score.

    The output layer reads the new state, as in equation 4 of the paper; its appendix has the last."""
    width = sizes["width"]
    source = s.RecurrentSourceSpec(
        width=2 * width,
        state_width=width,
        initial_state="projection",
        attention=s.RecurrentAttentionSpec(score_width=attention_width),
    )
    init = (("*.score.v", "zeros"), ("*.score.*", 0.001), *orthogonal_init(init_std))
    return change_stacks(
        recurrent(**sizes),
        init,  # type: ignore[arg-type]
        {"direction": "bidirectional"},
        source=source,
        output=s.RecurrentOutputSpec(width=maxout_width),
    )


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="bahdanau", doc=__doc__, shape="encoder-decoder", build_spec=bahdanau,
    base_function=recurrent, sizes=SIZES,
    default_overrides=dict(vocab_size=30000, embedding_width=620, cell="gru", family="bahdanau"),
    heads={"none": "", "lm": ""},
)  # fmt: skip
