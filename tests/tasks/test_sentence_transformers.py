"""Folders of sentence-transformers: `embed` gives what transformers and their modules compute."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from tests.support.errors import assert_error

TEXTS = ["The cat sat on the mat.", "A dog", "the dog and the cat are there"]
VOCABULARY = (
    """[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on mat . a dog and are there query :""".split()
)
WIDTH, DENSE_WIDTH = 16, 6
KEYS = {
    "mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken", "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
}  # fmt: skip
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": torch.relu,
}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_folder(
    root: Path, mode: str = "mean", *, transformer: str = "", dense: str | None = None,
    normalize: bool = True, modules_package: str = "sentence_transformers.models",
    first_type: str = "Transformer", dense_file: str = "model.safetensors",
) -> Path:  # fmt: skip
    """Write a folder as sentence-transformers does; return that of its transformer."""
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.4)
    folder = root / transformer
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    write_json(folder / "tokenizer_config.json", {"do_lower_case": True})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": False})
    modules = [(first_type, transformer), ("Pooling", "1_Pooling")]
    keys = {key: name == mode for name, key in KEYS.items()}
    write_json(root / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **keys})
    if dense is not None:
        modules.append(("Dense", "2_Dense"))
        settings = {"in_features": WIDTH, "out_features": DENSE_WIDTH, "bias": True}
        write_json(root / "2_Dense" / "config.json", {**settings, "activation_function": dense})
        tensors = {
            "linear.weight": torch.randn(DENSE_WIDTH, WIDTH),
            "linear.bias": torch.randn(DENSE_WIDTH),
        }
        if dense_file.endswith(".safetensors"):
            save_file(tensors, root / "2_Dense" / dense_file)
        else:
            torch.save(tensors, root / "2_Dense" / dense_file)
    if normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"{modules_package}.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    write_json(root / "modules.json", rows)
    return folder


def pool(hidden: Tensor, mode: str) -> Tensor:
    """Return the pooled states (W,) of one text, without padding, by the definition of the mode."""
    n = len(hidden)
    weights = torch.arange(1, n + 1)[:, None]
    return {
        "mean": hidden.mean(0),
        "cls": hidden[0],
        "lasttoken": hidden[-1],
        "max": hidden.max(0).values,
        "mean_sqrt_len_tokens": hidden.sum(0) / n**0.5,
        "weightedmean": (hidden * weights).sum(0) / weights.sum(),
    }[mode]


def compute_embeddings(
    root: Path, folder: Path, mode: str, *, normalize: bool = True, prompt: str = ""
) -> np.ndarray[Any, Any]:
    """Return the embeddings of TEXTS by transformers, text by text, and the modules by hand."""
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True)
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            hidden = model(**tokenizer(prompt + text, return_tensors="pt")).last_hidden_state[0]
        vector = pool(hidden, mode)
        if (root / "2_Dense").exists():
            path = root / "2_Dense" / "model.safetensors"
            is_safe = path.exists()
            tensors = load_file(path) if is_safe else torch.load(root / "2_Dense/pytorch_model.bin")
            config = json.loads((root / "2_Dense" / "config.json").read_text())
            vector = tensors["linear.weight"] @ vector + tensors["linear.bias"]
            vector = ACTIVATIONS[config["activation_function"]](vector)
        rows.append(vector / vector.norm() if normalize else vector)
    return torch.stack(rows).numpy()


def assert_embeddings(root: Path | qkv.Model, expected: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(qkv.task("embed", root).map(TEXTS), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", KEYS)
@pytest.mark.parametrize("normalize", [True, False])
def test_every_pooling_mode(tmp_path: Path, mode: str, normalize: bool) -> None:
    folder = write_folder(tmp_path, mode, normalize=normalize)
    expected = compute_embeddings(tmp_path, folder, mode, normalize=normalize)
    assert_embeddings(tmp_path, expected)
    write_json(tmp_path / "1_Pooling" / "config.json", {"pooling_mode": mode})  # newer files
    assert_embeddings(tmp_path, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_dense_layer_is_applied_and_saved(
    tmp_path: Path, activation: str, normalize: bool
) -> None:
    root = tmp_path / "first"
    folder = write_folder(root, "cls", dense=activation, normalize=normalize)
    expected = compute_embeddings(root, folder, "cls", normalize=normalize)
    assert expected.shape == (3, DENSE_WIDTH)
    assert_embeddings(root, expected)
    model = qkv.load(root)
    encoded = model.tokenizer(TEXTS, padding=True, return_tensors="pt")  # type: ignore[misc]
    np.testing.assert_allclose(
        model(**encoded)["sentence_embedding"].detach(), expected, atol=2e-5, rtol=1e-4
    )
    model.save(tmp_path / "hf")
    model.save(tmp_path / "qkv", format="qkv")
    for name in ("hf", "qkv"):
        assert_embeddings(tmp_path / name, expected)
    saved = load_file(tmp_path / "hf" / "2_Dense" / "model.safetensors")
    original = load_file(root / "2_Dense" / "model.safetensors")
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[key], x) for key, x in original.items())
    assert not any("Dense" in key for key in load_file(tmp_path / "hf" / "model.safetensors"))
    for file in ("modules.json", "2_Dense/config.json"):
        assert json.loads((tmp_path / "hf" / file).read_text()) == json.loads(
            (root / file).read_text()
        )


@pytest.mark.parametrize(
    ("transformer", "first_type"), [("0_Transformer", "Transformer"), ("0_BERT", "BERT")]
)
def test_the_transformer_may_lie_in_a_subfolder(
    tmp_path: Path, transformer: str, first_type: str
) -> None:
    folder = write_folder(
        tmp_path, transformer=transformer, first_type=first_type, normalize=False,
        dense="torch.nn.modules.activation.Tanh", dense_file="pytorch_model.bin",
    )  # fmt: skip
    assert_embeddings(tmp_path, compute_embeddings(tmp_path, folder, "mean", normalize=False))
    task = qkv.task("embed", tmp_path)
    assert task.input_token_limit == 12
    shutil.move(folder / "sentence_bert_config.json", folder / "sentence_roberta_config.json")
    assert qkv.task("embed", tmp_path).input_token_limit == 12


def test_newer_names_of_modules_are_read(tmp_path: Path) -> None:
    package = "sentence_transformers.sentence_transformer.modules.pooling"
    folder = write_folder(tmp_path, "max", modules_package=package)
    assert_embeddings(tmp_path, compute_embeddings(tmp_path, folder, "max"))


def test_lowercasing_and_a_default_prompt(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    expected = compute_embeddings(tmp_path, folder, "mean")
    write_json(folder / "tokenizer_config.json", {"do_lower_case": False})
    with pytest.raises(AssertionError):
        assert_embeddings(tmp_path, expected)  # "The" is unknown
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    assert_embeddings(tmp_path, expected)
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None}
    write_json(folder / "config_sentence_transformers.json", prompts)
    assert_embeddings(tmp_path, expected)
    write_json(
        folder / "config_sentence_transformers.json", {**prompts, "default_prompt_name": "query"}
    )
    assert_embeddings(tmp_path, compute_embeddings(tmp_path, folder, "mean", prompt="query: "))


def test_a_setting_replaces_the_pooling_of_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "cls", dense="torch.nn.modules.activation.Tanh")
    shutil.move(tmp_path / "2_Dense", tmp_path / "other")
    expected = compute_embeddings(tmp_path, folder, "max", normalize=False)
    shutil.move(tmp_path / "other", tmp_path / "2_Dense")
    task = qkv.task("embed", tmp_path, pooling="max", normalize=False)
    np.testing.assert_allclose(task.map(TEXTS), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softplus"}, "'Softplus'"),
        ({"out_features": "many"}, "out_features is 'many'"),
        ({"bias": 1}, "bias is 1"),
        ({"use_residual": True}, "use_residual is True"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
    ],
)
def test_unsupported_dense_layers_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], word: str
) -> None:
    write_folder(tmp_path, dense="torch.nn.modules.activation.Tanh")
    path = tmp_path / "2_Dense" / "config.json"
    write_json(path, {**json.loads(path.read_text()), **changes})
    assert_error(lambda: qkv.load(tmp_path), path, word)


def test_two_dense_layers_give_a_warning(tmp_path: Path) -> None:
    write_folder(tmp_path, dense="torch.nn.modules.activation.Tanh")
    path = tmp_path / "modules.json"
    modules = json.loads(path.read_text())
    write_json(path, [*modules[:3], modules[2], *modules[3:]])
    with pytest.warns(UserWarning, match="Pooling, Dense, Dense, Normalize: expected"):
        model = qkv.load(tmp_path)
    assert model.pooling is None
    assert_error(
        lambda: qkv.task("embed", model)("the cat"), "modules that qkv does not read", "set pooling"
    )
    assert qkv.task("embed", model, pooling="mean").map(TEXTS).shape == (3, WIDTH)
