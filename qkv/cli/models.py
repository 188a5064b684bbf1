"""The commands of models: list the families, draw one, write one in another form."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.screen import console, say
from qkv.human import human

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.families.family import Family
    from qkv.model import Model
    from qkv.spec import Spec, Two

WIDE = 130  # columns from which every fact about a family has a column of its own
MOST = 50_000  # layers and experts in a drawing
FORMATS = {False: "Hugging Face's", True: "qkv's own"}
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
# What stands beside weights, and goes with them unchanged.
BESIDE = """
    *token*.json *vocab*.json *vocab*.txt merges.txt dict.txt *.model *.spm *.jinja generation_config.json
    preprocessor_config.json processor_config.json modules.json *sentence*.json *_*/config.json
    LICENSE* README.md
""".split()


# --- families ---


def families(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List the families: shape, sizes, parameters, paper, what each is for and what makes it different.

    Parameters
    ----------
    as_json
        for machines
    """
    from qkv.families import families as every
    from qkv.model import make_spec
    from qkv.tree import parameters

    sizes = {
        kin.name: {size: parameters(make_spec(kin, kin.arguments(size))) for size in kin.sizes}
        for kin in every()
    }
    if as_json:
        rows = [dict(name=kin.name, shape=kin.shape, **about(kin), sizes=sizes[kin.name]) for kin in every()]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    shapes = list(dict.fromkeys(kin.shape for kin in every()))
    say(_table(sorted(every(), key=lambda kin: shapes.index(kin.shape)), sizes, console().width))


def _table(every: Sequence[Family], sizes: dict[str, dict[str, int]], width: int) -> Table:
    """A column for each fact; on a narrow screen the facts of a family stand in one, below each other."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    wide = width >= WIDE
    facts = dict(purpose="what it is for", differs="what makes it different", paper="paper")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("family", "shape", "sizes, parameters") if wide else ("family", "sizes, parameters"):
        table.add_column(title, no_wrap=True)
    for title in facts.values() if wide else (", ".join(facts.values()),):
        table.add_column(title)
    longest = max(len(size) for each in sizes.values() for size in each)
    for kin, following in zip(every, [*every[1:], None], strict=True):
        held = "\n".join(f"{size:<{longest}} {human(count):>6}" for size, count in sizes[kin.name].items())
        purpose, differs, paper = (about(kin)[fact] for fact in facts)
        name = Text(kin.name, "bold")
        if wide:
            table.add_row(name, kin.shape, held, purpose, differs, Text(paper.replace(", ", "\n"), "dim"))
        else:
            said = Text.assemble(f"{purpose}\n{differs}\n", (paper, "dim"))
            table.add_row(Text.assemble(name, f"\n{kin.shape}"), held, said)
        if following is None or not wide or following.shape != kin.shape:
            table.add_section()
    return table


def about(kin: Family) -> dict[str, str]:
    """paper, purpose and differs: the lines of a family's docstring that begin so."""
    lines = (line.partition(" ") for line in (kin.doc or "").splitlines())
    found = {word: rest.strip() for word, _, rest in lines}
    return {word: found.get(word, "") for word in ("paper", "purpose", "differs")}


# --- show ---


def show(
    model: str, /, *, size: str | None = None, layers: Annotated[bool, Parameter(negative="")] = False
) -> None:
    """Draw a model as a tree: parts, shapes, parameters, and who sees whom in each layer.

    Parameters
    ----------
    model
        the name of a family, or the folder of a model
    size
        which size of the family; without it, the first
    layers
        draw every layer, equal ones too
    """
    from rich.table import Table
    from rich.text import Text

    from qkv.draw import BLIND, SEES
    from qkv.model import skeleton
    from qkv.tree import pieces, render, tree

    title, kin, spec = _understand(model, size)
    if pieces(spec) > MOST:
        raise ValueError(f"{model}: {pieces(spec):,} layers and experts, expected at most {MOST:,} to draw")
    root = tree(skeleton(spec), title, fold=not layers)
    facts = Table.grid(padding=(0, 2))
    for label, fact in (("for", "purpose"), ("different", "differs"), ("paper", "paper")):
        facts.add_row(Text(label, "dim"), about(kin)[fact])
    key = f"\n{SEES} the query of this row sees the key of this column, {BLIND} it does not"
    head = Text.assemble((title, "bold"), f": {kin.shape}, {root.count:,} parameters")
    say(head, facts, "", render(root, console().width), Text(key, "dim"))


def _understand(model: str, size: str | None) -> tuple[str, Family, Spec | Two]:
    """A title, the family and the spec for the name of a family, a folder or a hub id."""
    from qkv.config import understand
    from qkv.families import NAMES, family
    from qkv.foreign import is_ctranslate2, is_fairseq
    from qkv.model import find, make_spec
    from qkv.weights.files import read_json

    if model in NAMES:
        kin = family(model)
        size = size or next(iter(kin.sizes))
        return f"{kin.name} {size}", kin, make_spec(kin, kin.arguments(size))
    if size is not None:
        raise ValueError(f"--size {size} with {model}: expected the name of a family, a folder has one size")
    if not Path(model).exists() and "/" not in model:
        raise ValueError(f"{model}: no such folder, and no family; expected one of {', '.join(NAMES)}")
    path = find(model, None)
    if is_fairseq(path) or is_ctranslate2(path):
        opened, _ = _open(path)
        return path.name, opened.family, opened.spec
    config = read_json(path / "config.json")
    try:
        kin, args, positions = understand(config)
        return path.resolve().name, kin, make_spec(kin, args, positions)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


# --- convert ---


def convert(
    source: str,
    target: Path,
    /,
    *,
    form: Literal["safetensors", "bin"] = "safetensors",
    shard: str = "5GB",
    to: Literal["auto", "hf", "qkv"] = "auto",
    head: str | None = None,
) -> None:
    """Write a model in another form: safetensors, .bin, shards; out of fairseq's or CTranslate2's too.

    Parameters
    ----------
    source
        a folder, a hub id, a .pt file of fairseq, or a folder of CTranslate2
    target
        a new folder
    form
        the kind of the files of weights
    shard
        the most that one file of weights holds: 2GB, 500MB
    to
        Hugging Face's format, or qkv's own; auto: Hugging Face's where it has a class
    head
        of a fairseq checkpoint with several heads: lm, or the name of one
    """
    from rich.table import Table

    from qkv.model import find
    from qkv.spec import Spec
    from qkv.weights.files import read_json, read_tensors, write_tensors

    limit = size_in_bytes(shard)
    path = find(source, None)
    if target.exists() and target.samefile(path):
        raise ValueError(f"{target}: the source itself; expected another folder")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target}: there is something already; expected a new or an empty folder")
    model, kind = _open(path, head)
    with _whole(target) as folder:
        model.save(folder, form=to, shard_bytes=limit)
        if form == "bin":
            write_tensors(folder, read_tensors(folder), form="bin", shard_bytes=limit)
        tensors = read_tensors(folder)
        files = [
            (each.name, human(each.stat().st_size, (" B", " kB", " MB", " GB", " TB")))
            for each in sorted(folder.iterdir())
        ]
        own = read_json(folder / "config.json").get("model_type") == "qkv"
        copied = _copy_beside(path if path.is_dir() else path.parent, folder)
    count = sum(p.numel() for p in model.net.parameters())
    dtypes = ", ".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors.values()))
    spec = model.spec
    heads = ", ".join(head.name for head in spec.heads) if isinstance(spec, Spec) else "contrast"
    table = Table.grid(padding=(0, 2))
    table.add_row("read", str(path))
    table.add_row("", kind)
    table.add_row("model", f"{model.family.name}, {count:,} parameters, heads: {heads or 'none'}")
    table.add_row("wrote", str(target))
    table.add_row("", f"{FORMATS[own]} format, {len(tensors)} tensors of {dtypes}")
    longest = max(len(name) for name, _ in files)
    for name, size in files:
        table.add_row("", f"{name:<{longest}}  {size:>8}")
    if copied:
        table.add_row("copied", ", ".join(copied))
    say(table)


def _open(path: Path, head: str | None = None) -> tuple[Model, str]:
    """The model in a folder or file, and what that is."""
    from qkv.foreign import is_ctranslate2, is_fairseq, open_ctranslate2, open_fairseq
    from qkv.model import load_folder
    from qkv.weights.files import HEADS

    if is_fairseq(path):
        return open_fairseq(path, head), "a checkpoint of fairseq"
    if head is not None:
        raise ValueError(f"--head {head} with {path}: expected a checkpoint of fairseq, this is none")
    if is_ctranslate2(path):
        return open_ctranslate2(path), "a model of CTranslate2"
    model = load_folder(path)
    start = next(name for name in HEADS if (path / name).exists())
    shards = " in shards" if start.endswith(".index.json") else ""
    own = model.config.get("model_type") == "qkv"
    return model, f"{FORMATS[own]} format, {start.removesuffix('.index.json')}{shards}"


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A folder to write into that becomes `target` at the end, or nothing does."""
    near = next(each for each in target.absolute().parents if each.is_dir())
    if not os.access(near, os.W_OK):
        raise ValueError(f"{target}: nothing can be written in {near}; expected a folder of yours")
    with tempfile.TemporaryDirectory(prefix=".qkv-", dir=near) as room:
        folder = Path(room) / "whole"
        yield folder
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rmdir()
        folder.rename(target)


def _copy_beside(source: Path, target: Path) -> list[str]:
    """Copies what belongs to the weights and is none; returns the names. No link leads out of the folder."""
    from qkv.weights import files

    found = [each for pattern in BESIDE for each in sorted(source.glob(pattern)) if each.is_file()]
    names = [each.relative_to(source) for each in dict.fromkeys(found)]
    for name in names:
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(files._inside((source / name).parent, name.name), target / name)
    return [str(name) for name in names]


def size_in_bytes(text: str) -> int:
    """2GB, 1.5 GiB, 500000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise ValueError(f"--shard {text}: expected a size, such as 2GB or 500MB")
    return int(float(found[1]) * UNITS[found[2]])
