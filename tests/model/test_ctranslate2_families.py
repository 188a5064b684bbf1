"""Models that ctranslate2 converted from transformers: the same outputs as in both libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import qkv
from qkv.weights.formats.ctranslate2 import CTRANSLATE2_QUANTIZATIONS, read_ctranslate2
from tests.support.ctranslate2_checkpoints import (
    CASES,
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    convert,
    import_ctranslate2,
    write_checkpoint,
)
from tests.support.ctranslate2_runs import (
    SOURCES,
    compute_ctranslate2_outputs,
    compute_qkv_outputs,
    generate_ctranslate2_ids,
    generate_qkv_ids,
    pad,
)
from tests.support.errors import assert_error

# Most of these folders have no tokenizer.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(texts are read as tokens|loaded without a tokenizer)"
)
TOLERANCE: dict[str, Any] = dict(atol=2e-5, rtol=1e-4)
FAMILIES = {  # the family that a file is opened as, if it is not that of its name
    "t5-gated": "t5",
    "mt5": "t5",
    "llama-tied": "llama",
    "roberta": "bert",  # without the positions before the first
    "xlm-roberta": "distilbert",  # without pooler
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def find_folder(name: str, folders: Path) -> Path:
    """Return the folder of a converted checkpoint, which is written once."""
    import_ctranslate2()
    folder = folders / f"{name}-ctranslate2"
    if not folder.exists():
        write_checkpoint(name, folders / name)
        convert(folders / name, folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_ctranslate2(folders: Path, name: str) -> None:
    folder = find_folder(name, folders)
    model = qkv.load(folder)
    assert model.family.name == FAMILIES.get(name, name)
    expected = compute_ctranslate2_outputs(folder, model)
    torch.testing.assert_close(compute_qkv_outputs(model), expected, **TOLERANCE)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("name", [*ENCODER_DECODERS, *DECODERS])
def test_generated_ids_equal_those_of_ctranslate2(folders: Path, name: str, num_beams: int) -> None:
    folder = find_folder(name, folders)
    model = qkv.load(folder)
    expected = generate_ctranslate2_ids(folder, model, num_beams)
    assert generate_qkv_ids(model, num_beams) == expected


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_the_pooler_is_read(folders: Path, name: str) -> None:
    folder = find_folder(name, folders)
    model = qkv.load(folder)
    ids, mask = pad(SOURCES)
    outputs = import_ctranslate2().Encoder(str(folder), intra_threads=1).forward_batch(SOURCES)
    with torch.no_grad():
        pooler_output = model(ids, attention_mask=mask).pooler_output
    expected = torch.from_numpy(np.array(outputs.pooler_output))
    torch.testing.assert_close(pooler_output, expected, **TOLERANCE)


SPECIAL_TOKENS: dict[str, dict[str, int | None]] = {
    "bart": dict(decoder_start_token_id=2, eos_token_id=2, bos_token_id=0, pad_token_id=1),
    "mbart": dict(decoder_start_token_id=None, eos_token_id=2, bos_token_id=0, pad_token_id=1),
    "marian": dict(decoder_start_token_id=52, eos_token_id=0, pad_token_id=52, unk_token_id=1),
    "t5": dict(decoder_start_token_id=1, eos_token_id=2, bos_token_id=1, pad_token_id=1),
    "gpt2": dict(eos_token_id=2, bos_token_id=0, pad_token_id=1),
    "bert": dict(pad_token_id=1, unk_token_id=3),
}


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_special_tokens_are_read(folders: Path, name: str) -> None:
    model = qkv.load(find_folder(name, folders))
    expected = SPECIAL_TOKENS[name]
    assert {key: model.config[key] for key in expected} == expected
    in_arguments = model.args.keys() & expected.keys()
    assert {key: model.args[key] for key in in_arguments} == {
        key: expected[key] for key in in_arguments
    }


SAVED = ["bart", "mbart", "marian", "t5", "gpt2", "llama", "bert", "distilbert"]


@pytest.mark.parametrize("name", SAVED)
def test_a_converted_checkpoint_returns_to_hugging_face(
    folders: Path, tmp_path: Path, name: str
) -> None:
    model = qkv.load(find_folder(name, folders))
    model.save(tmp_path, format="hf")
    model_class = getattr(transformers, CASES[name][0])
    original = model_class.from_pretrained(folders / name).eval()
    saved, report = model_class.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(run(saved.eval(), name), run(original, name), **TOLERANCE)


def run(model: transformers.PreTrainedModel, name: str) -> Tensor:
    ids, mask = pad(SOURCES)
    inputs = {"decoder_input_ids": ids} if name in ENCODER_DECODERS else {}
    with torch.no_grad():
        output: Tensor = model(ids, attention_mask=mask, **inputs)[0]
    if name in ENCODERS:
        return output * mask[..., None]
    return output[..., :-1] if name == "marian" else output  # without the pad token


# The largest error of a weight, in units of the largest weight of its row (int8) or tensor.
LARGEST_ERRORS = {"int8": 0.5 / 127, "int16": 0.5 / 1024, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("quantization", CTRANSLATE2_QUANTIZATIONS)
def test_every_quantization_is_read(folders: Path, tmp_path: Path, quantization: str) -> None:
    exact = read_ctranslate2(find_folder("bart", folders)).tensors
    folder = convert(folders / "bart", tmp_path / "quantized", quantization)
    quantized = read_ctranslate2(folder).tensors
    assert quantized.keys() == exact.keys()
    bound = LARGEST_ERRORS.get(quantization.partition("_")[0], 0.0)
    for name, tensor in exact.items():
        if name.endswith("/weight"):
            is_int8 = quantization.startswith("int8")
            largest = tensor.abs().amax(1, keepdim=True) if is_int8 else tensor.abs().max()
            error = (quantized[name].float() - tensor).abs()
            assert (error <= bound * 1.0001 * largest).all(), name
    model = qkv.load(folder)
    is_half = quantization in ("float16", "bfloat16")
    assert model.dtype == (getattr(torch, quantization) if is_half else torch.float32)


def test_position_biases_that_differ_between_layers_are_an_error(
    folders: Path, tmp_path: Path
) -> None:
    """UMT5 has a table in each layer; T5 has one."""
    from qkv.weights.formats.ctranslate2 import save_ctranslate2_model

    variables = read_ctranslate2(find_folder("t5", folders)).tensors
    name = "encoder/layer_1/self_attention/relative_attention_bias"
    variables[name] = variables[name] + 1
    save_ctranslate2_model(tmp_path / "model.bin", "TransformerSpec", 7, variables)
    message = "encoder.layer_1.self_attention.relative_attention_bias differs from the tensor"
    assert_error(lambda: qkv.load(tmp_path), message)
