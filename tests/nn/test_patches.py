"""Embeddings of images and clips."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.nn.network import Network
from qkv.nn.patches import FrameEmbedding, PatchEmbedding
from qkv.spec import FrameSpec, PatchSpec, Spec
from tests.support import tiny

PATCHES = PatchSpec(image_size=6, patch_size=2, channels=2)


def test_a_patch_is_a_linear_map_of_its_pixels() -> None:
    embedding = PatchEmbedding(replace(PATCHES, bias=True), 5)
    tiny.randomize_parameters(embedding)
    pixels = torch.randn(3, 2, 6, 6)
    out = embedding(pixels)
    assert out.shape == (3, PATCHES.num_tokens, 5) == (3, 10, 5)
    weight = embedding.projection.weight.flatten(1)  # (W, C * 2 * 2)
    patch = pixels[:, :, 2:4, 4:6].flatten(1)  # row 1, column 2
    assert embedding.projection.bias is not None
    expected = patch @ weight.T + embedding.projection.bias
    torch.testing.assert_close(out[:, 1 + 1 * 3 + 2], expected)
    class_token = embedding.class_token.weight
    assert isinstance(class_token, Tensor)
    torch.testing.assert_close(out[:, 0], class_token.expand(3, -1))


def test_class_token_and_bias_are_optional() -> None:
    embedding = PatchEmbedding(replace(PATCHES, class_token=False), 5)
    assert embedding(torch.randn(3, 2, 6, 6)).shape == (3, 9, 5)
    assert {name for name, _ in embedding.named_parameters()} == {"projection.weight"}
    assert replace(PATCHES, class_token=False).num_tokens == 9


def test_a_frame_does_not_depend_on_other_frames() -> None:
    spec = FrameSpec(image_size=7, channels=2, conv_widths=(8, 16))
    embedding = FrameEmbedding(spec, 5)
    tiny.randomize_parameters(embedding)
    clips = torch.randn(2, 3, 2, 7, 7)
    out = embedding(clips)
    assert out.shape == (2, 3, 5)
    torch.testing.assert_close(out[1, 2], embedding(clips[1:, 2:])[0, 0])
    assert spec.num_features == 2 * 2 * 16


def test_other_frames_are_context() -> None:
    """The states of a frame depend on the other frames of its clip, and not on padding."""
    model = tiny.build("video-transformer")
    net = model.net
    assert isinstance(net, Network)
    assert isinstance(net.spec, Spec)
    clip = tiny.build_pixel_values(model, tiny.random_ids(1, 4))
    changed = clip.clone()
    changed[0, 3] += 1
    logits, other = (
        net(Batch(encoder=Inputs.create(pixel_values=x)))["logits"] for x in (clip, changed)
    )
    assert (logits[0, 0] - other[0, 0]).abs().max() > 1e-4
    mask = torch.tensor([[True, True, True, False]])
    padded = [
        net(Batch(encoder=Inputs.create(pixel_values=x, attention_mask=mask)))["logits"][0, :3]
        for x in (clip, changed)
    ]
    torch.testing.assert_close(padded[0], padded[1], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_recurrent_encoder_reads_frames(cell: str) -> None:
    model = tiny.build("video-transformer", cell=cell)
    clips = tiny.build_pixel_values(model, tiny.random_ids(2, 6))
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    logits = model(pixel_values=clips, attention_mask=mask).logits
    alone = model(pixel_values=clips[1:, :4]).logits
    torch.testing.assert_close(logits[1, :4], alone[0], atol=1e-12, rtol=0)
    changed = clips.clone()
    changed[0, 5] += 1
    other = model(pixel_values=changed, attention_mask=mask).logits
    assert (logits[0, 0] - other[0, 0]).abs().max() > 1e-6  # later frames are context
