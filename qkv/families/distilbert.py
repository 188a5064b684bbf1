"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no types, taught by BERT."""

from __future__ import annotations

from typing import Any

from qkv.families.bert import bert_stack
from qkv.families.family import Family, choice, label, span, tag
from qkv.spec import Head, Norm, Spec


def distilbert(
    vocab: int = 30522, width: int = 768, depth: int = 6, heads: int = 12, feed: int = 3072, act: str = "gelu",
    length: int = 512, drop: float = 0.1, attend_drop: float = 0.1, label_drop: float = 0.2, span_drop: float = 0.1,
    pad: int | None = 0, std: float = 0.02, tied: bool = True, labels: int = 2, head: str = "none",
) -> Spec:  # fmt: skip
    stack = bert_stack(
        vocab=vocab, width=width, depth=depth, heads=heads, feed=feed, act=act, length=length, types=0, eps=1e-12,
        drop=drop, attend_drop=attend_drop, pad=pad,
    )  # fmt: skip
    lm = Head(name="lm", dense=width, act=act, norm=Norm(eps=1e-12), size=vocab, tied="encoder" if tied else "")
    first: dict[str, Any] = dict(take="first", dense=width, act="relu", mid_drop=label_drop)
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "masked-lm": (lm,), "label": (label(labels, **first),), "choice": (choice(**first),),
        "tag": (tag(labels, drop),), "span": (span(span_drop),),
    }  # fmt: skip
    return Spec(family="distilbert", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


KEYS = """
    encoder.embed.tokens             distilbert.embeddings.word_embeddings
    encoder.embed.positions          distilbert.embeddings.position_embeddings
    encoder.embed.norm               distilbert.embeddings.LayerNorm
    -                                distilbert.embeddings.position_ids
    encoder.layers.{}.attend.q       distilbert.transformer.layer.{}.attention.q_lin
    encoder.layers.{}.attend.k       distilbert.transformer.layer.{}.attention.k_lin
    encoder.layers.{}.attend.v       distilbert.transformer.layer.{}.attention.v_lin
    encoder.layers.{}.attend.o       distilbert.transformer.layer.{}.attention.out_lin
    encoder.layers.{}.after_attend   distilbert.transformer.layer.{}.sa_layer_norm
    encoder.layers.{}.feed.up        distilbert.transformer.layer.{}.ffn.lin1
    encoder.layers.{}.feed.down      distilbert.transformer.layer.{}.ffn.lin2
    encoder.layers.{}.after_feed     distilbert.transformer.layer.{}.output_layer_norm
    heads.lm.dense                   vocab_transform
    heads.lm.norm                    vocab_layer_norm
    heads.lm.out                     vocab_projector
    heads.label.dense                pre_classifier
    heads.label.out                  classifier
    heads.choice.dense               pre_classifier
    heads.choice.out                 classifier
    heads.tag.out                    classifier
    heads.span.out                   qa_outputs
"""

FAMILY = Family(
    name="distilbert", make=distilbert, sizes={"base": {}}, keys=KEYS, model_types=("distilbert",),
    prefix="distilbert.",
    config=dict(
        vocab="vocab_size", width="dim", depth="n_layers", heads="n_heads", feed="hidden_dim", act="activation",
        length="max_position_embeddings", drop="dropout", attend_drop="attention_dropout",
        label_drop="seq_classif_dropout", span_drop="qa_dropout", pad="pad_token_id", std="initializer_range",
        tied="tie_word_embeddings",
    ),
    heads={
        "none": "DistilBertModel", "masked-lm": "DistilBertForMaskedLM",
        "label": "DistilBertForSequenceClassification", "choice": "DistilBertForMultipleChoice",
        "tag": "DistilBertForTokenClassification", "span": "DistilBertForQuestionAnswering",
    },
    paper="Sanh et al. 2019, arXiv:1910.01108", purpose="understand, at half the cost",
    differs="half of BERT's layers, distilled; no segment types, no pooler",
)  # fmt: skip
