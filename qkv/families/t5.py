"""T5 (Raffel et al. 2019), its 1.1 and mT5: encoder-decoder with bucketed distances and RMS norms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.families.family import Args, Family, span, tag
from qkv.spec import Attend, Buckets, Dense, Embed, Head, Layer, Norm, Spec, Stack, causal


def t5(
    vocab: int = 32128, width: int = 512, depth: int = 6, decoder_depth: int | None = None, heads: int = 8,
    head_dim: int = 64, feed: int = 2048, feed_kind: str = "relu", buckets: int = 32, reach: int = 128,
    eps: float = 1e-6, drop: float = 0.1, label_drop: float = 0.0, factor: float = 1.0, scaled: bool = True,
    tied: bool = True, start: int | None = 0, end: int | None = 1, labels: int = 2,
    multilingual: bool = False, head: str = "lm",
) -> Spec:  # fmt: skip
    gated, act = feed_kind.startswith("gated-"), feed_kind.removeprefix("gated-")
    act = "gelu_new" if feed_kind == "gated-gelu" else act
    norm = Norm(kind="rms", eps=eps)
    attend = Attend(heads=heads, head_dim=head_dim, bias=False, scale=1.0, drop=drop)
    dense = Dense(width=feed, act=act, gated=gated, bias=False, drop=drop)
    reader = Layer(attend=attend, feed=dense, before=norm, drop=drop)
    writer = replace(reader, attend=replace(attend, pattern=causal), cross=attend)
    distance = Buckets(heads=heads, count=buckets, reach=reach)
    encoder = Stack(
        width=width, embed=Embed(vocab=vocab, drop=drop), layers=(reader,) * depth, final=norm, distance=distance,
        drop=drop,
    )  # fmt: skip
    layers = (writer,) * (depth if decoder_depth is None else decoder_depth)
    decoder = replace(encoder, layers=layers, distance=replace(distance, both_ways=False))
    scale = width**-0.5 if scaled and not multilingual else 1.0
    lm = Head(name="lm", size=vocab, bias=False, scale=scale, tied="encoder" if tied else "")
    classify = Head(
        name="label", take="end", end=end, dense=width, act="tanh", size=labels, drop=label_drop, mid_drop=label_drop
    )
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "lm": (lm,), "encoder": (), "label": (classify,), "tag": (tag(labels, label_drop),), "span": (span(),),
    }  # fmt: skip
    alone = head in ("encoder", "tag")
    shift = (start or 0, "start") if head in ("label", "span") else None
    return Spec(
        family="t5", encoder=encoder, decoder=None if alone else decoder, heads=found[head], shift=shift,  # type: ignore[arg-type]
        init=t5_init(width, heads, head_dim, feed, factor),
    )  # fmt: skip


def t5_init(width: int, heads: int, head_dim: int, feed: int, factor: float) -> tuple[tuple[str, float], ...]:
    wide = factor * width**-0.5
    return (
        ("*.attend.q.weight", wide * head_dim**-0.5), ("*.cross.q.weight", wide * head_dim**-0.5),
        ("*.o.weight", factor * (heads * head_dim) ** -0.5), ("*.down.weight", factor * feed**-0.5),
        ("*.embed.*", factor), ("heads.lm.*", factor), ("heads.*", wide), ("*", wide),
    )  # fmt: skip


SIZES = {
    "small": dict(),
    "base":  dict(width=768, depth=12, heads=12, feed=3072),
    "large": dict(width=1024, depth=24, heads=16, feed=4096),
    "3b":    dict(width=1024, depth=24, heads=32, head_dim=128, feed=16384),
    "11b":   dict(width=1024, depth=24, heads=128, head_dim=128, feed=65536),
    "1.1-small": dict(depth=8, heads=6, feed=1024, feed_kind="gated-gelu", scaled=False, tied=False),
    "1.1-base":  dict(width=768, depth=12, heads=12, feed=2048, feed_kind="gated-gelu", scaled=False, tied=False),
}  # fmt: skip

CONFIG = dict(
    vocab="vocab_size", width="d_model", depth="num_layers", decoder_depth="num_decoder_layers", heads="num_heads",
    head_dim="d_kv", feed="d_ff", feed_kind="feed_forward_proj", buckets="relative_attention_num_buckets",
    reach="relative_attention_max_distance", eps="layer_norm_epsilon", drop="dropout_rate",
    label_drop="classifier_dropout", factor="initializer_factor", scaled="scale_decoder_outputs",
    tied="tie_word_embeddings", multilingual="multilingual", start="decoder_start_token_id", end="eos_token_id",
)  # fmt: skip

KEYS = """
    encoder.embed.tokens            transformer.shared
    encoder.embed.tokens            transformer.@.embed_tokens                                  alias
    @.bias.table                    transformer.@.block.0.layer.0.SelfAttention.relative_attention_bias
    @.layers.{}.attend.q            transformer.@.block.{}.layer.0.SelfAttention.q
    @.layers.{}.attend.k            transformer.@.block.{}.layer.0.SelfAttention.k
    @.layers.{}.attend.v            transformer.@.block.{}.layer.0.SelfAttention.v
    @.layers.{}.attend.o            transformer.@.block.{}.layer.0.SelfAttention.o
    @.layers.{}.before_attend       transformer.@.block.{}.layer.0.layer_norm
    decoder.layers.{}.cross.q       transformer.decoder.block.{}.layer.1.EncDecAttention.q
    decoder.layers.{}.cross.k       transformer.decoder.block.{}.layer.1.EncDecAttention.k
    decoder.layers.{}.cross.v       transformer.decoder.block.{}.layer.1.EncDecAttention.v
    decoder.layers.{}.cross.o       transformer.decoder.block.{}.layer.1.EncDecAttention.o
    decoder.layers.{}.before_cross  transformer.decoder.block.{}.layer.1.layer_norm
    -                               transformer.decoder.block.0.layer.1.EncDecAttention.relative_attention_bias
    encoder.layers.{}.before_feed   transformer.encoder.block.{}.layer.1.layer_norm
    decoder.layers.{}.before_feed   transformer.decoder.block.{}.layer.2.layer_norm
    @.norm                          transformer.@.final_layer_norm
    heads.lm.out                    lm_head
    heads.label.dense               classification_head.dense
    heads.label.out                 classification_head.out_proj
    heads.tag.out                   classifier
    heads.span.out                  qa_outputs
"""
FEED = """
    encoder.layers.{}.feed.up       transformer.encoder.block.{}.layer.1.DenseReluDense.wi
    encoder.layers.{}.feed.down     transformer.encoder.block.{}.layer.1.DenseReluDense.wo
    decoder.layers.{}.feed.up       transformer.decoder.block.{}.layer.2.DenseReluDense.wi
    decoder.layers.{}.feed.down     transformer.decoder.block.{}.layer.2.DenseReluDense.wo
"""
GATE = """
    encoder.layers.{}.feed.gate     transformer.encoder.block.{}.layer.1.DenseReluDense.wi_0
    decoder.layers.{}.feed.gate     transformer.decoder.block.{}.layer.2.DenseReluDense.wi_0
"""


def keys(args: Args) -> str:
    return KEYS + (FEED.replace("wi\n", "wi_1\n") + GATE if args["feed_kind"].startswith("gated-") else FEED)


MT5 = dict(
    vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu", multilingual=True,
    scale_decoder_outputs=False,
)  # fmt: skip


def older(config: Args) -> Args:
    """mT5 has defaults of its own; before `scale_decoder_outputs`, an untied head meant an unscaled one."""
    config = (MT5 if config.get("model_type") == "mt5" else {}) | config
    config.setdefault("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    config.setdefault("num_decoder_layers", config.get("num_layers", 6))
    return config


def newer(config: Args, args: Args) -> Args:
    config = config | {"is_encoder_decoder": args["head"] not in ("encoder", "tag")}
    if not args["multilingual"]:
        return config
    return config | {"model_type": "mt5", "architectures": [f"M{name}" for name in config["architectures"]]}


FAMILY = Family(
    name="t5", make=t5, sizes=SIZES, config=CONFIG, keys=keys, model_types=("t5", "mt5"), older=older, shape="encoder-decoder", prefix="transformer.",
    prefixed=dict.fromkeys(("none", "lm", "encoder", "span"), ""),
    heads={
        "none": "T5Model MT5Model", "lm": "T5ForConditionalGeneration MT5ForConditionalGeneration", "encoder": "T5EncoderModel MT5EncoderModel",
        "label": "T5ForSequenceClassification MT5ForSequenceClassification", "tag": "T5ForTokenClassification MT5ForTokenClassification", "span": "T5ForQuestionAnswering MT5ForQuestionAnswering",
    },
    newer=newer,
    paper="Raffel et al. 2019, arXiv:1910.10683", purpose="any text to text task",
    differs="bucketed distances, RMS norm, no biases, unscaled attention; 1.1 gates the feed",
)  # fmt: skip
