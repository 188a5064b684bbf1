"""A page for each task, cut out of docs/tasks.md at its headings."""

from __future__ import annotations

import re

from qkv.families import family
from qkv.tasks.registry import TASKS
from tools.pages.families import fitting, title
from tools.pages.page import Page, sections

HOME = "docs/tasks.md"
GOES_ON = "The code goes on from [Tasks](tasks.md), where the texts and the small models are made.\n"


def task_pages(text: str) -> list[Page]:
    """What is said of all tasks stays together; every task that has a heading has a page."""
    before, found = sections(text, 2)
    shared = [f"## {name}\n{body}" for name, body in found.items() if name not in TASKS]
    row = re.compile(rf"^\| `({'|'.join(TASKS)})` \|", re.MULTILINE)
    both = row.sub(r"| [`\1`](#\1) |", before) + "".join(shared)
    first = Page(path="tasks/index.md", title="Tasks", text=both, source=HOME)
    return [first, *(task_page(name, found[name]) for name in TASKS if name in found)]


def task_page(name: str, body: str) -> Page:
    models = [
        f"- [{title(family(kin))}](families.md#{kin}) with {listed([f'`{head}`' for head in heads])}"
        for kin, heads in fitting(name).items()
    ]
    parts = [f"# {name}", GOES_ON + body.rstrip(), "## Models that fit", "\n".join(models)]
    parts.append(f"Settings and results: [the reference](reference/tasks.md#{name}).")
    return Page(path=f"tasks/{name}.md", title=name, text="\n\n".join(parts) + "\n", source=f"{HOME}#{name}")


def listed(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
