"""Int8 weights: quantization error, idempotence, and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.cli import main
from qkv.files import read_json_object, save_json
from qkv.weights.int8 import dequantize_int8, get_scale_name, quantize_int8
from tests.support import compare, tiny

# Relative to the largest value of a row: half a scale, which is rounded itself.
MAX_ERROR = 0.5 / 127 * (1 + 2**-8)
ROUNDED = "what is on the grid of a scale is rounded to itself"


def get_weights(model: qkv.Model) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.net.named_parameters()}


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_error_is_at_most_half_a_scale(family: str, tmp_path: Path) -> None:
    model = tiny.build(family, dtype=torch.float32)
    model.save(tmp_path, quantization="int8")
    loaded = qkv.load(tmp_path)
    before, after = get_weights(model), get_weights(loaded)
    assert before.keys() == after.keys()
    matrices = [name for name, x in before.items() if x.dim() == 2]
    assert matrices
    for name, x in before.items():
        assert after[name].dtype == torch.float32
        if name in matrices:
            error = (after[name] - x).abs().amax(1) / x.abs().amax(1)
            assert 0 < error.max() <= MAX_ERROR, name
        else:
            compare.assert_bitwise_equal(after[name], x, because=compare.COPIED)


def test_a_file_saved_again_is_equal_to_the_bit(tmp_path: Path) -> None:
    model = tiny.build("transformer", dtype=torch.float32)
    with torch.no_grad():
        for x in get_weights(model).values():  # rows from 1e-30 to 1e30, and zeros
            if x.dim() == 2:
                x *= torch.logspace(-30, 30, len(x))[:, None]
                x[0] = 0
    model.save(tmp_path / "first", quantization="int8")
    first = qkv.load(tmp_path / "first")
    first.save(tmp_path / "second", quantization="int8")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]
    assert read_json_object(tmp_path / "first" / "config.json") == read_json_object(
        tmp_path / "second" / "config.json"
    )
    second = qkv.load(tmp_path / "second")
    compare.assert_bitwise_equal(get_weights(second), get_weights(first), because=ROUNDED)


def test_a_file_is_a_third_as_large_and_holds_tied_weights_once(tmp_path: Path) -> None:
    model = tiny.build("gpt2", dtype=torch.float32, width=128)  # its head is tied to its embedding
    model.save(tmp_path / "full")
    model.save(tmp_path / "int8", quantization="int8")
    stored = load_file(tmp_path / "int8" / "model.safetensors")
    assert {name for name in stored if not name.endswith(".scale")} == get_weights(model).keys()
    assert "heads.lm.out.weight" not in stored
    full_size, small_size = (
        (tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "int8")
    )
    assert small_size < 0.35 * full_size
    config = read_json_object(tmp_path / "int8" / "config.json")
    assert (config["model_type"], config["weights"], config["dtype"]) == ("qkv", "int8", "float32")
    loaded = qkv.load(tmp_path / "int8")
    tokens = dict(loaded.net.named_parameters(remove_duplicate=False))
    assert tokens["heads.lm.out.weight"] is tokens["decoder.embedding.tokens.weight"]


def test_loaded_weights_have_any_dtype_and_are_saved_in_full(tmp_path: Path) -> None:
    model = tiny.build("bert", dtype=torch.bfloat16)
    model.save(tmp_path / "int8", quantization="int8")
    assert {x.dtype for x in get_weights(qkv.load(tmp_path / "int8")).values()} == {torch.float32}
    half = qkv.load(tmp_path / "int8", dtype=torch.float16)
    assert {x.dtype for x in get_weights(half).values()} == {torch.float16}
    loaded = qkv.load(tmp_path / "int8")
    assert "weights" not in loaded.config
    for file_format in ("hf", "qkv"):
        loaded.save(tmp_path / file_format, format=file_format)
        full = qkv.load(tmp_path / file_format)
        compare.assert_bitwise_equal(get_weights(full), get_weights(loaded), because=compare.COPIED)


def test_label_names_are_kept(tmp_path: Path) -> None:
    model = tiny.build("bert", dtype=torch.float32, head="sequence-classification", num_labels=3)
    label_names = model.config["id2label"] = {"0": "bad", "1": "so-so", "2": "good"}
    model.config["problem_type"] = "single_label_classification"
    model.save(tmp_path / "int8", quantization="int8")
    qkv.load(tmp_path / "int8").save(tmp_path / "full")
    config = read_json_object(tmp_path / "full" / "config.json")
    assert (config["model_type"], config["id2label"]) == ("bert", label_names)
    assert config["problem_type"] == "single_label_classification"
    assert not {"family", "arguments", "weights"} & config.keys()


def test_export_writes_int8_and_full_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "bert", tmp_path / "small"
    tiny.build("bert", dtype=torch.float32).save(source)
    assert main(["export", str(source), str(target), "--quantization", "int8"]) == 0
    dtypes = capsys.readouterr().out.split("tensors of ")[1].splitlines()[0]
    assert {*dtypes.split(", ")} == {"int8", "bfloat16", "float32"}
    assert main(["export", str(target), str(tmp_path / "full")]) == 0
    compare.assert_bitwise_equal(
        get_weights(qkv.load(tmp_path / "full")),
        get_weights(qkv.load(target)),
        because=compare.COPIED,
    )


def test_int8_that_is_not_supported_is_an_error(tmp_path: Path) -> None:
    model = tiny.build("bert", dtype=torch.float32)
    with pytest.raises(ValueError, match=r"quantization 'int4': expected int8 or None"):
        model.save(tmp_path, quantization="int4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="format cannot hold int8 weights"):
        model.save(tmp_path, format="hf", quantization="int8")
    next(model.net.parameters()).data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"tokens\.weight: values that are not finite"):
        model.save(tmp_path, quantization="int8")


def test_quantization_is_idempotent() -> None:
    once = dequantize_int8(quantize_int8({"x": torch.randn(100_000, 3)}), Path())
    twice = dequantize_int8(quantize_int8(once), Path())
    compare.assert_bitwise_equal(twice, once, because=ROUNDED)


def test_a_matrix_without_rows_is_quantized() -> None:
    assert dequantize_int8(quantize_int8({"x": torch.zeros(0, 3)}), Path())["x"].shape == (0, 3)


NAME = "encoder.embedding.tokens.weight"
SCALE = get_scale_name(NAME)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.build("bert", dtype=torch.float32).save(tmp_path, quantization="int8")
    return tmp_path


@pytest.mark.parametrize(("changes", "problem"), [
    ({SCALE: None}, f"{SCALE} is missing"),
    ({SCALE: torch.ones(3).bfloat16()}, rf"is \[3\], expected one value per row of \[{tiny.VOCAB}, "),
    ({SCALE: torch.zeros(tiny.VOCAB).bfloat16()}, "has invalid values"),
    ({SCALE: torch.full((tiny.VOCAB,), torch.nan).bfloat16()}, "has invalid values"),
    ({SCALE: torch.ones(tiny.VOCAB)}, "expected bfloat16 above 0"),
    ({NAME: torch.ones(5, dtype=torch.int8), SCALE: torch.ones(5).bfloat16()}, r"row of \[5\]"),
    ({NAME: None}, f"{NAME} is missing.*{SCALE} is unknown"),
    ({NAME: torch.ones(tiny.VOCAB, tiny.WIDTH, dtype=torch.int16)}, "is int16, expected floating point"),
    ({"stray.scale": torch.ones(3)}, "stray.scale is unknown"),
])  # fmt: skip
def test_a_damaged_file_is_an_error(
    folder: Path, changes: dict[str, Tensor | None], problem: str
) -> None:
    file = folder / "model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: x for name, x in tensors.items() if x is not None}, file)
    with pytest.raises(ValueError, match=problem) as caught:
        qkv.load(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


def test_other_weights_in_the_config_are_an_error(folder: Path) -> None:
    config = read_json_object(folder / "config.json")
    save_json({**config, "weights": "int4"}, folder / "config.json")
    with pytest.raises(ValueError, match="weights is 'int4', expected 'int8' or no key `weights`"):
        qkv.load(folder)
    save_json({key: config[key] for key in config if key != "weights"}, folder / "config.json")
    with pytest.raises(ValueError, match="is int8, expected floating point"):
        qkv.load(folder)
