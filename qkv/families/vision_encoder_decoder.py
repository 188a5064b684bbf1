"""VisionEncoderDecoder: a vision transformer and a text decoder that attends to its patches.

paper    Li et al. 2021, arXiv:2109.10282
purpose  caption images
differs  the encoder reads patches or convolutional features of an image instead of tokens"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.bart import bart
from qkv.families.family import Args, Family
from qkv.families.image_features import image_features


def vision_encoder_decoder(
    image_size: int = 224, patch_size: int = 16, num_channels: int = 3,
    conv_widths: tuple[int, ...] = (), family: str = "vision-encoder-decoder", **sizes: Any,
) -> s.Spec:  # fmt: skip
    """Return the spec. `conv_widths`: the channels of a convolutional network that replaces the
    patches; every stage after the first halves the sides of the image."""
    patches = image_features(image_size, patch_size, num_channels, conv_widths, bias=True)
    spec = bart(family=family, **sizes)
    assert spec.encoder is not None
    embedding = replace(
        spec.encoder.embedding,
        vocab_size=1,
        padding_idx=None,
        positions=s.LearnedPositions(count=patches.num_tokens),
        patches=patches,
    )
    return replace(spec, encoder=replace(spec.encoder, embedding=embedding))


BASE: Args = dict(
    width=768, depth=12, heads=12, ffn_width=3072,
    decoder_depth=6, decoder_heads=12, decoder_ffn_width=3072,
)  # fmt: skip
SMALL: Args = dict(
    image_size=32, patch_size=4, width=256, depth=4, heads=4, ffn_width=1024,
    decoder_depth=2, decoder_heads=4, decoder_ffn_width=1024,
)  # fmt: skip

FAMILY = Family(
    name="vision-encoder-decoder", doc=__doc__, shape="encoder-decoder",
    build_spec=vision_encoder_decoder, base_function=bart, sizes={"base": BASE, "small": SMALL},
    default_overrides=BASE | dict(
        max_positions=512, norm_position="pre", embedding_norm=False, final_norm=True,
        position_offset=0, share_embeddings=False, lm_bias=False, shift_right=None,
        decoder_start_token_id=0, pad_token_id=None, eos_token_id=None, family="vision-encoder-decoder",
    ),
    heads={"none": "", "lm": ""},
)  # fmt: skip
