"""Images: the pixels that a model reads, the labels of its patches, and uploaded files."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qkv.explorer.inputs import images as images_module
from qkv.explorer.inputs.images import (
    choose_grid,
    hash_image,
    label_patches,
    open_uploaded_image,
    read_image,
)
from qkv.tasks.images import load_image_processor
from tests.explorer import models
from tests.support.errors import assert_error
from tests.support.images import encode_png

VIT = models.build_model("vit")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")


def encode(image: Any, image_format: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format, **settings)
    return buffer.getvalue()


def decode_picture(url: str) -> Any:
    prefix = "data:image/png;base64,"
    assert url.startswith(prefix)
    return Image.open(io.BytesIO(base64.b64decode(url.removeprefix(prefix))))


@pytest.mark.parametrize("name", ["vit", "clip", "vision-encoder-decoder", "show-attend-tell"])
def test_patches_have_rows_and_columns(name: str) -> None:
    """The images have 12 x 12 pixels, the patches of ViT and CLIP 4 x 4."""
    model = models.build_model(name)
    pixel_values, sequence = read_image(model, models.build_image())
    assert pixel_values.shape == (1, 3, 12, 12)
    assert pixel_values.dtype == torch.float64
    has_class_token = name in ("vit", "clip")
    assert sequence.first_patch == has_class_token
    assert sequence.grid == (3, 3)
    patches = [f"{row},{column}" for row in range(3) for column in range(3)]
    assert [token.text for token in sequence.tokens] == ["[class]"] * has_class_token + patches
    assert [token.special for token in sequence.tokens] == [True] * has_class_token + [False] * 9
    assert (sequence.label, sequence.words) == ("image", tuple(patches))
    words = [token.word for token in sequence.tokens]
    assert words == [None] * has_class_token + [*range(9)]


@pytest.mark.parametrize(
    ("num_frames", "grid"),
    [
        (1, (1, 1)),
        (6, (1, 6)),
        (7, (1, 7)),
        (16, (2, 8)),
        (26, (2, 13)),
        (64, (8, 8)),
        (31, (1, 31)),
    ],
)
def test_frames_fill_a_grid(num_frames: int, grid: tuple[int, int]) -> None:
    assert choose_grid(num_frames) == grid


def test_the_picture_of_a_clip_has_its_frames_in_order() -> None:
    model = models.build_model("video-transformer")
    clip = models.build_clip(12)  # two rows of six: the grid closest to eight columns
    pixel_values, sequence = read_image(model, clip)
    processor = load_image_processor(model)
    expected = np.stack([processor(frame) for frame in clip])
    np.testing.assert_allclose(pixel_values[0].numpy(), expected, rtol=1e-6, atol=1e-6)
    assert sequence.picture is not None
    assert sequence.grid is not None
    rows, columns = sequence.grid
    picture = np.asarray(decode_picture(sequence.picture).convert("RGB"))
    height, width = picture.shape[0] // rows, picture.shape[1] // columns
    for i, frame in enumerate(clip):
        row, column = divmod(i, columns)
        cell = picture[row * height : (row + 1) * height, column * width : (column + 1) * width]
        np.testing.assert_array_equal(cell, processor.read_pixels(frame))


def test_an_uploaded_clip_keeps_its_frames() -> None:
    images = [Image.fromarray(frame) for frame in models.build_clip(5)]
    data = encode(images[0], "GIF", save_all=True, append_images=images[1:])
    model = models.build_model("video-transformer")
    assert len(open_uploaded_image(data, model)) == 5
    message = assert_error(lambda: open_uploaded_image(b"text", model), "the image")
    assert "/" not in message
    images *= model.args["max_positions"] // 5 + 1
    data = encode(images[0], "GIF", save_all=True, append_images=images[1:], disposal=2)
    assert_error(lambda: open_uploaded_image(data, model), "the image: ", "expected at most")


def test_the_picture_is_what_the_model_reads() -> None:
    """Resized and cropped: the colors of the pixels follow from the pixel values."""
    model = models.build_model("vit")
    pixel_values, sequence = read_image(model, models.build_image())
    assert sequence.picture is not None
    picture = decode_picture(sequence.picture)
    assert picture.size == (12, 12)
    colors = torch.tensor([*picture.convert("RGB").tobytes()]).reshape(12, 12, 3)
    processor = load_image_processor(model)
    mean, std = (
        torch.tensor(values or (0.0,) * 3, dtype=torch.float64)
        for values in (processor.image_mean, processor.image_std)
    )
    expected = pixel_values[0].permute(1, 2, 0) * std + mean
    torch.testing.assert_close(colors / 255.0, expected, rtol=0, atol=2e-3, check_dtype=False)
    assert colors.flatten(0, 1).float().std(0).min() > 10


def test_label_patches_needs_no_image() -> None:
    sequence = label_patches(models.build_model("vit"), "data:image/png;base64,AA==")
    assert (len(sequence), sequence.picture) == (10, "data:image/png;base64,AA==")


# --- uploaded files ---


@pytest.mark.parametrize("image_format", FORMATS)
def test_uploaded_images(image_format: str) -> None:
    settings = {"lossless": True} if image_format == "WEBP" else {}
    data = encode(models.build_image(), image_format, **settings)
    image = open_uploaded_image(data, VIT)
    assert image.size == (20, 16)
    pixel_values, _ = read_image(models.build_model("vit"), image)
    expected, _ = read_image(models.build_model("vit"), models.build_image())
    difference = (pixel_values - expected).abs().max()
    assert difference < (0.6 if image_format in ("JPEG", "GIF") else 1e-9)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16"])
def test_uploaded_images_of_every_mode(mode: str) -> None:
    image = models.build_image().convert(mode) if mode != "I;16" else Image.new(mode, (20, 16))
    data = encode(image, "TIFF" if mode == "CMYK" else "PNG")
    pixel_values, _ = read_image(models.build_model("vit"), open_uploaded_image(data, VIT))
    assert pixel_values.isfinite().all()


def test_rotated_and_thin_images() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    files = [encode(models.build_image(), "JPEG", exif=exif)]
    files += [encode(Image.new("RGB", size)) for size in ((1, 1), (1, 500), (300, 1))]
    for data in files:
        pixel_values, _ = read_image(models.build_model("vit"), open_uploaded_image(data, VIT))
        assert pixel_values.shape == (1, 3, 12, 12)


WHOLE_PNG = encode(models.build_image())
BROKEN = {
    "0 bytes": b"",
    "text": b"the cat sat on the mat",
    "html": b"<script>alert(1)</script>",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "signature": WHOLE_PNG[:8],
    "half": WHOLE_PNG[: len(WHOLE_PNG) // 2],
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_no_images_are_refused(name: str) -> None:
    message = assert_error(lambda: open_uploaded_image(BROKEN[name], VIT), "the image")
    assert "tmp" not in message  # no path of this machine


def test_a_decompression_bomb_is_refused() -> None:
    """A megapixel for every few bytes."""
    data = encode_png(20_000, 20_000)
    assert len(data) < 2**19
    message = assert_error(lambda: open_uploaded_image(data, VIT), "the image", "pixels")
    assert "tmp" not in message


def test_a_file_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images_module, "MAX_UPLOAD_BYTES", len(WHOLE_PNG))
    open_uploaded_image(WHOLE_PNG, VIT)
    message = f"the image has {len(WHOLE_PNG) + 1:,} bytes, expected at most {len(WHOLE_PNG):,}"
    assert_error(lambda: open_uploaded_image(WHOLE_PNG + b"\0", VIT), message, "use a smaller one")


def test_names_of_images_depend_on_their_bytes() -> None:
    names = {hash_image(data) for data in BROKEN.values()}
    assert len(names) == len(BROKEN)
    assert all(len(name) == 16 and name.isalnum() for name in names)
    assert hash_image(WHOLE_PNG) == hash_image(bytes(WHOLE_PNG))
