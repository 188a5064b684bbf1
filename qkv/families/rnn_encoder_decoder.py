"""RNN encoder-decoder: a text becomes one vector, from which a decoder writes another text.

paper    Cho et al. 2014, arXiv:1406.1078
purpose  translate
differs  the gated recurrent unit (GRU); the vector of the source enters every step and the output; maxout"""

from typing import Any

from qkv import spec as s
from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, orthogonal_init, recurrent


def rnn_encoder_decoder(maxout_width: int = 500, init_std: float = 0.01, **sizes: Any) -> s.Spec:
    """Return the spec. `maxout_width`: the width of the output layer, the larger of each pair."""
    spec = recurrent(**sizes)
    width = sizes["width"]
    source = s.RecurrentSourceSpec(
        width=width, state_width=width, initial_state="projection", summary_width=width
    )
    output = s.RecurrentOutputSpec(width=maxout_width)
    return change_stacks(spec, orthogonal_init(init_std), {}, source=source, output=output)


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="rnn-encoder-decoder", doc=__doc__, shape="encoder-decoder",
    build_spec=rnn_encoder_decoder, base_function=recurrent, sizes=SIZES,
    default_overrides=dict(
        vocab_size=15000, width=1000, embedding_width=100, cell="gru",
        family="rnn-encoder-decoder",
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
