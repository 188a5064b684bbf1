"""BERT (Devlin et al. 2018): a bidirectional encoder; its stack is also RoBERTa's, ELECTRA's and ALBERT's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.families.family import Args, Family, choice, label, span, tag
from qkv.spec import Attend, Dense, Embed, Head, Layer, Learned, Norm, Spec, Stack, causal, everyone, per_head


def bert_stack(
    *, vocab: int, width: int, depth: int, heads: int, feed: int, act: str, length: int, types: int, eps: float,
    drop: float, attend_drop: float, pad: int | None, decoder: bool = False, cross: bool = False,
    offset: int = 0, embed_width: int | None = None,
) -> Stack:  # fmt: skip
    """Post-norm blocks over tokens + positions + types."""
    norm = Norm(eps=eps)
    attend = Attend(
        heads=heads, head_dim=per_head(width, heads), drop=attend_drop, pattern=causal if decoder else everyone
    )
    layer = Layer(attend=attend, feed=Dense(width=feed, act=act), after=norm, drop=drop)
    if cross and decoder:
        layer = replace(layer, cross=replace(attend, pattern=everyone))
    table = Learned(count=length, offset=offset)
    embed = Embed(vocab=vocab, width=embed_width, positions=table, types=types, norm=norm, drop=drop, pad=pad)
    return Stack(width=width, embed=embed, layers=(layer,) * depth)


def bert(
    vocab: int = 30522, width: int = 768, depth: int = 12, heads: int = 12, feed: int = 3072, act: str = "gelu",
    length: int = 512, types: int = 2, eps: float = 1e-12, drop: float = 0.1, attend_drop: float = 0.1,
    label_drop: float | None = None, pad: int | None = 0, std: float = 0.02, tied: bool = True,
    decoder: bool = False, cross: bool = False, labels: int = 2, head: str = "none",
) -> Spec:  # fmt: skip
    stack = bert_stack(
        vocab=vocab, width=width, depth=depth, heads=heads, feed=feed, act=act, length=length, types=types,
        eps=eps, drop=drop, attend_drop=attend_drop, pad=pad, decoder=decoder, cross=cross,
    )  # fmt: skip
    last = drop if label_drop is None else label_drop
    pooler = Head(name="pooler", out=("pooled",), take="first", dense=width, act="tanh")
    lm = Head(
        name="lm", dense=width, act=act, norm=Norm(eps=eps), size=vocab, tied="encoder" if tied else ""
    )
    pair = Head(name="pair", out=("pair",), take="pooled", size=2)
    found: dict[str, tuple[Any, ...]] = {
        "none": (pooler,), "lm": (lm,), "masked-lm": (lm,), "pretrain": (pooler, lm, pair), "pair": (pooler, pair),
        "label": (pooler, label(labels, last, take="pooled")), "choice": (pooler, choice(last, take="pooled")),
        "tag": (tag(labels, last),), "span": (span(),),
    }  # fmt: skip
    return Spec(family="bert", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


SIZES = {
    "tiny":   dict(width=128, depth=2, heads=2, feed=512),
    "mini":   dict(width=256, depth=4, heads=4, feed=1024),
    "small":  dict(width=512, depth=4, heads=8, feed=2048),
    "medium": dict(width=512, depth=8, heads=8, feed=2048),
    "base":   dict(),
    "large":  dict(width=1024, depth=24, heads=16, feed=4096),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads",
    feed="intermediate_size", act="hidden_act", length="max_position_embeddings", types="type_vocab_size",
    eps="layer_norm_eps", drop="hidden_dropout_prob", attend_drop="attention_probs_dropout_prob",
    label_drop="classifier_dropout", pad="pad_token_id", std="initializer_range", tied="tie_word_embeddings",
    decoder="is_decoder", cross="add_cross_attention",
)  # fmt: skip

STACK = """
    encoder.embed.tokens                 bert.embeddings.word_embeddings
    encoder.embed.positions              bert.embeddings.position_embeddings
    encoder.embed.types                  bert.embeddings.token_type_embeddings
    encoder.embed.norm                   bert.embeddings.LayerNorm
    -                                    bert.embeddings.position_ids
    -                                    bert.embeddings.token_type_ids
    encoder.layers.{}.attend.q           bert.encoder.layer.{}.attention.self.query
    encoder.layers.{}.attend.k           bert.encoder.layer.{}.attention.self.key
    encoder.layers.{}.attend.v           bert.encoder.layer.{}.attention.self.value
    encoder.layers.{}.attend.o           bert.encoder.layer.{}.attention.output.dense
    encoder.layers.{}.after_attend       bert.encoder.layer.{}.attention.output.LayerNorm
    encoder.layers.{}.cross.q            bert.encoder.layer.{}.crossattention.self.query
    encoder.layers.{}.cross.k            bert.encoder.layer.{}.crossattention.self.key
    encoder.layers.{}.cross.v            bert.encoder.layer.{}.crossattention.self.value
    encoder.layers.{}.cross.o            bert.encoder.layer.{}.crossattention.output.dense
    encoder.layers.{}.after_cross        bert.encoder.layer.{}.crossattention.output.LayerNorm
    encoder.layers.{}.feed.up            bert.encoder.layer.{}.intermediate.dense
    encoder.layers.{}.feed.down          bert.encoder.layer.{}.output.dense
    encoder.layers.{}.after_feed         bert.encoder.layer.{}.output.LayerNorm
    heads.pooler.dense                   bert.pooler.dense
    heads.label.out                      classifier
    heads.tag.out                        classifier
    heads.choice.out                     classifier
    heads.span.out                       qa_outputs
"""
KEYS = """
    heads.lm.dense                       cls.predictions.transform.dense
    heads.lm.norm                        cls.predictions.transform.LayerNorm
    heads.lm.out.weight                  cls.predictions.decoder.weight
    heads.pair.out                       cls.seq_relationship
"""


def lm_bias(args: Args, theirs: str) -> str:
    """Tied, the bias lies beside the decoder; untied, the one beside it is written but never read."""
    if args["tied"]:
        return f"heads.lm.out.bias {theirs}.bias\nheads.lm.out.bias {theirs}.decoder.bias alias\n"
    return f"heads.lm.out.bias {theirs}.decoder.bias\nheads.lm.out.bias {theirs}.bias copy\n"


FAMILY = Family(
    name="bert", make=bert, sizes=SIZES, config=CONFIG, model_types=("bert",), prefix="bert.",
    keys=lambda args: STACK + KEYS + lm_bias(args, "cls.predictions"),
    heads={
        "none": "BertModel", "masked-lm": "BertForMaskedLM", "lm": "BertLMHeadModel", "pretrain": "BertForPreTraining",
        "pair": "BertForNextSentencePrediction", "label": "BertForSequenceClassification",
        "choice": "BertForMultipleChoice", "tag": "BertForTokenClassification", "span": "BertForQuestionAnswering",
    },
    only={"position_embedding_type": ("absolute",)},
    paper="Devlin et al. 2018, arXiv:1810.04805", purpose="understand: classify, tag, answer",
    differs="masked words and next sentence; post-norm, learned positions, segment types",
)  # fmt: skip
