"""The families, by name. Each is one file of data: a function of sizes, rows of sizes, tables of names."""

from functools import cache
from importlib import import_module

from qkv.families.family import Family, one_of

NAMES = """
    bert roberta albert distilbert electra xlnet gpt gpt2 gpt3 ctrl transformer-xl sparse transformer bart
    mbart marian t5 switch clip llama modernbert
""".split()


@cache
def family(name: str) -> Family:
    """The family of that name; ValueError lists the names there are."""
    one_of("family", name, dict.fromkeys(NAMES))
    found: Family = import_module(f"qkv.families.{name.replace('-', '_')}").FAMILY
    return found


def list_families() -> list[Family]:
    return [family(name) for name in NAMES]


def by_model_type(kind: str) -> Family:
    """The family that a config.json of this `model_type` belongs to."""
    return one_of("model_type", kind, {kind: each for each in list_families() for kind in each.model_types})
