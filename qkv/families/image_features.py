"""The features of an image that several families share: patches, or a convolutional network."""

from qkv.spec import ConvolutionSpec, PatchSpec


def image_features(
    image_size: int, patch_size: int, channels: int, conv_widths: tuple[int, ...], *,
    class_token: bool = False, bias: bool = False,
) -> PatchSpec | ConvolutionSpec:  # fmt: skip
    """Return the features of an image: those of its patches, or with `conv_widths`, the channels of each
    stage, those of a convolutional network; every stage after the first halves the sides."""
    if not conv_widths:
        return PatchSpec(
            image_size=image_size,
            patch_size=patch_size,
            channels=channels,
            class_token=class_token,
            bias=bias,
        )
    spec = ConvolutionSpec(
        image_size=image_size,
        channels=channels,
        conv_widths=tuple(conv_widths),
        class_token=class_token,
    )
    if any(width % spec.norm_groups for width in conv_widths):
        raise ValueError(
            f"conv_widths is {conv_widths}, expected multiples of {spec.norm_groups}, the number of "
            "groups that are normalized"
        )
    scale = 2 ** (len(conv_widths) - 1)
    if image_size % scale:
        raise ValueError(
            f"image_size is {image_size}, expected a multiple of {scale}: each of the "
            f"{len(conv_widths)} stages of conv_widths after the first halves it"
        )
    return spec
