"""Embeddings of tokens and images, and positions."""

from __future__ import annotations

from typing import Literal

from qkv.spec.layers import NormSpec, SpecPart


class LearnedPositions(SpecPart):
    count: int
    offset: int = 0
    padding_idx: int | None = None  # tokens with this id are not counted; their row is offset - 1


class SinusoidalPositions(SpecPart):
    """Layouts: "halves" (sines, then cosines), "pairs" (alternating), "ends" (halves, the last
    frequency is 1/10000)."""

    layout: str = "halves"
    offset: int = 0


class RelativeBucketsSpec(SpecPart):
    """T5's relative position bias: one learned bias per bucket of distances, one table per stack."""

    heads: int
    num_buckets: int = 32
    max_distance: int = 128
    is_bidirectional: bool = True


class AlibiSpec(SpecPart):
    heads: int


class PatchSpec(SpecPart):
    """An image as a sequence of square patches, after a class token if there is one."""

    image_size: int
    patch_size: int
    channels: int = 3
    class_token: bool = True
    bias: bool = False  # of the projection of a patch

    @property
    def num_tokens(self) -> int:
        return (self.image_size // self.patch_size) ** 2 + self.class_token

    @property
    def pixel_shape(self) -> tuple[str | int, ...]:
        """The shape of the pixel values of one image."""
        return (self.channels, self.image_size, self.image_size)


class ConvolutionSpec(SpecPart):
    """An image as the grid of features of a convolutional network, row by row.

    A stage per width; every stage but the first halves the sides of the grid. A class token may come
    first."""

    image_size: int
    channels: int = 3
    conv_widths: tuple[int, ...] = (64, 128, 256)
    norm_groups: int = 8
    class_token: bool = False

    @property
    def num_tokens(self) -> int:
        return (self.image_size // 2 ** (len(self.conv_widths) - 1)) ** 2 + self.class_token

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        """The shape of the pixel values of one image."""
        return (self.channels, self.image_size, self.image_size)


class FrameSpec(SpecPart):
    """A clip as a sequence of frames: one vector per frame, of the features of a convolutional network.

    A stage per width, which halves the sides of the frame."""

    image_size: int
    channels: int = 3
    conv_widths: tuple[int, ...] = (32, 64, 128)
    norm_groups: int = 8

    @property
    def num_tokens(self) -> int:
        """0: as many as the clip has frames."""
        return 0

    @property
    def num_features(self) -> int:
        """The number of outputs of the last stage."""
        size = self.image_size
        for _ in self.conv_widths:
            size = (size + 1) // 2
        return size**2 * (self.conv_widths[-1] if self.conv_widths else self.channels)

    @property
    def pixel_shape(self) -> tuple[str | int, ...]:
        """The shape of the pixel values of one clip."""
        return ("T", self.channels, self.image_size, self.image_size)


class EmbeddingSpec(SpecPart):
    vocab_size: int
    width: int | None = None  # None: the width of the stack; otherwise, a projection follows
    padding_idx: int | None = None  # the embedding of this token has no gradient
    positions: LearnedPositions | SinusoidalPositions | None = None
    token_types: int | Literal["tokens"] = 0  # "tokens": token types use the token embedding (GPT)
    scale: float = 1.0
    scale_inputs_embeds: bool = False  # also scale `inputs_embeds`
    norm: NormSpec | None = None
    dropout: float = 0.0
    # The stack reads pixel values, not tokens.
    patches: PatchSpec | ConvolutionSpec | FrameSpec | None = None
    query_stream: bool = False  # learned embedding of XLNet's query stream
    cutoffs: tuple[int, ...] | None = None  # adaptive embedding: rare tokens have narrower tables
    div_val: int = 1
