"""GPT: the first of them, with norms after the steps.

paper    Radford et al. 2018
purpose  write; choose an ending
differs  a language model first, then a task; post-norm, tanh GELU"""

from qkv.families.family import Args, Family, classes
from qkv.families.gpt2 import CONFIG, KEYS, SUMMARY, gpt2

ROWS = """
    decoder.embed.positions                transformer.positions_embed
    decoder.layers.{}.after_(attend|feed)  transformer.h.{}.ln_(1|2)
    -                                      transformer.position_ids
    heads.lm.out                           lm_head
    decoder.embed.tokens                   transformer.tokens_embed
"""


def keys(args: Args) -> str:
    """The double-headed class writes a tied table under the head's name."""
    if args["head"] == "double" and args["tied"]:
        return KEYS + ROWS.rstrip() + " alias\ndecoder.embed.tokens lm_head\n"
    return KEYS + ROWS


def older(config: Args) -> Args:
    return config | ({"afn": "gelu_new"} if config.get("afn") == "gelu" else {})


FAMILY = Family(
    name="gpt", doc=__doc__, make=gpt2, sizes={"base": {}}, keys=keys, model_types=("openai-gpt",),
    shape="decoder", given=dict(vocab=40478, length=512, norms="after", small_ends=False, family="gpt"),
    prefixes=("transformer.",), config=CONFIG | SUMMARY | dict(act="afn"),
    heads=classes("OpenAIGPT", "none lm double label"), older=older, newer=lambda config,
    args: config | ({"afn": "gelu"} if config["afn"] == "gelu_new" else {}),
)  # fmt: skip
