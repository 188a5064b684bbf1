"""Switch Transformer: T5 with a mixture of experts in every n-th layer.

paper    Fedus et al. 2021, arXiv:2101.03961
purpose  text to text; more parameters at the same compute
differs  T5 with mixtures of experts: each token goes to one expert of limited capacity"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.family import CONDITIONAL_GENERATION, Args, Family, head_classes
from qkv.families.t5 import CONFIG, KEYS, t5


def switch(
    num_experts: int = 8, expert_capacity: int = 64, num_sparse_encoder_layers: int = 3,
    num_sparse_decoder_layers: int = 3, router_bias: bool = False,
    router_jitter_noise: float = 0.01, tie_embeddings: bool = True, **args: Any,
) -> s.Spec:  # fmt: skip
    """Return the spec; sparse layers, which have experts, are evenly distributed over a stack."""

    def with_experts(stack: s.AnyStackSpec, num_sparse_layers: int) -> s.StackSpec:
        assert isinstance(stack, s.StackSpec)
        layers = list(stack.layers)
        step = len(layers) // num_sparse_layers if num_sparse_layers > 0 else len(layers)
        for i, layer in enumerate(layers):
            if step == 1 or i % step == 1:
                assert isinstance(layer.feed_forward, s.FeedForwardSpec)
                experts = s.MixtureOfExpertsSpec(
                    expert=layer.feed_forward,
                    num_experts=num_experts,
                    capacity=expert_capacity,
                    router_bias=router_bias,
                    router_jitter=router_jitter_noise,
                )
                layers[i] = replace(layer, feed_forward=experts)
        return replace(stack, layers=tuple(layers))

    # Outputs are scaled if and only if they are tied.
    outputs = dict(tie_embeddings=tie_embeddings, scale_decoder_outputs=tie_embeddings)
    spec = t5(**args | outputs)
    expert_std = spec.init[-1][1]
    return replace(
        spec,
        encoder=spec.encoder and with_experts(spec.encoder, num_sparse_encoder_layers),
        decoder=spec.decoder and with_experts(spec.decoder, num_sparse_decoder_layers),
        share_embeddings=tie_embeddings,
        init=(
            ("*.router.weight", args["initializer_factor"]),
            ("*.experts.*", expert_std),
            *spec.init,
        ),
    )


BASE = dict(num_sparse_encoder_layers=6, num_sparse_decoder_layers=6, ffn_width=3072)
SIZES = {
    "base-8":   BASE,
    "base-128": BASE | dict(num_experts=128),
}  # fmt: skip

EXPERT_KEYS = """
    encoder.layers.{}.feed_forward.router           transformer.encoder.block.{}.layer.1.mlp.router.classifier
    decoder.layers.{}.feed_forward.router           transformer.decoder.block.{}.layer.2.mlp.router.classifier
    encoder.layers.{}.feed_forward.experts.{}.up    transformer.encoder.block.{}.layer.1.mlp.experts.expert_{}.wi
    encoder.layers.{}.feed_forward.experts.{}.down  transformer.encoder.block.{}.layer.1.mlp.experts.expert_{}.wo
    decoder.layers.{}.feed_forward.experts.{}.up    transformer.decoder.block.{}.layer.2.mlp.experts.expert_{}.wi
    decoder.layers.{}.feed_forward.experts.{}.down  transformer.decoder.block.{}.layer.2.mlp.experts.expert_{}.wo
"""
UNTIED_KEYS = """
    @.embedding.tokens        transformer.@.embed_tokens
    encoder.embedding.tokens  transformer.shared  copy
"""


def names_table(args: Args) -> str:
    table = KEYS.replace("FEED_FORWARD", "mlp.(wi|none|wo)") + EXPERT_KEYS
    if args["tie_embeddings"]:
        return table
    rows = [row for row in table.splitlines() if "embedding.tokens" not in row]
    return "\n".join(rows) + UNTIED_KEYS


def derive_config(config: Args) -> Args:
    """Return the keys of config.json that follow from the numbers of layers and sparse layers."""
    steps: Args = {}
    for stack, depth_key in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        depth = config.get(depth_key, 12)
        num_sparse = config.get(f"num_sparse_{stack}_layers", 3)
        if depth is not None:
            steps[f"{stack}_sparse_step"] = depth // num_sparse if num_sparse else depth
    return steps


def finish_config(config: Args, args: Args) -> Args:
    return config | {"is_encoder_decoder": args["head"] != "encoder"}


FAMILY = Family(
    name="switch", doc=__doc__, shape="encoder-decoder", build_spec=switch, base_function=t5,
    sizes=SIZES,
    default_overrides=dict(width=768, depth=12, decoder_depth=12, heads=12, family="switch"),
    config=CONFIG | dict(
        feed_forward_proj="dense_act_fn", num_experts="num_experts",
        expert_capacity="expert_capacity", num_sparse_encoder_layers="num_sparse_encoder_layers",
        num_sparse_decoder_layers="num_sparse_decoder_layers", router_bias="router_bias",
        router_jitter_noise="router_jitter_noise",
        decoder_start_token_id="decoder_start_token_id", eos_token_id="eos_token_id",
    ),
    supported_values={"router_dtype": ("float32", "float64")},
    derive_config=derive_config, finish_config=finish_config,
    model_types=("switch_transformers",),
    heads=head_classes("SwitchTransformers", "none lm encoder", lm=CONDITIONAL_GENERATION),
    names_table=names_table, prefixes=("transformer.",),
    head_prefixes=dict.fromkeys(("none", "lm", "encoder"), ""),
)  # fmt: skip
