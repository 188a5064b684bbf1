"""DistilBERT: half of BERT's layers, trained by distillation.

paper    Sanh et al. 2019, arXiv:1910.01108
purpose  understand text at half the cost
differs  half of BERT's layers, trained by distillation; no token types, no pooler"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.bert import bert, bert_with_heads, first_token_pooling
from qkv.families.family import COMMON_CONFIG, Family, common_heads, head_classes


def distilbert(qa_dropout: float = 0.1, **args: Any) -> s.Spec:
    """Return the spec: BERT without dropout after attention, and heads with a ReLU dense layer."""
    pooling = first_token_pooling(args, activation="relu", dropout=0.0)
    head_specs = common_heads(args["num_labels"], args["dropout"], pooling=pooling)
    question_answering = replace(head_specs["question-answering"][0], dropout=qa_dropout)
    head_specs["question-answering"] = (question_answering,)
    lm_heads = ("lm", "masked-lm")  # the same as in BERT
    spec = bert_with_heads({k: v for k, v in head_specs.items() if k not in lm_heads}, args)
    assert isinstance(spec.encoder, s.StackSpec)
    layers = tuple(replace(layer, attention_output_dropout=0.0) for layer in spec.encoder.layers)
    return replace(spec, encoder=replace(spec.encoder, layers=layers))


KEYS = """
    encoder.embedding.(tokens|positions)       distilbert.embeddings.(word|position)_embeddings
    encoder.embedding.norm                     distilbert.embeddings.LayerNorm
    -                                          distilbert.embeddings.position_ids
    encoder.layers.{}.attention.(q|k|v|o)      distilbert.transformer.layer.{}.attention.(q|k|v|out)_lin
    encoder.layers.{}.feed_forward.(up|down)   distilbert.transformer.layer.{}.ffn.(lin1|lin2)
    encoder.layers.{}.post_attention_norm      distilbert.transformer.layer.{}.sa_layer_norm
    encoder.layers.{}.post_feed_forward_norm   distilbert.transformer.layer.{}.output_layer_norm
    heads.lm.(dense|norm|out)                  vocab_(transform|layer_norm|projector)
    heads.sequence_classification.(dense|out)  (pre_classifier|classifier)
    heads.multiple_choice.(dense|out)          (pre_classifier|classifier)
    heads.token_classification.out             classifier
    heads.question_answering.out               qa_outputs
"""

HEADS = """
    none masked-lm sequence-classification multiple-choice token-classification question-answering
"""
FAMILY = Family(
    name="distilbert", doc=__doc__, build_spec=distilbert, base_function=bert, sizes={"base": {}},
    default_overrides=dict(depth=6, type_vocab_size=0, classifier_dropout=0.2, family="distilbert"),
    config=COMMON_CONFIG | dict(
        width="dim", depth="n_layers", heads="n_heads", ffn_width="hidden_dim",
        activation="activation", dropout="dropout", classifier_dropout="seq_classif_dropout",
        qa_dropout="qa_dropout",
    ),
    model_types=("distilbert",), heads=head_classes("DistilBert", HEADS),
    names_table=KEYS, prefixes=("distilbert.",),
)  # fmt: skip
