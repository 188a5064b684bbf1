"""export_model: write a model in the format of another runtime."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from qkv.families.family import lookup
from qkv.model.model import Model
from qkv.staging import check_new_folder, write_folder


class ExportFormat(NamedTuple):
    """A function that writes a folder, imported on use."""

    module: str
    function: str
    accepts_quantization: bool = False


EXPORT_FORMATS = {
    "onnx": ExportFormat("qkv.export.onnx", "export_onnx"),
    "ctranslate2": ExportFormat("qkv.export.ctranslate2", "export_ctranslate2", True),
    "pt2": ExportFormat("qkv.export.pt2", "export_pt2"),
}


def export_model(
    model: Model, folder: str | Path, *, to: str, quantization: str | None = None
) -> None:
    """Write a model in the format of another runtime: "onnx", "ctranslate2" or "pt2".

    The folder is new or empty, and appears when it is complete. `quantization` is a type of
    CTranslate2, such as "int8". `Model.save` writes Hugging Face's and qkv's formats."""
    export_format = lookup("to", to, EXPORT_FORMATS)
    settings: dict[str, Any] = {}
    if quantization is not None:
        if not export_format.accepts_quantization:
            raise ValueError(
                f"quantization {quantization!r}: {to} files have the dtype of the weights; "
                "expected model.to(torch.float16), or --dtype float16"
            )
        settings["quantization"] = quantization
    check_new_folder(Path(folder))
    export = getattr(import_module(export_format.module), export_format.function)
    with write_folder(Path(folder)) as staged:
        export(model, staged, **settings)
