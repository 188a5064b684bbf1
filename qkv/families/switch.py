"""Switch Transformer: T5 with experts in every n-th layer.

paper    Fedus et al. 2021, arXiv:2101.03961
purpose  text to text, more parameters at the same cost
differs  T5 whose feeds are experts: one a token, with a capacity"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.family import WRITER, Args, Family, classes
from qkv.families.t5 import CONFIG, KEYS, t5


def switch(
    experts: int = 8, capacity: int = 64, sparse: int = 3, decoder_sparse: int = 3, router_bias: bool = False,
    jitter: float = 0.01, tied: bool = True, **sizes: Any,
) -> s.Spec:  # fmt: skip
    """`sparse` layers of a stack have experts, evenly spread."""
    expert: Any = dict(count=experts, capacity=capacity, router_bias=router_bias, jitter=jitter)

    def routed(stack: s.Stack, count: int) -> s.Stack:
        step = len(stack.layers) // count if count > 0 else len(stack.layers)
        layers = list(stack.layers)
        for i, layer in enumerate(layers):
            if step == 1 or i % step == 1:
                assert isinstance(layer.feed, s.Dense)
                layers[i] = replace(layer, feed=s.Experts(each=layer.feed, **expert))
        return replace(stack, layers=tuple(layers))

    spec = t5(tied=tied, scaled=tied, **{k: v for k, v in sizes.items() if k != "scaled"})
    encoder = spec.encoder and routed(spec.encoder, sparse)
    decoder = spec.decoder and routed(spec.decoder, decoder_sparse)
    init = (("*.router.weight", sizes["factor"]), ("*.experts.*", spec.init[-1][1]), *spec.init)
    return replace(spec, encoder=encoder, decoder=decoder, shared=tied, init=init)


SIZES = {
    "base-8":   dict(sparse=6, decoder_sparse=6, feed=3072),
    "base-128": dict(sparse=6, decoder_sparse=6, feed=3072, experts=128),
}  # fmt: skip

EXPERTS = """
    encoder.layers.{}.feed.router  transformer.encoder.block.{}.layer.1.mlp.router.classifier
    decoder.layers.{}.feed.router  transformer.decoder.block.{}.layer.2.mlp.router.classifier
    encoder.layers.{}.feed.experts.{}.(up|down)  transformer.encoder.block.{}.layer.1.EXPERT_{}.(wi|wo)
    decoder.layers.{}.feed.experts.{}.(up|down)  transformer.decoder.block.{}.layer.2.EXPERT_{}.(wi|wo)
""".replace("EXPERT", "mlp.experts.expert")
UNTIED = "\n@.embed.tokens transformer.@.embed_tokens\nencoder.embed.tokens transformer.shared copy"


def keys(args: Args) -> str:
    table = KEYS.replace("FEED", "mlp.(wi|none|wo)") + EXPERTS
    rows = [row for row in table.splitlines() if "embed.tokens" not in row]
    return table if args["tied"] else "\n".join(rows) + UNTIED


FAMILY = Family(
    name="switch", doc=__doc__, make=switch, base=t5, sizes=SIZES, keys=keys,
    model_types=("switch_transformers",),
    given=dict(width=768, depth=12, decoder_depth=12, heads=12, family="switch"), shape="encoder-decoder",
    config=CONFIG | dict(
        feed_kind="dense_act_fn", experts="num_experts", capacity="expert_capacity",
        sparse="num_sparse_encoder_layers", decoder_sparse="num_sparse_decoder_layers",
        router_bias="router_bias", jitter="router_jitter_noise",
    ),
    prefixes=("transformer.",), prefixed=dict.fromkeys(("none", "lm", "encoder"), ""),
    heads=classes("SwitchTransformers", "none lm encoder", lm=WRITER),
    only={"router_dtype": ("float32", "float64")}, newer=lambda config,
    args: {**config, "is_encoder_decoder": args["head"] != "encoder"},
)  # fmt: skip
