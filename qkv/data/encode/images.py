"""Images: ImageProcessor, from an image to pixel values, and image-caption records. Only this module
imports Pillow.

An image is resized and center-cropped, with the settings of CLIP or of a preprocessor_config.json. The
pixel values equal those of Hugging Face's CLIPImageProcessor and ViTImageProcessor."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv.data.encode.encoder import EncodedRow, RecordEncoder
from qkv.data.read.formats import import_optional
from qkv.data.read.image_folder import is_image_name
from qkv.data.read.record import Record
from qkv.files import format_error, get_file_size
from qkv.validate import shorten_repr

OPENAI_CLIP_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)  # red, green, blue
OPENAI_CLIP_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
BICUBIC = 3  # Pillow's constant
MAX_PROCESSED_PIXELS = 2**23
MAX_PIXELS = 2**24  # of a file with any number of bytes
MAX_PIXELS_OF_PILLOW = 2**30 // 12  # the default of Pillow: a quarter GiB of RGB
MAX_FRAMES = 2**12  # of a clip
MAX_CLIP_PIXELS = 2**28  # of all frames: three quarters of a GiB of RGB
MAX_CACHED_BYTES = 2**28  # of decoded images
MAX_PIXELS_PER_BYTE = 64  # of an image with more pixels; a photograph has fewer than 10
# Formats whose decoders are part of Pillow; EPS, for example, would run another program.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "MPO")


@dataclass(frozen=True, kw_only=True)
class ImageCaptionEncoder(RecordEncoder):
    """The path of an image, as bytes, and the tokens of its caption."""

    image_processor: ImageProcessor | None = None  # of the model

    def field_sizes(self) -> Mapping[str, int]:
        return {"tokens": len(self.tokenizer), "image": 256}

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        captions = self.tokenizer.encode_batch([record.get_text("caption") for record in records])
        rows = []
        for encoding, record in zip(captions, records, strict=True):
            path = record.get_text("image")
            try:
                with open_image_file(path):
                    pass
            except ValueError as error:
                raise ValueError(f"{record.location}: {error}") from None
            tokens = self.limit_length(encoding, record).input_ids
            rows.append({"tokens": tokens, "image": list(os.fsencode(path))})
        return rows


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """The steps from an image to pixel values, in this order; None skips a step."""

    size: int | tuple[int, int] | None  # length of the shortest edge, or (height, width)
    crop_size: tuple[int, int] | None  # (height, width) of the center crop, zero-padded
    rescale_factor: float | None = 1 / 255
    image_mean: tuple[float, ...] | None = tuple(OPENAI_CLIP_MEAN.tolist())
    image_std: tuple[float, ...] = tuple(OPENAI_CLIP_STD.tolist())
    resample: int = BICUBIC

    @staticmethod
    def for_size(image_size: int) -> ImageProcessor:
        """Return CLIP's processor for square images of this size."""
        return ImageProcessor(size=image_size, crop_size=(image_size, image_size))

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> ImageProcessor:
        """Build the processor of a preprocessor_config.json; the defaults are CLIP's values."""
        config = {name: value for name, value in config.items() if value is not None}
        try:
            size = config.get("size", 224)
            if isinstance(size, Mapping) and "shortest_edge" not in size:
                size = parse_height_width(size)
            else:
                size = parse_shortest_edge(size)
            crop_size = config.get("crop_size", 224)
            if not isinstance(crop_size, Mapping):
                crop_size = {"height": crop_size, "width": crop_size}
            crop_size = parse_height_width(crop_size)
            rescale_factor = float(config.get("rescale_factor", 1 / 255))
            mean = tuple(map(float, config.get("image_mean", OPENAI_CLIP_MEAN.tolist())))
            std = tuple(map(float, config.get("image_std", OPENAI_CLIP_STD.tolist())))
            processor = ImageProcessor(
                size=size if config.get("do_resize", True) else None,
                crop_size=crop_size if config.get("do_center_crop", True) else None,
                rescale_factor=rescale_factor if config.get("do_rescale", True) else None,
                image_mean=mean if config.get("do_normalize", True) else None,
                image_std=std,
                resample=int(config.get("resample", BICUBIC)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"image settings in another format ({shorten_repr(error)}), expected Hugging Face's; "
                "check size, crop_size, rescale_factor, image_mean, image_std and resample"
            ) from None
        processor._check_values()
        is_valid = len(mean) == len(std) in (1, 3) and np.isfinite((*mean, *std)).all()
        if not is_valid or 0 in std:
            raise ValueError(
                f"image_mean {shorten_repr(mean)}, image_std {shorten_repr(std)}: expected three "
                "finite numbers each, or one for grayscale, no 0 in image_std"
            )
        return processor

    def _check_values(self) -> None:
        shortest_edge = (self.size, self.size) if isinstance(self.size, int) else self.size
        for name, value, sides in (
            ("size", self.size, shortest_edge),
            ("crop_size", self.crop_size, self.crop_size),
        ):
            if sides is not None and (min(sides) < 1 or math.prod(sides) > MAX_PROCESSED_PIXELS):
                raise ValueError(
                    f"{name} {shorten_repr(value)}: expected sides of 1 or more, and at most "
                    f"{MAX_PROCESSED_PIXELS:,} pixels"
                )
        if not 0 <= self.resample < 6:
            raise ValueError(f"resample {self.resample}: expected a number from 0 to 5")
        if self.rescale_factor is not None and not 0 < self.rescale_factor < math.inf:
            raise ValueError(f"rescale_factor {self.rescale_factor}: expected a number above 0")

    def __call__(self, image: str | Path | Any) -> NDArray[np.float32]:
        """Return the pixel values (channels, height, width) of an image."""
        return self.normalize(self.read_pixels(image))

    @property
    def channels(self) -> int:
        """1 for grayscale, 3 for RGB: the number of means and standard deviations."""
        return len(self.image_std)

    def read_pixels(self, image: str | Path | Any) -> NDArray[np.uint8]:
        """Return the pixels (height, width, channels) of an image, resized and cropped.

        An image is a file, a Pillow image or an array of bytes, (height, width) or (height, width, 3)."""
        name = str(image) if isinstance(image, str | Path) else "image"
        if isinstance(image, np.ndarray):
            image = check_image_array(image)
            if self.has_result_shape(image):
                return image.reshape(*image.shape[:2], self.channels)
            image = import_optional("PIL.Image", "an array").fromarray(image)
        mode = "L" if self.channels == 1 else "RGB"
        image = open_image(image, mode) if isinstance(image, str | Path) else image.convert(mode)
        if self.size is not None:
            width, height = self.compute_resized_size(*image.size)
            if width * height > MAX_PROCESSED_PIXELS:
                raise ValueError(
                    f"{name}: {image.width} × {image.height} pixels, resized to {width} × {height}, "
                    f"expected at most {MAX_PROCESSED_PIXELS:,} pixels; cut the image into parts"
                )
            image = image.resize((width, height), self.resample)
        pixels = np.asarray(image).reshape(image.height, image.width, self.channels)
        return pixels if self.crop_size is None else center_crop(pixels, *self.crop_size)

    def has_result_shape(self, image: NDArray[np.uint8]) -> bool:
        """Return whether an array already has the size and the channels of the result."""
        shape = image.shape[:2]
        sizes = {
            (self.size, self.size) if isinstance(self.size, int) else self.size,
            self.crop_size,
        }
        return sizes <= {None, shape} and image.size == math.prod(shape) * self.channels

    def normalize(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the pixel values (..., channels, height, width) of pixels (..., height, width,
        channels)."""
        values = self._compute_values()
        channels = range(self.channels)
        return np.stack([values[pixels[..., channel], channel] for channel in channels], axis=-3)

    def _compute_values(self) -> NDArray[np.float32]:
        """Return the normalized value of each of the 256 levels of a channel (256, channels)."""
        levels = np.arange(256, dtype=np.float64)[:, None].repeat(self.channels, 1)
        values = (levels * (self.rescale_factor or 1.0)).astype(np.float32)
        if self.image_mean is not None:
            mean = np.array(self.image_mean, np.float32)
            std = np.array(self.image_std, np.float32)
            values = ((values - mean) / std).astype(np.float32)
        return values

    def compute_resized_size(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) after resizing the shortest edge; the other is rounded down."""
        assert self.size is not None
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        longer = int(self.size * max(width, height) / min(width, height))
        return (self.size, longer) if width <= height else (longer, self.size)


def parse_height_width(size: Mapping[str, Any]) -> tuple[int, int]:
    return int(size["height"]), int(size["width"])


def parse_shortest_edge(size: Any) -> int:
    """Read the shortest edge, which older files store as a number."""
    return int(size["shortest_edge"] if isinstance(size, Mapping) else size)


def check_image_array(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Return an array of bytes; raise ValueError unless it is an image (height, width[, 1 or 3])."""
    is_image = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3))
    if image.dtype != np.uint8 or not is_image or not image.size:
        raise ValueError(
            f"an array of shape {image.shape} and dtype {image.dtype}, expected an image of bytes, "
            "(height, width) or (height, width, 3)"
        )
    return image[:, :, 0] if image.shape[2:] == (1,) else image


def open_image(path: str | Path, mode: str = "RGB") -> Any:
    """Open an image file as a Pillow image of this mode."""
    with open_image_file(path) as image:
        try:
            image.load()
            return image if image.mode == mode else image.convert(mode)
        except Exception as error:  # decoders raise different exceptions for damaged files
            raise ValueError(f"{path}: not a readable image ({format_error(error)})") from None


def open_frames(path: str | Path, limit: int | None = None) -> list[Any]:
    """Open the frames of a clip as Pillow images or files: those of an animated image (GIF, WebP, PNG,
    TIFF), or the images of a folder in the order of their names.

    `limit` is the largest number of frames, such as the positions of a model."""
    if Path(path).is_dir():
        files = sorted(file for file in Path(path).iterdir() if is_image_name(file))
        if not files:
            raise ValueError(f"{path}: no images in the folder; expected one for each frame")
        check_num_frames(str(path), len(files), limit)
        return [str(file) for file in files]
    with open_image_file(path) as image:
        num_frames = getattr(image, "n_frames", 1)
        check_num_frames(str(path), num_frames, limit)
        num_pixels = image.width * image.height * num_frames
        if num_pixels > MAX_CLIP_PIXELS:
            raise ValueError(
                f"{path}: {num_frames:,} frames of {image.width} × {image.height} have {num_pixels:,} "
                f"pixels, expected at most {MAX_CLIP_PIXELS:,}; use smaller or fewer frames"
            )
        frames = []
        for number in range(num_frames):
            try:
                image.seek(number)
                frames.append(image.convert("RGB"))
            except Exception as error:  # decoders raise different exceptions for damaged files
                raise ValueError(f"{path}: not a readable image ({format_error(error)})") from None
        return frames


def check_num_frames(name: str, num_frames: int, limit: int | None = None) -> None:
    """Raise ValueError for a clip of more frames than a model or the memory has room for."""
    if limit is not None and num_frames > limit:
        raise ValueError(
            f"{name}: {num_frames:,} frames, expected at most {limit:,}, the number of positions of "
            "the model; cut the clip into parts"
        )
    if num_frames > MAX_FRAMES:
        raise ValueError(f"{name}: {num_frames:,} frames, expected at most {MAX_FRAMES:,}")


@contextmanager
def open_image_file(path: str | Path) -> Iterator[Any]:
    """Open an image file, whose pixels are decoded later, unless it has too many."""
    pillow = import_optional("PIL.Image", str(path))
    pillow.init()
    formats = [name for name in IMAGE_FORMATS if name in pillow.OPEN]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = pillow.open(path, formats=formats)
        size = get_file_size(Path(path))
    except Exception as error:
        raise ValueError(f"{path}: not a readable image ({format_error(error)})") from None
    with image:
        max_pixels = max(MAX_PIXELS, min(MAX_PIXELS_PER_BYTE * size, MAX_PIXELS_OF_PILLOW))
        if image.width * image.height > max_pixels:
            raise ValueError(
                f"{path}: the image has too many pixels, {image.width} × {image.height} in a file of "
                f"{size:,} bytes, expected at most {max_pixels:,}; use a smaller image"
            )
        yield image


def center_crop(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Crop the center of an image (height, width, channels); a smaller one is padded with zeros."""
    cropped = np.zeros((height, width, image.shape[2]), np.uint8)
    target_rows, source_rows = compute_crop_slices(image.shape[0], height)
    target_columns, source_columns = compute_crop_slices(image.shape[1], width)
    cropped[target_rows, target_columns] = image[source_rows, source_columns]
    return cropped


def compute_crop_slices(size: int, crop_size: int) -> tuple[slice, slice]:
    """Return the slice of the crop that is filled, and the slice of the image that fills it."""
    start = max((size - crop_size) // 2, 0)
    padding = max(-((size - crop_size) // 2), 0)
    count = min(size, crop_size)
    return slice(padding, padding + count), slice(start, start + count)


class PixelCache:
    """Pixels of image files, decoded once; files beyond `MAX_CACHED_BYTES` are decoded every time."""

    def __init__(self, processor: ImageProcessor) -> None:
        self.processor = processor
        self.pixels: dict[str, NDArray[np.uint8]] = {}
        self.num_bytes = 0

    def read(self, path: str) -> NDArray[np.uint8]:
        """Return the pixels (height, width, 3) of an image, resized and cropped."""
        pixels = self.pixels.get(path)
        if pixels is None:
            pixels = self.processor.read_pixels(path)
            if self.num_bytes + pixels.nbytes <= MAX_CACHED_BYTES:
                self.pixels[path] = pixels
                self.num_bytes += pixels.nbytes
        return pixels


def build_image(pixels: NDArray[np.uint8], scale: int = 1) -> Any:
    """Return a Pillow image of levels (H, W, 3) or (H, W, 1), with `scale` × `scale` pixels for each."""
    pillow = import_optional("PIL.Image", "an image")
    enlarged = pixels.repeat(scale, 0).repeat(scale, 1)
    return pillow.fromarray(enlarged[:, :, 0] if enlarged.shape[2] == 1 else enlarged)
