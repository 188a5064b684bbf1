"""Show, Attend and Tell: an LSTM that looks at one part of an image for each word of a caption.

paper    Xu et al. 2015, arXiv:1502.03044
purpose  caption images
differs  attends to convolutional features of an image, softly or to one sampled place; gated context"""

from typing import Literal

from qkv import spec as s
from qkv.families.family import Args, Family
from qkv.families.image_features import image_features


def show_attend_tell(
    vocab_size: int = 10000, width: int = 1000, embedding_width: int = 512,
    attention_width: int = 512, image_size: int = 224, patch_size: int = 16, num_channels: int = 3,
    conv_widths: tuple[int, ...] = (64, 128, 256, 512, 512), feature_width: int = 512,
    dropout: float = 0.5, init_std: float | Literal["xavier"] = "xavier", tie_embeddings: bool = False,
    decoder_start_token_id: int | None = 0, pad_token_id: int | None = None,
    eos_token_id: int | None = None, head: str = "lm",
) -> s.Spec:  # fmt: skip
    """Return the spec. `conv_widths`: the channels of the convolutional network; empty: the features are
    those of patches. `feature_width`: the width of the features that the decoder attends to."""
    features = image_features(image_size, patch_size, num_channels, conv_widths, bias=True)
    encoder = s.StackSpec(
        width=feature_width,
        layers=(),
        embedding=s.EmbeddingSpec(vocab_size=1, patches=features),
        final_norm=s.NormSpec(),
    )
    attention = s.RecurrentAttentionSpec(
        score=s.ScoreSpec(name="additive"), score_width=attention_width, gate=True
    )
    decoder = s.RecurrentStackSpec(
        width=width,
        cell="lstm",
        depth=1,
        embedding=s.EmbeddingSpec(vocab_size=vocab_size, padding_idx=pad_token_id, dropout=dropout),
        embedding_width=embedding_width,
        dropout=dropout,
        source=s.RecurrentSourceSpec(
            width=feature_width, state_width=width, initial_state="mean", attention=attention
        ),
        output=s.RecurrentOutputSpec(width=embedding_width, activation="tanh"),
    )
    lm = s.HeadSpec(name="lm", out_features=vocab_size, tie_embeddings=tie_embeddings)
    heads = {"none": (), "lm": (lm,)}
    return s.Spec(
        family="show-attend-tell",
        encoder=encoder,
        decoder=decoder,
        heads=heads[head],
        share_embeddings=False,
        init=(("*.weight_hh_l0*", "orthogonal"), ("*", init_std)),
    )


SMALL: Args = dict(
    image_size=32, patch_size=4, conv_widths=(64, 128, 256), feature_width=256, width=256,
    embedding_width=256, attention_width=256,
)  # fmt: skip

FAMILY = Family(
    name="show-attend-tell", doc=__doc__, shape="encoder-decoder", build_spec=show_attend_tell,
    sizes={"base": {}, "small": SMALL}, heads={"none": "", "lm": ""},
)  # fmt: skip
