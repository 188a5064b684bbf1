"""PEFT's adapter files: read, written, and refused where PEFT or qkv cannot represent them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import qkv
from qkv.model.adapters.read import read_adapter
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora, lora_layers
from tests.support import compare, tiny


def run(model: qkv.Model) -> dict[str, Tensor]:
    with torch.no_grad():
        return model(tiny.random_ids(2, 9))


def name_of_query(i: int, side: str, prefix: str = "bert.") -> str:
    """Return the name of a tensor of BERT's query projection in layer `i`."""
    return f"base_model.model.{prefix}encoder.layer.{i}.attention.self.query.lora_{side}.weight"


def write_adapter_files(
    folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any
) -> Path:
    """Write an adapter of BERT's two query layers."""
    if tensors is None:
        tensors = {name_of_query(i, side): torch.randn(4, 24).mT if side == "B" else torch.randn(4, 24)
                   for i in range(2) for side in "AB"}  # fmt: skip
    settings = dict(
        peft_type="LORA", r=4, lora_alpha=12, lora_dropout=0.1, target_modules=["query"]
    )
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(
        {name: x.contiguous() for name, x in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


@pytest.mark.parametrize("prefix", ["bert.", ""], ids=["with head", "base"])
@pytest.mark.parametrize("head", ["masked-lm", "none"])
def test_an_adapter_is_read_and_written(tmp_path: Path, prefix: str, head: str) -> None:
    tensors = {name_of_query(i, side, prefix): torch.randn(4, 24) if side == "A" else torch.randn(24, 4)
               for i in range(2) for side in "AB"}  # fmt: skip
    model = tiny.build("bert", head=head)
    plain = tiny.build("bert", head=head)
    paths = [f"encoder.layers.{i}.attention.q" for i in range(2)]
    assert read_adapter(model, write_adapter_files(tmp_path / "a", tensors)) is model
    assert [*lora_layers(model.net)] == paths
    with torch.no_grad():
        for i, path in enumerate(paths):
            change = (
                tensors[name_of_query(i, "B", prefix)].double()
                @ tensors[name_of_query(i, "A", prefix)].double()
            )
            plain.net.get_parameter(f"{path}.weight").add_(12 / 4 * change)
    compare.assert_close(run(model), run(plain), 1e-9)
    assert {layer.dropout.p for layer in lora_layers(model.net).values()} == {0.1}
    write_adapter(model, tmp_path / "b", base_model_name="somebody/bert")
    saved = load_file(tmp_path / "b" / "adapter_model.safetensors")
    expected = {
        name.replace(prefix + "enc", ("bert." if head != "none" else "") + "enc"): x
        for name, x in tensors.items()
    }
    saved = {name: x.float() for name, x in saved.items()}
    compare.assert_bitwise_equal(saved, expected, because=compare.COPIED)
    config = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 12, 0.1)
    assert config["base_model_name_or_path"] == "somebody/bert"


def test_rslora_and_alpha_pattern_set_the_scaling(tmp_path: Path) -> None:
    model = tiny.build("bert")
    read_adapter(
        model,
        write_adapter_files(
            tmp_path / "a", use_rslora=True, alpha_pattern={"0.attention.self.query": 6}
        ),
    )
    first, second = lora_layers(model.net).values()
    assert (first.scaling, second.scaling) == (6 / math.sqrt(4), 12 / math.sqrt(4))
    write_adapter(model, tmp_path / "b")
    loaded = tiny.build("bert")
    read_adapter(loaded, tmp_path / "b")
    compare.assert_bitwise_equal(run(loaded), run(model), because=compare.SAME_KERNELS)


def test_a_fused_tensor_has_one_lora_a(tmp_path: Path) -> None:
    name = "base_model.model.transformer.h.{}.attn.c_attn.lora_{}.weight"
    tensors = {name.format(i, "A"): torch.randn(2, 24) for i in range(2)}
    tensors |= {name.format(i, "B"): torch.randn(72, 2) for i in range(2)}
    model = tiny.build("gpt2")
    read_adapter(model, write_adapter_files(tmp_path / "a", tensors, fan_in_fan_out=True))
    q, k, v = (lora_layers(model.net)[f"decoder.layers.1.attention.{part}"] for part in "qkv")
    assert q.lora_a is k.lora_a is v.lora_a
    compare.assert_bitwise_equal(
        torch.cat([x.lora_b.weight for x in (q, k, v)]).float(),
        tensors[name.format(1, "B")],
        because=compare.COPIED,
    )
    write_adapter(model, tmp_path / "b")
    saved = load_file(tmp_path / "b" / "adapter_model.safetensors")
    saved = {name: x.float() for name, x in saved.items()}
    compare.assert_bitwise_equal(saved, tensors, because=compare.COPIED)
    assert (
        json.loads((tmp_path / "b" / "adapter_config.json").read_text())["fan_in_fan_out"] is True
    )


@pytest.mark.parametrize(
    ("family", "target_modules", "message"),
    [
        (
            "gpt2",
            ("q", "v"),
            r"transformer\.h\.0\.attn\.c_attn contains q,k,v, which must share one A",
        ),
        (
            "gpt2",
            ("q", "k", "v"),
            r"\.h\.0\.attn\.c_attn contains q,k,v, which must share one A.*; and 1 more",
        ),
        (
            "xlnet",
            ("q",),
            r"encoder\.layers\.0\.attention\.q is not a module of its checkpoints; and 1 more",
        ),
    ],
)
def test_adapters_that_peft_cannot_represent_are_errors(
    tmp_path: Path, family: str, target_modules: tuple[str, ...], message: str
) -> None:
    model = tiny.build(family)
    add_lora(model.net, target_modules=target_modules)
    with pytest.raises(ValueError, match=message):
        write_adapter(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_trainable_tensors_that_peft_cannot_represent_are_errors(tmp_path: Path) -> None:
    model = tiny.build("bert")
    with pytest.raises(ValueError, match="the model has no adapters"):
        write_adapter(model, tmp_path)
    add_lora(model.net)
    for name, saved_name in {
        "heads.lm.out.bias": "heads.lm.out.weight",
        "encoder.embedding.tokens.weight": "encoder.embedding.tokens.weight",
        "encoder.layers.0.attention.q.bias": "encoder.layers.0.attention.q.bias",
    }.items():
        tensor = model.net.get_parameter(name).requires_grad_(True)
        with pytest.raises(
            ValueError,
            match=rf"{saved_name} must be saved in full, but .* is tied, adapted or in no",
        ):
            write_adapter(model, tmp_path)
        tensor.requires_grad_(False)
    lora_layers(model.net)["encoder.layers.0.attention.q"].dropout.p = 0.3
    with pytest.raises(ValueError, match="adapters differ in lora_dropout or use_rslora"):
        write_adapter(model, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (dict(peft_type="LOHA"), "peft_type is 'LOHA': expected 'LORA'"),
        (dict(use_dora=True), "not supported: use_dora is True"),
        (dict(bias="all"), "not supported: bias is 'all'"),
        (
            dict(lora_bias=True, use_qalora=True),
            "not supported: lora_bias is True; use_qalora is True",
        ),
        (dict(init_lora_weights="pissa"), "not supported: init_lora_weights is 'pissa'"),
        (dict(some_new_trick={"a": 1}), r"not supported: some_new_trick is \{'a': 1\}"),
        (dict(lora_alpha="8"), "lora_alpha is '8': expected a number, more than 0"),
        (dict(lora_dropout=1.5), "lora_dropout is 1.5: expected a number"),
        (dict(alpha_pattern={"(": 3}), "unterminated subpattern"),
    ],
)
def test_unsupported_settings_are_errors(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    model = tiny.build("bert")
    with pytest.raises(ValueError, match=rf"adapter_config\.json: .*{message}"):
        read_adapter(model, write_adapter_files(tmp_path, **config))
    assert lora_layers(model.net) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({name_of_query(0, "B"): None}, r"layer\.0\.attention\.self\.query has no lora_B"),
        (
            {name_of_query(1, "A"): (4, 23)},
            r"A \[4, 23\] and B \[24, 4\], expected \[r, 24\] and \[24, r\]",
        ),
        (
            {name_of_query(1, "B"): (24, 3)},
            r"A \[4, 24\] and B \[24, 3\], expected \[r, 24\] and \[24, r\]",
        ),
        ({name_of_query(1, "A"): ()}, r"A \[\] and B"),
        (
            {name_of_query(2, "A"): (4, 24), name_of_query(2, "B"): (24, 4)},
            r"layer\.2\..*lora_A\.weight \[4, 24\]: this bert has no such",
        ),
        (
            {"base_model.model.classifier.weight": (2, 24)},
            r"classifier\.weight \[2, 24\]: this bert has no such tensor",
        ),
        (
            {"classifier.weight": (2, 24)},
            r"classifier\.weight \[2, 24\] is not a tensor of an adapter",
        ),
        ({name_of_query(i, side): None for i in range(2) for side in "AB"}, "no LoRA tensors"),
    ],
    ids=["lost", "inner", "rank", "number", "layer", "other", "plain", "none"],
)
def test_unexpected_tensors_are_errors(
    tmp_path: Path, changes: dict[str, tuple[int, ...] | None], message: str
) -> None:
    tensors = load_file(write_adapter_files(tmp_path) / "adapter_model.safetensors")
    for name, shape in changes.items():
        tensors.pop(name, None)
        tensors |= {} if shape is None else {name: torch.ones(shape)}
    model = tiny.build("bert")
    with pytest.raises(ValueError, match=rf"adapter_model\.safetensors: .*{message}"):
        read_adapter(model, write_adapter_files(tmp_path, tensors))
    assert lora_layers(model.net) == {}


def test_reading_an_adapter_twice_is_an_error(tmp_path: Path) -> None:
    model = tiny.build("bert")
    read_adapter(model, write_adapter_files(tmp_path))
    with pytest.raises(
        ValueError, match=r"adapter_model\.safetensors: .*attention\.q has an adapter already"
    ):
        read_adapter(model, tmp_path)
