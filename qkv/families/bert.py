"""BERT, and the one function that RoBERTa, ALBERT, DistilBERT and ELECTRA share with it.

paper    Devlin et al. 2018, arXiv:1810.04805
purpose  understand: classify, tag, answer
differs  masked words and next sentence; post-norm, learned positions, segment types"""

from dataclasses import replace

from qkv import spec as s
from qkv.families.family import COMMON, Args, Family, classes, readers, summary


def bert(
    vocab: int = 30522, width: int = 768, depth: int = 12, heads: int = 12, feed: int = 3072,
    act: str = "gelu", length: int = 512, types: int = 2, eps: float = 1e-12, drop: float = 0.1,
    attend_drop: float = 0.1, label_drop: float | None = None, pad: int | None = 0, std: float = 0.02,
    tied: bool = True, decoder: bool = False, cross: bool = False, labels: int = 2, head: str = "none",
    family: str = "bert", embed_width: int | None = None, groups: int | None = None, inner: int = 1,
    after_pad: bool = False, lm_act: str | None = None, read_act: str | None = None, span_drop: float = 0.0,
    summary_kind: str | None = None, summary_project: bool = True, summary_act: str | None = None,
    summary_drop: float = 0.0, label_take: str | None = None,
) -> s.Spec:  # fmt: skip
    """`groups` of `inner` layers share their weights over the depth; `read_act`: the first token is read.

    `label_take`: a label is read off these states ("mean", in a model that was not pretrained), no pooler."""
    norm, pattern = s.Norm(eps=eps), s.causal if decoder else s.everyone
    last = drop if label_drop is None else label_drop
    attend = s.Attend(heads=heads, head_dim=s.per_head(width, heads), drop=attend_drop, pattern=pattern)
    layer = s.Layer(attend=attend, feed=s.Dense(width=feed, act=act), norm=norm, place="after", drop=drop)
    layer = replace(layer, attend_drop=0.0) if read_act == "relu" else layer
    if cross and decoder:
        layer = replace(layer, cross=replace(attend, pattern=s.everyone))
    places = s.Learned(count=length, offset=(pad or 0) + 1 if after_pad else 0)
    narrow = embed_width if groups or embed_width != width else None
    embed = s.Embed(vocab=vocab, types=types, norm=norm, drop=drop, pad=pad, width=narrow, positions=places)
    stack = s.Stack(width=width, embed=embed, layers=(layer,) * depth)
    if groups:
        order = [int(i / (depth / groups)) * inner + j for i in range(depth) for j in range(inner)]
        stack = replace(stack, layers=(layer,) * (groups * inner), order=tuple(order))
    lm = s.Head(name="lm", dense=embed_width or width, act=lm_act or act, norm=norm, size=vocab, tied=tied)
    pooler = s.Head(name="pooler", out=("pooled",), take="first", dense=width, act="tanh")
    kinds, gap = (labels, last) if groups else (2, 0.0)
    pair = s.Head(name="pair", out=("pair",), take="pooled", size=kinds, drop=gap)
    pooled = readers(labels, drop if read_act else last, lm, vector=dict(take="pooled"))
    gap, other = (0.0, drop) if read_act == "relu" else (last, last)
    first = dict(take="first", dense=width, act=read_act, mid_drop=last, drop=gap)
    read = readers(labels, other, lm, vector=first) if read_act else pooled
    plain = readers(labels, last, vector=dict(take=label_take))["label"] if label_take else None
    choice = read["choice"] if read_act == "relu" else (pooler, *pooled["choice"])
    if summary_kind:
        how = summary_kind, summary_project, summary_act
        vector = summary(width, *how, out=("summary",), mid_drop=summary_drop)
        choice = vector, *readers(labels, 0.0, vector=dict(take="summary"))["choice"]
    found = read | {
        "none": (pooler,) if read_act in (None, "tanh") else (), "pretrain": (pooler, lm, pair),
        "pair": (pooler, pair), "label": plain or (read["label"] if read_act else (pooler, *pooled["label"])),
        "choice": choice, "span": (replace(read["span"][0], drop=span_drop),),
        "replaced": (s.Head(name="replaced", dense=width, act=act, size=1, flat=True),),
    }  # fmt: skip
    return s.Spec(family=family, encoder=stack, heads=found[head], init=(("*", std),))


SIZES = {
    "tiny":   dict(width=128, depth=2, heads=2, feed=512),
    "mini":   dict(width=256, depth=4, heads=4, feed=1024),
    "small":  dict(width=512, depth=4, heads=8, feed=2048),
    "medium": dict(width=512, depth=8, heads=8, feed=2048),
    "base":   {},
    "large":  dict(width=1024, depth=24, heads=16, feed=4096),
}  # fmt: skip

CONFIG = COMMON | dict(
    types="type_vocab_size", eps="layer_norm_eps", drop="hidden_dropout_prob", decoder="is_decoder",
    attend_drop="attention_probs_dropout_prob", label_drop="classifier_dropout", cross="add_cross_attention",
)  # fmt: skip

EMBED = """
    encoder.embed.(tokens|positions|types)  bert.embeddings.(word|position|token_type)_embeddings
    encoder.embed.norm                      bert.embeddings.LayerNorm
    -                                       bert.embeddings.position_ids
    heads.(label|tag|choice|span).out       (classifier|classifier|classifier|qa_outputs)
"""
STACK = """
    encoder.layers.{}.attend.(q|k|v)        bert.encoder.layer.{}.attention.self.(query|key|value)
    encoder.layers.{}.attend.o              bert.encoder.layer.{}.attention.output.dense
    encoder.layers.{}.after_attend          bert.encoder.layer.{}.attention.output.LayerNorm
    encoder.layers.{}.cross.(q|k|v)         bert.encoder.layer.{}.crossattention.self.(query|key|value)
    encoder.layers.{}.cross.o               bert.encoder.layer.{}.crossattention.output.dense
    encoder.layers.{}.after_cross           bert.encoder.layer.{}.crossattention.output.LayerNorm
    encoder.layers.{}.feed.(up|down)        bert.encoder.layer.{}.(intermediate|output).dense
    encoder.layers.{}.after_feed            bert.encoder.layer.{}.output.LayerNorm
    -                                       bert.embeddings.token_type_ids
    heads.pooler.dense                      bert.pooler.dense
"""
KEYS = """
    heads.lm.(dense|norm)                   cls.predictions.transform.(dense|LayerNorm)
    heads.lm.out.weight                     cls.predictions.decoder.weight
    heads.pair.out                          cls.seq_relationship
"""


def lm_bias(args: Args, theirs: str) -> str:
    """Tied, the bias lies beside the decoder; untied, that one is written but never read."""
    used, unused = ("", ".decoder") if args["tied"] else (".decoder", "")
    word = "alias" if args["tied"] else "copy"
    return f"heads.lm.out.bias {theirs}{used}.bias\nheads.lm.out.bias {theirs}{unused}.bias {word}\n"


FAMILY = Family(
    name="bert", doc=__doc__, make=bert, sizes=SIZES, config=CONFIG, model_types=("bert",),
    prefixes=("bert.",), keys=lambda args: EMBED + STACK + KEYS + lm_bias(args, "cls.predictions"),
    only={"position_embedding_type": ("absolute",)},
    heads=classes("Bert", "none masked-lm lm pretrain pair label choice tag span"),
)  # fmt: skip
