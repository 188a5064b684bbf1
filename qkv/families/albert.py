"""ALBERT (Lan et al. 2019): BERT with a narrow embedding and layers that share their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.families.bert import CONFIG, bert_stack, lm_bias
from qkv.families.family import Args, Family, choice, label, span, tag
from qkv.spec import Head, Norm, Spec, positive


def albert(
    vocab: int = 30000, width: int = 4096, depth: int = 12, heads: int = 64, feed: int = 16384, groups: int = 1,
    inner: int = 1, embed_width: int = 128, act: str = "gelu_new", length: int = 512, types: int = 2,
    eps: float = 1e-12, drop: float = 0.0, attend_drop: float = 0.0, label_drop: float = 0.1, pad: int | None = 0,
    std: float = 0.02, tied: bool = True, labels: int = 2, head: str = "none",
) -> Spec:  # fmt: skip
    positive(depth=depth, groups=groups, inner=inner)
    stack = bert_stack(
        vocab=vocab, width=width, depth=groups * inner, heads=heads, feed=feed, act=act, length=length, types=types,
        eps=eps, drop=drop, attend_drop=attend_drop, pad=pad, embed_width=embed_width,
    )  # fmt: skip
    order = tuple(int(i / (depth / groups)) * inner + j for i in range(depth) for j in range(inner))
    pooler = Head(name="pooler", out=("pooled",), take="first", dense=width, act="tanh")
    lm = Head(
        name="lm", dense=embed_width, act=act, norm=Norm(eps=eps), size=vocab, tied="encoder" if tied else ""
    )
    pair = Head(name="pair", out=("pair",), take="pooled", size=labels, drop=label_drop)
    found: dict[str, tuple[Any, ...]] = {
        "none": (pooler,), "masked-lm": (lm,), "pretrain": (pooler, lm, pair), "tag": (tag(labels, label_drop),),
        "label": (pooler, label(labels, label_drop, take="pooled")), "span": (span(),),
        "choice": (pooler, choice(label_drop, take="pooled")),
    }  # fmt: skip
    return Spec(
        family="albert", encoder=replace(stack, order=order), heads=found[head], choices=head == "choice",
        init=(("*", std),),
    )  # fmt: skip


SIZES = {
    "base":    dict(width=768, heads=12, feed=3072),
    "large":   dict(width=1024, depth=24, heads=16, feed=4096),
    "xlarge":  dict(width=2048, depth=24, heads=16, feed=8192),
    "xxlarge": dict(),
}  # fmt: skip

LAYER = """
    encoder.layers.N.attend.q        albert.encoder.albert_layer_groups.G.albert_layers.I.attention.query
    encoder.layers.N.attend.k        albert.encoder.albert_layer_groups.G.albert_layers.I.attention.key
    encoder.layers.N.attend.v        albert.encoder.albert_layer_groups.G.albert_layers.I.attention.value
    encoder.layers.N.attend.o        albert.encoder.albert_layer_groups.G.albert_layers.I.attention.dense
    encoder.layers.N.after_attend    albert.encoder.albert_layer_groups.G.albert_layers.I.attention.LayerNorm
    encoder.layers.N.feed.up         albert.encoder.albert_layer_groups.G.albert_layers.I.ffn
    encoder.layers.N.feed.down       albert.encoder.albert_layer_groups.G.albert_layers.I.ffn_output
    encoder.layers.N.after_feed      albert.encoder.albert_layer_groups.G.albert_layers.I.full_layer_layer_norm
"""
KEYS = """
    encoder.embed.tokens             albert.embeddings.word_embeddings
    encoder.embed.positions          albert.embeddings.position_embeddings
    encoder.embed.types              albert.embeddings.token_type_embeddings
    encoder.embed.norm               albert.embeddings.LayerNorm
    -                                albert.embeddings.position_ids
    encoder.embed.project            albert.encoder.embedding_hidden_mapping_in
    heads.pooler.dense               albert.pooler
    heads.lm.dense                   predictions.dense
    heads.lm.norm                    predictions.LayerNorm
    heads.lm.out.weight              predictions.decoder.weight
    heads.pair.out                   sop_classifier.classifier
    heads.label.out                  classifier
    heads.tag.out                    classifier
    heads.choice.out                 classifier
    heads.span.out                   qa_outputs
"""


def keys(args: Args) -> str:
    """A group of layers, and the layers within: counted on in ours."""
    inner = args["inner"]
    stored = [(g * inner + i, g, i) for g in range(args["groups"]) for i in range(inner)]
    layers = [LAYER.replace(".N.", f".{n}.").replace(".G.", f".{g}.").replace(".I.", f".{i}.") for n, g, i in stored]
    return KEYS + "".join(layers) + lm_bias(args, "predictions")


FAMILY = Family(
    name="albert", make=albert, sizes=SIZES, keys=keys, model_types=("albert",), prefix="albert.",
    config={k: v for k, v in CONFIG.items() if k not in ("decoder", "cross")} | dict(
        groups="num_hidden_groups", inner="inner_group_num", embed_width="embedding_size",
        label_drop="classifier_dropout_prob",
    ),
    heads={
        "none": "AlbertModel", "masked-lm": "AlbertForMaskedLM", "pretrain": "AlbertForPreTraining",
        "label": "AlbertForSequenceClassification", "choice": "AlbertForMultipleChoice",
        "tag": "AlbertForTokenClassification", "span": "AlbertForQuestionAnswering",
    },
    only={"position_embedding_type": ("absolute",)},
    paper="Lan et al. 2019, arXiv:1909.11942", purpose="understand, with few parameters",
    differs="all layers share their weights; narrow embedding; sentence order",
)  # fmt: skip
