"""T5, T5 1.1 and mT5: an encoder-decoder with relative position buckets and RMS norm.

paper    Raffel et al. 2019, arXiv:1910.10683
purpose  any task as text to text
differs  relative position buckets, RMS norm, no biases, unscaled attention, gated in 1.1"""

from dataclasses import replace

from qkv import spec as s
from qkv.families.family import CONDITIONAL_GENERATION, Args, Family, common_heads, head_classes


def t5(
    vocab_size: int = 32128, width: int = 512, depth: int = 6, decoder_depth: int | None = None,
    heads: int = 8, head_dim: int = 64, ffn_width: int = 2048, feed_forward_proj: str = "relu",
    relative_attention_num_buckets: int = 32, relative_attention_max_distance: int = 128,
    norm_eps: float = 1e-6, dropout: float = 0.1, classifier_dropout: float = 0.0,
    initializer_factor: float = 1.0, scale_decoder_outputs: bool = True,
    tie_embeddings: bool = True, decoder_start_token_id: int | None = 0,
    eos_token_id: int | None = 1, num_labels: int = 2, multilingual: bool = False, head: str = "lm",
    family: str = "t5",
) -> s.Spec:  # fmt: skip
    """Return the spec. `feed_forward_proj`: an activation, with the prefix "gated-" if gated.

    `multilingual`: mT5, whose decoder outputs are never scaled."""
    norm = s.NormSpec(type="rms", eps=norm_eps)
    attention = s.AttentionSpec(
        heads=heads, head_dim=head_dim, bias=False, scale=1.0, dropout=dropout
    )
    is_gated, activation = parse_feed_forward_proj(feed_forward_proj)
    encoder_layer = s.LayerSpec(
        attention=attention,
        feed_forward=s.FeedForwardSpec(
            width=ffn_width, activation=activation, is_gated=is_gated, bias=False, dropout=dropout
        ),
        norm=norm,
        dropout=dropout,
    )
    decoder_layer = replace(
        encoder_layer, attention=replace(attention, pattern=s.causal), cross_attention=attention
    )
    position_bias = s.RelativeBucketsSpec(
        heads=heads,
        num_buckets=relative_attention_num_buckets,
        max_distance=relative_attention_max_distance,
    )
    encoder = s.StackSpec(
        width=width,
        embedding=s.EmbeddingSpec(vocab_size=vocab_size, dropout=dropout),
        layers=(encoder_layer,) * depth,
        final_norm=norm,
        position_bias=position_bias,
        dropout=dropout,
    )
    decoder = replace(
        encoder,
        layers=(decoder_layer,) * (decoder_depth or depth),
        position_bias=replace(position_bias, is_bidirectional=False),
    )
    lm = s.HeadSpec(
        name="lm",
        out_features=vocab_size,
        bias=False,
        scale=width**-0.5 if scale_decoder_outputs and not multilingual else 1.0,
        tie_embeddings=tie_embeddings,
    )
    pooling = dict(
        pooling="eos",
        eos_token_id=eos_token_id,
        dense_width=width,
        activation="tanh",
        classifier_dropout=classifier_dropout,
    )
    head_specs = common_heads(num_labels, classifier_dropout, lm, pooling=pooling) | {"encoder": ()}
    width_std = initializer_factor * width**-0.5
    init = (
        ("*.q.weight", width_std * head_dim**-0.5),
        ("*.o.weight", initializer_factor * (heads * head_dim) ** -0.5),
        ("*.down.weight", initializer_factor * ffn_width**-0.5),
        ("*.embedding.*", initializer_factor),
        ("heads.lm.*", initializer_factor),
        ("heads.token_classification.*", initializer_factor),
        ("*", width_std),
    )
    shifts_inputs = head in ("sequence-classification", "question-answering")
    return s.Spec(
        family=family,
        encoder=encoder,
        decoder=None if head in ENCODER_HEADS else decoder,
        heads=head_specs[head],
        shift_right=s.ShiftRight(decoder_start_token_id or 0) if shifts_inputs else None,
        init=init,
    )


def parse_feed_forward_proj(feed_forward_proj: str) -> tuple[bool, str]:
    """Return whether the feed-forward is gated, and its activation."""
    is_gated = feed_forward_proj.startswith("gated-")
    activation = feed_forward_proj.removeprefix("gated-")
    return is_gated, "gelu_new" if feed_forward_proj == "gated-gelu" else activation


ENCODER_HEADS = ("encoder", "token-classification")  # without a decoder

GATED: Args = dict(
    feed_forward_proj="gated-gelu", scale_decoder_outputs=False, tie_embeddings=False
)
SIZES: dict[str, Args] = {
    "small":     {},
    "base":      dict(width=768, depth=12, heads=12, ffn_width=3072),
    "large":     dict(width=1024, depth=24, heads=16, ffn_width=4096),
    "3b":        dict(width=1024, depth=24, heads=32, head_dim=128, ffn_width=16384),
    "11b":       dict(width=1024, depth=24, heads=128, head_dim=128, ffn_width=65536),
    "1.1-small": dict(depth=8, heads=6, ffn_width=1024, **GATED),
    "1.1-base":  dict(width=768, depth=12, heads=12, ffn_width=2048, **GATED),
    "mt5-small": dict(vocab_size=250112, depth=8, heads=6, ffn_width=1024, multilingual=True, **GATED),
}  # fmt: skip

CONFIG = dict(
    vocab_size="vocab_size", width="d_model", depth="num_layers",
    decoder_depth="num_decoder_layers", heads="num_heads", head_dim="d_kv", ffn_width="d_ff",
    relative_attention_num_buckets="relative_attention_num_buckets",
    relative_attention_max_distance="relative_attention_max_distance",
    norm_eps="layer_norm_epsilon", dropout="dropout_rate", initializer_factor="initializer_factor",
    tie_embeddings="tie_word_embeddings",
)  # fmt: skip

KEYS = """
    -                                              transformer.@.block.{}.layer.{}.layer_norm.bias
    -                                              transformer.@.final_layer_norm.bias
    encoder.embedding.tokens                       transformer.shared
    encoder.embedding.tokens                       transformer.@.embed_tokens  alias
    @.position_bias.table                          transformer.@.block.0.layer.0.SelfAttention.relative_attention_bias
    @.layers.{}.attention.(q|k|v|o)                transformer.@.block.{}.layer.0.SelfAttention.(q|k|v|o)
    @.layers.{}.pre_attention_norm                 transformer.@.block.{}.layer.0.layer_norm
    decoder.layers.{}.cross_attention.(q|k|v|o)    transformer.decoder.block.{}.layer.1.EncDecAttention.(q|k|v|o)
    decoder.layers.{}.pre_cross_attention_norm     transformer.decoder.block.{}.layer.1.layer_norm
    -                                              transformer.decoder.block.0.layer.1.EncDecAttention.relative_attention_bias
    encoder.layers.{}.pre_feed_forward_norm        transformer.encoder.block.{}.layer.1.layer_norm
    decoder.layers.{}.pre_feed_forward_norm        transformer.decoder.block.{}.layer.2.layer_norm
    encoder.layers.{}.feed_forward.(up|gate|down)  transformer.encoder.block.{}.layer.1.FEED_FORWARD
    decoder.layers.{}.feed_forward.(up|gate|down)  transformer.decoder.block.{}.layer.2.FEED_FORWARD
    @.final_norm                                   transformer.@.final_layer_norm
    heads.lm.out                                   lm_head
    heads.sequence_classification.(dense|out)      classification_head.(dense|out_proj)
    heads.token_classification.out                 classifier
    heads.question_answering.out                   qa_outputs
"""
MT5_CONFIG = dict(
    vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu"
)


def names_table(args: Args) -> str:
    is_gated, _ = parse_feed_forward_proj(args["feed_forward_proj"])
    up_and_gate = "wi_1|wi_0" if is_gated else "wi|none"
    return KEYS.replace("FEED_FORWARD", f"DenseReluDense.({up_and_gate}|wo)")


def upgrade_config(config: Args) -> Args:
    """Add the defaults of mT5, and that of `scale_decoder_outputs`: tied outputs are scaled."""
    defaults = MT5_CONFIG | {"multilingual": True} if config.get("model_type") == "mt5" else {}
    return defaults | {"scale_decoder_outputs": config.get("tie_word_embeddings", True)} | config


def finish_config(config: Args, args: Args) -> Args:
    config = config | {"is_encoder_decoder": args["head"] not in ENCODER_HEADS}
    if not args["multilingual"]:
        return config
    return config | {
        "model_type": "mt5",
        "architectures": [f"M{name}" for name in config["architectures"]],
    }


def derive_config(config: Args) -> Args:
    """Return the keys of config.json that follow from `feed_forward_proj`."""
    default = "gated-gelu" if config.get("model_type") == "mt5" else "relu"
    is_gated, activation = parse_feed_forward_proj(config.get("feed_forward_proj", default))
    return {"is_gated_act": is_gated, "dense_act_fn": activation}


HEADS = "none lm encoder sequence-classification token-classification question-answering"
FAMILY = Family(
    name="t5", doc=__doc__, shape="encoder-decoder", build_spec=t5, sizes=SIZES,
    config=CONFIG | dict(
        feed_forward_proj="feed_forward_proj", classifier_dropout="classifier_dropout",
        scale_decoder_outputs="scale_decoder_outputs",
        decoder_start_token_id="decoder_start_token_id", eos_token_id="eos_token_id",
        multilingual="multilingual",
    ),
    upgrade_config=upgrade_config, derive_config=derive_config, finish_config=finish_config,
    model_types=("t5", "mt5"), heads=head_classes("T5 MT5", HEADS, lm=CONDITIONAL_GENERATION),
    former_classes={"T5WithLMHeadModel": "lm"},
    names_table=names_table, prefixes=("transformer.",),
    head_prefixes=dict.fromkeys(("none", "lm", "encoder", "question-answering"), ""),
)  # fmt: skip
