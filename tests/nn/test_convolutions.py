"""Embeddings of images against plain computations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.nn.patches import build_patch_embedding
from qkv.spec import ConvolutionSpec
from tests.support import tiny


@pytest.mark.parametrize("class_token", [False, True])
def test_convolutional_features_equal_their_formula(class_token: bool) -> None:
    spec = ConvolutionSpec(image_size=12, conv_widths=(8, 16, 24), class_token=class_token)
    module = build_patch_embedding(spec, 10).double()
    tiny.randomize_parameters(module)
    p = dict(module.named_parameters())
    x = torch.randn(2, *spec.pixel_shape, dtype=torch.float64)

    def normalize(x: Tensor, name: str) -> Tensor:
        groups = x.unflatten(1, (8, -1))  # (B, 8, C / 8, H, W)
        mean = groups.mean((2, 3, 4), keepdim=True)
        variance = (groups - mean).square().mean((2, 3, 4), keepdim=True)
        x = ((groups - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)
        return x * p[f"{name}.weight"][:, None, None] + p[f"{name}.bias"][:, None, None]

    y = x
    for index, stride in enumerate((1, 2, 2)):
        stage = f"stages.{index}"
        y = F.conv2d(y, p[f"{stage}.down.weight"], stride=stride, padding=1)
        y = normalize(y, f"{stage}.down_norm").clamp(min=0)
        residual = F.conv2d(y, p[f"{stage}.residual.weight"], padding=1)
        y = (y + normalize(residual, f"{stage}.residual_norm")).clamp(min=0)
    assert y.shape == (2, 24, 3, 3)
    rows = [y[:, :, i, j] @ p["projection.weight"].T for i in range(3) for j in range(3)]
    expected = torch.stack(rows, dim=1) + p["projection.bias"]
    if class_token:
        expected = torch.cat([p["class_token.weight"].expand(2, 1, -1), expected], dim=1)
    torch.testing.assert_close(module(x), expected, atol=1e-9, rtol=0)
    assert expected.shape[1] == spec.num_tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(conv_widths=(8, 12)), r"conv_widths is \(8, 12\), expected multiples of 8"),
        (dict(conv_widths=(8,) * 4), "image_size is 12, expected a multiple of 8"),
        (dict(conv_widths=("a",)), "conv_widths is "),
        (dict(patch_size=13), "patch_size is 13, expected at most 12"),
    ],
)
@pytest.mark.parametrize("family", ["show-attend-tell", "vision-encoder-decoder", "clip"])
def test_features_that_do_not_fit_are_errors(
    family: str, arguments: dict[str, object], message: str
) -> None:
    sizes = tiny.SIZES[family]
    if family == "clip" and "patch_size" in arguments:
        sizes = sizes | {"image": sizes["image"] | arguments}
    else:
        sizes = sizes | arguments
    with pytest.raises(ValueError, match=message) as error:
        qkv.build(family, **sizes)
    assert "\n" not in str(error.value)


def test_clip_with_convolutions_is_saved_in_our_format(tmp_path: Path) -> None:
    model = qkv.build("clip", **tiny.SIZES["clip"], conv_widths=(8, 16))
    tiny.randomize_parameters(model.net)
    inputs = tiny.build_inputs(model)
    inputs["pixel_values"] = inputs["pixel_values"].float()
    model.save(tmp_path)
    loaded = qkv.load(tmp_path)
    assert loaded.config["model_type"] == "qkv"
    torch.testing.assert_close(
        loaded(**inputs)["logits"], model(**inputs)["logits"], atol=1e-6, rtol=0
    )
