"""Pages of the families, generated from their specs, their docstrings and docs/families.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from typing import Any

from qkv.cli.models import get_family_facts
from qkv.families import FAMILY_NAMES, get_family, list_families
from qkv.families.family import Family
from qkv.formatting import format_count
from qkv.model.build import build_model_spec
from qkv.pictures.models.tree import count_spec_parameters
from qkv.spec import DualSpec, Spec
from qkv.tasks.registry import TASK_CLASSES, get_task_requirement
from tools.pages.page import ROOT, Page, format_table, split_sections
from tools.pages.picture import list_stacks, render_pictures

SOURCE = "docs/families.md"
DESCRIPTIONS = ROOT / "docs" / "families.toml"
TWO_STACKS = {
    "encoder-decoder": "of the encoder + of the decoder",
    "two towers": "of the text tower + of the image tower",
}


def family_pages(text: str) -> list[Page]:
    """Return the overview, with the introduction of docs/families.md, and one page per family."""
    descriptions = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))
    if missing := {*FAMILY_NAMES} - descriptions.keys():
        raise ValueError(f"docs/families.toml has no table {', '.join(sorted(missing))}")
    introduction, _ = split_sections(text, 2)
    by_shape: dict[str, list[Family]] = {}
    for family in list_families():
        by_shape.setdefault(family.shape, []).append(family)
    tables = [format_overview(shape, families) for shape, families in by_shape.items()]
    overview = "\n\n".join([introduction.rstrip(), *tables]) + "\n"
    first = Page(path="families/index.md", title="Families", text=overview, source=SOURCE)
    ordered = [family for families in by_shape.values() for family in families]
    return [first, *(family_page(family, descriptions[family.name]) for family in ordered)]


def format_overview(shape: str, families: Sequence[Family]) -> str:
    """Return the table of the families of one shape."""
    rows = []
    for family in families:
        counts = sorted(count_spec_parameters(spec) for _, spec in build_specs(family))
        limits = dict.fromkeys(map(format_count, (counts[0], counts[-1])))
        facts = get_family_facts(family)
        rows.append(
            (
                f"[{get_title(family)}](#{family.name})",
                facts["purpose"],
                facts["differs"],
                "\u00a0–\u2060\u00a0".join(limits),
            )
        )
    return (
        f"## {shape.capitalize()}\n\n{format_table('family|purpose|differences|parameters', rows)}"
    )


def family_page(family: Family, description: dict[str, Any]) -> Page:
    """Return the page of a family."""
    purpose = get_family_facts(family)["purpose"]
    parts = [
        f"# {get_title(family)}",
        f"`{family.name}`: {family.shape}. {purpose[0].upper()}{purpose[1:]}.",
        description["about"],
        format_paper(family, description),
        f"## Sizes\n\n{format_sizes(family)}",
        f'```python\nmodel = qkv.build("{family.name}", "{next(iter(family.sizes))}")\n```',
        f"## Heads and tasks\n\n{format_heads(family)}",
        f"## Published weights\n\n{format_published(family, description)}",
        f"## Attention patterns\n\n{render_pictures(build_specs(family))}",
    ]
    return Page(
        path=f"families/{family.name}.md",
        title=get_title(family),
        text="\n\n".join(parts) + "\n",
        source=f"{SOURCE}#{family.name}",
    )


def get_title(family: Family) -> str:
    """Return the display name of a family, from the beginning of its docstring."""
    return re.split(r"[:,.]", family.doc or family.name)[0]


def build_specs(family: Family) -> list[tuple[str, Spec | DualSpec]]:
    """Return the spec of each size."""
    return [(size, build_model_spec(family, family.arguments(size))) for size in family.sizes]


def format_paper(family: Family, description: dict[str, Any]) -> str:
    paper = get_family_facts(family)["paper"]
    year = re.findall(r"\b\d{4}\b", paper)[0]
    arxiv = re.search(r"arXiv:(\S+)", paper)
    link = f"https://arxiv.org/abs/{arxiv[1]}" if arxiv else description["link"]
    number = f", {arxiv[0]}" if arxiv else ""
    return f"Paper: [{description['title']}]({link}). {description['authors']}, {year}{number}."


def format_sizes(family: Family) -> str:
    """Return the table of sizes; if stacks differ, with the values of both."""
    rows = []
    for size, spec in build_specs(family):
        stacks = [stack for _, stack in list_stacks(spec)]
        depths = [str(stack.depth) for stack in stacks]
        widths = dict.fromkeys(f"{stack.width:,}" for stack in stacks)
        heads = dict.fromkeys(
            str(stack.layers[0].attention.heads) if stack.layers else "—" for stack in stacks
        )
        sizes = (" + ".join(values) for values in (widths, depths, heads))
        rows.append((f"`{size}`", *sizes, format_count(count_spec_parameters(spec))))
    text = format_table("size|width|depth|heads|parameters", rows)
    if family.shape in TWO_STACKS:
        text += f"\n\nDepth is {TWO_STACKS[family.shape]}; so are width and heads, if they differ."
    return text


def format_heads(family: Family) -> str:
    """Return the table of heads, with their tasks and Hugging Face classes."""
    default = family.arguments()["head"]
    rows = []
    for head, classes in family.heads.items():
        tasks = ", ".join(
            f"[{task}](tasks.md#{task})" for task in supported_tasks(family.name, head)
        )
        class_names = ", ".join(f"`{name}`" for name in classes.split())
        label = f"`{head}`" + (" (the default)" if head == default else "")
        rows.append((label, tasks or "—", class_names or "—"))
    return format_table("head|tasks|class at Hugging Face", rows)


@cache
def supported_tasks(family_name: str, head: str) -> list[str]:
    """Return the tasks that a family supports with a head."""
    family = get_family(family_name)
    args = family.arguments(next(iter(family.sizes)), head=head)
    spec = build_model_spec(family, args)
    return [task for task in TASK_CLASSES if get_task_requirement(task).is_met_by(spec)]


def supporting_families(task: str) -> dict[str, list[str]]:
    """Return the families that support a task, each with the heads that support it."""
    heads = {
        family.name: [head for head in family.heads if task in supported_tasks(family.name, head)]
        for family in list_families()
    }
    return {name: supporting for name, supporting in heads.items() if supporting}


def format_published(family: Family, description: dict[str, Any]) -> str:
    """Return the hub ids that can be loaded, and other supported formats."""
    ids = description["opens"]
    more = description.get("more", "")
    if not ids:
        return f"Hugging Face has no class for this family; train a model ([Training](training.md)). {more}"
    model_types = " or ".join(f"`{name}`" for name in family.model_types)
    if family.removed_from_hf:
        tests = (
            "`transformers` removed this family; tests compare with outputs of an older version."
        )
    else:
        tests = "Tests compare these classes with `transformers` on random weights, not on these checkpoints."
    lines = [
        f'```python\nmodel = qkv.load("{ids[0]}")\n```\n',
        *(f"- `{name}`" for name in ids),
        f"\nOther checkpoints with the `model_type` {model_types} and a class above can be loaded too.",
        f"{tests} {more}",
    ]
    return "\n".join(lines)
