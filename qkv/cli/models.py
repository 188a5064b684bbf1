"""Model commands: list families, show or export a model, merge an adapter."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qkv.cli.console import make_console, print_rich
from qkv.cli.flags import BoolFlag, JsonFlag, OutputPath
from qkv.cli.folders import (
    BASE_COMPANION_FILES,
    COMPANION_FILES,
    RUNTIME_COMPANION_FILES,
    check_picture_file,
    copy_companion_files,
    describe_model,
    list_file_sizes,
    print_summary,
)
from qkv.formatting import format_count
from qkv.staging import check_new_folder, write_file, write_folder

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.families.family import Family
    from qkv.model.model import Model
    from qkv.nn.network import DualEncoder, Network
    from qkv.spec import DualSpec, Spec

MIN_WIDE_SCREEN = 130  # minimum screen width for one column per fact about a family
MAX_DRAWN_LAYERS = 2_000  # layers and experts; above, two of several equal layers are drawn
MAX_DRAWN_EXPERTS = 10_000
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
MAX_BYTE_SIZE = 2**63


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
    from qkv.pictures.models.tree import count_spec_parameters

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
    all_layers: BoolFlag = False, save: OutputPath | None = None,
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
    from qkv.pictures.models.diagram import render_diagram_svg
    from qkv.pictures.models.patterns import MASKED_MARK, VISIBLE_MARK
    from qkv.pictures.models.tree import (
        build_module_tree,
        count_layers,
        count_spec_parameters,
        keep_two_equal_layers,
        render_tree,
    )

    if save is not None:
        check_picture_file(save, (".svg",))
    title, family, spec, net = _resolve_model(model, size, adapter)
    num_layers = count_layers(spec)
    drawn_spec = spec
    if num_layers > MAX_DRAWN_LAYERS and net is None:
        if all_layers:
            raise ValueError(
                f"--all-layers with {num_layers:,} layers and experts: expected at most "
                f"{MAX_DRAWN_LAYERS:,}; remove --all-layers"
            )
        drawn_spec = keep_two_equal_layers(spec)
        if (num_drawn := count_layers(drawn_spec)) > MAX_DRAWN_EXPERTS:
            raise ValueError(
                f"{model}: {num_drawn:,} different layers and experts, expected at most "
                f"{MAX_DRAWN_EXPERTS:,}; is config.json damaged?"
            )
    root = build_module_tree(
        net or build_meta_network(drawn_spec), title, fold_layers=not all_layers
    )
    num_parameters = root.num_parameters if drawn_spec is spec else count_spec_parameters(spec)
    facts = Table.grid(padding=(0, 2))
    for label, fact in (("purpose", "purpose"), ("differences", "differs"), ("paper", "paper")):
        facts.add_row(Text(label, "dim"), get_family_facts(family)[fact])
    legend = f"\nrows: queries, columns: keys; {VISIBLE_MARK} attends, {MASKED_MARK} masked"
    heading = Text.assemble((title, "bold"), f": {family.shape}, {num_parameters:,} parameters")
    if drawn_spec is not spec:
        legend += f"; two of several equal layers, of {num_layers:,} layers and experts"
    print_rich(heading, facts, "", render_tree(root, make_console().width), Text(legend, "dim"))
    if save is not None:
        with write_file(save) as temporary:
            picture = render_diagram_svg(f"{title}: {family.shape}", spec)
            temporary.write_text(picture, encoding="utf-8")
        print(f"wrote {save}", file=sys.stderr)


def _resolve_model(
    model: str, size: str | None, adapter: str | None
) -> tuple[str, Family, Spec | DualSpec, Network | DualEncoder | None]:
    """Return title, family, spec and, if loaded, network of a folder, a family or a hub id."""
    from qkv.families import FAMILY_NAMES, get_family
    from qkv.files import read_json_object
    from qkv.model.adapters.config import is_adapter
    from qkv.model.build import build_model_spec
    from qkv.model.config import parse_config
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.hub import find_model_folder, find_settings_folder
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
    name = path.resolve().name
    path = find_settings_folder(path)
    if adapter is not None or is_adapter(path) or find_foreign_format(path):
        loaded = load(model, adapter=adapter, device="cpu")
        return name, loaded.family, loaded.spec, loaded.net
    config = read_json_object(find_transformer_folder(path) / "config.json")
    try:
        family, arguments, variant = parse_config(config)
        spec = build_model_spec(family, arguments, variant)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return name, family, spec, None


# --- export ---


def export(
    source: str,
    target: OutputPath,
    /,
    *,
    to: Literal["auto", "hf", "qkv", "onnx", "ctranslate2", "pt2"] = "auto",
    dtype: Literal["float32", "float16", "bfloat16"] | None = None,
    quantization: Literal[
        "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16",
        "float32",
    ] | None = None,
    weights_format: Literal["safetensors", "bin"] | None = None,
    max_shard_size: str | None = None,
    head: str | None = None,
) -> None:  # fmt: skip
    """Write a model in another format; reads Hugging Face, fairseq, Marian and CTranslate2 models.

    qkv export Helsinki-NLP/opus-mt-de-en small --to onnx

    Parameters
    ----------
    source
        folder, hub id, builtin:translate, fairseq .pt file, Marian .npz file, or CTranslate2 folder
    target
        new folder
    to
        hf: Hugging Face, qkv: native, onnx, ctranslate2, pt2: torch.export; auto: Hugging Face if
        it has a class for the model, else qkv
    dtype
        dtype of the weights; default: that of the source
    quantization
        int8 in qkv's format: readable by qkv only; in CTranslate2's, any of its types
    weights_format
        file format of Hugging Face's and qkv's weights; default: safetensors
    max_shard_size
        maximum size of one weights file: 2GB, 500MB; default: 5GB
    head
        head of a fairseq checkpoint with several heads: lm, or its name
    """
    import torch

    from qkv.export.formats import EXPORT_FORMATS, export_model
    from qkv.model.adapters.config import is_adapter
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.hub import find_model_folder
    from qkv.model.transforms.sentence_transformers import find_transformer_folder

    shard_bytes = parse_byte_size(max_shard_size or "5GB")
    path = find_model_folder(source, None)
    if is_adapter(path):
        raise ValueError(
            f"{path}: an adapter; qkv merge {source} --out {target} merges it into its model"
        )
    if target.exists() and target.samefile(path):
        raise ValueError(f"{target}: the same folder as the source; expected another folder")
    check_new_folder(target)
    for flag, value in (("--weights-format", weights_format), ("--max-shard-size", max_shard_size)):
        if value is not None and to in EXPORT_FORMATS:
            raise ValueError(f"{flag} {value} with --to {to}: expected --to hf or --to qkv")
    model, source_format = _open_model(path, head)
    if dtype is not None:
        model.to(getattr(torch, dtype))
    with write_folder(target) as folder:
        if to == "auto" or to == "hf" or to == "qkv":
            file_format = weights_format or "safetensors"
            description = _save_model(model, folder, to, quantization, file_format, shard_bytes)
            patterns = COMPANION_FILES
        else:
            export_model(model, folder, to=to, quantization=quantization)
            description = f"{to} format"
            patterns = RUNTIME_COMPANION_FILES
        file_rows = list_file_sizes(folder)
        # The tokenizer of a foreign format is written by `save`, in another format.
        patterns = [
            pattern
            for pattern in patterns
            if pattern not in ("*.model", "*.spm") or not find_foreign_format(path)
        ]
        companion_folder = find_transformer_folder(path) if path.is_dir() else path.parent
        copied_files = copy_companion_files(companion_folder, folder, patterns)
    print_summary(
        ("read", str(path)),
        ("", source_format),
        ("model", describe_model(model)),
        ("wrote", str(target)),
        ("", description),
        *file_rows,
        copied_files=copied_files,
    )


def _save_model(
    model: Model,
    folder: Path,
    to: Literal["auto", "hf", "qkv"],
    quantization: str | None,
    weights_format: Literal["safetensors", "bin"],
    shard_bytes: int,
) -> str:
    """Write Hugging Face's or qkv's format and return its description."""
    from qkv.files import read_json_object
    from qkv.weights.tensors import list_weight_files, read_tensors, write_tensors

    if quantization not in (None, "int8"):
        raise ValueError(
            f"--quantization {quantization} with --to {to}: expected int8, or --to ctranslate2"
        )
    model.save(
        folder,
        format=to,
        quantization="int8" if quantization else None,
        max_shard_size=shard_bytes,
    )
    if weights_format == "bin":
        tensors = read_tensors(folder)
        for name in list_weight_files(folder):
            (folder / name).unlink()  # its memory stays mapped
        write_tensors(folder, tensors, file_format="bin", max_shard_size=shard_bytes)
    tensors = read_tensors(folder)
    is_native = read_json_object(folder / "config.json").get("model_type") == "qkv"
    dtypes = ", ".join(dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in tensors.values()))
    return f"{FORMAT_NAMES[is_native]} format, {len(tensors)} tensors of {dtypes}"


def _open_model(path: Path, head: str | None = None) -> tuple[Model, str]:
    """Return the model of a folder or file, and the name of its format."""
    from qkv.model.foreign.fairseq import is_fairseq, load_fairseq
    from qkv.model.foreign.formats import find_foreign_format
    from qkv.model.hub import find_run_model
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
    if find_run_model(path) is not None:
        return model, "training checkpoint"
    folder = find_transformer_folder(path)
    weights_file = next(name for name in WEIGHT_FILES if (folder / name).exists())
    shards = " in shards" if weights_file.endswith(".index.json") else ""
    is_native = model.config.get("model_type") == "qkv"
    return (
        model,
        f"{FORMAT_NAMES[is_native]} format, {weights_file.removesuffix('.index.json')}{shards}",
    )


# --- merge ---


def merge(model: str, /, *, out: OutputPath, adapter: str | None = None) -> None:
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
    from qkv.model.hub import find_model_folder, find_settings_folder
    from qkv.model.load import load
    from qkv.nn.lora import merge_lora

    check_new_folder(out)
    path = find_settings_folder(find_model_folder(model, None))
    if adapter is None and not is_adapter(path):
        raise ValueError(f"{model}: a model without an adapter; expected --adapter and its folder")
    base = find_base_model(path)[1] if is_adapter(path) else path
    merged = load(model, adapter=adapter, device="cpu")
    layers = merge_lora(merged.net)
    with write_folder(out) as folder:
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
    if (
        size is None
        or size[2] not in BYTE_UNITS
        or not 1 <= (num_bytes := float(size[1]) * BYTE_UNITS[size[2]]) < MAX_BYTE_SIZE
    ):
        raise ValueError(f"--max-shard-size {text[:40]}: expected a size, such as 2GB or 500MB")
    return int(num_bytes)
