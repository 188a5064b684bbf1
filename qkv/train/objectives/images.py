"""ImageReader: the images of examples, read from files, augmented in training, and stacked."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from qkv.batch import Inputs
from qkv.data.batches.collate import Example
from qkv.data.encode.images import ImageProcessor, PixelCache
from qkv.data.noise.augmentation import ImageAugmentation
from qkv.train.objectives.vocabulary import VocabularyInfo


class ImageReader:
    """Reads the images of examples, which contain the paths of files as bytes."""

    def __init__(self, vocab: VocabularyInfo, augmentation: ImageAugmentation) -> None:
        self.vocab = vocab
        self.augmentation = augmentation
        self.processor = ImageProcessor.for_size(vocab.image_size)
        self.cache = PixelCache(self.processor)

    def read(self, example: Example, rng: np.random.Generator) -> Example:
        """Add the pixels (height, width, 3) of the image to an example."""
        path = os.fsdecode(example["image"].astype(np.uint8).tobytes())
        return {**example, "pixels": self.cache.read(path)}

    def read_augmented(self, example: Example, rng: np.random.Generator) -> Example:
        """Add randomly changed pixels of the image to an example."""
        example = self.read(example, rng)
        return {**example, "pixels": self.augmentation(example["pixels"], rng)}

    def collate(self, examples: Sequence[Example]) -> Inputs:
        """Return the pixel values (B, 3, height, width) of examples as inputs of an encoder."""
        pixels = np.stack([example["pixels"] for example in examples])
        return Inputs.create(
            pixel_values=torch.from_numpy(self.processor.normalize(pixels)),
            num_patches=self.vocab.num_image_tokens,
        )
