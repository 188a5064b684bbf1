"""Captions and images as rows of tokens: the caption, padded to a fixed number of tokens, and the codes of
the image, whose ids follow those of the text tokens.

    r e d  h e a r t <pad> <pad> │ 512 + 17  512 + 4  512 + 4 ...
    num_text_tokens              │ num_codes"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from qkv.data.encode.encoder import EncodedRow, RecordEncoder
from qkv.data.encode.images import ImageProcessor
from qkv.data.read.record import Record, locate_error
from qkv.image_tokenizer import MAX_IMAGE_SIZE, ImageTokenizer, Pixels
from qkv.validate import check_number

MAX_TRAINING_IMAGES = 10_000  # of a codebook


@dataclass(frozen=True, kw_only=True)
class TextToImageEncoder(RecordEncoder):
    """The tokens of a caption and the codes of its image, `max_length` tokens in all; with
    `keep_pixels`, also the pixels of the image."""

    keep_pixels: bool = False

    @cached_property
    def image_tokenizer(self) -> ImageTokenizer:
        """The image tokenizer, loaded on first use."""
        return ImageTokenizer.load(self.tokenizer_folder)

    def __getstate__(self) -> dict[str, object]:
        """Omit the tokenizers, because each process loads them."""
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "image_tokenizer"}

    def field_sizes(self) -> Mapping[str, int]:
        sizes = {"tokens": len(self.tokenizer) + len(self.image_tokenizer)}
        return sizes | ({"pixels": 256} if self.keep_pixels else {})

    def __call__(self, records: Sequence[Record]) -> list[EncodedRow]:
        image_tokenizer = self.image_tokenizer
        num_text_tokens = self.max_length - image_tokenizer.num_codes
        captions = self.encode_texts(
            [record.get_text("caption") for record in records],
            records,
            num_text_tokens,
            add_special_tokens=False,
        )
        images = np.stack(
            [*read_record_images(records, image_tokenizer.image_size, image_tokenizer.num_channels)]
        )
        codes = len(self.tokenizer) + image_tokenizer.encode(images)
        padding_id = get_padding_id(self.tokenizer.pad_token_id)
        rows = []
        for caption, image_codes, pixels in zip(captions, codes, images, strict=True):
            text = pad_caption(caption, num_text_tokens, padding_id)
            row = {"tokens": [*text, *image_codes.tolist()]}
            if self.keep_pixels:
                row["pixels"] = pixels.ravel().tolist()
            rows.append(row)
        return rows


def get_padding_id(pad_token_id: int | None) -> int:
    """Return the token that fills the caption of a row."""
    return pad_token_id or 0


def pad_caption(token_ids: Sequence[int], num_text_tokens: int, padding_id: int) -> list[int]:
    """Pad the tokens of a caption: the codes of all images have the same positions."""
    return [*token_ids, *[padding_id] * (num_text_tokens - len(token_ids))]


def read_record_images(
    records: Iterable[Record], image_size: int, num_channels: int
) -> Iterator[Pixels]:
    """Yield the image (H, H, C) of every record; a file that is no image is an error with its place."""
    processor = ImageProcessor(
        size=image_size, crop_size=(image_size, image_size), image_std=(1.0,) * num_channels
    )
    for record in records:
        image = record.get("image")
        is_pixels = isinstance(image, np.ndarray) or hasattr(image, "convert")  # Pillow's
        try:
            yield processor.read_pixels(image if is_pixels else record.get_text("image"))
        except ValueError as error:
            raise locate_error(record.location, error) from None


def train_image_tokenizer(
    records: Iterable[Record], *, type: str = "patches", image_size: int = 32,
    patch_size: int | None = None, vocab_size: int | None = None, seed: int = 0,
) -> ImageTokenizer:  # fmt: skip
    """Train an image tokenizer on the first images of records, at most `MAX_TRAINING_IMAGES`."""
    if type == "pixels" and (patch_size, vocab_size) != (None, None):
        raise ValueError(
            f"image tokenizer of type pixels with patch_size {patch_size} and vocab_size {vocab_size}: "
            "its codes are the 256 levels of one pixel; remove them"
        )
    check_number("image_size", image_size, integer=True, at_least=1, at_most=MAX_IMAGE_SIZE)
    num_channels = 1 if type == "pixels" else 3
    count = 1 if type == "pixels" else MAX_TRAINING_IMAGES
    sizes = {"patch_size": patch_size, "vocab_size": vocab_size}
    settings = {name: value for name, value in sizes.items() if value is not None}
    images = read_images(records, image_size, num_channels, count)
    return ImageTokenizer.train(images, type=type, seed=seed, **settings)


def read_images(
    records: Iterable[Record], image_size: int, num_channels: int, max_images: int
) -> Pixels:
    """Return the first images (N, H, H, C) of records."""
    images = [*islice(read_record_images(records, image_size, num_channels), max_images)]
    if not images:
        raise ValueError("the training data has no images, expected at least one")
    return np.stack(images)
