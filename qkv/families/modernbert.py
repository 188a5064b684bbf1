"""ModernBERT: an encoder of local and global layers; proof that a family is one file.

paper    Warner et al. 2024, arXiv:2412.13663
purpose  understand long texts; here to show that a family is one file
differs  two layers see only their neighbours, every third sees all; rotary, gated feed"""

from dataclasses import replace
from typing import Any

from qkv.families.family import Args, Family, choice, classes, label, span, tag
from qkv.families.llama import rotary
from qkv.spec import Attend, Dense, Embed, Head, Layer, Local, Norm, Spec, Stack, everyone, per_head


def modernbert(
    vocab: int = 50368, width: int = 768, depth: int = 22, heads: int = 12, feed: int = 1152, act: str = "gelu",
    length: int = 8192, eps: float = 1e-5, norm_bias: bool = False, attend_bias: bool = False, feed_bias: bool = False,
    kinds: tuple[str, ...] | None = None, rope: dict[str, Any] | None = None, window: int = 128,
    embed_drop: float = 0.0, attend_drop: float = 0.0, feed_drop: float = 0.0, label_drop: float = 0.0,
    pooling: str = "cls", head_bias: bool = False, head_act: str = "gelu", lm_bias: bool = True,
    pad: int | None = 50283, std: float = 0.02, tied: bool = True, labels: int = 2, head: str = "none",
) -> Spec:  # fmt: skip
    norm = Norm(eps=eps, bias=norm_bias)
    turns = (rope or {}).get("full_attention") or {}, (rope or {}).get("sliding_attention") or {}
    wide = Attend(
        heads=heads, head_dim=per_head(width, heads), bias=attend_bias, drop=attend_drop, relate=rotary(turns[0], 160000.0)
    )
    near = replace(wide, pattern=Local(window // 2), relate=rotary(turns[1]))
    dense = Dense(width=feed, act=act, gated=True, bias=feed_bias, drop=feed_drop)
    layer = Layer(attend=wide, feed=dense, before=norm)
    kinds = kinds or tuple("sliding_attention" if i % 3 else "full_attention" for i in range(depth))
    if len(kinds) != depth or not {*kinds} <= {"sliding_attention", "full_attention"}:
        raise ValueError(f"layer_types {kinds}: expected {depth} of full_attention or sliding_attention")
    layers = [replace(layer, attend=wide if kind == "full_attention" else near) for kind in kinds]
    stack = Stack(
        width=width, embed=Embed(vocab=vocab, norm=norm, drop=embed_drop, pad=pad), final=norm,
        layers=(replace(layers[0], bare=True), *layers[1:]),
    )  # fmt: skip
    takes = {"cls": "first", "mean": "mean"}
    if pooling not in takes:
        raise ValueError(f"config.json: classifier_pooling is {pooling!r}, supported: 'cls' or 'mean'")
    inner: dict[str, Any] = dict(dense=width, dense_bias=head_bias, act=head_act, norm=norm, mid_drop=label_drop)
    lm = Head(name="lm", size=vocab, bias=lm_bias, tied="encoder" if tied else "", **inner | dict(mid_drop=0.0))
    found = {
        "none": (), "masked-lm": (lm,), "label": (label(labels, take=takes[pooling], **inner),),
        "tag": (tag(labels, **inner),), "span": (span(**inner),), "choice": (choice(take=takes[pooling], **inner),),
    }  # fmt: skip
    small = std / (2 * depth) ** 0.5
    init = (("*.o.weight", small), ("*.down.weight", small), ("heads.*", small), ("*", std))
    return Spec(family="modernbert", encoder=stack, heads=found[head], choices=head == "choice", init=init)


SIZES = {
    "base":  dict(),
    "large": dict(width=1024, depth=28, heads=16, feed=2624),
}  # fmt: skip

KEYS = """
    encoder.embed.(tokens|norm)                 model.embeddings.(tok_embeddings|norm)
    encoder.layers.{}.before_(attend|feed)      model.layers.{}.(attn|mlp)_norm
    encoder.layers.{}.attend.q,k,v              model.layers.{}.attn.Wqkv
    encoder.layers.{}.feed.gate,up              model.layers.{}.mlp.Wi
    encoder.layers.{}.(attend.o|feed.down)      model.layers.{}.(attn|mlp).Wo
    encoder.norm                                model.final_norm
    heads.(lm|label|tag|span|choice).dense      (head|head|head|head|head).dense
    heads.(lm|label|tag|span|choice).norm       (head|head|head|head|head).norm
    heads.(lm|label|tag|span|choice).out        (decoder|classifier|classifier|classifier|classifier)
"""


def older(config: Args) -> Args:
    """`global_attn_every_n_layers` became `layer_types`, and two thetas became `rope_parameters`."""
    every, depth = config.get("global_attn_every_n_layers", 3), config.get("num_hidden_layers", 22)
    kinds = ["sliding_attention" if i % every else "full_attention" for i in range(depth)]
    rope = {
        "full_attention": {"rope_theta": config.get("global_rope_theta", 160000.0)},
        "sliding_attention": {"rope_theta": config.get("local_rope_theta", 10000.0)},
    }
    return {"layer_types": kinds, "rope_parameters": rope} | config


FAMILY = Family(
    name="modernbert", doc=__doc__, make=modernbert, sizes=SIZES, keys=KEYS, model_types=("modernbert",), prefix="model.", older=older,
    config=dict(
        vocab="vocab_size", width="hidden_size", depth="num_hidden_layers", heads="num_attention_heads",
        feed="intermediate_size", act="hidden_activation", length="max_position_embeddings", eps="norm_eps",
        norm_bias="norm_bias", attend_bias="attention_bias", feed_bias="mlp_bias", kinds="layer_types",
        rope="rope_parameters", window="local_attention", embed_drop="embedding_dropout",
        attend_drop="attention_dropout", feed_drop="mlp_dropout", label_drop="classifier_dropout",
        pooling="classifier_pooling", head_bias="classifier_bias", head_act="classifier_activation",
        lm_bias="decoder_bias", pad="pad_token_id", std="initializer_range", tied="tie_word_embeddings",
    ),
    heads=classes("ModernBert", "none masked-lm label choice tag span"),
)  # fmt: skip
