"""LSTM sequence to sequence: a deep LSTM reads the source backward, another writes the target.

paper    Sutskever et al. 2014, arXiv:1409.3215
purpose  translate
differs  four layers of LSTM; the decoder starts from the final states; the source is reversed"""

from typing import Any

from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, recurrent, uniform_init
from qkv.spec import Spec


def lstm_seq2seq(init_bound: float = 0.08, **sizes: Any) -> Spec:
    """Return the spec. All tensors are initialized uniformly between -init_bound and init_bound."""
    return change_stacks(recurrent(**sizes), uniform_init(init_bound), {})


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="lstm-seq2seq", doc=__doc__, shape="encoder-decoder", build_spec=lstm_seq2seq,
    base_function=recurrent, sizes=SIZES,
    default_overrides=dict(vocab_size=80000, depth=4, reverse_source=True, family="lstm-seq2seq"),
    heads={"none": "", "lm": ""},
)  # fmt: skip
