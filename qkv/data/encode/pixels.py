"""Encoders of labeled images and clips, whose rows hold the pixels, decoded once.

Does not depend on tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.encoder import EncodedRows, Encoder
from qkv.data.encode.images import ImageProcessor, check_num_frames, open_frames
from qkv.data.encode.labels import get_column, get_label_id, get_list_column
from qkv.data.read.record import Record, locate_error
from qkv.validate import shorten_repr

NUM_LEVELS = 256  # of a channel of a pixel


@dataclass(frozen=True, kw_only=True)
class ImageClassificationEncoder(Encoder):
    """The pixels (height, width, channels) of an image and its label."""

    image_processor: ImageProcessor
    image_size: int  # pixels per side that the model reads
    label_names: tuple[str, ...]

    def field_sizes(self) -> Mapping[str, int]:
        return {"image": NUM_LEVELS, "label": len(self.label_names)}

    def __call__(self, records: Sequence[Record]) -> EncodedRows:
        return [
            {
                "image": self.read_image(record).ravel(),
                "label": [get_label_id(get_column(record, "label"), self.label_names, record)],
            }
            for record in records
        ]

    def read_image(self, record: Record) -> NDArray[np.uint8]:
        """Return the pixels of an image, which is a file, a Pillow image or an array."""
        image = get_column(record, "image")
        if not isinstance(image, str | Path | np.ndarray) and not hasattr(image, "convert"):
            raise ValueError(
                f"{record.location}: column 'image' holds {shorten_repr(image)}, expected an image: a "
                "path, a Pillow image or an array"
            )
        return read_image_pixels(self.image_processor, image, self.image_size, record.location)


@dataclass(frozen=True, kw_only=True)
class FrameClassificationEncoder(Encoder):
    """The pixels (frames, height, width, channels) of a clip and a label for each frame."""

    image_processor: ImageProcessor
    image_size: int  # pixels per side that the model reads
    label_names: tuple[str, ...]
    max_length: int  # maximum number of frames; 0: no limit

    def field_sizes(self) -> Mapping[str, int]:
        return {"frames": NUM_LEVELS, "labels": len(self.label_names)}

    def __call__(self, records: Sequence[Record]) -> EncodedRows:
        rows = []
        for record in records:
            labels = get_list_column(record, "labels")
            frames = self.read_frames(record)
            if len(labels) != len(frames):
                raise ValueError(
                    f"{record.location}: {len(frames)} frames and {len(labels)} labels, expected one "
                    "label per frame"
                )
            label_ids = [get_label_id(label, self.label_names, record) for label in labels]
            rows.append({"frames": frames.ravel(), "labels": np.array(label_ids)})
        return rows

    def read_frames(self, record: Record) -> NDArray[np.uint8]:
        """Return the pixels of a clip: an array, the path of an animated image or of a folder."""
        frames: Any = get_column(record, "frames")
        if isinstance(frames, str | Path):
            try:
                frames = open_frames(frames, self.max_length or None)
            except ValueError as error:
                raise locate_error(record.location, error) from None
        if not isinstance(frames, np.ndarray | list) or not len(frames):
            raise ValueError(
                f"{record.location}: column 'frames' holds {shorten_repr(frames)}, expected a clip: an "
                "array (frames, height, width), or the path of an animated image or of a folder"
            )
        check_num_frames(record.location, len(frames), self.max_length or None)
        size, location = self.image_size, record.location
        return np.stack(
            [read_image_pixels(self.image_processor, frame, size, location) for frame in frames]
        )


def read_image_pixels(
    processor: ImageProcessor, image: Any, image_size: int, location: str
) -> NDArray[np.uint8]:
    """Return the pixels of an image of the size that the model reads."""
    try:
        pixels = processor.read_pixels(image)
    except ValueError as error:
        raise locate_error(location, error) from None
    if pixels.shape[:2] != (image_size, image_size):
        height, width = pixels.shape[:2]
        raise ValueError(
            f"{location}: the image has {height} × {width} pixels after preprocessing, expected "
            f"{image_size} × {image_size}, as the model reads; check preprocessor_config.json"
        )
    return pixels
