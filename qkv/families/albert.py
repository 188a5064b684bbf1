"""ALBERT: BERT with a narrow embedding and layers that share their weights.

paper    Lan et al. 2019, arXiv:1909.11942
purpose  understand, with few parameters
differs  all layers share their weights; narrow embedding; sentence order"""

from qkv.families.bert import CONFIG, EMBED, bert, lm_bias
from qkv.families.family import Args, Family, classes

SIZES = {
    "base":    dict(width=768, heads=12, feed=3072),
    "large":   dict(width=1024, depth=24, heads=16, feed=4096),
    "xlarge":  dict(width=2048, depth=24, heads=16, feed=8192),
    "xxlarge": {},
}  # fmt: skip

KEYS = """
    encoder.embed.project                  albert.encoder.embedding_hidden_mapping_in
    heads.pooler.dense                     albert.pooler
    heads.lm.(dense|norm)                  predictions.(dense|LayerNorm)
    heads.lm.out.weight                    predictions.decoder.weight
    heads.pair.out                         sop_classifier.classifier
"""
LAYER = """
    encoder.layers.N.attend.(q|k|v|o)      albert.encoder.GROUP.attention.(query|key|value|dense)
    encoder.layers.N.after_(attend|feed)   albert.encoder.GROUP.(attention.LayerNorm|full_layer_layer_norm)
    encoder.layers.N.feed.(up|down)        albert.encoder.GROUP.(ffn|ffn_output)
"""


def keys(args: Args) -> str:
    """Their layers are counted within groups, ours through."""
    inner, table = args["inner"], EMBED.replace(" bert.", " albert.") + KEYS + lm_bias(args, "predictions")
    for n in range(args["groups"] * inner):
        group = f"albert_layer_groups.{n // inner}.albert_layers.{n % inner}"
        table += LAYER.replace(".N.", f".{n}.").replace("GROUP", group)
    return table


FAMILY = Family(
    name="albert", doc=__doc__, make=bert, sizes=SIZES, keys=keys, model_types=("albert",),
    prefixes=("albert.",),
    given=dict(
        vocab=30000, width=4096, heads=64, feed=16384, act="gelu_new", embed_width=128, groups=1, drop=0.0,
        attend_drop=0.0, label_drop=0.1, family="albert",
    ),
    config={k: v for k, v in CONFIG.items() if k not in ("decoder", "cross")} | dict(
        groups="num_hidden_groups", inner="inner_group_num", embed_width="embedding_size",
        label_drop="classifier_dropout_prob",
    ),
    heads=classes("Albert", "none masked-lm pretrain label choice tag span"),
    only={"position_embedding_type": ("absolute",)},
)  # fmt: skip
