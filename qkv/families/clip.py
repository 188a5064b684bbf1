"""CLIP: a text tower and an image tower that meet in one space.

paper    Radford et al. 2021, arXiv:2103.00020
purpose  match images and texts
differs  two towers trained by contrast; the image is a row of patches"""

from typing import Any

from qkv.families.family import Args, Family, classes, label
from qkv.spec import Attend, Dense, Embed, Head, Layer, Learned, Norm, Patches, Spec, Stack, Two, causal, everyone, per_head


def tower(
    width: int, depth: int, heads: int, feed: int, act: str, eps: float, drop: float, embed: Embed, *, text: bool,
    found: tuple[Head, ...], std: float, factor: float,
) -> Spec:  # fmt: skip
    norm = Norm(eps=eps)
    attend = Attend(
        heads=heads, head_dim=per_head(width, heads), pattern=causal if text else everyone, drop=drop
    )
    layer = Layer(attend=attend, feed=Dense(width=feed, act=act), before=norm)
    stack = Stack(width=width, embed=embed, layers=(layer,) * depth, final=norm if text else None)
    wide, deep = factor * width**-0.5, factor * width**-0.5 * (2 * depth) ** -0.5
    init = (
        ("*.attend.o.*", wide), ("*.attend.*", deep), ("*.up.*", wide * 0.5**0.5), ("*.down.*", deep),
        ("*.embed.first", wide), ("*.embed.*", 0.02 * factor if text else std * factor), ("heads.*", wide), ("*", std),
    )  # fmt: skip
    return Spec(family="clip", encoder=stack, heads=found, init=init)


def clip(
    vocab: int = 49408, width: int = 512, depth: int = 12, heads: int = 8, feed: int = 2048, act: str = "quick_gelu",
    length: int = 77, eps: float = 1e-5, attend_drop: float = 0.0, end: int = 49407, std: float = 0.02,
    factor: float = 1.0, image: int = 224, patch: int = 32, channels: int = 3, image_width: int = 768,
    image_depth: int = 12, image_heads: int = 12, image_feed: int = 3072, image_act: str = "quick_gelu",
    image_eps: float = 1e-5, image_drop: float = 0.0, image_std: float = 0.02, image_factor: float = 1.0,
    project: int = 512, text_project: int = 512, image_project: int = 512, temperature: float = 2.6592,
    labels: int = 2, head: str = "both",
) -> Two:  # fmt: skip
    sides = {
        "both": "ti", "text": "t", "image": "i", "text-vector": "t", "image-vector": "i", "image-label": "i"
    }[head]
    takes = "top" if end == 2 else "first end"  # as first published, the end token was known by its large id
    pooled = Head(name="pooler", out=("pooled",), take=takes, end=end)
    first = Head(name="pooler", out=("pooled",), take="first", norm=Norm(eps=image_eps))
    both = head == "both"
    text_vector = Head(
        name="vector", out=("text",), take="pooled", size=project if both else text_project, bias=False
    )
    image_vector = Head(
        name="vector", out=("image",), take="pooled", size=project if both else image_project, bias=False
    )
    words = Embed(vocab=vocab, positions=Learned(count=length))
    cells = Embed(
        vocab=1, positions=Learned(count=(image // patch) ** 2 + 1), norm=Norm(eps=image_eps),
        patches=Patches(image=image, size=patch, channels=channels),
    )  # fmt: skip
    readers: dict[str, tuple[Any, ...]] = {
        "both": (first, image_vector), "image": (first,), "image-vector": (first, image_vector),
        "image-label": (first, label(labels, take="rest")),
    }  # fmt: skip
    text_tower = tower(
        width, depth, heads, feed, act, eps, attend_drop, words, text=True, std=std, factor=factor,
        found=(pooled,) if head == "text" else (pooled, text_vector),
    ) if "t" in sides else None  # fmt: skip
    image_tower = tower(
        image_width, image_depth, image_heads, image_feed, image_act, image_eps, image_drop, cells, text=False,
        std=image_std, factor=image_factor, found=readers[head],
    ) if "i" in sides else None  # fmt: skip
    return Two(family="clip", text=text_tower, image=image_tower, temperature=temperature if both else None)


SIZES = {
    "base-32":  dict(),
    "base-16":  dict(patch=16),
    "large-14": dict(
        width=768, heads=12, feed=3072, patch=14, image_width=1024, image_depth=24, image_heads=16, image_feed=4096,
        project=768, text_project=768, image_project=768,
    ),
}  # fmt: skip

LAYERS = """
    SIDE.encoder.embed.positions                  MODEL.embeddings.position_embedding
    -                                             MODEL.embeddings.position_ids
    SIDE.encoder.layers.{}.attend.(q|k|v|o)       MODEL.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    SIDE.encoder.layers.{}.before_(attend|feed)   MODEL.encoder.layers.{}.layer_norm(1|2)
    SIDE.encoder.layers.{}.feed.(up|down)         MODEL.encoder.layers.{}.mlp.(fc1|fc2)
"""
KEYS = LAYERS.replace("SIDE", "text").replace("MODEL", "text_model") + """
    text.encoder.embed.tokens                     text_model.embeddings.token_embedding
    text.encoder.norm                             text_model.final_layer_norm
    image.encoder.embed.(first|patches)           vision_model.embeddings.(class|patch)_embedding
    image.encoder.embed.norm                      vision_model.pre_layrnorm
    image.heads.pooler.norm                       vision_model.post_layernorm
    (text.heads.vector|image.heads.vector|image.heads.label).out  (text_projection|visual_projection|classifier)
    temperature                                   logit_scale
""" + LAYERS.replace("SIDE", "image").replace("MODEL", "vision_model")


def keys(args: Args) -> str:
    """The bare towers' classes write no prefix; older files of theirs have it."""
    return KEYS.replace(" text_model.", " ~.").replace(" vision_model.", " ~.") if args["head"] in BARE else KEYS


BARE = {"text": "", "image": ""}
CLASSES = {
    "both": "Model", "text": "TextModel", "image": "VisionModel", "text-vector": "TextModelWithProjection",
    "image-vector": "VisionModelWithProjection", "image-label": "ForImageClassification",
}  # fmt: skip
SHORT = {"text": "text_config", "vision": "vision_config"}


def older(config: Args) -> Args:
    """The two nested configs as one, `text.` and `vision.` before their keys."""
    alone = {"clip_text_model": "text", "clip_vision_model": "vision"}.get(config.get("model_type", ""))
    if alone:
        return config | {f"{alone}.{key}": value for key, value in config.items()}
    return config | {f"{s}.{key}": value for s, long in SHORT.items() for key, value in (config.get(long) or {}).items()}


def newer(config: Args, args: Args) -> Args:
    def part(side: str) -> Args:
        kept = {key.partition(".")[2]: value for key, value in config.items() if key.startswith(f"{side}.")}
        return kept | {"model_type": f"clip_{side}_model"}

    top = {key: value for key, value in config.items() if "." not in key}
    side = {"text": "text", "text-vector": "text", "image": "vision", "image-vector": "vision"}.get(args["head"])
    if side:
        return part(side) | {"architectures": top["architectures"]}
    return top | {long: part(short) for short, long in SHORT.items()}


FAMILY = Family(
    name="clip", doc=__doc__, make=clip, sizes=SIZES, keys=keys, shape="two towers", older=older, newer=newer,
    model_types=("clip", "clip_text_model", "clip_vision_model"), prefix="~.", prefixed=BARE,
    prefixes=("text_model.", "vision_model."),
    config=dict(
        vocab="text.vocab_size", width="text.hidden_size", depth="text.num_hidden_layers",
        heads="text.num_attention_heads", feed="text.intermediate_size", act="text.hidden_act",
        length="text.max_position_embeddings", eps="text.layer_norm_eps", attend_drop="text.attention_dropout",
        end="text.eos_token_id", std="text.initializer_range", factor="text.initializer_factor",
        image="vision.image_size", patch="vision.patch_size", channels="vision.num_channels",
        image_width="vision.hidden_size", image_depth="vision.num_hidden_layers",
        image_heads="vision.num_attention_heads", image_feed="vision.intermediate_size", image_act="vision.hidden_act",
        image_eps="vision.layer_norm_eps", image_drop="vision.attention_dropout", image_std="vision.initializer_range",
        image_factor="vision.initializer_factor", project="projection_dim", text_project="text.projection_dim",
        image_project="vision.projection_dim", temperature="logit_scale_init_value",
    ),
    heads=classes("CLIP", " ".join(CLASSES), **CLASSES),
)  # fmt: skip
