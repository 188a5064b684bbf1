"""Pages of the tasks, generated from the sections of docs/tasks.md."""

from __future__ import annotations

import re

from qkv.families import get_family
from qkv.tasks.registry import TASK_CLASSES
from tools.pages.families import get_title, supporting_families
from tools.pages.page import Page, split_sections

SOURCE = "docs/tasks.md"
INTRODUCTION = "The code uses the texts and small models that [Tasks](tasks.md) defines.\n"


def task_pages(text: str) -> list[Page]:
    """Return the overview of all tasks, and one page per task."""
    introduction, sections = split_sections(text, 2)
    shared = [f"## {name}\n{body}" for name, body in sections.items() if name not in TASK_CLASSES]
    row = re.compile(rf"^\| `({'|'.join(TASK_CLASSES)})` \|", re.MULTILINE)
    overview = row.sub(r"| [`\1`](#\1) |", introduction) + "".join(shared)
    first = Page(path="tasks/index.md", title="Tasks", text=overview, source=SOURCE)
    return [first, *(task_page(name, sections[name]) for name in TASK_CLASSES if name in sections)]


def task_page(name: str, body: str) -> Page:
    models = [
        f"- [{get_title(get_family(family))}](families.md#{family})"
        f" with {join_words([f'`{head}`' for head in heads])}"
        for family, heads in supporting_families(name).items()
    ]
    parts = [f"# {name}", INTRODUCTION + body.rstrip(), "## Supported models", "\n".join(models)]
    parts.append(f"The [reference](reference/tasks.md#{name}) lists settings and results.")
    return Page(
        path=f"tasks/{name}.md",
        title=name,
        text="\n\n".join(parts) + "\n",
        source=f"{SOURCE}#{name}",
    )


def join_words(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
