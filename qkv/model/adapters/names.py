"""Where the tensors of a model and those of an adapter's file meet: modules of theirs, layers of ours.

    encoder.layers.0.attend.q     base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight
    decoder.layers.0.attend.q,k,v        base_model.model.transformer.h.0.attn.c_attn.lora_A.weight
    heads.label.out.weight        base_model.model.classifier.weight

A model that Hugging Face has no class for keeps our names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from torch import nn

from qkv.model.model import Model
from qkv.nn.lora import Lora, linears
from qkv.weights.names_table import KeyMap, Link


class Place(NamedTuple):
    """What of ours a module of theirs holds, and whether its weight lies transposed."""

    paths: tuple[str, ...]
    turned: bool


class Names(NamedTuple):
    places: dict[str, Place]  # by module of theirs
    links: dict[str, Link]  # by tensor of theirs
    table: KeyMap

    def around(self, tensors: Collection[str]) -> dict[str, str]:
        """The tensors of all modules of theirs that hold these, with the largest module of such alone."""
        inner = {name.rpartition(".")[0] for name in tensors} - {""}
        held = {name for name in self.links if any(name.startswith(f"{module}.") for module in inner)}
        found = {}
        for name in sorted(held):
            parts = name.split(".")
            outer = (".".join(parts[:count]) for count in range(1, len(parts)))
            found[name] = next(each for each in outer if held >= self.inside(each))
        return found

    def inside(self, module: str) -> set[str]:
        return {name for name in self.links if name.startswith(f"{module}.")}


def plain(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, tied ones once, without those inside of adapters."""
    inside = {
        id(p) for module in net.modules() if isinstance(module, Lora)
        for p in (module.lora_a.weight, module.lora_b.weight)
    }  # fmt: skip
    return {name: p for name, p in net.named_parameters() if id(p) not in inside}


def tied(net: nn.Module) -> set[str]:
    """The names of parameters that stand at several places."""
    named = [(name, id(p)) for name, p in net.named_parameters(remove_duplicate=False)]
    times = Counter(number for _, number in named)
    return {name for name, number in named if times[number] > 1}


def table(model: Model, prefix: str | None = None) -> KeyMap:
    if model.no_class() is None:
        return model.family.keymap(model.args, prefix)
    return KeyMap(
        "\n".join(f"{name} {name}" for name, _ in model.net.named_parameters(remove_duplicate=False))
    )


def names_of(model: Model, prefix: str | None = None) -> Names:
    """Their names under a prefix as in the family's names table; None: the usual one of its class."""
    layers = [f"{path}.weight" for path in linears(model.net)]
    rows = table(model, prefix)
    found = rows.links(dict.fromkeys([*plain(model.net), *layers]))
    held = [
        link for link in found
        if link.word in ("", "conv1d") and link.theirs.endswith(".weight") and {*link.ours} <= {*layers}
    ]  # fmt: skip
    return Names(
        places={
            link.theirs.removesuffix(".weight"): Place(
                tuple(name.removesuffix(".weight") for name in link.ours), link.word == "conv1d"
            )
            for link in held
        },
        links={link.theirs: link for link in found if link.word != "copy"},
        table=rows,
    )


def fitting(model: Model, modules: Collection[str], tensors: Iterable[str] = ()) -> Names:
    """Their names under the prefix these have: a bare class and one with a head name them differently."""
    kin, tensors = model.family, [*tensors]
    prefixes = ("", *kin.prefixes, *kin.prefixed.values()) if model.no_class() is None else ()
    choices = [names_of(model, prefix) for prefix in dict.fromkeys((None, *prefixes))]
    return max(
        choices,
        key=lambda names: sum(x in names.places for x in modules) + sum(x in names.links for x in tensors),
    )


def usual(model: Model) -> list[str]:
    """Patterns for queries and values, as in LoRA's paper, with what is one tensor with them in a file."""
    held = [place.paths for place in names_of(model).places.values()]
    asked = [paths for paths in held if any(path.endswith((".q", ".v")) for path in paths)]
    if not asked:
        raise ValueError(
            f"lora.where: the queries and values of {model.family.name} are no modules in its files; name "
            'other layers, such as lora.where = ["up", "down"]'
        )
    return [
        f"{paths[0].rpartition('.')[0]}.{','.join(path.rpartition('.')[2] for path in paths)}"
        for paths in asked
    ]
