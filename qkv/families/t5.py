"""T5, its 1.1 and mT5: an encoder-decoder with bucketed distances and RMS norms.

paper    Raffel et al. 2019, arXiv:1910.10683
purpose  any task as text to text
differs  bucketed distances, RMS norm, no biases, unscaled attention; 1.1 gates the feed"""

from dataclasses import replace

from qkv import spec as s
from qkv.families.family import WRITER, Args, Family, classes, readers


def t5(
    vocab: int = 32128, width: int = 512, depth: int = 6, decoder_depth: int | None = None, heads: int = 8,
    head_dim: int = 64, feed: int = 2048, feed_kind: str = "relu", buckets: int = 32, reach: int = 128,
    eps: float = 1e-6, drop: float = 0.1, label_drop: float = 0.0, factor: float = 1.0, scaled: bool = True,
    tied: bool = True, start: int | None = 0, end: int | None = 1, labels: int = 2,
    multilingual: bool = False, head: str = "lm", family: str = "t5",
) -> s.Spec:  # fmt: skip
    gated, act = feed_kind.startswith("gated-"), feed_kind.removeprefix("gated-")
    act = "gelu_new" if feed_kind == "gated-gelu" else act
    norm, embed = s.Norm(kind="rms", eps=eps), s.Embed(vocab=vocab, drop=drop)
    attend = s.Attend(heads=heads, head_dim=head_dim, bias=False, scale=1.0, drop=drop)
    dense = s.Dense(width=feed, act=act, gated=gated, bias=False, drop=drop)
    reader = s.Layer(attend=attend, feed=dense, norm=norm, drop=drop)
    writer = replace(reader, attend=replace(attend, pattern=s.causal), cross=attend)
    distance = s.Buckets(heads=heads, count=buckets, reach=reach)
    stack = s.Stack(width=width, embed=embed, layers=(reader,), final=norm, distance=distance, drop=drop)
    encoder, layers = replace(stack, layers=(reader,) * depth), (writer,) * (decoder_depth or depth)
    decoder = replace(encoder, layers=layers, distance=replace(distance, both_ways=False))
    scale = width**-0.5 if scaled and not multilingual else 1.0
    lm = s.Head(name="lm", size=vocab, bias=False, scale=scale, tied=tied)
    ends = dict(take="end", end=end, dense=width, act="tanh", mid_drop=label_drop)
    found = readers(labels, label_drop, lm, vector=ends) | {"encoder": ()}
    wide = factor * width**-0.5
    init = (
        ("*.q.weight", wide * head_dim**-0.5), ("*.o.weight", factor * (heads * head_dim) ** -0.5),
        ("*.down.weight", factor * feed**-0.5), ("*.embed.*", factor), ("heads.lm.*", factor),
        ("heads.tag.*", factor), ("*", wide),
    )  # fmt: skip
    shift = s.Shift(start or 0) if head in ("label", "span") else None
    writes = None if head in ("encoder", "tag") else decoder
    return s.Spec(family=family, encoder=encoder, decoder=writes, heads=found[head], shift=shift, init=init)


GATED: Args = dict(feed_kind="gated-gelu", scaled=False, tied=False)
SIZES: dict[str, Args] = {
    "small":     {},
    "base":      dict(width=768, depth=12, heads=12, feed=3072),
    "large":     dict(width=1024, depth=24, heads=16, feed=4096),
    "3b":        dict(width=1024, depth=24, heads=32, head_dim=128, feed=16384),
    "11b":       dict(width=1024, depth=24, heads=128, head_dim=128, feed=65536),
    "1.1-small": dict(depth=8, heads=6, feed=1024, **GATED),
    "1.1-base":  dict(width=768, depth=12, heads=12, feed=2048, **GATED),
    "mt5-small": dict(vocab=250112, depth=8, heads=6, feed=1024, multilingual=True, **GATED),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="d_model", depth="num_layers", decoder_depth="num_decoder_layers",
    heads="num_heads", head_dim="d_kv", feed="d_ff", buckets="relative_attention_num_buckets",
    reach="relative_attention_max_distance", eps="layer_norm_epsilon", drop="dropout_rate",
    factor="initializer_factor", tied="tie_word_embeddings",
)  # fmt: skip

KEYS = """
    encoder.embed.tokens               transformer.shared
    encoder.embed.tokens               transformer.@.embed_tokens                                 alias
    @.bias.table                       transformer.@.block.0.layer.0.SelfAttention.relative_attention_bias
    @.layers.{}.attend.(q|k|v|o)       transformer.@.block.{}.layer.0.SelfAttention.(q|k|v|o)
    @.layers.{}.before_attend          transformer.@.block.{}.layer.0.layer_norm
    decoder.layers.{}.cross.(q|k|v|o)  transformer.decoder.block.{}.layer.1.EncDecAttention.(q|k|v|o)
    decoder.layers.{}.before_cross     transformer.decoder.block.{}.layer.1.layer_norm
    -                        transformer.decoder.block.0.layer.1.EncDecAttention.relative_attention_bias
    encoder.layers.{}.before_feed            transformer.encoder.block.{}.layer.1.layer_norm
    decoder.layers.{}.before_feed            transformer.decoder.block.{}.layer.2.layer_norm
    encoder.layers.{}.feed.(up|gate|down)    transformer.encoder.block.{}.layer.1.FEED
    decoder.layers.{}.feed.(up|gate|down)    transformer.decoder.block.{}.layer.2.FEED
    @.norm                             transformer.@.final_layer_norm
    heads.lm.out                       lm_head
    heads.label.(dense|out)            classification_head.(dense|out_proj)
    heads.(tag|span).out               (classifier|qa_outputs)
"""
MT5 = dict(vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu")


def keys(args: Args) -> str:
    gated = args["feed_kind"].startswith("gated-")
    return KEYS.replace("FEED", f"DenseReluDense.({'wi_1|wi_0' if gated else 'wi|none'}|wo)")


def older(config: Args) -> Args:
    """mT5 has defaults of its own; before `scale_decoder_outputs`, an untied head meant an unscaled one."""
    own = MT5 | {"multilingual": True} if config.get("model_type") == "mt5" else {}
    return own | {"scale_decoder_outputs": config.get("tie_word_embeddings", True)} | config


def newer(config: Args, args: Args) -> Args:
    config = config | {"is_encoder_decoder": args["head"] not in ("encoder", "tag")}
    multi = {"model_type": "mt5", "architectures": [f"M{name}" for name in config["architectures"]]}
    return config | (multi if args["multilingual"] else {})


FAMILY = Family(
    name="t5", doc=__doc__, make=t5, sizes=SIZES, keys=keys, model_types=("t5", "mt5"), older=older,
    newer=newer,
    config=CONFIG | dict(
        feed_kind="feed_forward_proj", label_drop="classifier_dropout", scaled="scale_decoder_outputs",
        start="decoder_start_token_id", end="eos_token_id", multilingual="multilingual",
    ),
    heads=classes("T5 MT5", "none lm encoder label tag span", lm=WRITER), shape="encoder-decoder",
    prefixes=("transformer.",), prefixed=dict.fromkeys(("none", "lm", "encoder", "span"), ""),
)  # fmt: skip
