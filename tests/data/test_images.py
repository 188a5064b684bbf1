"""Images: sizes are limited, only formats that Pillow decodes itself are opened."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qkv
from qkv.data.encode import images as images_module
from qkv.data.encode.images import ImageProcessor, open_frames
from qkv.data.read.corpus import Corpus
from qkv.model.preprocessing import complete_preprocessor_config
from tests.support.errors import assert_error
from tests.support.images import encode_png
from tests.support.limits import get_error_message

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
CLIP = ImageProcessor.from_config({})


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_thin_image_is_not_resized_to_billions_of_pixels(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    path = tmp_path / "thin.png"
    path.write_bytes(encode_png(*size))
    message = get_error_message(lambda: CLIP(path))
    assert f"{size[0]} × {size[1]} pixels, resized to" in message
    assert CLIP(Image.new("RGB", (100, 10_000))).shape == (3, 224, 224)


def test_pixels_are_limited_by_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "flat.png"
    path.write_bytes(encode_png(9_000, 9_000))
    assert "too many pixels, 9000 × 9000" in get_error_message(lambda: CLIP(path))
    path.write_bytes(encode_png(40_000, 40_000)[:2_000])
    get_error_message(lambda: CLIP(path))
    path.write_bytes(encode_png(2_000, 2_000))
    assert CLIP(path).shape == (3, 224, 224)


@pytest.mark.parametrize(
    "config",
    [
        {"size": float("inf")},
        {"size": float("nan")},
        {"size": 16384},
        {"size": {"shortest_edge": 10**30}},
        {"size": {"height": 2**14, "width": 2**14}},
        {"size": 0},
        {"size": -1},
        {"crop_size": float("inf")},
        {"crop_size": {"height": 1, "width": 2**40}},
        {"crop_size": 10**400},
        {"rescale_factor": 10**400},
        {"rescale_factor": float("inf")},
        {"rescale_factor": 0},
        {"image_mean": [0.5, float("nan"), 0.5]},
        {"image_std": [float("inf")] * 3},
        {"image_mean": [10**400] * 3},
        {"resample": float("inf")},
        {"resample": 6},
        {"size": [1] * 100_000},
    ],
    ids=lambda config: str(config)[:40],
)
def test_sizes_and_numbers_of_a_config_are_limited(config: dict[str, Any]) -> None:
    message = get_error_message(lambda: ImageProcessor.from_config(config))
    assert next(iter(config)) in message
    assert len(message) < 400


def test_a_format_that_needs_another_program_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    assert_error(lambda: CLIP(path), str(path), "not a readable image")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_common_formats_are_read(tmp_path: Path, format: str) -> None:
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    path = tmp_path / "a.png"  # the content determines the format
    Image.fromarray(pixels).save(path, format)
    assert CLIP(path).shape == (3, 224, 224)


def test_grayscale_images_have_one_channel(tmp_path: Path) -> None:
    gray = ImageProcessor.from_config(
        {"size": {"height": 6, "width": 6}, "do_center_crop": False, "image_mean": [0.5],
         "image_std": [0.5]}
    )  # fmt: skip
    assert gray.channels == 1
    levels = np.arange(36, dtype=np.uint8).reshape(6, 6) * 7
    path = tmp_path / "gray.png"
    Image.fromarray(levels).save(path)
    expected = (levels / 255 - 0.5) / 0.5
    for image in (levels, levels[:, :, None], Image.fromarray(levels), path, str(path)):
        assert gray.read_pixels(image).shape == (6, 6, 1)
        np.testing.assert_allclose(gray(image)[0], expected, atol=1e-6)
    rgb = levels[:, :, None].repeat(3, 2)
    np.testing.assert_array_equal(gray.read_pixels(rgb)[:, :, 0], levels)  # converted
    np.testing.assert_array_equal(CLIP.read_pixels(levels), CLIP.read_pixels(Image.fromarray(rgb)))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4)),
        np.zeros(4, np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((0, 4), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)
def test_an_array_that_is_no_image_is_an_error(array: Any) -> None:
    assert_error(lambda: CLIP(array), str(array.shape), str(array.dtype), "expected an image")


@pytest.mark.parametrize("size", [(20, 31), (12, 12), (9, 40)])
def test_pixel_values_equal_those_of_the_vit_processor(size: tuple[int, int]) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.ViTImageProcessorPil(size={"height": 12, "width": 12})
    config = json.loads(reference.to_json_string())
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8))
    vit = qkv.build("vit", image_size=12, patch_size=4, width=8, depth=1, heads=1, ffn_width=8)
    expected = reference(image, return_tensors="np")["pixel_values"][0]
    for settings in (
        vit.image_processor_config,
        complete_preprocessor_config(vit.family, config),
        # As in google/vit-base-patch16-224: one number, no type of processor.
        complete_preprocessor_config(vit.family, {"size": 12, "do_resize": True}),
    ):
        assert settings is not None
        values = ImageProcessor.from_config(settings)(image)
        np.testing.assert_allclose(values, expected, atol=1e-6)


def test_image_settings_are_saved_with_the_model(tmp_path: Path) -> None:
    sizes = dict(width=8, depth=1, heads=1, ffn_width=8, num_channels=1)
    model = qkv.build("vit", image_size=10, patch_size=5, **sizes)  # type: ignore[arg-type]
    model.save(tmp_path / "new")
    path = tmp_path / "new" / "preprocessor_config.json"
    config = json.loads(path.read_text())
    assert config["image_processor_type"] == "ViTImageProcessor"
    assert (config["size"], config["image_mean"]) == ({"height": 10, "width": 10}, [0.5])
    changed = config | {"image_mean": [0.1], "made_up": 3}
    path.write_text(json.dumps(changed))
    loaded = qkv.load(tmp_path / "new")
    assert loaded.image_processor_config is not None
    assert ImageProcessor.from_config(loaded.image_processor_config).image_mean == (0.1,)
    loaded.save(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "preprocessor_config.json").read_text()) == changed
    assert qkv.build("bert", "tiny").image_processor_config is None


def test_frames_of_animated_images_and_folders(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), (shade, 0, 0)) for shade in (0, 100, 200)]
    for name in ("clip.gif", "clip.png", "clip.webp", "clip.tiff"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        opened = open_frames(tmp_path / name)
        assert [frame.size for frame in opened] == [(5, 4)] * 3
        reds = [frame.getpixel((2, 2))[0] for frame in opened]
        assert np.allclose(reds, (0, 100, 200), atol=6), name
    (tmp_path / "folder").mkdir()
    assert_error(lambda: open_frames(tmp_path / "folder"), "folder", "no images")
    for number, frame in enumerate(frames):
        frame.save(tmp_path / "folder" / f"{number}.png")
    assert [
        Path(file).name for file in open_frames(tmp_path / "folder")
    ] == "0.png 1.png 2.png".split()
    (tmp_path / "text.gif").write_text("no image")
    assert_error(lambda: open_frames(tmp_path / "text.gif"), "text.gif", "not a readable image")


def test_clips_of_too_many_frames_or_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may have frames that take all memory: no frame is decoded."""
    frames = [Image.new("RGB", (50, 40), (shade, 0, 0)) for shade in (0, 100, 200)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    monkeypatch.setattr(Image.Image, "convert", None)
    message = "clip.gif: 3 frames, expected at most 2, the number of positions"
    assert_error(lambda: open_frames(tmp_path / "clip.gif", limit=2), message)
    monkeypatch.setattr(images_module, "MAX_CLIP_PIXELS", 5_999)
    assert_error(
        lambda: open_frames(tmp_path / "clip.gif"), "3 frames of 50 × 40 have 6,000 pixels", "5,999"
    )


def test_labels_of_image_folders(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label / "deep").mkdir(parents=True)
        Image.new("RGB", (2, 2)).save(tmp_path / label / "deep" / "1.png")
    records = list(Corpus(tmp_path))
    assert [(Path(str(r["image"])).parts[-3:], r["label"]) for r in records] == [
        ((label, "deep", "1.png"), label) for label in ("cat", "dog")
    ]
    (tmp_path / "labels.csv").write_text("image,label\ndog/deep/1.png,hound\n")
    (record,) = Corpus(tmp_path)
    assert (record["label"], record["image"]) == ("hound", str(tmp_path / "dog/deep/1.png"))
    (tmp_path / "labels.csv").write_text("image,label\nnone.png,hound\n")
    assert_error(lambda: list(Corpus(tmp_path)), "labels.csv, line 2", "none.png")
    (tmp_path / "labels.csv").unlink()
    Image.new("RGB", (2, 2)).save(tmp_path / "alone.png")
    assert_error(lambda: list(Corpus(tmp_path)), "alone.png", "labels.tsv", "subfolder")
