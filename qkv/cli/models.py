"""Model commands: list families, show or export a model, merge an adapter."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qkv.cli.console import make_console, print_rich
from qkv.cli.flags import BoolFlag, JsonFlag
from qkv.cli.folders import (
    BASE_COMPANION_FILES,
    COMPANION_FILES,
    check_new_folder,
    check_picture_file,
    copy_companion_files,
    describe_model,
    list_file_sizes,
    print_summary,
    write_atomically,
)
from qkv.formatting import format_count

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.families.family import Family
    from qkv.model.model import Model
    from qkv.nn.transformer import DualEncoder, Transformer
    from qkv.spec import DualSpec, Spec

MIN_WIDE_SCREEN = 130  # minimum screen width for one column per fact about a family
MAX_DRAWN_LAYERS = 50_000  # layers and experts
FORMAT_NAMES = {False: "Hugging Face", True: "qkv"}  # is model_type "qkv"?
BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


# --- families ---


def families(*, as_json: JsonFlag = False) -> None:
    """List the model families: architecture, sizes, parameters, paper, purpose and differences.

    qkv families --json

    Parameters
    ----------
    as_json
        print JSON
    """
    from qkv.families import list_families
    from qkv.model.build import build_model_spec
    from qkv.view.tree import count_spec_parameters

    all_families = list_families()
    sizes = {
        family.name: {
            size: count_spec_parameters(build_model_spec(family, family.arguments(size)))
            for size in family.sizes
        }
        for family in all_families
    }
    if as_json:
        rows = [
            dict(
                name=family.name,
                shape=family.shape,
                **get_family_facts(family),
                sizes=sizes[family.name],
            )
            for family in all_families
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    shapes = list(dict.fromkeys(family.shape for family in all_families))
    by_shape = sorted(all_families, key=lambda family: shapes.index(family.shape))
    print_rich(_build_family_table(by_shape, sizes, make_console().width))


def _build_family_table(
    all_families: Sequence[Family], sizes: dict[str, dict[str, int]], width: int
) -> Table:
    """Build the table of families; on a narrow screen, the facts of a family share one column."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    is_wide = width >= MIN_WIDE_SCREEN
    facts = dict(purpose="purpose", differs="differences", paper="paper")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in (
        ("family", "shape", "sizes, parameters") if is_wide else ("family", "sizes, parameters")
    ):
        table.add_column(title, no_wrap=True)
    for title in facts.values() if is_wide else (", ".join(facts.values()),):
        table.add_column(title)
    size_width = max(len(size) for family_sizes in sizes.values() for size in family_sizes)
    for family, next_family in zip(all_families, [*all_families[1:], None], strict=True):
        size_lines = "\n".join(
            f"{size:<{size_width}} {format_count(count):>6}"
            for size, count in sizes[family.name].items()
        )
        purpose, differs, paper = (get_family_facts(family)[fact] for fact in facts)
        name = Text(family.name, "bold")
        if is_wide:
            paper_lines = Text(paper.replace(", ", "\n"), "dim")
            table.add_row(name, family.shape, size_lines, purpose, differs, paper_lines)
        else:
            description = Text.assemble(f"{purpose}\n{differs}\n", (paper, "dim"))
            table.add_row(Text.assemble(name, f"\n{family.shape}"), size_lines, description)
        if next_family is None or not is_wide or next_family.shape != family.shape:
            table.add_section()
    return table


def get_family_facts(family: Family) -> dict[str, str]:
    """Return the lines of a family's docstring that begin with paper, purpose and differs."""
    lines = (line.partition(" ") for line in (family.doc or "").splitlines())
    facts = {word: rest.strip() for word, _, rest in lines}
    return {word: facts.get(word, "") for word in ("paper", "purpose", "differs")}


# --- show ---


def show(
    model: str, /, *, adapter: str | None = None, size: str | None = None,
    all_layers: BoolFlag = False, save: Path | None = None,
) -> None:  # fmt: skip
    """Show a model as a tree: modules, shapes, parameters, and the attention pattern of each layer.

    qkv show gpt2 --size large

    Parameters
    ----------
    model
        folder of a model or an adapter, name of a family, or hub id
    adapter
        folder of a LoRA adapter to load onto the model
    size
        size of the family; default: the first
    all_layers
        show all layers, including identical ones
    save
        write a diagram of the model to this file: .svg
    """
    from rich.table import Table
    from rich.text import Text

    from qkv.model.parameters import build_meta_network
    from qkv.view.diagram import render_diagram_svg
    from qkv.view.patterns import MASKED_MARK, VISIBLE_MARK
    from qkv.view.tree import build_module_tree, count_layers, render_tree

    if save is not None:
        check_picture_file(save, (".svg",))
    title, family, spec, net = _resolve_model(model, size, adapter)
    num_layers = count_layers(spec)
    if num_layers > MAX_DRAWN_LAYERS:
        raise ValueError(
            f"{model}: {num_layers:,} layers and experts, expected at most {MAX_DRAWN_LAYERS:,}"
        )
    root = build_module_tree(net or build_meta_network(spec), title, fold_layers=not all_layers)
    facts = Table.grid(padding=(0, 2))
    for label, fact in (("purpose", "purpose"), ("differences", "differs"), ("paper", "paper")):
        facts.add_row(Text(label, "dim"), get_family_facts(family)[fact])
    legend = f"\nrows: queries, columns: keys; {VISIBLE_MARK} attends, {MASKED_MARK} masked"
    heading = Text.assemble(
        (title, "bold"), f": {family.shape}, {root.num_parameters:,} parameters"
    )
    print_rich(heading, facts, "", render_tree(root, make_console().width), Text(legend, "dim"))
    if save is not None:
        save.write_text(render_diagram_svg(f"{title}: {family.shape}", spec), encoding="utf-8")
        print(f"wrote {save}", file=sys.stderr)


def _resolve_model(
    model: str, size: str | None, adapter: str | None
) -> tuple[str, Family, Spec | DualSpec, Transformer | DualEncoder | None]:
    """Return title, family, spec and, if loaded, network of a folder, a family or a hub id."""
    from qkv.families import FAMILY_NAMES, get_family
    from qkv.files import read_json_object
    from qkv.model.adapters.config import is_adapter
    from qkv.model.build import build_model_spec
    from qkv.model.config import parse_config
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.hub import find_model_folder
    from qkv.model.load import load
    from qkv.model.transforms.sentence_transformers import find_transformer_folder

    has_config = (Path(model) / "config.json").is_file()
    if model in FAMILY_NAMES and (size is not None or not has_config):
        if adapter is not None:
            raise ValueError(
                f"--adapter {adapter} with {model}: expected the folder of its model, not a family"
            )
        family = get_family(model)
        size = size or next(iter(family.sizes))
        return (
            f"{family.name} {size}",
            family,
            build_model_spec(family, family.arguments(size)),
            None,
        )
    if size is not None:
        raise ValueError(
            f"--size {size} with {model}: expected the name of a family; a folder has one size"
        )
    try:
        path = find_model_folder(model, None)
    except ValueError as error:
        hint = (
            "" if "/" in model else f"; and not a family, expected one of {', '.join(FAMILY_NAMES)}"
        )
        raise ValueError(f"{error}{hint}") from None
    if adapter is not None or is_adapter(path) or find_foreign_format(path):
        loaded = load(model, adapter=adapter, device="cpu")
        return path.name, loaded.family, loaded.spec, loaded.net
    config = read_json_object(find_transformer_folder(path) / "config.json")
    try:
        family, arguments, position_embedding_type = parse_config(config)
        spec = build_model_spec(family, arguments, position_embedding_type)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return path.resolve().name, family, spec, None


# --- export ---


def export(
    source: str,
    target: Path,
    /,
    *,
    weights_format: Literal["safetensors", "bin"] = "safetensors",
    max_shard_size: str = "5GB",
    format: Literal["auto", "hf", "qkv"] = "auto",
    weights: Literal["full", "int8"] = "full",
    head: str | None = None,
) -> None:
    """Write a model in another format; reads Hugging Face, fairseq, Marian and CTranslate2 models.

    qkv export Helsinki-NLP/opus-mt-de-en small --weights int8

    Parameters
    ----------
    source
        folder, hub id, builtin:translate, fairseq .pt file, Marian .npz file, or CTranslate2 folder
    target
        new folder
    weights_format
        file format of the weights
    max_shard_size
        maximum size of one weights file: 2GB, 500MB
    format
        hf: Hugging Face, qkv: native; auto: Hugging Face if it has a class for the model
    weights
        int8: weight-only 8-bit quantization, readable by qkv only
    head
        head of a fairseq checkpoint with several heads: lm, or its name
    """
    from qkv.files import read_json_object
    from qkv.model.adapters.config import is_adapter
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.hub import find_model_folder
    from qkv.model.transforms.sentence_transformers import find_transformer_folder
    from qkv.weights.tensors import read_tensors, write_tensors

    shard_bytes = parse_byte_size(max_shard_size)
    path = find_model_folder(source, None)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter; qkv merge {source} --out {target} merges it into its model"
        )
    if target.exists() and target.samefile(path):
        raise ValueError(f"{target}: the same folder as the source; expected another folder")
    check_new_folder(target)
    model, source_format = _open_model(path, head)
    with write_atomically(target) as folder:
        model.save(folder, format=format, weights=weights, max_shard_size=shard_bytes)
        if weights_format == "bin":
            write_tensors(
                folder, read_tensors(folder), file_format="bin", max_shard_size=shard_bytes
            )
        tensors = read_tensors(folder)
        file_rows = list_file_sizes(folder)
        is_native = read_json_object(folder / "config.json").get("model_type") == "qkv"
        # The tokenizer of a foreign format is written by `save`, in another format.
        patterns = [
            pattern
            for pattern in COMPANION_FILES
            if pattern not in ("*.model", "*.spm") or not find_foreign_format(path)
        ]
        companion_folder = find_transformer_folder(path) if path.is_dir() else path.parent
        copied_files = copy_companion_files(companion_folder, folder, patterns)
    dtypes = ", ".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors.values()))
    print_summary(
        ("read", str(path)),
        ("", source_format),
        ("model", describe_model(model)),
        ("wrote", str(target)),
        ("", f"{FORMAT_NAMES[is_native]} format, {len(tensors)} tensors of {dtypes}"),
        *file_rows,
        copied_files=copied_files,
    )


def _open_model(path: Path, head: str | None = None) -> tuple[Model, str]:
    """Return the model of a folder or file, and the name of its format."""
    from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.load import load
    from qkv.model.transforms.sentence_transformers import find_transformer_folder
    from qkv.weights.tensors import WEIGHT_FILES

    if is_fairseq(path):
        return load_fairseq(path, head), "fairseq checkpoint"
    if head is not None:
        raise ValueError(f"--head {head} with {path}: not a fairseq checkpoint; remove --head")
    if foreign_format := find_foreign_format(path):
        return foreign_format.load(path), foreign_format.name
    model = load(path, device="cpu")
    folder = find_transformer_folder(path)
    weights_file = next(name for name in WEIGHT_FILES if (folder / name).exists())
    shards = " in shards" if weights_file.endswith(".index.json") else ""
    is_native = model.config.get("model_type") == "qkv"
    return (
        model,
        f"{FORMAT_NAMES[is_native]} format, {weights_file.removesuffix('.index.json')}{shards}",
    )


# --- merge ---


def merge(model: str, /, *, out: Path, adapter: str | None = None) -> None:
    """Merge a LoRA adapter into the weights of its model, and write the merged model.

    qkv merge runs/lora/best --out mine

    Parameters
    ----------
    model
        folder or hub id of a model, or folder of an adapter with the path of its base model
    out
        new folder
    adapter
        folder of an adapter of this model
    """
    from qkv.model.adapters.config import find_base_model, is_adapter
    from qkv.model.hub import find_model_folder
    from qkv.model.load import load
    from qkv.nn.lora import merge_lora

    check_new_folder(out)
    path = find_model_folder(model, None)
    if adapter is None and not is_adapter(path):
        raise ValueError(f"{model}: a model without an adapter; expected --adapter and its folder")
    base = find_base_model(path)[1] if is_adapter(path) else path
    merged = load(model, adapter=adapter, device="cpu")
    layers = merge_lora(merged.net)
    with write_atomically(out) as folder:
        merged.save(folder)
        file_rows = list_file_sizes(folder)
        base_folder = base if base.is_dir() else base.parent
        copied_files = copy_companion_files(base_folder, folder, BASE_COMPANION_FILES)
    print_summary(
        ("read", str(base)),
        ("merged", f"{adapter or model}, {len(layers)} layers"),
        ("model", describe_model(merged)),
        ("wrote", str(out)),
        *file_rows,
        copied_files=copied_files,
    )


def parse_byte_size(text: str) -> int:
    """Parse a size in bytes: 2GB, 1.5 GiB, 500000."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?B?)", text.strip().upper())
    if size is None or size[2] not in BYTE_UNITS or not float(size[1]):
        raise ValueError(f"--max-shard-size {text}: expected a size, such as 2GB or 500MB")
    return int(float(size[1]) * BYTE_UNITS[size[2]])
