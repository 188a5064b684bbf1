"""ImageTokenizer: images as codes, the indices of patches in a codebook (vector quantization). Does not
depend on image files or tokenizers of text.

    32 × 32 pixels ─ 16 × 16 patches ─ the nearest row of the codebook ─ 256 codes ─ their patches ─ image

A codebook of k-means means is lossy; that of all levels of a gray pixel is exact."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from qkv.files import format_error, get_file_size, read_json_object, save_json
from qkv.staging import replace_nothing, write_folder
from qkv.validate import check_number

IMAGE_TOKENIZER_FILE = "image_tokenizer.json"
CODEBOOK_FILE = "codebook.safetensors"
IMAGE_TOKENIZER_FILES = (IMAGE_TOKENIZER_FILE, CODEBOOK_FILE)
FORMAT_VERSION = 1
IMAGE_TOKENIZER_TYPES = ("patches", "pixels")
MAX_IMAGE_SIZE = 1024  # pixels per side
MAX_IMAGE_VOCAB_SIZE = 2**16
MAX_TRAINING_PATCHES = 400_000  # a uniform sample of the patches of all training images
PATCHES_PER_CHUNK = 2**15  # whose distances to all codes are in memory at a time
Pixels: TypeAlias = NDArray[np.uint8]  # (N, image_size, image_size, num_channels)
Codes: TypeAlias = NDArray[np.int64]  # (N, num_codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageTokenizer:
    """A codebook of square patches, and the size of the images that it encodes."""

    image_size: int
    patch_size: int
    num_channels: int  # 3: RGB, 1: gray
    codebook: NDArray[np.uint8]  # (vocab_size, patch_size * patch_size * num_channels)

    def __post_init__(self) -> None:
        check_sizes(self.image_size, self.patch_size, self.num_channels)
        patch_values = self.patch_size**2 * self.num_channels
        shape = self.codebook.shape
        is_valid = self.codebook.dtype == np.uint8 and len(shape) == 2 and shape[1] == patch_values
        if not is_valid or not 1 <= shape[0] <= MAX_IMAGE_VOCAB_SIZE:
            raise ValueError(
                f"codebook of {self.codebook.dtype} {shape}, expected uint8 (codes, {patch_values}) "
                f"with 1 to {MAX_IMAGE_VOCAB_SIZE:,} codes, by patch_size {self.patch_size} and "
                f"num_channels {self.num_channels}; do the files belong together?"
            )

    def __len__(self) -> int:
        """Return the number of codes of the codebook."""
        return len(self.codebook)

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.codebook.tobytes()).hexdigest()[:16]
        return (
            f"ImageTokenizer(image_size={self.image_size}, patch_size={self.patch_size}, "
            f"num_channels={self.num_channels}, vocab_size={len(self)}, digest={digest!r})"
        )

    @property
    def num_codes(self) -> int:
        """The number of codes of an image."""
        return (self.image_size // self.patch_size) ** 2

    @cached_property
    def _nearest_code_weights(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        codes = self.codebook.astype(np.float32)
        return codes, np.square(codes).sum(1)

    @classmethod
    def train(
        cls,
        images: Pixels,
        *,
        type: str = "patches",
        patch_size: int = 2,
        vocab_size: int = 512,
        seed: int = 0,
    ) -> ImageTokenizer:
        """Train a codebook on images (N, H, H, C) by k-means ("patches"), or take the 256 levels of a
        gray pixel ("pixels", for images of one channel)."""
        if type not in IMAGE_TOKENIZER_TYPES:
            raise ValueError(f"type {type!r}, expected one of {', '.join(IMAGE_TOKENIZER_TYPES)}")
        check_number("seed", seed, integer=True, at_least=0)
        shape = images.shape if isinstance(images, np.ndarray) else ()
        if len(shape) != 4 or images.dtype != np.uint8 or not len(images) or shape[1] != shape[2]:
            raise ValueError(
                f"images of {describe_array(images)}, expected uint8 (images, size, size, channels) "
                "with at least one image"
            )
        _, image_size, _, num_channels = shape
        if type == "pixels":
            if num_channels != 1:
                raise ValueError(f"type pixels with {num_channels} channels, expected gray images")
            codebook = np.arange(256, dtype=np.uint8)[:, None]
            return cls(image_size=image_size, patch_size=1, num_channels=1, codebook=codebook)
        check_sizes(image_size, patch_size, num_channels)
        check_number(
            "vocab_size", vocab_size, integer=True, at_least=1, at_most=MAX_IMAGE_VOCAB_SIZE
        )
        rng = np.random.default_rng(seed)
        patches = split_patches(images, patch_size)
        if len(patches) > MAX_TRAINING_PATCHES:
            patches = patches[rng.choice(len(patches), MAX_TRAINING_PATCHES, replace=False)]
        means = compute_kmeans(patches, vocab_size, rng)
        codebook = np.unique(means.round().astype(np.uint8), axis=0)
        return cls(
            image_size=image_size,
            patch_size=patch_size,
            num_channels=num_channels,
            codebook=codebook,
        )

    def encode(self, images: Pixels) -> Codes:
        """Return the codes (N, num_codes) of images, row by row of patches."""
        expected = (self.image_size, self.image_size, self.num_channels)
        is_array = isinstance(images, np.ndarray)
        if not is_array or images.shape[1:] != expected or images.dtype != np.uint8:
            raise ValueError(
                f"images of {describe_array(images)}, expected uint8 (images, "
                f"{', '.join(map(str, expected))})"
            )
        codes, square_norms = self._nearest_code_weights
        patches = split_patches(images, self.patch_size)
        return find_nearest(patches, codes, square_norms).reshape(-1, self.num_codes)

    def decode(self, codes: Codes) -> Pixels:
        """Return the images (N, H, H, C) of codes (N, num_codes)."""
        shape = codes.shape if isinstance(codes, np.ndarray) else ()
        if len(shape) != 2 or shape[1] != self.num_codes or codes.dtype.kind not in "iu":
            raise ValueError(
                f"codes of {describe_array(codes)}, expected integers (images, {self.num_codes})"
            )
        if codes.size and not 0 <= codes.min() <= codes.max() < len(self):
            raise ValueError(
                f"codes from {codes.min()} to {codes.max()}, expected 0 to {len(self) - 1}"
            )
        size, side = self.patch_size, self.image_size // self.patch_size
        patches = self.codebook[codes].reshape(-1, side, side, size, size, self.num_channels)
        # (N, rows, columns, p, p, C) -> (N, rows, p, columns, p, C) -> (N, H, H, C)
        return patches.transpose(0, 1, 3, 2, 4, 5).reshape(
            -1, self.image_size, self.image_size, self.num_channels
        )

    def save(self, folder: str | Path) -> None:
        """Write image_tokenizer.json and the codebook."""
        with write_folder(Path(folder), replace_image_tokenizer) as staged:
            config = {
                "format_version": FORMAT_VERSION,
                "image_size": self.image_size,
                "patch_size": self.patch_size,
                "num_channels": self.num_channels,
                "vocab_size": len(self),
            }
            save_json(config, staged / IMAGE_TOKENIZER_FILE)
            tensors = {"codebook": np.ascontiguousarray(self.codebook)}
            try:
                save_file(tensors, str(staged / CODEBOOK_FILE))
            except SafetensorError as error:  # such as a full disk
                raise OSError(str(error)) from None

    @classmethod
    def load(cls, folder: str | Path) -> ImageTokenizer:
        """Load the image tokenizer of a folder."""
        folder = Path(folder)
        config_path = folder / IMAGE_TOKENIZER_FILE
        config = read_json_object(config_path)
        if config.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{config_path}: format_version {config.get('format_version')!r}, expected "
                f"{FORMAT_VERSION}; was it written by another version of qkv?"
            )
        path = folder / CODEBOOK_FILE
        get_file_size(path)
        try:
            tensors = load_file(str(path))
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise ValueError(
                f"{path}: not a safetensors file ({format_error(error)}); copy it again"
            ) from None
        codebook = tensors.get("codebook")
        if (
            len(tensors) != 1
            or codebook is None
            or not codebook.ndim
            or len(codebook) != config.get("vocab_size")
        ):
            shapes = {name: tensor.shape for name, tensor in tensors.items()}
            raise ValueError(
                f"{path}: tensors {shapes}, expected a codebook of {config.get('vocab_size')!r} "
                f"codes, as {IMAGE_TOKENIZER_FILE} states; do the files belong together?"
            )
        sizes: dict[str, int] = {}
        try:
            for name in ("image_size", "patch_size", "num_channels"):
                value = config.get(name)
                check_number(name, value, integer=True, at_least=1)
                assert isinstance(value, int)
                sizes[name] = value
            return cls(codebook=codebook, **sizes)
        except ValueError as error:
            raise ValueError(f"{config_path}: {error}") from None


def describe_array(x: object) -> str:
    return f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else f"type {type(x).__name__}"


def check_sizes(image_size: int, patch_size: int, num_channels: int) -> None:
    """Raise ValueError unless square patches fill a square image of 1 or 3 channels."""
    check_number("image_size", image_size, integer=True, at_least=1, at_most=MAX_IMAGE_SIZE)
    check_number("patch_size", patch_size, integer=True, at_least=1, at_most=image_size)
    if image_size % patch_size:
        raise ValueError(
            f"image_size {image_size} and patch_size {patch_size}: expected a multiple of it"
        )
    if num_channels not in (1, 3):
        raise ValueError(f"num_channels {num_channels}, expected 3 (RGB) or 1 (gray)")


def split_patches(images: Pixels, patch_size: int) -> NDArray[np.uint8]:
    """Return the patches (N * num_codes, p * p * C) of images, row by row."""
    num_images, height, width, num_channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    patches = images.reshape(num_images, rows, patch_size, columns, patch_size, num_channels)
    return patches.transpose(0, 1, 3, 2, 4, 5).reshape(-1, patch_size**2 * num_channels)


def find_nearest(
    patches: NDArray[np.uint8], codes: NDArray[np.float32], square_norms: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the index of the code with the smallest Euclidean distance to each patch."""
    nearest = np.empty(len(patches), np.int64)
    for start in range(0, len(patches), PATCHES_PER_CHUNK):
        chunk = patches[start : start + PATCHES_PER_CHUNK].astype(np.float32)
        nearest[start : start + len(chunk)] = (square_norms - 2 * chunk @ codes.T).argmin(1)
    return nearest


def compute_kmeans(
    patches: NDArray[np.uint8], count: int, rng: np.random.Generator, num_steps: int = 15
) -> NDArray[np.float32]:
    """Return at most `count` means of patches by Lloyd's algorithm.

    It starts from different patches, and a mean that is nearest to no patch starts again from another."""
    points, weights = np.unique(patches, axis=0, return_counts=True)
    count = min(count, len(points))
    means = points[rng.choice(len(points), count, replace=False)].astype(np.float32)
    for _ in range(num_steps):
        nearest = find_nearest(points, means, np.square(means).sum(1))
        totals = np.bincount(nearest, weights, count)
        sums = np.stack(
            [np.bincount(nearest, weights * points[:, i], count) for i in range(points.shape[1])], 1
        )
        means = (sums / np.maximum(totals, 1)[:, None]).astype(np.float32)
        empty = np.flatnonzero(totals == 0)
        means[empty] = points[rng.choice(len(points), len(empty), replace=False)]
    return means


def replace_image_tokenizer(folder: Path, names: Collection[str]) -> Collection[str]:
    """Return the files of the image tokenizer in a folder; raise ValueError for other files in the way."""
    if (folder / IMAGE_TOKENIZER_FILE).is_file():
        return [name for name in IMAGE_TOKENIZER_FILES if (folder / name).is_file()]
    return replace_nothing(folder, names)


def find_image_tokenizer(folder: Path) -> ImageTokenizer | None:
    """Return the image tokenizer of a folder, or None if it has none."""
    has_files = any((folder / name).exists() for name in IMAGE_TOKENIZER_FILES)
    return ImageTokenizer.load(folder) if has_files else None
