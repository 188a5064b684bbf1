"""Images as the inputs of tasks: paths or Pillow images, and the pixel values that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from qkv.data.encode.images import ImageProcessor
from qkv.files import read_json_object
from qkv.model.inputs import check_input_shape
from qkv.model.model import Model
from qkv.spec import ConvolutionSpec, PatchSpec, find_patches

ImageInput: TypeAlias = str | Path | Any  # a path, or a Pillow image


def get_image_features(model: Model) -> PatchSpec | ConvolutionSpec:
    """Return how the model reads an image."""
    features = find_patches(model.spec)
    assert isinstance(features, PatchSpec | ConvolutionSpec)
    return features


def load_image_processor(model: Model) -> ImageProcessor:
    """Return the processor of preprocessor_config.json; by default, that of CLIP for the image size."""
    folder = model.tokenizer_folder
    path = folder / "preprocessor_config.json" if folder is not None else None
    if path is not None and path.is_file():
        try:
            return ImageProcessor.from_config(read_json_object(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    return ImageProcessor.for_size(get_image_features(model).image_size)


def check_image_inputs(images: Sequence[ImageInput]) -> None:
    """Raise ValueError unless every image is a path or a Pillow image."""
    for image in images:
        if not isinstance(image, str | Path) and not hasattr(image, "convert"):
            raise ValueError(
                f"an image is a {type(image).__name__}, expected a path or a Pillow image"
            )


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
