"""ELECTRA: a discriminator that detects the tokens that a small generator replaced.

paper    Clark et al. 2020, arXiv:2003.10555
purpose  understand text with little training compute
differs  replaced token detection: the loss is on every token, not on the masked ones alone"""

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
)
from qkv.families.family import Args, Family, common_heads, head_classes, summary_head


def electra(
    summary_type: str = "first", summary_use_proj: bool = True,
    summary_activation: str | None = "gelu", summary_dropout: float = 0.1, **args: Any,
) -> s.Spec:  # fmt: skip
    width = args["width"]
    dropout = get_classifier_dropout(args)
    pooling = first_token_pooling(args, activation="gelu", dropout=dropout)
    classifier = common_heads(args["num_labels"], dropout, pooling=pooling)[
        "sequence-classification"
    ]
    detector = s.HeadSpec(
        name="replaced_token_detection",
        dense_width=width,
        activation=args["activation"],
        out_features=1,
        squeeze=True,
    )
    summary = summary_head(
        width,
        summary_type,
        summary_use_proj,
        summary_activation,
        outputs=("summary",),
        classifier_dropout=summary_dropout,
    )
    choice = common_heads(args["num_labels"], 0.0, pooling=dict(pooling="summary"))[
        "multiple-choice"
    ]
    head_specs = {
        "none": (),
        "replaced-token-detection": (detector,),
        "sequence-classification": classifier,
        "multiple-choice": (summary, *choice),
    }
    return bert_with_heads(head_specs, args)


SIZES: dict[str, Args] = {
    "small":           {},
    "base":            dict(width=768, heads=12, ffn_width=3072, embedding_width=768),
    "large":           dict(width=1024, depth=24, heads=16, ffn_width=4096, embedding_width=1024),
    "small-generator": dict(head="masked-lm"),
    "base-generator":  dict(embedding_width=768, head="masked-lm"),
    "large-generator": dict(depth=24, embedding_width=1024, head="masked-lm"),
}  # fmt: skip

KEYS = """
    heads.sequence_classification.(dense|out)  classifier.(dense|out_proj)
    heads.token_classification.out             classifier
    heads.multiple_choice.out                  classifier
    heads.question_answering.out               qa_outputs
    heads.replaced_token_detection.dense       discriminator_predictions.dense
    heads.replaced_token_detection.out         discriminator_predictions.dense_prediction
    heads.lm.(dense|norm)                      generator_predictions.(dense|LayerNorm)
    heads.lm.out                               generator_lm_head
    heads.summary.dense                        sequence_summary.summary
"""


def names_table(args: Args) -> str:
    """Return the names table; some checkpoints have a projection between equal widths, which no class
    uses."""
    projection = "-" if args["embedding_width"] == args["width"] else "encoder.embedding.projection"
    table = (EMBEDDING_KEYS + LAYER_KEYS).replace(" bert.", " electra.") + KEYS
    return f"{table}{projection} electra.embeddings_project\n"


HEADS = """
    none replaced-token-detection masked-lm lm sequence-classification multiple-choice
    token-classification question-answering
"""
CLASSES = {"lm": "ForCausalLM", "replaced-token-detection": "ForPreTraining"}
FAMILY = Family(
    name="electra", doc=__doc__, build_spec=electra, base_function=bert, sizes=SIZES,
    default_overrides=dict(
        width=256, heads=4, ffn_width=1024, embedding_width=128, lm_activation="gelu",
        head="replaced-token-detection", family="electra",
    ),
    config=CONFIG | dict(
        embedding_width="embedding_size", summary_type="summary_type",
        summary_use_proj="summary_use_proj", summary_activation="summary_activation",
        summary_dropout="summary_last_dropout",
    ),
    supported_values={"summary_proj_to_labels": (False,), "position_embedding_type": ("absolute",)},
    model_types=("electra",), heads=head_classes("Electra", HEADS, **CLASSES),
    names_table=names_table,
    prefixes=("electra.",),
)  # fmt: skip
