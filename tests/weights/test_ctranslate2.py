"""CTranslate2 models: small ones written here in its format, and a real one where it is available."""

import json
import math
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.weights.formats.ctranslate2 import read_ctranslate2

CODES = {
    torch.float32: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.float16: 4,
    torch.bfloat16: 5,
}


def name(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


def to_bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def variable(variable_name: str, tensor: Tensor, version: int = 6) -> bytes:
    size = tensor.element_size()
    shape = struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
    old, new = (size, tensor.numel()), (CODES[tensor.dtype], tensor.nbytes)
    return (
        name(variable_name)
        + shape
        + struct.pack("<BI", *(new if version >= 4 else old))
        + to_bytes(tensor)
    )


def model(
    variables: dict[str, Tensor], aliases: dict[str, str] | None = None, version: int = 6
) -> bytes:
    data = (
        struct.pack("<I", version) + name("TransformerSpec") + struct.pack("<II", 7, len(variables))
    )
    data += b"".join(
        variable(variable_name, tensor, version) for variable_name, tensor in variables.items()
    )
    if version >= 3:
        pairs = (aliases or {}).items()
        data += struct.pack("<I", len(pairs)) + b"".join(
            name(alias) + name(variable_name) for alias, variable_name in pairs
        )
    return data


def read(folder: Path, data: bytes) -> dict[str, Tensor]:
    (folder / "model.bin").write_bytes(data)
    return read_ctranslate2(folder)[2]


def assert_value_error(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("version", [2, 3, 4, 5, 6])
def test_every_version(tmp_path: Path, version: int) -> None:
    tensors = {
        "encoder/w": torch.randn(3, 2),
        "encoder/num_heads": torch.tensor(8, dtype=torch.int8),
    }
    if version >= 4:  # before version 4 only the item size is stored
        tensors |= {
            "half": torch.randn(2).half(),
            "brain": torch.randn(2).bfloat16(),
            "whole": torch.tensor([3]),
        }
        tensors["whole"] = tensors["whole"].int()
    (tmp_path / "model.bin").write_bytes(model(tensors, version=version))
    spec, revision, variables, vocabularies = read_ctranslate2(tmp_path)
    assert (spec, revision, vocabularies) == ("TransformerSpec", 7, {})
    assert variables.keys() == tensors.keys()
    for variable_name, tensor in tensors.items():
        assert variables[variable_name].dtype == tensor.dtype
        assert variables[variable_name].shape == tensor.shape
        assert variables[variable_name].equal(tensor)


def test_aliases_are_the_same_tensor(tmp_path: Path) -> None:
    aliases = {"decoder/weight": "encoder/weight", "projection/weight": "encoder/weight"}
    weight = torch.tensor([[2, 4]], dtype=torch.int8)
    variables = read(
        tmp_path,
        model({"encoder/weight": weight, "encoder/weight_scale": torch.tensor([2.0])}, aliases),
    )
    assert variables.keys() == {"encoder/weight", *aliases}
    assert all(variables[alias] is variables["encoder/weight"] for alias in aliases)
    assert variables["decoder/weight"].equal(torch.tensor([[1.0, 2.0]]))


def test_int8_has_one_scale_per_row(tmp_path: Path) -> None:
    for shape in ((4, 6), (4, 6, 3)):
        weight = torch.randn(shape)
        scale = 127 / weight.flatten(1).abs().amax(1)
        packed = (weight * scale.view(-1, *[1] * (len(shape) - 1))).round().to(torch.int8)
        read_back = read(tmp_path, model({"a/weight": packed, "a/weight_scale": scale}))
        assert read_back.keys() == {"a/weight"}
        assert read_back["a/weight"].dtype == torch.float32
        torch.testing.assert_close(
            read_back["a/weight"], weight, atol=weight.abs().max().item() / 250, rtol=0
        )


def test_int16_has_one_scale(tmp_path: Path) -> None:
    packed = torch.tensor([[1000, -2000]], dtype=torch.int16)
    for scale, value in ((torch.tensor(500.0), 2.0), (None, 1.0)):  # without a scale it is 1000
        variables = {"weight": packed} | ({} if scale is None else {"weight_scale": scale})
        assert read(tmp_path, model(variables)).keys() == {"weight"}
        assert read(tmp_path, model(variables, version=2))["weight"].tolist() == [
            [value, -2 * value]
        ]


def test_other_integers_are_unchanged(tmp_path: Path) -> None:
    tensors = {
        "activation": torch.tensor(1, dtype=torch.int8),
        "label": torch.tensor([97, 98], dtype=torch.int8),
        "scale_outputs": torch.tensor(0.5),
        "queries_scale": torch.tensor(0.25),
    }
    variables = read(tmp_path, model(tensors))
    assert variables.keys() == tensors.keys()
    assert all(
        variables[variable_name].dtype == tensor.dtype for variable_name, tensor in tensors.items()
    )


def test_unsupported_quantization(tmp_path: Path) -> None:
    rows = torch.ones(2, 3)
    assert_value_error(
        lambda: read(tmp_path, model({"weight": rows.to(torch.int8)})),
        "weight: torch.int8",
        "no scale",
    )
    odd = {"weight": rows.to(torch.int8), "weight_scale": torch.ones(3)}
    assert_value_error(lambda: read(tmp_path, model(odd)), "shape [2, 3] with a scale of shape [3]")
    packed = {"weight": rows.int(), "weight_scale": torch.ones(2)}
    assert_value_error(
        lambda: read(tmp_path, model(packed)), "torch.int32", "AWQ models are not supported"
    )


def test_truncated_files(tmp_path: Path) -> None:
    data = model({"a": torch.randn(3, 2), "b": torch.tensor(1.0)}, {"c": "a"})
    assert read(tmp_path, data).keys() == {"a", "b", "c"}
    for length in range(len(data)):
        read_start = partial(read, tmp_path, data[:length])
        assert_value_error(read_start, "model.bin", "truncated or damaged")
    assert_value_error(
        lambda: read(tmp_path, data + b"x"), "1 bytes after the end", "truncated or damaged"
    )


def test_inconsistent_sizes(tmp_path: Path) -> None:
    def make_model(rank: int, dims: list[int], code: int, size: int) -> bytes:
        start = struct.pack("<I", 6) + name("S") + struct.pack("<II", 1, 1)
        return (
            start
            + name("v")
            + struct.pack(f"<B{len(dims)}IBI", rank, *dims, code, size)
            + bytes(64)
        )

    huge = 2**32 - 1
    assert_value_error(
        lambda: read(tmp_path, make_model(1, [2**29], 0, 2**31)),
        "expected 2147483648 more bytes, the file has 64",
    )
    assert_value_error(
        lambda: read(tmp_path, make_model(2, [huge, huge], 0, huge)),
        "v: 4294967295 bytes for shape",
    )
    assert_value_error(
        lambda: read(tmp_path, make_model(1, [5], 0, 16)),
        "v: 16 bytes for shape [5] of torch.float32",
    )
    assert_value_error(
        lambda: read(tmp_path, make_model(3, [0, huge, huge], 0, 0)), "v: 0 bytes for shape"
    )
    assert_value_error(lambda: read(tmp_path, make_model(1, [4], 9, 16)), "v: unknown data type 9")
    assert_value_error(lambda: read(tmp_path, make_model(255, [1], 0, 4)), "truncated or damaged")
    many = struct.pack("<I", 6) + name("S") + struct.pack("<II", 1, huge)
    assert_value_error(lambda: read(tmp_path, many), "truncated or damaged")
    assert_value_error(
        lambda: read(tmp_path, model({"a": torch.ones(1)}, {"b": "c"})),
        "b is an alias of c, which does not exist",
    )


def test_invalid_files(tmp_path: Path) -> None:
    assert_value_error(lambda: read_ctranslate2(tmp_path), "model.bin: No such file")
    torch.save({"a": torch.ones(1)}, tmp_path / "model.bin")
    assert_value_error(
        lambda: read_ctranslate2(tmp_path), "format version 67324752, expected 2 to 6"
    )
    assert_value_error(lambda: read(tmp_path, b""), "empty")
    (tmp_path / "model.bin").unlink()
    os.mkfifo(tmp_path / "model.bin")
    assert_value_error(lambda: read_ctranslate2(tmp_path), "expected a regular file")


def test_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(model({}))

    def vocabularies() -> dict[str, list[str]]:
        return read_ctranslate2(tmp_path)[3]

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
    assert_value_error(vocabularies, "target_vocabulary.json", "expected a JSON list of strings")
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.bin").write_bytes(
        model({"unk_token": torch.tensor(list(b"[?]"), dtype=torch.int8)})
    )
    for variable_name in ("shared_vocabulary.json", "vocabulary.json"):
        for path in tmp_path.glob("*vocabulary*"):
            path.unlink()
        (tmp_path / variable_name).write_text(json.dumps(["a", "[?]"]))
        assert vocabularies() == {"shared": ["a", "[?]"]}


# The real model is a pre-norm Transformer, 6 + 6 layers of 8 heads, from Arabic to Latin letters; the
# scores are those of the ctranslate2 package (4.8.4) for each letter of "atzmon" and the end.
SCORES = [-0.106023, -0.065411, -0.056003, -0.447953, -0.230714, -0.092183, -0.063464]


def test_real_model(shared: Path) -> None:
    folder = shared / "weights" / "ct2-aren-transliteration"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    spec, revision, variables, vocabularies = read_ctranslate2(folder)
    assert (spec, revision, len(variables)) == ("TransformerBase", 2, 200)
    assert all(tensor.dtype == torch.float32 for tensor in variables.values())
    assert variables["encoder/embeddings/weight"].shape == (len(vocabularies["source"]), 32)
    assert variables["decoder/projection/weight"].shape == (len(vocabularies["target"]), 32)
    assert vocabularies["source"][:3] == vocabularies["target"][:3] == ["<blank>", "<s>", "</s>"]
    source = [vocabularies["source"].index(letter) for letter in "آتزمون"]
    target = [vocabularies["target"].index(token) for token in ("<s>", *"atzmon", "</s>")]
    assert source == [31, 10, 19, 13, 5, 7]
    assert target == [1, 3, 11, 23, 13, 8, 7, 2]
    log_probs = log_probabilities(variables, source, target[:-1])
    assert log_probs.argmax(1).tolist() == target[1:]
    scores = log_probs.gather(1, torch.tensor(target[1:])[:, None])[:, 0]
    torch.testing.assert_close(scores, torch.tensor(SCORES), atol=2e-5, rtol=0)


def log_probabilities(variables: dict[str, Tensor], source: list[int], target: list[int]) -> Tensor:
    """Return the log probabilities after each target token, in plain torch."""
    heads, width = 8, 32

    def linear(x: Tensor, at: str) -> Tensor:
        return F.linear(x, variables[f"{at}/weight"], variables[f"{at}/bias"])

    def norm(x: Tensor, at: str) -> Tensor:
        return F.layer_norm(x, (width,), variables[f"{at}/gamma"], variables[f"{at}/beta"])

    def embed(ids: list[int], at: str) -> Tensor:
        rates = torch.exp(torch.arange(width // 2) * -math.log(10000) / (width / 2 - 1))
        angles = torch.arange(1, len(ids) + 1)[:, None] * rates
        positions = torch.cat([angles.sin(), angles.cos()], -1)
        return variables[f"{at}/embeddings/weight"][ids] * math.sqrt(width) + positions

    def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
        q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(0, 1).flatten(1)

    def self_attention(x: Tensor, at: str, causal: bool) -> Tensor:
        q, k, v = linear(norm(x, f"{at}/layer_norm"), f"{at}/linear_0").chunk(3, -1)
        return x + linear(attend(q, k, v, causal), f"{at}/linear_1")

    def feed_forward(x: Tensor, at: str) -> Tensor:
        return x + linear(
            linear(norm(x, f"{at}/layer_norm"), f"{at}/linear_0").relu(), f"{at}/linear_1"
        )

    x = embed(source, "encoder")
    for i in range(6):
        x = feed_forward(
            self_attention(x, f"encoder/layer_{i}/self_attention", False), f"encoder/layer_{i}/ffn"
        )
    memory = norm(x, "encoder/layer_norm")
    x = embed(target, "decoder")
    for i in range(6):
        x = self_attention(x, f"decoder/layer_{i}/self_attention", True)
        at = f"decoder/layer_{i}/attention"
        q = linear(norm(x, f"{at}/layer_norm"), f"{at}/linear_0")
        k, v = linear(memory, f"{at}/linear_1").chunk(2, -1)
        x = x + linear(attend(q, k, v), f"{at}/linear_2")
        x = feed_forward(x, f"decoder/layer_{i}/ffn")
    return linear(norm(x, "decoder/layer_norm"), "decoder/projection").log_softmax(-1)
