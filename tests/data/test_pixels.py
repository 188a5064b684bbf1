"""Encoders of labeled images and clips: rows of pixels, and errors that name the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkv.data.encode.images import ImageProcessor
from qkv.data.encode.pixels import FrameClassificationEncoder, ImageClassificationEncoder
from qkv.data.encode.text_to_image import read_record_images
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare_shards
from tests.support.errors import assert_error

PROCESSOR = ImageProcessor(size=(4, 4), crop_size=None, image_mean=(0.5,), image_std=(0.5,))
IMAGES = ImageClassificationEncoder(
    image_processor=PROCESSOR, image_size=4, label_names=("cat", "dog")
)
CLIPS = FrameClassificationEncoder(
    image_processor=PROCESSOR, image_size=4, label_names=("cat", "dog"), max_length=3
)
FRAMES = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4)


def make_record(**values: Any) -> Record:
    return Record(values, "line 7")


def test_pixels_are_stored_as_bytes(tmp_path: Path) -> None:
    records = [make_record(image=FRAMES[i], label=("dog", "cat", "dog")[i]) for i in range(3)]
    shards = prepare_shards(
        records, IMAGES, tmp_path, field_sizes=IMAGES.field_sizes(), provenance={}
    )
    assert shards.get_document(1, "image").dtype == np.uint8
    assert shards.get_document(1, "image").tolist() == FRAMES[1].ravel().tolist()
    assert [int(shards.get_document(i, "label")[0]) for i in range(3)] == [1, 0, 1]
    (row,) = CLIPS([make_record(frames=FRAMES, labels=["dog", "cat", "cat"])])
    assert np.array_equal(row["frames"], FRAMES.ravel())
    assert list(row["labels"]) == [1, 0, 0]


@pytest.mark.parametrize(("values", "words"), [
    (dict(image=FRAMES[0]), "no~column~'label'"),
    (dict(label="cat"), "no~column~'image'"),
    (dict(image=3, label="cat"), "'image'~holds~3 expected~an~image"),
    (dict(image=FRAMES[0], label="bird"), "'bird' cat,~dog"),
    (dict(image="none.png", label="cat"), "none.png not~a~readable~image"),
    (dict(image=np.zeros((2, 2)), label="cat"), "float64"),
])  # fmt: skip
def test_a_bad_image_is_an_error(values: dict[str, Any], words: str) -> None:
    expected = [word.replace("~", " ") for word in words.split()]
    assert_error(lambda: IMAGES([make_record(**values)]), "line 7", *expected)


def test_a_path_that_is_the_location_of_its_record_is_named_once() -> None:
    path = "lab/b/2.png"
    image, clip = (Record({name: path, "label": "cat", "labels": ["cat"]}, path)
                   for name in ("image", "frames"))  # fmt: skip
    for encode in (
        lambda: IMAGES([image]),
        lambda: CLIPS([clip]),
        lambda: [*read_record_images([image], 4, 1)],
    ):
        assert assert_error(encode, "not a readable image").count(f"{path}:") == 1


@pytest.mark.parametrize(("values", "words"), [
    (dict(frames=FRAMES, labels=["cat"]), "3~frames~and~1~labels"),
    (dict(frames=FRAMES, labels="cat"), "'labels' expected~a~list"),
    (dict(frames=[], labels=[]), "'frames' expected~a~clip"),
    (dict(frames=7, labels=["cat"]), "'frames'~holds~7"),
    (dict(frames=FRAMES.repeat(2, 0), labels=["cat"] * 6), "6~frames at~most~3"),
    (dict(frames="none.gif", labels=["cat"]), "none.gif"),
])  # fmt: skip
def test_a_bad_clip_is_an_error(values: dict[str, Any], words: str) -> None:
    expected = [word.replace("~", " ") for word in words.split()]
    assert_error(lambda: CLIPS([make_record(**values)]), "line 7", *expected)


def test_an_image_of_another_size_than_the_model_reads_is_an_error() -> None:
    encoder = ImageClassificationEncoder(
        image_processor=ImageProcessor(size=None, crop_size=None), image_size=4, label_names=("a",)
    )
    record = make_record(image=np.zeros((5, 6, 3), np.uint8), label="a")
    assert_error(lambda: encoder([record]), "line 7", "5 × 6", "4 × 4", "preprocessor_config.json")
