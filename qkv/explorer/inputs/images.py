"""Images and clips as the inputs of a trace: the pixels that a model reads, and patches or frames as
tokens."""

from __future__ import annotations

import base64
import hashlib
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.encode.images import build_image, open_frames, open_image
from qkv.explorer.inputs.labels import TokenLabel, TokenSequence
from qkv.model.model import Model
from qkv.spec import ConvolutionSpec, FrameSpec, PatchSpec, find_patches
from qkv.tasks.images import (
    ImageInput,
    check_image_inputs,
    encode_image_png,
    load_image_processor,
    read_clip_frames,
    read_pixel_values,
)

MAX_UPLOAD_BYTES = 2**24  # of an uploaded file
CLASS_TOKEN = "[class]"
FRAME_COLUMNS = 8


def reads_images(model: Model) -> bool:
    """Return whether a model reads images or clips."""
    return find_patches(model.spec) is not None


def reads_clips(model: Model) -> bool:
    """Return whether a model reads clips, whose frames are its tokens."""
    return isinstance(find_patches(model.spec), FrameSpec)


def read_image(model: Model, image: ImageInput) -> tuple[Tensor, TokenSequence]:
    """Return the pixel values (1, channels, height, width) and the labels of the patches; of a clip,
    (1, frames, channels, height, width) and the labels of the frames."""
    if reads_clips(model):
        return read_clip(model, image)
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


def read_clip(model: Model, clip: ImageInput) -> tuple[Tensor, TokenSequence]:
    """Return the pixel values (1, frames, channels, height, width) and a token for every frame; the
    picture of the clip is a grid of its frames."""
    processor = load_image_processor(model)
    frames = np.stack([processor.read_pixels(frame) for frame in read_clip_frames(model, clip)])
    parameter = next(model.net.parameters())
    pixel_values = torch.from_numpy(np.stack([processor.normalize(frame) for frame in frames]))[
        None
    ]
    rows, columns = grid = choose_grid(len(frames))
    height, width, channels = frames.shape[1:]
    cells = frames.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    picture = build_image(cells.reshape(rows * height, columns * width, channels))
    names = tuple(f"frame {i}" for i in range(len(frames)))
    sequence = TokenSequence(
        label="clip",
        tokens=tuple(TokenLabel(text=name, word=i) for i, name in enumerate(names)),
        words=names,
        picture=encode_picture(picture),
        grid=grid,
    )
    return pixel_values.to(parameter.device, parameter.dtype), sequence


def choose_grid(num_frames: int) -> tuple[int, int]:
    """Return the rows and columns of a full grid of frames, with about FRAME_COLUMNS columns."""
    divisors = [count for count in range(1, num_frames + 1) if num_frames % count == 0]
    columns = min(divisors, key=lambda count: abs(math.log(count / FRAME_COLUMNS)))
    return num_frames // columns, columns


def encode_picture(image: Any) -> str:
    """Return a Pillow image as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(encode_image_png(image)).decode()}"


def open_uploaded_image(data: bytes, model: Model) -> Any:
    """Return the Pillow image of an uploaded file, or the frames of a clip, as the model reads it; raise
    ValueError if it is none."""
    if len(data) > MAX_UPLOAD_BYTES:
        raise ValueError(
            f"the image has {len(data):,} bytes, expected at most {MAX_UPLOAD_BYTES:,}; "
            "use a smaller one"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        path.write_bytes(data)
        try:
            if reads_clips(model):
                return open_frames(path, model.args.get("max_positions"))
            return open_image(path)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "the image")) from None


def hash_image(data: bytes) -> str:
    """Return the name of an image in requests."""
    return hashlib.sha256(data).hexdigest()[:16]
