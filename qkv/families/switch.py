"""Switch Transformer (Fedus et al. 2021): T5 with experts in every n-th layer."""

from __future__ import annotations

from dataclasses import replace

from qkv.families.family import Args, Family
from qkv.families.t5 import CONFIG as T5_CONFIG
from qkv.families.t5 import FEED, KEYS, t5
from qkv.spec import Dense, Experts, Layer, Spec, Stack


def switch(
    vocab: int = 32128, width: int = 768, depth: int = 12, decoder_depth: int = 12, heads: int = 12,
    head_dim: int = 64, feed: int = 2048, act: str = "relu", experts: int = 8, capacity: int = 64,
    sparse: int = 3, decoder_sparse: int = 3, router_bias: bool = False, jitter: float = 0.01, buckets: int = 32,
    reach: int = 128, eps: float = 1e-6, drop: float = 0.1, factor: float = 1.0, tied: bool = True, head: str = "lm",
) -> Spec:  # fmt: skip
    spec = t5(
        vocab=vocab, width=width, depth=depth, decoder_depth=decoder_depth, heads=heads, head_dim=head_dim, feed=feed,
        feed_kind=act, buckets=buckets, reach=reach, eps=eps, drop=drop, factor=factor, scaled=tied, tied=tied, head=head,
    )  # fmt: skip

    def sparsely(stack: Stack | None, count: int) -> Stack | None:
        if stack is None:
            return None
        step = len(stack.layers) // count if count > 0 else len(stack.layers)

        def routed(layer: Layer) -> Layer:
            assert isinstance(layer.feed, Dense)
            each = Experts(
                each=layer.feed, count=experts, capacity=capacity, router_bias=router_bias, jitter=jitter
            )
            return replace(layer, feed=each)

        chosen = [step == 1 or i % step == 1 for i in range(len(stack.layers))]
        layers = [routed(x) if yes else x for x, yes in zip(stack.layers, chosen, strict=True)]
        return replace(stack, layers=tuple(layers))

    return replace(
        spec, family="switch", encoder=sparsely(spec.encoder, sparse), decoder=sparsely(spec.decoder, decoder_sparse),
        shared=tied,
    )  # fmt: skip


SIZES = {
    "base-8":   dict(sparse=6, decoder_sparse=6, feed=3072),
    "base-128": dict(sparse=6, decoder_sparse=6, feed=3072, experts=128),
}  # fmt: skip

EXPERTS = """
    encoder.layers.{}.feed.router           transformer.encoder.block.{}.layer.1.mlp.router.classifier
    encoder.layers.{}.feed.experts.{}.up    transformer.encoder.block.{}.layer.1.mlp.experts.expert_{}.wi
    encoder.layers.{}.feed.experts.{}.down  transformer.encoder.block.{}.layer.1.mlp.experts.expert_{}.wo
    decoder.layers.{}.feed.router           transformer.decoder.block.{}.layer.2.mlp.router.classifier
    decoder.layers.{}.feed.experts.{}.up    transformer.decoder.block.{}.layer.2.mlp.experts.expert_{}.wi
    decoder.layers.{}.feed.experts.{}.down  transformer.decoder.block.{}.layer.2.mlp.experts.expert_{}.wo
"""
UNTIED = """
    @.embed.tokens                          transformer.@.embed_tokens
    encoder.embed.tokens                    transformer.shared            copy
"""


def keys(args: Args) -> str:
    table = KEYS + FEED.replace("DenseReluDense", "mlp") + EXPERTS
    if args["tied"]:
        return table
    return "\n".join(line for line in table.splitlines() if "embed.tokens" not in line) + UNTIED


FAMILY = Family(
    name="switch", make=switch, sizes=SIZES, keys=keys, model_types=("switch_transformers",), prefix="transformer.",
    prefixed=dict.fromkeys(("none", "lm", "encoder"), ""), shape="encoder-decoder",
    config={k: v for k, v in T5_CONFIG.items() if k not in ("feed_kind", "label_drop", "scaled", "start", "end")} | dict(
        act="dense_act_fn", experts="num_experts", capacity="expert_capacity", sparse="num_sparse_encoder_layers",
        decoder_sparse="num_sparse_decoder_layers", router_bias="router_bias", jitter="router_jitter_noise",
    ),
    heads={
        "none": "SwitchTransformersModel", "lm": "SwitchTransformersForConditionalGeneration",
        "encoder": "SwitchTransformersEncoderModel",
    },
    only={"router_dtype": ("float32", "float64")},
    newer=lambda config, args: {**config, "is_encoder_decoder": args["head"] != "encoder"},
    paper="Fedus et al. 2021, arXiv:2101.03961", purpose="text to text, more parameters at the same cost",
    differs="T5 whose feeds are experts: one a token, with a capacity",
)  # fmt: skip
