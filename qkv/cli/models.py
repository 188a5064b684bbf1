"""The commands of models: list the families, draw one, write one in another form, or its adapter into it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.console import console, say
from qkv.cli.folders import KEPT, check_new, copy_beside, described, listed, tell, whole
from qkv.formatting import human

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.families.family import Family
    from qkv.model.model import Model
    from qkv.nn.transformer import Pair, Transformer
    from qkv.spec import Spec, Two

WIDE = 130  # columns from which every fact about a family has a column of its own
MOST = 50_000  # layers and experts in a drawing
FORMATS = {False: "Hugging Face's", True: "qkv's own"}
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


# --- families ---


def families(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """List the families: shape, sizes, parameters, paper, what each is for and what makes it different.

    qkv families --json

    Parameters
    ----------
    as_json
        for machines
    """
    from qkv.families import list_families as every
    from qkv.model.build import make_spec
    from qkv.view.tree import parameters

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
    model: str, /, *, adapter: str | None = None, size: str | None = None,
    layers: Annotated[bool, Parameter(negative="")] = False,
) -> None:  # fmt: skip
    """Draw a model as a tree: parts, shapes, parameters, and who sees whom in each layer.

    qkv show gpt2 --size large

    Parameters
    ----------
    model
        the folder of a model or of an adapter, the name of a family, or a hub id
    adapter
        the folder of an adapter, to be drawn on its model
    size
        which size of the family; without it, the first
    layers
        draw every layer, equal ones too
    """
    from rich.table import Table
    from rich.text import Text

    from qkv.model.parameters import skeleton
    from qkv.view.patterns import BLIND, SEES
    from qkv.view.tree import pieces, render, tree

    title, kin, spec, net = _understand(model, size, adapter)
    if pieces(spec) > MOST:
        raise ValueError(f"{model}: {pieces(spec):,} layers and experts, expected at most {MOST:,} to draw")
    root = tree(net or skeleton(spec), title, fold=not layers)
    facts = Table.grid(padding=(0, 2))
    for label, fact in (("for", "purpose"), ("different", "differs"), ("paper", "paper")):
        facts.add_row(Text(label, "dim"), about(kin)[fact])
    key = f"\n{SEES} the query of this row sees the key of this column, {BLIND} it does not"
    head = Text.assemble((title, "bold"), f": {kin.shape}, {root.count:,} parameters")
    say(head, facts, "", render(root, console().width), Text(key, "dim"))


def _understand(
    model: str, size: str | None, adapter: str | None
) -> tuple[str, Family, Spec | Two, Transformer | Pair | None]:
    """A title, the family and the spec for a folder, a family's name or a hub id; the network, if opened."""
    from qkv.families import NAMES, family
    from qkv.model.adapters.config import is_adapter
    from qkv.model.build import make_spec
    from qkv.model.config import understand
    from qkv.model.ctranslate2 import is_ctranslate2
    from qkv.model.fairseq import is_fairseq
    from qkv.model.hub import find
    from qkv.model.load import load
    from qkv.weights.tensors import read_json

    named = model in NAMES and (size is not None or not (Path(model) / "config.json").is_file())
    if named and adapter is not None:
        raise ValueError(f"--adapter {adapter} with {model}: expected the folder of the model that it is of")
    if named:
        kin = family(model)
        size = size or next(iter(kin.sizes))
        return f"{kin.name} {size}", kin, make_spec(kin, kin.arguments(size)), None
    if size is not None:
        raise ValueError(f"--size {size} with {model}: expected the name of a family, a folder has one size")
    try:
        path = find(model, None)
    except ValueError as error:
        others = "" if "/" in model else f"; nor is it a family, which are {', '.join(NAMES)}"
        raise ValueError(f"{error}{others}") from None
    if adapter is not None or any(kind(path) for kind in (is_fairseq, is_ctranslate2, is_adapter)):
        opened = load(model, adapter=adapter)
        return path.name, opened.family, opened.spec, opened.net
    config = read_json(path / "config.json")
    try:
        kin, args, positions = understand(config)
        return path.resolve().name, kin, make_spec(kin, args, positions), None
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
    weights: Literal["full", "int8"] = "full",
    head: str | None = None,
) -> None:
    """Write a model in another form: safetensors, .bin, shards; out of fairseq's or CTranslate2's too.

    qkv convert Helsinki-NLP/opus-mt-de-en small --weights int8

    Parameters
    ----------
    source
        a folder, a hub id, builtin:translate, a .pt file of fairseq, or a folder of CTranslate2
    target
        a new folder
    form
        the kind of the files of weights
    shard
        the most that one file of weights holds: 2GB, 500MB
    to
        Hugging Face's format, or qkv's own; auto: Hugging Face's where it has a class
    weights
        int8: a byte for each, which only qkv opens
    head
        of a fairseq checkpoint with several heads: lm, or the name of one
    """
    from qkv.model.adapters.config import is_adapter
    from qkv.model.hub import find
    from qkv.weights.tensors import read_json, read_tensors, write_tensors

    limit = size_in_bytes(shard)
    path = find(source, None)
    if is_adapter(path):
        raise ValueError(f"{path}: an adapter; qkv merge {source} --out {target} folds it into its model")
    if target.exists() and target.samefile(path):
        raise ValueError(f"{target}: the source itself; expected another folder")
    check_new(target)
    model, kind = _open(path, head)
    with whole(target) as folder:
        model.save(folder, form=to, weights=weights, shard_bytes=limit)
        if form == "bin":
            write_tensors(folder, read_tensors(folder), form="bin", shard_bytes=limit)
        tensors = read_tensors(folder)
        rows = listed(folder)
        own = read_json(folder / "config.json").get("model_type") == "qkv"
        copied = copy_beside(path if path.is_dir() else path.parent, folder)
    dtypes = ", ".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors.values()))
    held = f"{FORMATS[own]} format, {len(tensors)} tensors of {dtypes}"
    read = [("read", str(path)), ("", kind), ("model", described(model))]
    tell(*read, ("wrote", str(target)), ("", held), *rows, copied=copied)


def _open(path: Path, head: str | None = None) -> tuple[Model, str]:
    """The model in a folder or file, and what that is."""
    from qkv.model.ctranslate2 import is_ctranslate2, open_ctranslate2
    from qkv.model.fairseq import is_fairseq, open_fairseq
    from qkv.model.load import load_folder
    from qkv.weights.tensors import HEADS

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


# --- merge ---


def merge(model: str, /, *, out: Path, adapter: str | None = None) -> None:
    """Fold an adapter into the weights of its model, and write the model that they make.

    qkv merge runs/lora/best --out mine

    Parameters
    ----------
    model
        a folder or hub id; or an adapter, which names its model
    out
        a new folder
    adapter
        the folder of an adapter that is of this model
    """
    from qkv.model.adapters.config import base_of, is_adapter
    from qkv.model.hub import find
    from qkv.model.load import load
    from qkv.nn.lora import merge as fold

    check_new(out)
    path = find(model, None)
    if adapter is None and not is_adapter(path):
        raise ValueError(
            f"{model}: a model, and no adapter to fold into it; expected --adapter and its folder"
        )
    base = base_of(path)[1] if is_adapter(path) else path
    made = load(model, adapter=adapter)
    layers = fold(made.net)
    with whole(out) as folder:
        made.save(folder)
        rows = listed(folder)
        copied = copy_beside(base if base.is_dir() else base.parent, folder, KEPT)
    read = [("read", str(base)), ("folded", f"{adapter or model}, {len(layers)} layers")]
    tell(*read, ("model", described(made)), ("wrote", str(out)), *rows, copied=copied)


def size_in_bytes(text: str) -> int:
    """2GB, 1.5 GiB, 500000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if found is None or found[2] not in UNITS or not float(found[1]):
        raise ValueError(f"--shard {text}: expected a size, such as 2GB or 500MB")
    return int(float(found[1]) * UNITS[found[2]])
