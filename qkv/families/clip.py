"""CLIP: a text encoder and an image encoder with a common embedding space.

paper    Radford et al. 2021, arXiv:2103.00020
purpose  match images and texts
differs  two encoders trained with a contrastive loss; an image is a sequence of patches"""

from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON_CONFIG, Args, Family, head_classes
from qkv.families.image_features import image_features
from qkv.families.vit import image_classification_head, image_stack

TOWER: Args = dict(
    activation="quick_gelu", norm_eps=1e-5, attention_dropout=0.0, init_std=0.02,
    initializer_factor=1.0, projection_dim=512, depth=12,
)  # fmt: skip
TEXT = TOWER | dict(
    vocab_size=49408, width=512, heads=8, ffn_width=2048, max_positions=77, eos_token_id=49407,
)  # fmt: skip
IMAGE = TOWER | dict(
    image_size=224, patch_size=32, num_channels=3, width=768, heads=12, ffn_width=3072,
)  # fmt: skip


def clip(
    text: dict[str, Any] | None = None, image: dict[str, Any] | None = None,
    projection_dim: int = 512, logit_scale: float = 2.6592, conv_widths: tuple[int, ...] = (),
    num_labels: int = 2, head: str = "both",
) -> s.DualSpec:  # fmt: skip
    """Return the spec. `text` and `image` override the arguments TEXT and IMAGE of the two encoders.
    `conv_widths`: the channels of a convolutional network that replaces the patches, by stage.

    `projection_dim` applies to both encoders together; a single encoder has its own argument."""
    text_args = TEXT | (text or {})
    image_args = IMAGE | (image or {})
    if head == "both":
        text_args["projection_dim"] = projection_dim
        image_args["projection_dim"] = projection_dim
    return s.DualSpec(
        family="clip",
        text=text_encoder(text_args, head) if head in ("both", "text", "text-embedding") else None,
        image=None
        if head in ("text", "text-embedding")
        else image_encoder(image_args, head, num_labels, conv_widths),
        logit_scale=logit_scale if head == "both" else None,
    )


def text_encoder(args: Args, head: str) -> s.Spec:
    norm = s.NormSpec(eps=args["norm_eps"])
    embedding = s.EmbeddingSpec(
        vocab_size=args["vocab_size"], positions=s.LearnedPositions(count=args["max_positions"])
    )
    # Configs of the first release have eos_token_id 2, although EOS is the largest id.
    pooler = s.HeadSpec(
        name="pooler",
        outputs=("pooler_output",),
        pooling="max_id" if args["eos_token_id"] == 2 else "first_eos",
        eos_token_id=args["eos_token_id"],
    )
    projection = () if head == "text" else (projection_head("text_embeds", args["projection_dim"]),)
    stack = s.StackSpec(
        width=args["width"],
        embedding=embedding,
        layers=(tower_layer(args, s.causal),) * args["depth"],
        final_norm=norm,
    )
    init = tower_init(args, embedding_std=args["initializer_factor"] * 0.02)
    return s.Spec(family="clip", encoder=stack, heads=(pooler, *projection), init=init)


def image_encoder(
    args: Args, head: str, num_labels: int, conv_widths: tuple[int, ...] = ()
) -> s.Spec:
    norm = s.NormSpec(eps=args["norm_eps"])
    patches = image_features(
        args["image_size"], args["patch_size"], args["num_channels"], conv_widths, class_token=True
    )
    pooler = s.HeadSpec(name="pooler", outputs=("pooler_output",), pooling="first", norm=norm)
    classifier = image_classification_head(num_labels, "patch_mean")
    projection = projection_head("image_embeds", args["projection_dim"])
    head_specs = {"image": (), "image-classification": (classifier,)}
    stack = image_stack(
        patches, tower_layer(args, s.full), args["width"], args["depth"], embedding_norm=norm
    )
    init = tower_init(args, embedding_std=args["initializer_factor"] * args["init_std"])
    heads = (pooler, *head_specs.get(head, (projection,)))
    return s.Spec(family="clip", encoder=stack, heads=heads, init=init)


def projection_head(output: str, projection_dim: int) -> s.HeadSpec:
    return s.HeadSpec(
        name="projection",
        outputs=(output,),
        pooling="pooler_output",
        out_features=projection_dim,
        bias=False,
    )


def tower_layer(args: Args, pattern: s.Pattern) -> s.LayerSpec:
    attention = s.AttentionSpec(
        heads=args["heads"],
        head_dim=s.head_width(args["width"], args["heads"]),
        pattern=pattern,
        dropout=args["attention_dropout"],
    )
    feed_forward = s.FeedForwardSpec(width=args["ffn_width"], activation=args["activation"])
    return s.LayerSpec(
        attention=attention, feed_forward=feed_forward, norm=s.NormSpec(eps=args["norm_eps"])
    )


def tower_init(args: Args, embedding_std: float) -> tuple[tuple[str, float], ...]:
    width_std = args["initializer_factor"] * args["width"] ** -0.5
    depth_std = width_std * (2 * args["depth"]) ** -0.5
    return (
        ("*.attention.o.*", width_std),
        ("*.attention.*", depth_std),
        ("*.up.*", width_std * 0.5**0.5),
        ("*.down.*", depth_std),
        ("*.class_token.*", width_std),
        ("*.embedding.*", embedding_std),
        ("heads.*", width_std),
        ("*", args["init_std"]),
    )


SIZES: dict[str, Args] = {
    "base-32":  {},
    "base-16":  dict(image=dict(patch_size=16)),
    "large-14": dict(
        text=dict(width=768, heads=12, ffn_width=3072, projection_dim=768), projection_dim=768,
        image=dict(
            patch_size=14, width=1024, depth=24, heads=16, ffn_width=4096, projection_dim=768,
        ),
    ),
}  # fmt: skip

KEYS = """
    (-|-)                                              (text|vision)_model.embeddings.position_ids
    (text|image).encoder.embedding.positions           (text|vision)_model.embeddings.position_embedding
    text.encoder.layers.{}.attention.(q|k|v|o)         text_model.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    image.encoder.layers.{}.attention.(q|k|v|o)        vision_model.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    (text|image).encoder.layers.{}.pre_attention_norm  (text|vision)_model.encoder.layers.{}.layer_norm1
    text.encoder.layers.{}.pre_feed_forward_norm       text_model.encoder.layers.{}.layer_norm2
    image.encoder.layers.{}.pre_feed_forward_norm      vision_model.encoder.layers.{}.layer_norm2
    (text|image).encoder.layers.{}.feed_forward.up     (text|vision)_model.encoder.layers.{}.mlp.fc1
    (text|image).encoder.layers.{}.feed_forward.down   (text|vision)_model.encoder.layers.{}.mlp.fc2
    (text|image).heads.projection.out                  (text|visual)_projection
    text.encoder.embedding.tokens                      text_model.embeddings.token_embedding
    text.encoder.final_norm                            text_model.final_layer_norm
    image.encoder.embedding.patches.projection         vision_model.embeddings.patch_embedding
    image.encoder.embedding.patches.class_token.weight vision_model.embeddings.class_embedding
    image.encoder.embedding.norm                       vision_model.pre_layrnorm
    image.heads.pooler.norm                            vision_model.post_layernorm
    image.heads.image_classification.out               classifier
    logit_scale                                        logit_scale
"""
CLASSES = {
    "both": "Model",
    "text": "TextModel",
    "image": "VisionModel",
    "text-embedding": "TextModelWithProjection",
    "image-embedding": "VisionModelWithProjection",
}
TOWER_CONFIG = COMMON_CONFIG | dict(
    norm_eps="layer_norm_eps", initializer_factor="initializer_factor",
    projection_dim="projection_dim",
)  # fmt: skip
TEXT_CONFIG = {name: TOWER_CONFIG.get(name, "eos_token_id") for name in TEXT}
IMAGE_CONFIG = TOWER_CONFIG | dict(
    image_size="image_size", patch_size="patch_size", num_channels="num_channels"
)  # fmt: skip
# The `model_type` of a single encoder: its key in the config.json of both.
TOWER_KEYS = {"clip_text_model": "text_config", "clip_vision_model": "vision_config"}
HEAD_TOWER_KEYS = {
    "text": "text_config",
    "text-embedding": "text_config",
    "image": "vision_config",
    "image-embedding": "vision_config",
}


def upgrade_config(config: Args) -> Args:
    """Nest the keys of a single encoder, which are at the top level of its config.json."""
    key = TOWER_KEYS.get(config.get("model_type", ""))
    return {key: config, **config} if key else config


def finish_config(config: Args, args: Args) -> Args:
    for model_type, key in TOWER_KEYS.items():
        config[key] = (config[key] or {}) | {"model_type": model_type}
    if args["head"] not in HEAD_TOWER_KEYS:
        return config
    return config[HEAD_TOWER_KEYS[args["head"]]] | {"architectures": config["architectures"]}


FAMILY = Family(
    name="clip", doc=__doc__, shape="two towers", build_spec=clip, sizes=SIZES,
    config=dict(projection_dim="projection_dim", logit_scale="logit_scale_init_value"),
    nested=dict(text=("text_config", TEXT_CONFIG), image=("vision_config", IMAGE_CONFIG)),
    upgrade_config=upgrade_config, finish_config=finish_config, model_types=("clip", *TOWER_KEYS),
    heads=head_classes("CLIP", f"{' '.join(CLASSES)} image-classification", **CLASSES), names_table=KEYS,
    prefixes=("text_model.", "vision_model."), head_prefixes={"text": "", "image": ""},
)  # fmt: skip
