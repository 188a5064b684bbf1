"""CTRL: a causal decoder whose text begins with a control code.

paper    Keskar et al. 2019, arXiv:1909.05858
purpose  generate text in the style of a control code
differs  control codes; sinusoidal positions, scaled embeddings, pre-norm, ReLU"""

from qkv.families.family import Family, head_classes
from qkv.families.gpt2 import CONFIG, gpt2

KEYS = """
    decoder.embedding.tokens                  transformer.w
    -                                         transformer.pos_encoding
    decoder.layers.{}.attention.(q|k|v|o)     transformer.h.{}.multi_head_attention.(Wq|Wk|Wv|dense)
    decoder.layers.{}.pre_attention_norm      transformer.h.{}.layernorm1
    decoder.layers.{}.pre_feed_forward_norm   transformer.h.{}.layernorm2
    decoder.layers.{}.feed_forward.(up|down)  transformer.h.{}.ffn.(0|2)
    decoder.final_norm                        transformer.layernorm
    heads.(lm|sequence_classification).out    (lm_head|classifier)
"""

FAMILY = Family(
    name="ctrl", doc=__doc__, shape="decoder", build_spec=gpt2, sizes={"base": {}},
    default_overrides=dict(
        vocab_size=246534, width=1280, depth=48, heads=16, ffn_width=8192, activation="relu",
        max_positions=256, norm_eps=1e-6, attention_dropout=0.0, layer_norm_eps=1e-6,
        sinusoidal=True, lm_bias=True, scale_residual_init=False, family="ctrl",
    ),
    config=CONFIG | dict(ffn_width="dff"),
    model_types=("ctrl",), heads=head_classes("CTRL", "none lm sequence-classification"),
    names_table=KEYS, prefixes=("transformer.",),
)  # fmt: skip
