"""Video Transformer: a Transformer encoder over the frames of a clip.

paper    Neimark et al. 2021, arXiv:2102.00719
purpose  label every frame of a clip: synchronous sequence to sequence
differs  a frame is one vector, by convolutions; attention is over time alone; a head reads every frame"""

from dataclasses import replace
from typing import Literal

from qkv import spec as s
from qkv.families.family import VIT_PREPROCESSOR, Args, Family


def video_transformer(
    image_size: int = 64, num_channels: int = 3, conv_widths: tuple[int, ...] = (32, 64, 128),
    width: int = 256, depth: int = 4, heads: int = 4, ffn_width: int = 1024,
    activation: str = "gelu", max_positions: int = 256, norm_eps: float = 1e-5,
    dropout: float = 0.0, attention_dropout: float = 0.0, init_std: float = 0.02,
    num_labels: int = 2, head: str = "none", cell: Literal["rnn", "gru", "lstm"] | None = None,
) -> s.Spec:  # fmt: skip
    """Return the spec. `conv_widths`: channels of the stages of the convolutional network, each of which
    halves the sides of a frame. `cell`: a bidirectional recurrent encoder instead of attention."""
    frames = s.FrameSpec(
        image_size=image_size, channels=num_channels, conv_widths=tuple(conv_widths)
    )
    if any(channels % frames.norm_groups for channels in conv_widths):
        raise ValueError(
            f"conv_widths is {conv_widths}, expected multiples of {frames.norm_groups}"
        )
    classifier = s.HeadSpec(name="frame_classification", out_features=num_labels, dropout=dropout)
    head_specs: dict[str, tuple[s.HeadSpec, ...]] = {
        "none": (),
        "frame-classification": (classifier,),
    }
    embedding = s.EmbeddingSpec(vocab_size=1, dropout=dropout, patches=frames)
    stage_init = ("*.patches.stages.*", 0.1)
    if cell is not None:
        recurrent = s.RecurrentStackSpec(
            width=s.head_width(width, 2),
            cell=cell,
            depth=depth,
            embedding=embedding,
            embedding_width=width,
            direction="bidirectional",
            dropout=dropout,
        )
        return s.Spec(
            family="video-transformer",
            encoder=recurrent,
            heads=head_specs[head],
            init=(stage_init, ("*.layers.*", float(width**-0.5)), ("*", init_std)),
        )
    norm = s.NormSpec(eps=norm_eps)
    layer = s.LayerSpec(
        attention=s.AttentionSpec(
            heads=heads, head_dim=s.head_width(width, heads), dropout=attention_dropout
        ),
        feed_forward=s.FeedForwardSpec(width=ffn_width, activation=activation),
        norm=norm,
        dropout=dropout,
    )
    positions = s.LearnedPositions(count=max_positions)
    stack = s.StackSpec(
        width=width,
        embedding=replace(embedding, positions=positions),
        layers=(layer,) * depth,
        final_norm=norm,
    )
    return s.Spec(
        family="video-transformer",
        encoder=stack,
        heads=head_specs[head],
        init=(stage_init, ("*", init_std)),
    )


SIZES: dict[str, Args] = {
    "tiny": dict(conv_widths=(16, 32, 64), width=128, depth=2),
    "base": {},
}  # fmt: skip

FAMILY = Family(
    name="video-transformer", doc=__doc__, build_spec=video_transformer, sizes=SIZES,
    preprocessor_config=VIT_PREPROCESSOR,
    heads={"none": "", "frame-classification": ""},
)  # fmt: skip
