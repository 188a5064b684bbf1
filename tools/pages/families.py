"""A page for each family, made of its spec, its file's docstring and docs/families.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any

from qkv.cli.models import about
from qkv.families import NAMES, family, list_families
from qkv.families.family import Family
from qkv.formatting import human
from qkv.model.build import make_spec
from qkv.model.model import Model
from qkv.spec import Spec, Two
from qkv.tasks.requirements import NEEDS, check_fits
from qkv.view.tree import parameters
from tools.pages.page import ROOT, Page, sections
from tools.pages.picture import pictures, stacks

HOME = "docs/families.md"
TOLD = ROOT / "docs" / "families.toml"
BOTH = {
    "encoder-decoder": "the encoder's + the decoder's",
    "two towers": "the text tower's + the image tower's",
}


def family_pages(text: str) -> list[Page]:
    """The overview, which keeps what docs/families.md says of all of them, and a page for each."""
    told = tomllib.loads(TOLD.read_text(encoding="utf-8"))
    if missing := {*NAMES} - told.keys():
        raise ValueError(f"docs/families.toml says nothing of {', '.join(sorted(missing))}")
    before, _ = sections(text, 2)
    shapes = {
        kin.shape: [each for each in list_families() if each.shape == kin.shape] for kin in list_families()
    }
    tables = [overview(shape, kins) for shape, kins in shapes.items()]
    whole = "\n\n".join([before.rstrip(), *tables]) + "\n"
    first = Page(path="families/index.md", title="Families", text=whole, source=HOME)
    return [first, *(family_page(kin, told[kin.name]) for kins in shapes.values() for kin in kins)]


def overview(shape: str, kins: Sequence[Family]) -> str:
    """The families of one shape, a row each."""
    rows = []
    for kin in kins:
        counts = sorted(parameters(spec) for _, spec in specs(kin))
        span = "\u00a0–\u2060\u00a0".join(dict.fromkeys(map(human, (counts[0], counts[-1]))))
        rows.append((f"[{title(kin)}](#{kin.name})", about(kin)["purpose"], about(kin)["differs"], span))
    names = "family|what it is for|what makes it different|parameters"
    return f"## {shape.capitalize()}\n\n{table(names, rows)}"


def family_page(kin: Family, told: dict[str, Any]) -> Page:
    purpose = about(kin)["purpose"]
    parts = [
        f"# {title(kin)}",
        f"`{kin.name}`: {kin.shape}. {purpose[0].upper()}{purpose[1:]}.",
        told["about"],
        paper(kin, told),
        f"## Sizes\n\n{sizes(kin)}",
        f'```python\nmodel = qkv.build("{kin.name}", "{next(iter(kin.sizes))}")\n```',
        f"## Heads and tasks\n\n{heads(kin)}",
        f"## Published weights\n\n{published(kin, told)}",
        f"## Who sees whom\n\n{pictures(specs(kin))}",
    ]
    text = "\n\n".join(parts) + "\n"
    return Page(path=f"families/{kin.name}.md", title=title(kin), text=text, source=f"{HOME}#{kin.name}")


def title(kin: Family) -> str:
    """What its file calls it first."""
    return re.split(r"[:,.]", kin.doc or kin.name)[0]


def specs(kin: Family) -> list[tuple[str, Spec | Two]]:
    """What each size is."""
    return [(size, make_spec(kin, kin.arguments(size))) for size in kin.sizes]


def paper(kin: Family, told: dict[str, Any]) -> str:
    said = about(kin)["paper"]
    year, number = re.findall(r"\b\d{4}\b", said)[0], re.search(r"arXiv:(\S+)", said)
    link = f"https://arxiv.org/abs/{number[1]}" if number else told["link"]
    where = f", {number[0]}" if number else ""
    return f"Paper: [{told['title']}]({link}). {told['authors']}, {year}{where}."


def sizes(kin: Family) -> str:
    """A row a size; where stacks differ, the facts of both."""
    rows = []
    for size, spec in specs(kin):
        every = [stack for _, stack in stacks(spec)]
        depths = [str(len(stack.order or stack.layers)) for stack in every]
        widths = dict.fromkeys(f"{stack.width:,}" for stack in every)
        counts = dict.fromkeys(str(stack.layers[0].attend.heads) for stack in every)
        facts = (" + ".join(each) for each in (widths, depths, counts))
        rows.append((f"`{size}`", *facts, human(parameters(spec))))
    found = table("size|width|depth|heads|parameters", rows)
    if kin.shape in BOTH:
        found += f"\n\nDepth is {BOTH[kin.shape]}; so are width and heads, where they differ."
    return found


def heads(kin: Family) -> str:
    """Every head with the tasks that it can do and its class at Hugging Face."""
    usual = kin.arguments()["head"]
    rows = []
    for head, classes in kin.heads.items():
        fits = ", ".join(f"[{task}](tasks.md#{task})" for task in tasks(kin.name, head)) or "—"
        names = ", ".join(f"`{name}`" for name in classes.split()) or "—"
        rows.append((f"`{head}`" + (" (the default)" if head == usual else ""), fits, names))
    return table("head|tasks|class at Hugging Face", rows)


@cache
def tasks(name: str, head: str) -> list[str]:
    """The tasks that take this family with that head."""
    kin = family(name)
    args = kin.arguments(next(iter(kin.sizes)), head=head)
    net: Any = SimpleNamespace(spec=make_spec(kin, args))
    model, found = Model(kin, args, net, {}), []
    for task in NEEDS:
        with suppress(ValueError):  # it is not among the models that fit
            check_fits(model, task)
            found.append(task)
    return found


def fitting(task: str) -> dict[str, list[str]]:
    """The families that can do a task, each with the heads by which it can."""
    found = {
        kin.name: [head for head in kin.heads if task in tasks(kin.name, head)] for kin in list_families()
    }
    return {name: able for name, able in found.items() if able}


def published(kin: Family, told: dict[str, Any]) -> str:
    """Ids on the hub that open, and what else does."""
    ids, more = told["opens"], told.get("more", "")
    if not ids:
        return f"Hugging Face has no class for it: train your own ([Training](training.md)). {more}"
    kinds = " or ".join(f"`{kind}`" for kind in kin.model_types)
    tested = (
        "Tests hold these classes against `transformers` with random weights, and fetch none of these ids."
    )
    gone = "`transformers` has it no more: tests hold it against what an older version gave."
    lines = [
        f'```python\nmodel = qkv.load("{ids[0]}")\n```\n',
        *(f"- `{name}`" for name in ids),
        f"\nOthers open whose config.json has {kinds} as its `model_type` and one of the classes above.",
        f"{gone if kin.removed else tested} {more}",
    ]
    return "\n".join(lines)


def table(head: str, rows: Sequence[Sequence[str]]) -> str:
    names = head.split("|")
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *rows))
