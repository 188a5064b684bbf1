"""The original Transformer.

paper    Vaswani et al. 2017, arXiv:1706.03762
purpose  translate; where it all began
differs  attention alone; sinusoids, post-norm, one table for source, target and output"""

from qkv.families.bart import bart
from qkv.families.family import Family

BASE = dict(width=512, depth=6, heads=8, feed=2048, decoder_depth=6, decoder_heads=8, decoder_feed=2048)
BIG = BASE | dict(width=1024, heads=16, feed=4096, decoder_heads=16, decoder_feed=4096, drop=0.3)

FAMILY = Family(
    name="transformer", doc=__doc__, make=bart, heads={"none": "", "lm": ""}, shape="encoder-decoder",
    given=BASE | dict(
        vocab=37000, act="relu", scaled=True, embed_norm=False, sinusoid="pairs", offset=0, std="xavier",
        lm_bias=False, shift=None, start=0, pad=None, end=None, family="transformer",
    ),
    sizes={"base": BASE, "big": BIG},
)  # fmt: skip
