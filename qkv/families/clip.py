"""CLIP: a text tower and an image tower that meet in one space.

paper    Radford et al. 2021, arXiv:2103.00020
purpose  match images and texts
differs  two towers trained by contrast; the image is a row of patches"""

from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON, Args, Family, classes, one_of

TEXT = dict(
    vocab=49408, width=512, depth=12, heads=8, feed=2048, act="quick_gelu", length=77, eps=1e-5,
    attend_drop=0.0, end=49407, std=0.02, factor=1.0, project=512,
)  # fmt: skip
IMAGE = dict(
    image=224, patch=32, channels=3, width=768, depth=12, heads=12, feed=3072, act="quick_gelu", eps=1e-5,
    attend_drop=0.0, std=0.02, factor=1.0, project=512,
)  # fmt: skip


def tower(a: Args, text: bool, embed: s.Embed, heads: tuple[s.Head, ...]) -> s.Spec:
    norm, width, wide = s.Norm(eps=a["eps"]), a["width"], a["factor"] * a["width"] ** -0.5
    s.positive(limit=10_000, depth=a["depth"])
    pattern = s.causal if text else s.everyone
    attend = s.Attend(
        heads=a["heads"], head_dim=s.per_head(width, a["heads"]), pattern=pattern, drop=a["attend_drop"]
    )
    layer = s.Layer(attend=attend, feed=s.Dense(width=a["feed"], act=a["act"]), norm=norm)
    stack = s.Stack(width=width, embed=embed, layers=(layer,) * a["depth"], final=norm if text else None)
    deep, table = wide * (2 * a["depth"]) ** -0.5, a["factor"] * (0.02 if text else a["std"])
    init = (
        ("*.attend.o.*", wide), ("*.attend.*", deep), ("*.up.*", wide * 0.5**0.5), ("*.down.*", deep),
        ("*.embed.first", wide), ("*.embed.*", table), ("heads.*", wide), ("*", a["std"]),
    )  # fmt: skip
    return s.Spec(family="clip", encoder=stack, heads=heads, init=init)


def clip(
    text: dict[str, Any] | None = None, image: dict[str, Any] | None = None, project: int = 512,
    temperature: float = 2.6592, labels: int = 2, head: str = "both",
) -> s.Two:  # fmt: skip
    """`text` and `image` change the sizes of the towers, which are TEXT and IMAGE."""
    for given, known in ((text or {}, TEXT), (image or {}, IMAGE)):
        _ = [one_of("clip tower argument", name, known) for name in given]
    t, i, both = TEXT | (text or {}), IMAGE | (image or {}), head == "both"
    takes = "top" if t["end"] == 2 else "first end"  # as first published, the end is the largest id
    pooled = s.Head(name="pooler", out=("pooled",), take=takes, end=t["end"])
    first = s.Head(name="pooler", out=("pooled",), take="first", norm=s.Norm(eps=i["eps"]))
    vectors = [
        s.Head(name="vector", out=(side,), take="pooled", size=project if both else a["project"], bias=False)
        for side, a in (("text", t), ("image", i))
    ]
    words = s.Embed(vocab=t["vocab"], positions=s.Learned(count=t["length"]))
    patches = s.Patches(image=i["image"], size=i["patch"], channels=i["channels"])
    places = s.Learned(count=(patches.image // patches.size) ** 2 + 1)
    cells = s.Embed(vocab=1, positions=places, norm=s.Norm(eps=i["eps"]), patches=patches)
    label = s.Head(name="label", take="rest", size=labels)
    texts = {"both": (pooled, vectors[0]), "text": (pooled,), "text-vector": (pooled, vectors[0])}
    images = {
        "both": (first, vectors[1]),
        "image": (first,),
        "image-vector": (first, vectors[1]),
        "image-label": (first, label),
    }
    return s.Two(
        family="clip", temperature=temperature if both else None,
        text=tower(t, True, words, texts[head]) if head in texts else None,
        image=tower(i, False, cells, images[head]) if head in images else None,
    )  # fmt: skip


SIZES = {
    "base-32":  dict(),
    "base-16":  dict(image=dict(patch=16)),
    "large-14": dict(
        text=dict(width=768, heads=12, feed=3072, project=768), project=768,
        image=dict(patch=14, width=1024, depth=24, heads=16, feed=4096, project=768),
    ),
}  # fmt: skip

LAYERS = """
    SIDE.encoder.embed.positions                  MODEL.embeddings.position_embedding
    -                                             MODEL.embeddings.position_ids
    SIDE.encoder.layers.{}.attend.(q|k|v|o)       MODEL.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    SIDE.encoder.layers.{}.before_(attend|feed)   MODEL.encoder.layers.{}.layer_norm(1|2)
    SIDE.encoder.layers.{}.feed.(up|down)         MODEL.encoder.layers.{}.mlp.(fc1|fc2)
"""
KEYS = (
    LAYERS.replace("SIDE", "text").replace("MODEL", "text_model")
    + """
    text.encoder.embed.tokens                     text_model.embeddings.token_embedding
    text.encoder.norm                             text_model.final_layer_norm
    image.encoder.embed.(first|patches)           vision_model.embeddings.(class|patch)_embedding
    image.encoder.embed.norm                      vision_model.pre_layrnorm
    image.heads.pooler.norm                       vision_model.post_layernorm
    (text|image).heads.vector.out                 (text|visual)_projection
    image.heads.label.out                         classifier
    temperature                                   logit_scale
"""
    + LAYERS.replace("SIDE", "image").replace("MODEL", "vision_model")
)
BARE = {"text": "", "image": ""}
ALONE = {"clip_text_model": "text_config", "clip_vision_model": "vision_config"}
TOWER = COMMON | dict(eps="layer_norm_eps", factor="initializer_factor", project="projection_dim")
ENDS = dict(
    both="Model", text="TextModel", image="VisionModel", **{"text-vector": "TextModelWithProjection"},
    **{"image-vector": "VisionModelWithProjection", "image-label": "ForImageClassification"},
)  # fmt: skip


def keys(args: Args) -> str:
    """The bare towers' classes write no prefix; older files of theirs have it."""
    return (
        KEYS.replace(" text_model.", " ~.").replace(" vision_model.", " ~.") if args["head"] in BARE else KEYS
    )


def older(config: Args) -> Args:
    side = ALONE.get(config.get("model_type", ""))
    return {side: config, **config} if side else config


def newer(config: Args, args: Args) -> Args:
    for kind, side in ALONE.items():
        config[side] = (config[side] or {}) | {"model_type": kind}
        if args["head"].split("-")[0] in side.replace("vision", "image") and args["head"] != "image-label":
            return config[side] | {"architectures": config["architectures"]}
    return config


FAMILY = Family(
    name="clip", doc=__doc__, make=clip, sizes=SIZES, keys=keys, shape="two towers", older=older, newer=newer,
    model_types=("clip", *ALONE), prefix="~.", prefixed=BARE, prefixes=("text_model.", "vision_model."),
    config=dict(project="projection_dim", temperature="logit_scale_init_value"),
    heads=classes("CLIP", " ".join(ENDS), **ENDS),
    nested=dict(
        text=(
            "text_config", {ours: TOWER[ours] for ours in TEXT if ours != "end"} | dict(end="eos_token_id"),
        ),
        image=(
            "vision_config", TOWER | dict(image="image_size", patch="patch_size", channels="num_channels"),
        ),
    ),
)  # fmt: skip
