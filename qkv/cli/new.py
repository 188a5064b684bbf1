"""The command `new`, which drafts a recipe from a look at a data file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from qkv.cli.console import print_rich
from qkv.cli.flags import OutputPath, StringList
from qkv.cli.train import build_facts_table
from qkv.staging import write_file


def new(
    task: Literal["classify", "tag", "answer", "translate", "complete"],
    /,
    *data: Path,
    out: OutputPath | None = None,
    columns: StringList = (),
    model: str | None = None,
) -> None:
    """Draft a recipe from a look at a data file: columns, labels, lengths, and a model that fits.

    qkv new classify tickets.csv --out tickets.toml

    Parameters
    ----------
    task
        classify: a table of texts and labels; tag: CoNLL, or JSON lines of words and tags; answer:
        SQuAD's JSON; translate: a table of pairs, or two parallel files; complete: plain text
    data
        training data
    out
        recipe to write, a new file; default: the name of the data file with the suffix .toml
    columns
        columns of the file, if they are not found: --columns text=body label=queue
    model
        folder of a pretrained model, or hub id; default: one that fits the machine
    """
    from qkv.train.draft.drafts import DRAFT_SPECS
    from qkv.train.draft.machine import detect_machine
    from qkv.train.draft.settings import DataSource

    if not data:
        raise ValueError(f"no data file; expected {DRAFT_SPECS[task].data}")
    path = out or Path(data[0].name.partition(".")[0] + ".toml")
    if path.exists():
        raise ValueError(f"{path}: already exists; set --out to a new file, or remove it")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: no folder {path.parent}; expected an existing folder")
    source = DataSource(
        path=str(data[0]) if len(data) == 1 else [str(item) for item in data],
        columns=parse_columns(columns),
        model=model,
        machine=detect_machine(),
    )
    draft = DRAFT_SPECS[task].draft(source)
    with write_file(path, exist_ok=False) as temporary:
        temporary.write_text(draft.format(), encoding="utf-8")
    print_rich(build_facts_table(**draft.facts))
    print(f"wrote {path}; to train it:")
    print(f"  qkv train {path}")


def parse_columns(columns: tuple[str, ...]) -> dict[str, str]:
    """Parse `text=body` into a role and a column."""
    pairs = [item.partition("=") for item in columns]
    for item, (role, _, column) in zip(columns, pairs, strict=True):
        if not role or not column:
            raise ValueError(f"--columns {item}: expected a role and a column, such as text=body")
    return {role: column for role, _, column in pairs}
