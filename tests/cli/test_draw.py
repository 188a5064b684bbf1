"""The command draw, and image tokenizers by `tokenizer train`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from qkv.image_tokenizer import CODEBOOK_FILE, IMAGE_TOKENIZER_FILE, ImageTokenizer
from tests.cli.test_read import bad, good, rows
from tests.tasks.test_draw import COLORS, build_model

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    build_model().save("model")


def test_images_are_saved(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "model", "--seed", "3"]
    assert good(capsys, "draw", "a red square", *flags, "--save", "red.png") == "wrote red.png\n"
    with Image.open("red.png") as image:
        assert (image.size, image.mode) == ((8, 8), "RGB")
        red = np.asarray(image)
    many = ["--num-return-sequences", "3", "--scale", "2", "--save", "sheet.png"]
    good(capsys, "draw", "a blue square", "a red square", *flags, *many)
    with Image.open("sheet.png") as image:
        assert image.size == (3 * 16, 2 * 16)
        sheet = np.asarray(image)[::2, ::2]
    (result,) = rows(capsys, "draw", "a red square", *flags, "--num-return-sequences", "3")
    scores = [candidate["score"] for candidate in result["candidates"]]
    assert scores == sorted(scores, reverse=True)
    codes = np.array([candidate["codes"] for candidate in result["candidates"]])
    images = ImageTokenizer.load("model").decode(codes)
    assert (np.concatenate([*images], 1) == sheet[8:]).all()
    assert any((image == red).all() for image in images)  # the first sample, sorted by score


def test_images_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = good(capsys, "draw", "a red square", "--model", "model").splitlines()
    assert lines[0] == "a red square"
    assert lines[1:5] == ["▀" * 8] * 4


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert "text is empty" in bad(capsys, "draw", "", "--model", "model")
    assert "--model" in bad(capsys, "draw", "red")
    message = bad(capsys, "draw", "red", "--model", "builtin:complete")
    assert "the model has no image tokenizer" in message
    message = bad(capsys, "draw", "red", "--model", "model", "--save", "red.txt")
    assert "--save red.txt: expected one of .png" in message
    assert "--scale is 0" in bad(capsys, "draw", "red", "--model", "model", "--scale", "0")
    assert "9 tokens" in bad(capsys, "draw", "red " * 9, "--model", "model")
    shutil.copytree("model", "wrong")
    config = json.loads((Path("wrong") / IMAGE_TOKENIZER_FILE).read_text())
    (Path("wrong") / IMAGE_TOKENIZER_FILE).write_text(json.dumps(config | {"image_size": 64}))
    message = bad(capsys, "draw", "red", "--model", "wrong")
    assert "wrong: the model has 21 positions, expected more than the 1024 codes" in message
    (Path("wrong") / CODEBOOK_FILE).write_bytes(b"no codebook")
    assert "not a safetensors file" in bad(capsys, "draw", "red", "--model", "wrong")
    assert {path.name for path in Path().iterdir()} == {"model", "wrong"}


def write_pictures() -> None:
    Path("pictures").mkdir()
    lines = ["image\tcaption"]
    for name, color in COLORS.items():
        Image.new("RGB", (12, 8), color).save(f"pictures/{name}.png")
        lines.append(f"{name}.png\ta {name} square")
    Path("pictures/captions.tsv").write_text("\n".join(lines) + "\n")


def test_image_tokenizers_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures()
    train = ["tokenizer", "train", "pictures", "--type"]
    sizes = ["--image-size", "8", "--patch-size", "4", "--vocab-size", "9"]
    lines = good(capsys, *train, "patches", *sizes, "--out", "codec").splitlines()
    assert re.fullmatch(r"trained  2 codes \(patches\) in \d+\.\d s", lines[0])
    assert lines[1:] == [
        "image    8 × 8 pixels, 4 codes",
        "error    0.0 of 255 levels (RMS), measured on 2 images",
        "wrote    codec",
    ]
    assert {*map(tuple, ImageTokenizer.load("codec").codebook[:, :3].tolist())} == {
        *COLORS.values()
    }
    good(capsys, *train, "pixels", "--image-size", "6", "--out", "gray")
    assert (len(ImageTokenizer.load("gray")), ImageTokenizer.load("gray").num_codes) == (256, 36)


def test_image_tokenizers_with_invalid_settings(capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures()
    train = ["tokenizer", "train", "pictures", "--out", "codec", "--type"]
    assert "--lowercase is for tokenizers of texts" in bad(capsys, *train, "patches", "--lowercase")
    message = bad(capsys, *train, "bpe", "--image-size", "8")
    assert "--image-size is for image tokenizers" in message
    message = bad(capsys, *train, "pixels", "--patch-size", "2")
    assert "its codes are the 256 levels of one pixel" in message
    message = bad(capsys, *train, "patches", "--image-size", "9", "--patch-size", "2")
    assert "image_size 9 and patch_size 2" in message
    Path("pictures/red.png").write_text("no picture")
    message = bad(capsys, *train, "patches")
    assert "captions.tsv, line 2" in message
    assert "not a readable image" in message
    assert not Path("codec").exists()
