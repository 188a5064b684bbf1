"""CTRL: a causal decoder whose text begins with a control code.

paper    Keskar et al. 2019, arXiv:1909.05858
purpose  write in a style named by a code
differs  control codes; waves added to scaled tokens, pre-norm, ReLU"""

from qkv.families.family import Family, classes
from qkv.families.gpt2 import CONFIG, gpt2

KEYS = """
    decoder.embed.tokens                    transformer.w
    -                                       transformer.pos_encoding
    decoder.layers.{}.attend.(q|k|v|o)      transformer.h.{}.multi_head_attention.(Wq|Wk|Wv|dense)
    decoder.layers.{}.before_(attend|feed)  transformer.h.{}.layernorm(1|2)
    decoder.layers.{}.feed.(up|down)        transformer.h.{}.ffn.(0|2)
    decoder.norm                            transformer.layernorm
    heads.(lm|label).out                    (lm_head|classifier)
"""

FAMILY = Family(
    name="ctrl", doc=__doc__, make=gpt2, sizes={"base": {}}, keys=KEYS, model_types=("ctrl",),
    prefixes=("transformer.",),
    given=dict(
        vocab=246534, width=1280, depth=48, heads=16, feed=8192, act="relu", length=256, eps=1e-6,
        attend_drop=0.0, inner_eps=1e-6, sinusoid=True, lm_bias=True, small_ends=False, family="ctrl",
    ),
    config=CONFIG | dict(feed="dff"), heads=classes("CTRL", "none lm label"), shape="decoder",
)  # fmt: skip
