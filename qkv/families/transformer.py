"""Transformer: the original encoder-decoder.

paper    Vaswani et al. 2017, arXiv:1706.03762
purpose  translate
differs  attention without recurrence; sinusoidal positions, post-norm, one embedding for all"""

from qkv.families.bart import bart
from qkv.families.family import Family

BASE = dict(
    width=512, depth=6, heads=8, ffn_width=2048,
    decoder_depth=6, decoder_heads=8, decoder_ffn_width=2048,
)  # fmt: skip
BIG = BASE | dict(
    width=1024, heads=16, ffn_width=4096, decoder_heads=16, decoder_ffn_width=4096, dropout=0.3,
)  # fmt: skip

FAMILY = Family(
    name="transformer", doc=__doc__, shape="encoder-decoder", build_spec=bart,
    sizes={"base": BASE, "big": BIG},
    default_overrides=BASE | dict(
        vocab_size=37000, activation="relu", scale_embedding=True, embedding_norm=False,
        sinusoidal="pairs", position_offset=0, init_std="xavier", lm_bias=False, shift_right=None,
        decoder_start_token_id=0, pad_token_id=None, eos_token_id=None, family="transformer",
    ),
    heads={"none": "", "lm": ""}, hf_family="marian",
)  # fmt: skip
