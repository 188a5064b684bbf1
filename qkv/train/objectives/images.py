"""ImageReader: the images of examples, read from files, augmented in training, and stacked."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch

from qkv.batch import Inputs
from qkv.data.batches.collate import Example
from qkv.data.encode.images import ImageProcessor, PixelCache
from qkv.data.noise.augmentation import NUM_RANDOM_NUMBERS, ImageAugmentation
from qkv.train.objectives.vocabulary import VocabularyInfo


class ImageReader:
    """Reads the images of examples, which contain the paths of files as bytes."""

    def __init__(self, vocab: VocabularyInfo, augmentation: ImageAugmentation) -> None:
        self.vocab = vocab
        self.augmentation = augmentation
        self.processor = vocab.image_processor or ImageProcessor.for_size(vocab.image_size)
        self.cache = PixelCache(self.processor)

    def read(self, example: Example, rng: np.random.Generator) -> Example:
        """Add the pixels (height, width, 3) of the image to an example."""
        path = os.fsdecode(example["image"].astype(np.uint8).tobytes())
        return {**example, "pixels": self.cache.read(path)}

    def read_to_augment(self, example: Example, rng: np.random.Generator) -> Example:
        """Add the pixels of the image, and the random numbers that its augmentation needs."""
        numbers = rng.random(NUM_RANDOM_NUMBERS, dtype=np.float32)
        return {**self.read(example, rng), "augmentation": numbers}

    def collate(self, examples: Sequence[Example]) -> Inputs:
        """Return the pixel values (B, 3, height, width) of examples as inputs of an encoder.

        Examples with random numbers are augmented."""
        pixels = np.stack([example["pixels"] for example in examples])
        if "augmentation" in examples[0]:
            numbers = np.stack([example["augmentation"] for example in examples])
            pixels = self.augmentation(pixels, numbers)
        return Inputs.create(
            pixel_values=torch.from_numpy(self.processor.normalize(pixels)),
            num_patches=self.vocab.num_image_tokens,
        )
