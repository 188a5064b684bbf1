"""Images as the inputs of tasks: paths or Pillow images, and the pixels and values that a model reads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qkv.data.encode.images import (
    ImageProcessor,
    build_image,
    check_num_frames,
    open_frames,
)
from qkv.model.inputs import check_input_shape
from qkv.model.model import Model
from qkv.model.preprocessing import PREPROCESSOR_FILE
from qkv.spec import ConvolutionSpec, PatchSpec, find_patches

ImageInput: TypeAlias = str | Path | Any  # a path, a Pillow image, or an array of bytes


def get_image_features(model: Model) -> PatchSpec | ConvolutionSpec:
    """Return how the model reads an image."""
    features = find_patches(model.spec)
    assert isinstance(features, PatchSpec | ConvolutionSpec)
    return features


def load_image_processor(model: Model) -> ImageProcessor:
    """Return the processor of preprocessor_config.json; by default, that of the family."""
    config = model.image_processor_config
    assert config is not None
    try:
        return ImageProcessor.from_config(config)
    except ValueError as error:
        folder = model.tokenizer_folder or Path()
        raise ValueError(f"{folder / PREPROCESSOR_FILE}: {error}") from None


def check_image_inputs(images: Sequence[ImageInput]) -> None:
    """Raise ValueError unless every image is a path, a Pillow image or an array."""
    for image in images:
        if not isinstance(image, str | Path | np.ndarray) and not hasattr(image, "convert"):
            raise ValueError(
                f"an image is a {type(image).__name__}, expected a path or a Pillow image"
            )


def read_clip_frames(model: Model, clip: ImageInput) -> list[ImageInput]:
    """Return the frames of a clip: the path of an animated image or of a folder of images, or an array of
    bytes (frames, height, width) or (frames, height, width, 3)."""
    limit = model.args.get("max_positions")
    frames = open_frames(clip, limit) if isinstance(clip, str | Path) else clip
    if not isinstance(frames, list | np.ndarray) or not len(frames):
        is_empty = isinstance(frames, list | np.ndarray)
        problem = "has no frames" if is_empty else f"is of type {type(frames).__name__}"
        raise ValueError(
            f"a clip {problem}, expected the path of an animated image or of a folder of images, a list of "
            "images, or an array (frames, height, width)"
        )
    check_num_frames("a clip", len(frames), limit)
    return list(frames)


def read_pixel_values(
    model: Model, processor: ImageProcessor, images: Sequence[ImageInput]
) -> Tensor:
    """Return the pixel values (B, channels, height, width) of images, on the device of the model."""
    pixel_values = torch.stack([torch.from_numpy(processor(image)) for image in images])
    check_input_shape(
        "pixel_values", pixel_values, ("B", *get_image_features(model).pixel_shape), {}
    )
    parameter = next(model.net.parameters())
    return pixel_values.to(parameter.device, parameter.dtype)


def encode_processed_image(processor: ImageProcessor, image: ImageInput) -> bytes:
    """Return the pixels that a model reads of an image, resized and cropped, as a PNG file."""
    return encode_image_png(build_image(processor.read_pixels(image)))


def encode_image_png(image: Any) -> bytes:
    """Return a Pillow image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
