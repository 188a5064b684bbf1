"""The model families by name. Each is one file: a function of sizes, named sizes and a names table."""

from functools import cache
from importlib import import_module

from qkv.families.family import Family, lookup

FAMILY_NAMES = """
    bert roberta albert distilbert electra xlnet gpt gpt2 gpt3 ctrl transformer-xl sparse
    transformer bart mbart marian t5 switch vit video-transformer vision-encoder-decoder show-attend-tell
    clip llama modernbert
    rnn-encoder-decoder lstm-seq2seq bahdanau luong lstmn sequence-autoencoder
""".split()


@cache
def get_family(name: str) -> Family:
    """Return the family of this name; raise ValueError with the known names if it does not exist."""
    lookup("family", name, dict.fromkeys(FAMILY_NAMES))
    module = import_module(f"qkv.families.{name.replace('-', '_')}")
    family: Family = module.FAMILY
    return family


def list_families() -> list[Family]:
    return [get_family(name) for name in FAMILY_NAMES]


def family_of_model_type(model_type: str) -> Family:
    """Return the family that reads a config.json of this `model_type`."""
    by_model_type = {name: family for family in list_families() for name in family.model_types}
    return lookup("model_type", model_type, by_model_type)
