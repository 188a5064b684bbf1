"""GPT: GPT-2's predecessor, with post-norm.

paper    Radford et al. 2018
purpose  generate text; choose an ending
differs  language model pretraining, then fine-tuning; post-norm, tanh GELU"""

from qkv.families.family import Args, Family, head_classes
from qkv.families.gpt2 import CONFIG, SHARED_KEYS, SUMMARY_CONFIG, gpt2

KEYS = """
    decoder.embedding.positions               transformer.positions_embed
    decoder.layers.{}.post_attention_norm     transformer.h.{}.ln_1
    decoder.layers.{}.post_feed_forward_norm  transformer.h.{}.ln_2
    -                                         transformer.position_ids
    heads.lm.out                              lm_head
"""
TOKENS = "decoder.embedding.tokens transformer.tokens_embed"


def names_table(args: Args) -> str:
    """Return the names table; the double-heads class saves tied embeddings as the LM head."""
    if args["head"] == "double-heads" and args["tie_embeddings"]:
        return SHARED_KEYS + KEYS + f"{TOKENS} alias\ndecoder.embedding.tokens lm_head\n"
    return SHARED_KEYS + KEYS + f"{TOKENS}\n"


def upgrade_config(config: Args) -> Args:
    """Rename the activation: in `afn`, "gelu" is the tanh approximation."""
    return config | ({"afn": "gelu_new"} if config.get("afn") == "gelu" else {})


def finish_config(config: Args, args: Args) -> Args:
    return config | ({"afn": "gelu"} if config["afn"] == "gelu_new" else {})


FAMILY = Family(
    name="gpt", doc=__doc__, shape="decoder", build_spec=gpt2, sizes={"base": {}},
    default_overrides=dict(
        vocab_size=40478, max_positions=512, norm_position="post", scale_residual_init=False,
        family="gpt",
    ),
    config=CONFIG | SUMMARY_CONFIG | dict(activation="afn"),
    upgrade_config=upgrade_config, finish_config=finish_config,
    model_types=("openai-gpt",),
    heads=head_classes("OpenAIGPT", "none lm double-heads sequence-classification"),
    names_table=names_table, prefixes=("transformer.",),
)  # fmt: skip
