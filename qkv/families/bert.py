"""BERT, and the one function that RoBERTa, ALBERT, DistilBERT and ELECTRA share with it.

paper    Devlin et al. 2018, arXiv:1810.04805
purpose  understand: classify, tag, answer
differs  masked words and next sentence; post-norm, learned positions, segment types"""

from dataclasses import replace

from qkv.families.family import Args, Family, choice, classes, label, span, summary, tag
from qkv.spec import Attend, Dense, Embed, Head, Layer, Learned, Norm, Spec, Stack, causal, everyone, per_head


def bert(
    vocab: int = 30522, width: int = 768, depth: int = 12, heads: int = 12, feed: int = 3072, act: str = "gelu",
    length: int = 512, types: int = 2, eps: float = 1e-12, drop: float = 0.1, attend_drop: float = 0.1,
    label_drop: float | None = None, pad: int | None = 0, std: float = 0.02, tied: bool = True,
    decoder: bool = False, cross: bool = False, labels: int = 2, head: str = "none", family: str = "bert",
    embed_width: int | None = None, groups: int | None = None, inner: int = 1, after_pad: bool = False,
    lm_act: str | None = None, read_act: str | None = None, span_drop: float = 0.0, summary_kind: str | None = None,
    summary_project: bool = True, summary_act: str | None = None, summary_drop: float = 0.0,
) -> Spec:  # fmt: skip
    """`groups` of `inner` layers share their weights over the depth; `read_act` is that of a first token's reader."""
    norm, last = Norm(eps=eps), drop if label_drop is None else label_drop
    pattern = causal if decoder else everyone
    attend = Attend(heads=heads, head_dim=per_head(width, heads), drop=attend_drop, pattern=pattern)
    layer = Layer(attend=attend, feed=Dense(width=feed, act=act), after=norm, drop=drop)
    if cross and decoder:
        layer = replace(layer, cross=replace(attend, pattern=everyone))
    order = [int(i / (depth / (groups or 1))) * inner + j for i in range(depth) for j in range(inner)]
    embed = Embed(
        vocab=vocab, types=types, norm=norm, drop=drop, pad=pad, width=None if embed_width == width and not groups else embed_width,
        positions=Learned(count=length, offset=(pad or 0) + 1 if after_pad else 0),
    )  # fmt: skip
    stack = Stack(
        width=width, embed=embed, layers=(layer,) * (groups * inner if groups else depth), order=tuple(order) if groups else None
    )  # fmt: skip
    pooler = Head(name="pooler", out=("pooled",), take="first", dense=width, act="tanh")
    lm = Head(
        name="lm", dense=embed_width or width, act=lm_act or act, norm=norm, size=vocab, tied="encoder" if tied else ""
    )  # fmt: skip
    pair = Head(name="pair", out=("pair",), take="pooled", size=labels if groups else 2, drop=last if groups else 0.0)
    reader = dict(take="first", dense=width, act=read_act, mid_drop=last, drop=0.0 if read_act == "relu" else last)
    pooled = (pooler, label(labels, last, take="pooled")), (pooler, choice(last, take="pooled"))
    read = (label(labels, **reader),), (choice(**reader),)
    if summary_kind:
        vector = summary(width, summary_kind, summary_project, summary_act, out=("summary",), mid_drop=summary_drop)
        pooled = read[0], (vector, choice(take="summary"))
    found = {
        "none": () if read_act and read_act != "tanh" else (pooler,), "lm": (lm,), "masked-lm": (lm,),
        "pretrain": (pooler, lm, pair), "pair": (pooler, pair), "label": read[0] if read_act else pooled[0],
        "choice": read[1] if read_act == "relu" else pooled[1], "tag": (tag(labels, drop if read_act == "relu" else last),), "span": (span(span_drop),),
        "replaced": (Head(name="replaced", dense=width, act=act, size=1, flat=True),),
    }  # fmt: skip
    return Spec(family=family, encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


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

EMBED = """
    encoder.embed.(tokens|positions|types)  bert.embeddings.(word|position|token_type)_embeddings
    encoder.embed.norm                      bert.embeddings.LayerNorm
    -                                       bert.embeddings.position_ids
    heads.(label|tag|choice|span).out       (classifier|classifier|classifier|qa_outputs)
"""
STACK = EMBED + """
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
KEYS = STACK + """
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
    name="bert", doc=__doc__, make=bert, sizes=SIZES, config=CONFIG, model_types=("bert",), prefix="bert.",
    keys=lambda args: KEYS + lm_bias(args, "cls.predictions"), only={"position_embedding_type": ("absolute",)},
    heads=classes("Bert", "none masked-lm lm pretrain pair label choice tag span"),
)  # fmt: skip
