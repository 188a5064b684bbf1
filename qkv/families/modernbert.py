"""ModernBERT: an encoder of local and global layers; proof that a family is one file.

paper    Warner et al. 2024, arXiv:2412.13663
purpose  understand long texts; here to show that a family is one file
differs  two layers see only their neighbours, every third sees all; rotary, gated feed"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON, Args, Family, classes, one_of, readers
from qkv.families.llama import rotary


def modernbert(
    vocab: int = 50368, width: int = 768, depth: int = 22, heads: int = 12, feed: int = 1152,
    act: str = "gelu", length: int = 8192, eps: float = 1e-5, norm_bias: bool = False,
    attend_bias: bool = False, feed_bias: bool = False, kinds: tuple[str, ...] | None = None, every: int = 3,
    rope: dict[str, Any] | None = None, window: int = 128, embed_drop: float = 0.0, attend_drop: float = 0.0,
    feed_drop: float = 0.0, label_drop: float = 0.0, pooling: str = "cls", head_bias: bool = False,
    head_act: str = "gelu", lm_bias: bool = True, pad: int | None = 50283, std: float = 0.02,
    tied: bool = True, labels: int = 2, head: str = "none",
) -> s.Spec:  # fmt: skip
    norm = s.Norm(eps=eps, bias=norm_bias)
    size, turns = s.per_head(width, heads), rope or {}
    far, close = rotary(turns.get("full_attention"), 160000.0), rotary(turns.get("sliding_attention"))
    wide = s.Attend(heads=heads, head_dim=size, bias=attend_bias, drop=attend_drop, relate=far)
    near = replace(wide, pattern=s.Local(window // 2), relate=close)
    dense = s.Dense(width=feed, act=act, gated=True, bias=feed_bias, drop=feed_drop)
    layer = s.Layer(attend=wide, feed=dense, norm=norm, attend_drop=attend_drop)
    kinds = kinds or tuple("sliding_attention" if i % every else "full_attention" for i in range(depth))
    layers = [replace(layer, attend=wide if kind == "full_attention" else near) for kind in kinds]
    layers[0] = replace(layers[0], bare=True)
    embed = s.Embed(vocab=vocab, norm=norm, drop=embed_drop, pad=pad)
    stack = s.Stack(width=width, embed=embed, final=norm, layers=tuple(layers))
    take = one_of("classifier_pooling", pooling, {"cls": "first", "mean": "mean"})
    inner: dict[str, Any] = dict(dense=width, dense_bias=head_bias, act=head_act, norm=norm)
    lm = s.Head(name="lm", size=vocab, bias=lm_bias, tied=tied, **inner)
    found = readers(labels, 0.0, lm, vector=dict(take=take), mid_drop=label_drop, **inner)
    small, ends = std / (2 * depth) ** 0.5, ("*.o.weight", "*.down.weight", "heads.*.dense.*", "heads.lm.*")
    init = (*((name, small) for name in ends), ("heads.*", width**-0.5), ("*", std))
    return s.Spec(family="modernbert", encoder=stack, heads=found[head], init=init, init_cut=2.0)


SIZES = {
    "base":  {},
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
    rope = {
        "full_attention": {"rope_theta": config.get("global_rope_theta", 160000.0)},
        "sliding_attention": {"rope_theta": config.get("local_rope_theta", 10000.0)},
    }
    return {"rope_parameters": rope} | config


FAMILY = Family(
    name="modernbert", doc=__doc__, make=modernbert, sizes=SIZES, keys=KEYS, model_types=("modernbert",),
    prefixes=("model.",), older=older,
    config=COMMON | dict(
        act="hidden_activation", eps="norm_eps", norm_bias="norm_bias", attend_bias="attention_bias",
        feed_bias="mlp_bias", kinds="layer_types", every="global_attn_every_n_layers", rope="rope_parameters",
        window="local_attention", embed_drop="embedding_dropout", feed_drop="mlp_dropout",
        label_drop="classifier_dropout", pooling="classifier_pooling", head_bias="classifier_bias",
        head_act="classifier_activation", lm_bias="decoder_bias",
    ),
    heads=classes("ModernBert", "none masked-lm label choice tag span"),
)  # fmt: skip
