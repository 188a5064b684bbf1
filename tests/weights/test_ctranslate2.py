"""CTranslate2 models: small ones written here in its format, and a real one where it is available."""

import json
import os
import struct
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from qkv.weights.formats.ctranslate2 import read_ctranslate2
from tests.support import compare
from tests.support.ctranslate2_files import compute_logits, encode_model, encode_string
from tests.support.errors import assert_error

# The real model is a pre-norm Transformer, 6 + 6 layers of 8 heads, from Arabic to Latin letters; the
# scores are those of the ctranslate2 package (4.8.4) for each letter of "atzmon" and the end.
SCORES = [-0.106023, -0.065411, -0.056003, -0.447953, -0.230714, -0.092183, -0.063464]


def read_variables(folder: Path, data: bytes) -> dict[str, Tensor]:
    (folder / "model.bin").write_bytes(data)
    return read_ctranslate2(folder).tensors


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_every_version_is_read(tmp_path: Path, version: int) -> None:
    tensors = {
        "encoder/w": torch.randn(3, 2),
        "encoder/num_heads": torch.tensor(8, dtype=torch.int8),
    }
    if version >= 4:  # before version 4 only the item size is stored
        tensors |= {
            "float16": torch.randn(2).half(),
            "bfloat16": torch.randn(2).bfloat16(),
            "int32": torch.tensor([3], dtype=torch.int32),
        }
    (tmp_path / "model.bin").write_bytes(encode_model(tensors, version=version))
    data = read_ctranslate2(tmp_path)
    assert data.config == {"spec": "TransformerSpec", "revision": 7}
    assert not data.vocabularies
    compare.assert_bitwise_equal(data.tensors, tensors, because=compare.COPIED)


def test_aliases_are_the_same_tensor(tmp_path: Path) -> None:
    aliases = {"decoder/weight": "encoder/weight", "projection/weight": "encoder/weight"}
    weight = torch.tensor([[2, 4]], dtype=torch.int8)
    variables = read_variables(
        tmp_path,
        encode_model(
            {"encoder/weight": weight, "encoder/weight_scale": torch.tensor([2.0])}, aliases
        ),
    )
    assert variables.keys() == {"encoder/weight", *aliases}
    assert all(variables[alias] is variables["encoder/weight"] for alias in aliases)
    assert variables["decoder/weight"].tolist() == [[1.0, 2.0]]


def test_int8_has_one_scale_per_row(tmp_path: Path) -> None:
    for shape in ((4, 6), (4, 6, 3)):
        weight = torch.randn(shape)
        scale = 127 / weight.flatten(1).abs().amax(1)
        packed = (weight * scale.view(-1, *[1] * (len(shape) - 1))).round().to(torch.int8)
        read_back = read_variables(
            tmp_path, encode_model({"a/weight": packed, "a/weight_scale": scale})
        )
        assert read_back.keys() == {"a/weight"}
        assert read_back["a/weight"].dtype == torch.float32
        torch.testing.assert_close(
            read_back["a/weight"], weight, atol=weight.abs().max().item() / 250, rtol=0
        )


def test_int16_has_one_scale_per_tensor(tmp_path: Path) -> None:
    packed = torch.tensor([[1000, -2000]], dtype=torch.int16)
    for scale, value in ((torch.tensor(500.0), 2.0), (None, 1.0)):  # without a scale it is 1000
        variables = {"weight": packed} | ({} if scale is None else {"weight_scale": scale})
        assert read_variables(tmp_path, encode_model(variables)).keys() == {"weight"}
        assert read_variables(tmp_path, encode_model(variables, version=2))["weight"].tolist() == [
            [value, -2 * value]
        ]


def test_other_integers_are_unchanged(tmp_path: Path) -> None:
    tensors = {
        "activation": torch.tensor(1, dtype=torch.int8),
        "label": torch.tensor([97, 98], dtype=torch.int8),
        "scale_outputs": torch.tensor(0.5),
        "queries_scale": torch.tensor(0.25),
    }
    variables = read_variables(tmp_path, encode_model(tensors))
    assert variables.keys() == tensors.keys()
    assert all(variables[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_unsupported_quantization_is_an_error(tmp_path: Path) -> None:
    rows = torch.ones(2, 3)
    assert_error(
        lambda: read_variables(tmp_path, encode_model({"weight": rows.to(torch.int8)})),
        "weight: torch.int8",
        "no scale",
    )
    odd = {"weight": rows.to(torch.int8), "weight_scale": torch.ones(3)}
    assert_error(
        lambda: read_variables(tmp_path, encode_model(odd)),
        "shape [2, 3] with a scale of shape [3]",
    )
    packed = {"weight": rows.int(), "weight_scale": torch.ones(2)}
    assert_error(
        lambda: read_variables(tmp_path, encode_model(packed)),
        "torch.int32",
        "AWQ models are not supported",
    )


def test_truncated_files_are_errors(tmp_path: Path) -> None:
    data = encode_model({"a": torch.randn(3, 2), "b": torch.tensor(1.0)}, {"c": "a"})
    assert read_variables(tmp_path, data).keys() == {"a", "b", "c"}
    for length in range(len(data)):
        read_start = partial(read_variables, tmp_path, data[:length])
        assert_error(read_start, "model.bin", "truncated or damaged")
    assert_error(
        lambda: read_variables(tmp_path, data + b"x"),
        "1 bytes after the end",
        "truncated or damaged",
    )


def test_inconsistent_sizes_are_errors(tmp_path: Path) -> None:
    def make_model(rank: int, dims: list[int], code: int, size: int) -> bytes:
        start = struct.pack("<I", 6) + encode_string("S") + struct.pack("<II", 1, 1)
        return (
            start
            + encode_string("v")
            + struct.pack(f"<B{len(dims)}IBI", rank, *dims, code, size)
            + bytes(64)
        )

    huge = 2**32 - 1
    assert_error(
        lambda: read_variables(tmp_path, make_model(1, [2**29], 0, 2**31)),
        "expected 2147483648 more bytes, the file has 64",
    )
    assert_error(
        lambda: read_variables(tmp_path, make_model(2, [huge, huge], 0, huge)),
        "v: 4294967295 bytes for shape",
    )
    assert_error(
        lambda: read_variables(tmp_path, make_model(1, [5], 0, 16)),
        "v: 16 bytes for shape [5] of torch.float32",
    )
    assert_error(
        lambda: read_variables(tmp_path, make_model(3, [0, huge, huge], 0, 0)),
        "v: 0 bytes for shape",
    )
    assert_error(
        lambda: read_variables(tmp_path, make_model(1, [4], 9, 16)), "v: unknown data type 9"
    )
    assert_error(
        lambda: read_variables(tmp_path, make_model(255, [1], 0, 4)), "truncated or damaged"
    )
    many = struct.pack("<I", 6) + encode_string("S") + struct.pack("<II", 1, huge)
    assert_error(lambda: read_variables(tmp_path, many), "truncated or damaged")
    assert_error(
        lambda: read_variables(tmp_path, encode_model({"a": torch.ones(1)}, {"b": "c"})),
        "b is an alias of c, which does not exist",
    )


def test_other_files_are_errors(tmp_path: Path) -> None:
    assert_error(lambda: read_ctranslate2(tmp_path), "model.bin: No such file")
    torch.save({"a": torch.ones(1)}, tmp_path / "model.bin")
    assert_error(lambda: read_ctranslate2(tmp_path), "format version 67324752, expected 2 to 6")
    assert_error(lambda: read_variables(tmp_path, b""), "empty")
    (tmp_path / "model.bin").unlink()
    os.mkfifo(tmp_path / "model.bin")
    assert_error(lambda: read_ctranslate2(tmp_path), "expected a regular file")


def test_vocabularies_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(encode_model({}))

    def vocabularies() -> dict[str, list[str]]:
        return read_ctranslate2(tmp_path).vocabularies

    (tmp_path / "vmap.txt").write_text("")
    (tmp_path / "source_vocabulary.txt").write_bytes("<unk>\na\u2028\n\x85\n\nb\r\n".encode())
    (tmp_path / "target_vocabulary.txt").write_bytes(b"<s>\r\n</s>\r\n")
    (tmp_path / "target_vocabulary.notes").write_text("")
    assert vocabularies() == {
        "source": ["<unk>", "a\u2028", "\x85", "", "b\r"],
        "target": ["<s>", "</s>", "<unk>"],
    }
    (tmp_path / "target_vocabulary.json").write_text(json.dumps(["x\n", "[?]"]))
    (tmp_path / "config.json").write_text(json.dumps({"unk_token": "[?]"}))
    assert vocabularies()["target"] == ["x\n", "[?]"]
    assert vocabularies()["source"][-1] == "[?]"
    (tmp_path / "target_vocabulary.json").write_text(json.dumps({"x": 1}))
    assert_error(vocabularies, "target_vocabulary.json", "expected a JSON list of strings")
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.bin").write_bytes(
        encode_model({"unk_token": torch.tensor(list(b"[?]"), dtype=torch.int8)})
    )
    for name in ("shared_vocabulary.json", "vocabulary.json"):
        for path in tmp_path.glob("*vocabulary*"):
            path.unlink()
        (tmp_path / name).write_text(json.dumps(["a", "[?]"]))
        assert vocabularies() == {"shared": ["a", "[?]"]}


def test_a_real_model_is_read(shared: Path) -> None:
    folder = shared / "weights" / "ct2-aren-transliteration"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    data = read_ctranslate2(folder)
    variables, vocabularies = data.tensors, data.vocabularies
    assert data.config == {"spec": "TransformerBase", "revision": 2}
    assert len(variables) == 200
    assert all(tensor.dtype == torch.float32 for tensor in variables.values())
    assert variables["encoder/embeddings/weight"].shape == (len(vocabularies["source"]), 32)
    assert variables["decoder/projection/weight"].shape == (len(vocabularies["target"]), 32)
    assert vocabularies["source"][:3] == vocabularies["target"][:3] == ["<blank>", "<s>", "</s>"]
    source = [vocabularies["source"].index(letter) for letter in "آتزمون"]
    target = [vocabularies["target"].index(token) for token in ("<s>", *"atzmon", "</s>")]
    assert source == [31, 10, 19, 13, 5, 7]
    assert target == [1, 3, 11, 23, 13, 8, 7, 2]
    log_probs = compute_logits(variables, {}, source, target[:-1]).log_softmax(-1)
    assert log_probs.argmax(1).tolist() == target[1:]
    scores = log_probs.gather(1, torch.tensor(target[1:])[:, None])[:, 0]
    torch.testing.assert_close(scores, torch.tensor(SCORES), atol=2e-5, rtol=0)
