"""ALBERT: BERT with a narrow embedding and layers that share their weights.

paper    Lan et al. 2019, arXiv:1909.11942
purpose  understand text with few parameters
differs  layers share their weights; token embeddings narrower than layers; sentence order prediction"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.bert import (
    CONFIG,
    EMBEDDING_KEYS,
    HEAD_KEYS,
    bert,
    bert_with_heads,
    get_classifier_dropout,
    lm_bias_rows,
    pooler_head,
)
from qkv.families.family import Args, Family, head_classes


def albert(num_groups: int = 1, inner_group_num: int = 1, **args: Any) -> s.Spec:
    """Return the spec; layers are in `num_groups` groups, and each depth runs `inner_group_num` layers."""
    (lm,) = bert(**args | {"head": "lm"}).heads
    sentence_order = s.HeadSpec(
        name="next_sentence_prediction",
        outputs=("seq_relationship_logits",),
        pooling="pooler_output",
        out_features=args["num_labels"],
        dropout=get_classifier_dropout(args),
    )
    spec = bert_with_heads({"pretraining": (pooler_head(args["width"]), lm, sentence_order)}, args)
    depth = args["depth"]
    layer_order = [
        int(i / (depth / num_groups)) * inner_group_num + j
        for i in range(depth)
        for j in range(inner_group_num)
    ]
    assert isinstance(spec.encoder, s.StackSpec)
    encoder = replace(
        spec.encoder,
        embedding=replace(spec.encoder.embedding, width=args["embedding_width"]),
        layers=(spec.encoder.layers[0],) * (num_groups * inner_group_num),
        layer_order=tuple(layer_order),
    )
    return replace(spec, encoder=encoder)


SIZES = {
    "base":    dict(width=768, heads=12, ffn_width=3072),
    "large":   dict(width=1024, depth=24, heads=16, ffn_width=4096),
    "xlarge":  dict(width=2048, depth=24, heads=16, ffn_width=8192),
    "xxlarge": {},
}  # fmt: skip

KEYS = """
    encoder.embedding.projection        albert.encoder.embedding_hidden_mapping_in
    heads.pooler.dense                  albert.pooler
    heads.lm.(dense|norm)               predictions.(dense|LayerNorm)
    heads.lm.out.weight                 predictions.decoder.weight
    heads.next_sentence_prediction.out  sop_classifier.classifier
"""
LAYER_KEYS = """
    encoder.layers.N.attention.(q|k|v|o)     albert.encoder.GROUP.attention.(query|key|value|dense)
    encoder.layers.N.post_attention_norm     albert.encoder.GROUP.attention.LayerNorm
    encoder.layers.N.post_feed_forward_norm  albert.encoder.GROUP.full_layer_layer_norm
    encoder.layers.N.feed_forward.(up|down)  albert.encoder.GROUP.(ffn|ffn_output)
"""


def names_table(args: Args) -> str:
    """Return the names table; Hugging Face numbers layers within each group, qkv over all groups."""
    inner = args["inner_group_num"]
    table = EMBEDDING_KEYS.replace(" bert.", " albert.") + HEAD_KEYS + KEYS
    table += lm_bias_rows(args, "predictions")
    for n in range(args["num_groups"] * inner):
        group = f"albert_layer_groups.{n // inner}.albert_layers.{n % inner}"
        table += LAYER_KEYS.replace(".N.", f".{n}.").replace("GROUP", group)
    return table


DECODER_ARGUMENTS = ("is_decoder", "add_cross_attention")
ALBERT_CONFIG = {k: v for k, v in CONFIG.items() if k not in DECODER_ARGUMENTS} | dict(
    num_groups="num_hidden_groups", inner_group_num="inner_group_num",
    embedding_width="embedding_size", classifier_dropout="classifier_dropout_prob",
)  # fmt: skip
HEADS = """
    none masked-lm pretraining sequence-classification multiple-choice token-classification
    question-answering
"""
FAMILY = Family(
    name="albert", doc=__doc__, build_spec=albert, base_function=bert, sizes=SIZES,
    default_overrides=dict(
        vocab_size=30000, width=4096, heads=64, ffn_width=16384, activation="gelu_new",
        embedding_width=128, dropout=0.0, attention_dropout=0.0, classifier_dropout=0.1,
        family="albert",
    ),
    config=ALBERT_CONFIG, supported_values={"position_embedding_type": ("absolute",)},
    model_types=("albert",), heads=head_classes("Albert", HEADS),
    names_table=names_table, prefixes=("albert.",),
)  # fmt: skip
