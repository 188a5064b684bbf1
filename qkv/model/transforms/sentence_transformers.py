"""Folders of sentence-transformers: modules.json, and the files of pooling and linear layer.

modules.json            the modules in order: Transformer, Pooling, Dense, Normalize
0_Transformer/          config.json and weights; in newer folders, the folder itself
1_Pooling/config.json   the pooling mode
2_Dense/                config.json, and weights linear.weight and linear.bias
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.files import read_json_object, read_json_value, save_json
from qkv.model.file_names import DENSE_FOLDER, MODULES_FILE, POOLING_FOLDER
from qkv.model.transforms.pooling import POOLING_CONFIG_KEYS, DenseLayer, Pooling
from qkv.weights.tensors import read_tensors, write_tensors

# The type of the first module; the first versions had one per model.
TRANSFORMER_MODULES = (
    "Transformer", "BERT", "RoBERTa", "DistilBERT", "ALBERT", "XLNet", "T5", "XLMRoBERTa", "CamemBERT",
)  # fmt: skip
POOLING_MODULES = ("Pooling", "Dense", "Normalize", "Dropout")  # Dropout has no effect here
NEW_POOLING_MODES = {  # value of `pooling_mode` in newer files: mode
    "mean": "mean", "cls": "first", "lasttoken": "last", "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "weightedmean": "weightedmean",
}  # fmt: skip
DENSE_ACTIVATIONS = {  # class in torch.nn: activation
    "Identity": "linear", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid",
    "SiLU": "silu",
}  # fmt: skip
DEFAULT_MODULE_PATHS = {"Pooling": POOLING_FOLDER, "Dense": DENSE_FOLDER}
DENSE_PREFIX = f"{DENSE_FOLDER}."  # of the names of its tensors


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the type and the folder of every module; empty without modules.json."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return []
    modules = read_json_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ValueError(f"{path}: expected a JSON list of modules, each with a type")
    rows = []
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        path_name = str(module.get("path", DEFAULT_MODULE_PATHS.get(name, "")))
        rows.append((name, folder / Path(path_name).name))
    return rows


def find_transformer_folder(folder: Path) -> Path:
    """Return the folder of config.json and weights: the folder itself, or that of its first module."""
    if (folder / "config.json").exists() or not folder.is_dir():
        return folder
    paths = [path for name, path in read_modules(folder) if name in TRANSFORMER_MODULES]
    return paths[0] if paths else folder


def read_pooling(folder: Path) -> Pooling | None:
    """Return the pooling of a folder; None if it has none, or with a warning if qkv cannot hold it."""
    modules = read_modules(folder)
    if not modules:
        return None
    names = [name for name, _ in modules]
    problems = sorted({*names} - {*TRANSFORMER_MODULES, *POOLING_MODULES})
    if "Pooling" not in names:
        problems = problems or ["no Pooling"]
    order = [name for name in names if name in POOLING_MODULES[:3]]
    if not problems and order not in (
        ["Pooling"], ["Pooling", "Normalize"], ["Pooling", "Dense"], ["Pooling", "Dense", "Normalize"],
    ):  # fmt: skip
        problems = [", ".join(order)]
    if problems:
        warnings.warn(
            f"{folder / MODULES_FILE}: {', '.join(problems)}: expected Transformer, Pooling, Dense, "
            "Normalize; the model is loaded without its sentence embedding",
            stacklevel=5,
        )
        return None
    paths = dict(modules)
    dense = _read_dense_layer(paths["Dense"] / "config.json") if "Dense" in paths else None
    return Pooling(_read_mode(paths["Pooling"] / "config.json"), "Normalize" in names, dense)


def _read_mode(path: Path) -> str:
    config = read_json_object(path)
    keys = [
        key for key, value in config.items() if key.startswith("pooling_mode_") and value is True
    ]
    modes = [mode for mode, key in POOLING_CONFIG_KEYS.items() if [key] == keys]
    new_mode = config.get("pooling_mode")
    if isinstance(new_mode, str) and new_mode in NEW_POOLING_MODES:
        return NEW_POOLING_MODES[new_mode]
    if not modes or new_mode is not None:
        problem = " and ".join(keys) or "no pooling mode"
        problem = problem if new_mode is None else f"pooling_mode is {new_mode!r}"
        raise ValueError(
            f"{path}: {problem}: expected one of {', '.join(POOLING_CONFIG_KEYS.values())}"
        )
    return modes[0]


def _read_dense_layer(path: Path) -> DenseLayer:
    config = read_json_object(path)
    width = config.get("out_features")
    bias = config.get("bias", True)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    problems = []
    if type(width) is not int or width < 1:
        problems.append(f"out_features is {width!r}, expected a number")
    if type(bias) is not bool:
        problems.append(f"bias is {bias!r}, expected true or false")
    if activation not in DENSE_ACTIVATIONS:
        known = ", ".join(DENSE_ACTIVATIONS)
        problems.append(f"activation_function is {activation!r}, expected one of {known}")
    for key, supported in (
        ("module_input_name", (None, "sentence_embedding")),
        ("module_output_name", (None, "sentence_embedding")),
        ("use_residual", (None, False)),
    ):
        if config.get(key) not in supported:
            problems.append(f"{key} is {config[key]!r}, supported: {supported[1]!r}")
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    assert isinstance(width, int)
    return DenseLayer(width, bool(bias), DENSE_ACTIVATIONS[activation])


def read_dense_tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the linear layer, with a prefix; empty if the folder has none."""
    paths = [path for name, path in read_modules(folder) if name == "Dense"]
    return (
        {f"{DENSE_PREFIX}{name}": x for name, x in read_tensors(paths[0]).items()} if paths else {}
    )


def write_sentence_transformer(
    folder: Path, pooling: Pooling, width: int, dense_tensors: Mapping[str, Tensor]
) -> None:
    """Write modules.json, 1_Pooling and 2_Dense as sentence-transformers does, into a staging
    folder."""
    keys = {key: mode == pooling.mode for mode, key in POOLING_CONFIG_KEYS.items()}
    (folder / POOLING_FOLDER).mkdir()
    save_json({"word_embedding_dimension": width, **keys}, folder / POOLING_FOLDER / "config.json")
    modules = [("Transformer", ""), ("Pooling", POOLING_FOLDER)]
    if pooling.dense is not None:
        modules.append(("Dense", DENSE_FOLDER))
        _write_dense_layer(folder / DENSE_FOLDER, pooling.dense, width, dense_tensors)
    if pooling.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    save_json(rows, folder / MODULES_FILE)


def _write_dense_layer(
    folder: Path, dense: DenseLayer, width: int, tensors: Mapping[str, Tensor]
) -> None:
    classes = {activation: name for name, activation in DENSE_ACTIVATIONS.items()}
    module = "linear" if dense.activation == "linear" else "activation"
    config: dict[str, Any] = {
        "in_features": width,
        "out_features": dense.width,
        "bias": dense.bias,
        "activation_function": f"torch.nn.modules.{module}.{classes[dense.activation]}",
    }
    write_tensors(folder, {f"linear.{name}": x for name, x in tensors.items()})
    save_json(config, folder / "config.json")
