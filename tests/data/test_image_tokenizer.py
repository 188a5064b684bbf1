"""ImageTokenizer: codes of images and back, training, files, and files that do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from qkv import image_tokenizer
from qkv.image_tokenizer import (
    CODEBOOK_FILE,
    IMAGE_TOKENIZER_FILE,
    ImageTokenizer,
    find_image_tokenizer,
    split_patches,
)
from tests.support.errors import assert_error

COLORS = np.array([[250, 0, 0], [0, 240, 0], [0, 0, 230], [255, 255, 255], [10, 20, 30]], np.uint8)


def build_squares(count: int, side: int = 8, seed: int = 0) -> np.ndarray:
    """Return images (count, side, side, 3) of squares of 2 × 2 pixels in five colors."""
    rng = np.random.default_rng(seed)
    squares = COLORS[rng.integers(len(COLORS), size=(count, side // 2, side // 2))]
    return squares.repeat(2, 1).repeat(2, 2)


def test_images_of_the_codebook_are_exact() -> None:
    images = build_squares(40)
    tokenizer = ImageTokenizer.train(images, patch_size=2, vocab_size=16)
    assert len(tokenizer) == len(COLORS)  # there are no more different patches
    assert tokenizer.num_codes == 16
    unseen = build_squares(10, seed=1)
    codes = tokenizer.encode(unseen)
    assert codes.shape == (10, 16)
    assert (tokenizer.decode(codes) == unseen).all()
    assert (tokenizer.encode(tokenizer.decode(codes)) == codes).all()


def test_a_code_is_the_nearest_patch_in_reading_order() -> None:
    rng = np.random.default_rng(3)
    brightness = np.linspace(0.1, 1, 6)[:, None, None, None]  # the norms of codes differ
    images = (rng.integers(256, size=(6, 6, 6, 3)) * brightness).astype(np.uint8)
    tokenizer = ImageTokenizer.train(images, patch_size=3, vocab_size=7)
    assert tokenizer.codebook.shape == (7, 27)
    codes = tokenizer.encode(images[:1])[0]
    corners = [images[0, row : row + 3, column : column + 3] for row in (0, 3) for column in (0, 3)]
    for code, patch in zip(codes, corners, strict=True):
        distances = np.square(tokenizer.codebook.astype(int) - patch.reshape(-1)).sum(1)
        assert distances[code] == distances.min()
    assert (split_patches(images[:1], 3) == np.stack(corners).reshape(4, -1)).all()


def test_more_codes_have_a_smaller_error() -> None:
    images = np.random.default_rng(4).integers(256, size=(60, 8, 8, 3), dtype=np.uint8)
    errors = []
    for vocab_size in (1, 8, 64):
        tokenizer = ImageTokenizer.train(images, patch_size=2, vocab_size=vocab_size)
        assert len(tokenizer) == vocab_size
        decoded = tokenizer.decode(tokenizer.encode(images))
        errors.append(np.square(decoded.astype(float) - images).mean())
    assert errors[0] > 1.05 * errors[1] > 1.1 * errors[2]
    mean = images.reshape(60, 4, 2, 4, 2, 3).mean((0, 1, 3))
    assert (
        np.abs(ImageTokenizer.train(images, vocab_size=1).codebook.reshape(2, 2, 3) - mean).max()
        <= 0.5
    )


def test_pixels_are_exact() -> None:
    images = np.random.default_rng(5).integers(256, size=(3, 9, 9, 1), dtype=np.uint8)
    tokenizer = ImageTokenizer.train(images, type="pixels")
    codes = tokenizer.encode(images)
    assert (codes == images.reshape(3, 81)).all()
    assert (tokenizer.decode(codes) == images).all()
    assert_error(
        lambda: ImageTokenizer.train(build_squares(1), type="pixels"), "3 channels", "gray"
    )


def test_training_is_deterministic() -> None:
    images = np.random.default_rng(6).integers(256, size=(9, 8, 8, 3), dtype=np.uint8)
    first, second, other = (
        ImageTokenizer.train(images, vocab_size=20, seed=seed) for seed in (1, 1, 2)
    )
    assert (first.codebook == second.codebook).all()
    assert repr(first) == repr(second) != repr(other)


def test_files(tmp_path: Path) -> None:
    tokenizer = ImageTokenizer.train(build_squares(9), vocab_size=5)
    tokenizer.save(tmp_path / "codec")
    assert {path.name for path in (tmp_path / "codec").iterdir()} == {
        IMAGE_TOKENIZER_FILE,
        CODEBOOK_FILE,
    }
    assert repr(ImageTokenizer.load(tmp_path / "codec")) == repr(tokenizer)
    larger = ImageTokenizer.train(build_squares(9, side=16), patch_size=4, vocab_size=9)
    larger.save(tmp_path / "codec")  # replaces it
    assert repr(ImageTokenizer.load(tmp_path / "codec")) == repr(larger)
    assert find_image_tokenizer(tmp_path) is None
    (tmp_path / CODEBOOK_FILE).write_text("mine")
    assert_error(lambda: larger.save(tmp_path), CODEBOOK_FILE, "not written")


CONFIG = {
    "format_version": 1,
    "image_size": 8,
    "patch_size": 2,
    "num_channels": 3,
    "vocab_size": 5,
}
BAD_CONFIGS: list[tuple[dict[str, object], str]] = [
    ({"format_version": 2}, "format_version 2, expected 1"),
    ({"vocab_size": 6}, "expected a codebook of 6 codes"),
    ({"vocab_size": "5"}, "expected a codebook of '5' codes"),
    ({"patch_size": 4}, "expected uint8 (codes, 48)"),
    ({"patch_size": 0}, "patch_size is 0"),
    ({"patch_size": None}, "patch_size is None"),
    ({"image_size": 9}, "image_size 9 and patch_size 2: expected a multiple"),
    ({"image_size": 10**9}, "image_size is 1000000000"),
    ({"num_channels": 2}, "num_channels 2, expected 3 (RGB) or 1 (gray)"),
]


@pytest.mark.parametrize(("change", "message"), BAD_CONFIGS, ids=[m for _, m in BAD_CONFIGS])
def test_files_that_do_not_belong_together(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    ImageTokenizer.train(build_squares(9), vocab_size=5).save(tmp_path)
    (tmp_path / IMAGE_TOKENIZER_FILE).write_text(json.dumps(CONFIG | change))
    assert str(tmp_path) in assert_error(lambda: ImageTokenizer.load(tmp_path), message)


def test_damaged_files(tmp_path: Path) -> None:
    ImageTokenizer.train(build_squares(9), vocab_size=5).save(tmp_path)
    path = tmp_path / CODEBOOK_FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert_error(lambda: ImageTokenizer.load(tmp_path), CODEBOOK_FILE, "not a safetensors file")
    save_file({"codebook": np.zeros((5, 12), np.float32)}, str(path))
    assert_error(lambda: ImageTokenizer.load(tmp_path), "float32 (5, 12), expected uint8")
    save_file({"codebook": np.array(5, np.uint8)}, str(path))
    assert_error(lambda: ImageTokenizer.load(tmp_path), CODEBOOK_FILE, "a codebook of 5 codes")
    save_file({"other": np.zeros((5, 12), np.uint8)}, str(path))
    assert_error(lambda: ImageTokenizer.load(tmp_path), "expected a codebook of 5 codes")
    path.unlink()
    assert_error(lambda: ImageTokenizer.load(tmp_path), CODEBOOK_FILE, "No such file")
    path.write_bytes(content)
    (tmp_path / IMAGE_TOKENIZER_FILE).write_text("[]")
    assert_error(lambda: find_image_tokenizer(tmp_path), IMAGE_TOKENIZER_FILE, "expected an object")


def test_invalid_arguments() -> None:
    tokenizer = ImageTokenizer.train(build_squares(9), vocab_size=5)
    assert_error(lambda: tokenizer.encode(build_squares(1, side=6)), "(images, 8, 8, 3)")
    assert_error(lambda: tokenizer.encode(np.zeros((1, 8, 8, 3), np.float32)), "float32")
    assert_error(lambda: tokenizer.decode(np.zeros((1, 15), np.int64)), "(images, 16)")
    assert_error(
        lambda: tokenizer.decode(np.full((1, 16), 5)), "codes from 5 to 5, expected 0 to 4"
    )
    assert_error(lambda: tokenizer.decode(np.full((1, 16), -1)), "codes from -1")
    train = ImageTokenizer.train
    assert_error(lambda: train(build_squares(1), type="vqvae"), "expected one of patches, pixels")
    assert_error(lambda: train(build_squares(1), patch_size=3), "image_size 8 and patch_size 3")
    assert_error(lambda: train(build_squares(1), vocab_size=0), "vocab_size is 0")
    assert_error(lambda: train(build_squares(0)), "at least one image")
    assert_error(lambda: train(build_squares(1), seed=-1), "seed is -1: expected a whole number")
    wide = np.zeros((2, 8, 10, 3), np.uint8)
    assert_error(lambda: train(wide), "uint8 (2, 8, 10, 3), expected uint8 (images, size, size")
    assert_error(lambda: train(wide[..., :1], type="pixels"), "(2, 8, 10, 1)")
    floats: Any = np.zeros((1, 16))
    assert_error(lambda: tokenizer.decode(floats), "float64 (1, 16), expected integers")
    for call in (train, tokenizer.encode, tokenizer.decode):
        rows: Any = [[0] * 16]
        assert_error(lambda call=call, rows=rows: call(rows), "of type list, expected")  # type: ignore[misc]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> NoReturn:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(image_tokenizer, "save_file", fail)
    tokenizer = ImageTokenizer.train(build_squares(9), vocab_size=5)
    folder = tmp_path / "codec"
    assert_error(lambda: tokenizer.save(folder), "codec: not written", "No space", error=OSError)
    assert not folder.exists()
