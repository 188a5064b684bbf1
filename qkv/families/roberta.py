"""RoBERTa: BERT trained longer, with positions that start after the pad id.

paper    Liu et al. 2019, arXiv:1907.11692
purpose  understand text: classify, tag, answer questions
differs  no next sentence prediction, more training text; positions start after the pad id"""

from typing import Any

from qkv import spec as s
from qkv.families.bert import (
    CONFIG,
    EMBEDDING_KEYS,
    LAYER_KEYS,
    bert,
    bert_with_heads,
    first_token_pooling,
    get_classifier_dropout,
    lm_bias_rows,
    pooler_head,
)
from qkv.families.family import Args, Family, common_heads, head_classes


def roberta(**args: Any) -> s.Spec:
    """Return the spec: BERT with a dense layer instead of the pooler for sequence classification."""
    dropout = get_classifier_dropout(args)
    pooling = first_token_pooling(args, activation="tanh", dropout=dropout)
    classifier = common_heads(args["num_labels"], dropout, pooling=pooling)[
        "sequence-classification"
    ]
    pooled_heads = common_heads(
        args["num_labels"], args["dropout"], pooling=dict(pooling="pooler_output")
    )
    head_specs = {
        "sequence-classification": classifier,
        "multiple-choice": (pooler_head(args["width"]), *pooled_heads["multiple-choice"]),
    }
    return bert_with_heads(head_specs, args)


SIZES = {
    "base":  dict(max_positions=514, type_vocab_size=1, norm_eps=1e-5),
    "large": dict(
        max_positions=514, type_vocab_size=1, norm_eps=1e-5,
        width=1024, depth=24, heads=16, ffn_width=4096,
    ),
}  # fmt: skip

KEYS = """
    heads.sequence_classification.(dense|out)  classifier.(dense|out_proj)
    heads.token_classification.out             classifier
    heads.multiple_choice.out                  classifier
    heads.question_answering.out               qa_outputs
    heads.lm.(dense|norm)                      lm_head.(dense|layer_norm)
    heads.lm.out.weight                        lm_head.decoder.weight
    heads.lm.out.weight                        lm_head.weight  alias
"""

FAIRSEQ = """
    encoder.embedding.(tokens|positions)      encoder.sentence_encoder.embed_(tokens|positions)
    encoder.embedding.norm                    encoder.sentence_encoder.emb_layer_norm
    encoder.layers.{}.attention.(q|k|v|o)     encoder.sentence_encoder.layers.{}.self_attn.(q|k|v|out)_proj
    encoder.layers.{}.feed_forward.(up|down)  encoder.sentence_encoder.layers.{}.(fc1|fc2)
    encoder.layers.{}.post_attention_norm     encoder.sentence_encoder.layers.{}.self_attn_layer_norm
    encoder.layers.{}.post_feed_forward_norm  encoder.sentence_encoder.layers.{}.final_layer_norm
    heads.lm.(dense|norm)                     encoder.lm_head.(dense|layer_norm)
    heads.lm.out                              encoder.lm_head
"""


def names_table(args: Args) -> str:
    bert_rows = (EMBEDDING_KEYS + LAYER_KEYS).replace(" bert.", " roberta.")
    return bert_rows + KEYS + lm_bias_rows(args, "lm_head")


HEADS = """
    none masked-lm lm sequence-classification multiple-choice token-classification
    question-answering
"""
FAMILY = Family(
    name="roberta", doc=__doc__, build_spec=roberta, base_function=bert, sizes=SIZES,
    default_overrides=dict(
        vocab_size=50265, pad_token_id=1, positions_after_pad=True, lm_activation="gelu",
        family="roberta",
    ),
    config=CONFIG, supported_values={"position_embedding_type": ("absolute",)},
    model_types=("roberta", "xlm-roberta", "camembert"),
    heads=head_classes("Roberta XLMRoberta Camembert", HEADS, lm="ForCausalLM"),
    names_table=names_table, prefixes=("roberta.",),
)  # fmt: skip
