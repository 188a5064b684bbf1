"""Images as the inputs of a trace: the pixels that a model reads, and its patches as tokens."""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.data.encode.images import build_image, open_image
from qkv.explorer.labels import TokenLabel, TokenSequence
from qkv.model.model import Model
from qkv.spec import ConvolutionSpec, PatchSpec, find_patches
from qkv.tasks.images import (
    ImageInput,
    check_image_inputs,
    load_image_processor,
    read_pixel_values,
)

MAX_UPLOAD_BYTES = 2**24  # of an uploaded file
CLASS_TOKEN = "[class]"


def reads_images(model: Model) -> bool:
    """Return whether a model reads images; a model of clips does not."""
    return isinstance(find_patches(model.spec), PatchSpec | ConvolutionSpec)


def read_image(model: Model, image: ImageInput) -> tuple[Tensor, TokenSequence]:
    """Return the pixel values (1, channels, height, width) and the labels of the patches."""
    check_image_inputs([image])
    processor = load_image_processor(model)
    pixels = processor.read_pixels(image)
    picture = encode_picture(build_image(pixels))
    return read_pixel_values(model, processor, [pixels]), label_patches(model, picture)


def label_patches(model: Model, picture: str) -> TokenSequence:
    """Return a token for every patch, which is a word of its own: "2,5" is the sixth patch of the third
    row."""
    features = find_patches(model.spec)
    assert isinstance(features, PatchSpec | ConvolutionSpec)
    first = int(features.class_token)
    side = round((features.num_tokens - first) ** 0.5)
    names = [f"{i // side},{i % side}" for i in range(side * side)]
    patches = [TokenLabel(text=name, word=i) for i, name in enumerate(names)]
    special = [TokenLabel(text=CLASS_TOKEN, special=True)] * first
    return TokenSequence(
        label="image",
        tokens=(*special, *patches),
        words=tuple(names),
        picture=picture,
        grid=(side, side),
        first_patch=first,
    )


def encode_picture(image: Any) -> str:
    """Return a Pillow image as a data URL."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def open_uploaded_image(data: bytes) -> Any:
    """Return the Pillow image of an uploaded file; raise ValueError if it is none."""
    if len(data) > MAX_UPLOAD_BYTES:
        raise ValueError(
            f"the image has {len(data):,} bytes, expected at most {MAX_UPLOAD_BYTES:,}; "
            "use a smaller one"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(data)
        try:
            return open_image(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "the image")) from None


def hash_image(data: bytes) -> str:
    """Return the name of an image in requests."""
    return hashlib.sha256(data).hexdigest()[:16]
