"""Sequence autoencoder: an LSTM reads a text into a fixed vector and writes the text again.

paper    Dai and Le 2015, arXiv:1511.01432
purpose  write a text again from one vector
differs  a text through a fixed vector and back; encoder and decoder have the same weights"""

from dataclasses import replace
from typing import Any

from qkv.families.family import Args, Family
from qkv.families.recurrent import change_stacks, recurrent, uniform_init
from qkv.spec import ShiftRight, Spec


def sequence_autoencoder(
    share_layers: bool = True,
    shift_right: str | None = "start",
    init_bound: float = 0.08,
    **sizes: Any,
) -> Spec:
    """Return the spec. `share_layers`: the decoder has the weights of the encoder.

    `shift_right`: how decoder inputs are computed from input_ids by default (see ShiftRight)."""
    spec = change_stacks(recurrent(**sizes), uniform_init(init_bound), {})
    start = sizes["decoder_start_token_id"] or 0
    shift = None if shift_right is None else ShiftRight(start, shift_right)
    return replace(spec, share_layers=share_layers, shift_right=shift)


SIZES: dict[str, Args] = {
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="sequence-autoencoder", doc=__doc__, shape="encoder-decoder",
    build_spec=sequence_autoencoder, base_function=recurrent, sizes=SIZES,
    default_overrides=dict(
        width=1024, embedding_width=512, share_embeddings=True, family="sequence-autoencoder",
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
