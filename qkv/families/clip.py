"""CLIP: a text tower and an image tower that meet in one space.

paper    Radford et al. 2021, arXiv:2103.00020
purpose  match images and texts
differs  two towers trained by contrast; the image is a row of patches"""

from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON, Args, Family, classes

SAME: Args = dict(act="quick_gelu", eps=1e-5, attend_drop=0.0, std=0.02, factor=1.0, project=512, depth=12)
TEXT = SAME | dict(vocab=49408, width=512, heads=8, feed=2048, length=77, end=49407)
IMAGE = SAME | dict(image=224, patch=32, channels=3, width=768, heads=12, feed=3072)


def tower(a: Args, text: bool, embed: s.Embed, heads: tuple[s.Head | None, ...]) -> s.Spec:
    norm, width, wide = s.Norm(eps=a["eps"]), a["width"], a["factor"] * a["width"] ** -0.5
    pattern = s.causal if text else s.everyone
    size = s.per_head(width, a["heads"])
    attend = s.Attend(heads=a["heads"], head_dim=size, pattern=pattern, drop=a["attend_drop"])
    layer = s.Layer(attend=attend, feed=s.Dense(width=a["feed"], act=a["act"]), norm=norm)
    stack = s.Stack(width=width, embed=embed, layers=(layer,) * a["depth"], final=norm if text else None)
    deep, table = wide * (2 * a["depth"]) ** -0.5, a["factor"] * (0.02 if text else a["std"])
    init = (
        ("*.attend.o.*", wide), ("*.attend.*", deep), ("*.up.*", wide * 0.5**0.5), ("*.down.*", deep),
        ("*.embed.first", wide), ("*.embed.*", table), ("heads.*", wide), ("*", a["std"]),
    )  # fmt: skip
    return s.Spec(family="clip", encoder=stack, heads=tuple(head for head in heads if head), init=init)


def clip(
    text: dict[str, Any] | None = None, image: dict[str, Any] | None = None, project: int = 512,
    temperature: float = 2.6592, labels: int = 2, head: str = "both",
) -> s.Two:  # fmt: skip
    """`text` and `image` change the sizes of the towers, which are TEXT and IMAGE."""
    t, i, both = TEXT | (text or {}), IMAGE | (image or {}), head == "both"
    takes = "top" if t["end"] == 2 else "first end"  # as first published, the end is the largest id
    pooled = s.Head(name="pooler", out=("pooled",), take=takes, end=t["end"])
    first = s.Head(name="pooler", out=("pooled",), take="first", norm=s.Norm(eps=i["eps"]))
    sizes = (project, project) if both else (t["project"], i["project"])
    text_vector = s.Head(name="vector", out=("text",), take="pooled", size=sizes[0], bias=False)
    image_vector = s.Head(name="vector", out=("image",), take="pooled", size=sizes[1], bias=False)
    words = s.Embed(vocab=t["vocab"], positions=s.Learned(count=t["length"]))
    patches = s.Patches(image=i["image"], size=i["patch"], channels=i["channels"])
    places = s.Learned(count=(patches.image // patches.size) ** 2 + 1)
    cells = s.Embed(vocab=1, positions=places, norm=s.Norm(eps=i["eps"]), patches=patches)
    label = s.Head(name="label", take="rest", size=labels)
    texts = {"both": text_vector, "text": None, "text-vector": text_vector}
    images = {"both": image_vector, "image": None, "image-vector": image_vector, "image-label": label}
    return s.Two(
        family="clip", temperature=temperature if both else None,
        text=tower(t, True, words, (pooled, texts[head])) if head in texts else None,
        image=tower(i, False, cells, (first, images[head])) if head in images else None,
    )  # fmt: skip


SIZES: dict[str, Args] = {
    "base-32":  {},
    "base-16":  dict(image=dict(patch=16)),
    "large-14": dict(
        text=dict(width=768, heads=12, feed=3072, project=768), project=768,
        image=dict(patch=14, width=1024, depth=24, heads=16, feed=4096, project=768),
    ),
}  # fmt: skip

KEYS = """
    (-|-)                                                (text|vision)_model.embeddings.position_ids
    (text|image).encoder.embed.positions                 (text|vision)_model.embeddings.position_embedding
    text.encoder.layers.{}.attend.(q|k|v|o)         text_model.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    image.encoder.layers.{}.attend.(q|k|v|o)        vision_model.encoder.layers.{}.self_attn.(q|k|v|out)_proj
    (text|image).encoder.layers.{}.before_(attend|feed)  (text|vision)_model.encoder.layers.{}.layer_norm(1|2)
    (text|image).encoder.layers.{}.feed.(up|down)        (text|vision)_model.encoder.layers.{}.mlp.(fc1|fc2)
    (text|image).heads.vector.out                        (text|visual)_projection
    text.encoder.embed.tokens                            text_model.embeddings.token_embedding
    text.encoder.norm                                    text_model.final_layer_norm
    image.encoder.embed.(first|patches)                  vision_model.embeddings.(class|patch)_embedding
    image.encoder.embed.norm                             vision_model.pre_layrnorm
    image.heads.pooler.norm                              vision_model.post_layernorm
    image.heads.label.out                                classifier
    temperature                                          logit_scale
"""
BARE = {"text": "", "image": ""}
ALONE = {"clip_text_model": "text_config", "clip_vision_model": "vision_config"}
TOWER = COMMON | dict(eps="layer_norm_eps", factor="initializer_factor", project="projection_dim")
WORDS = {ours: TOWER.get(ours, "eos_token_id") for ours in TEXT}
CELLS = TOWER | dict(image="image_size", patch="patch_size", channels="num_channels")
ENDS = dict(
    both="Model", text="TextModel", image="VisionModel", **{"text-vector": "TextModelWithProjection"},
    **{"image-vector": "VisionModelWithProjection", "image-label": "ForImageClassification"},
)  # fmt: skip


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
    name="clip", doc=__doc__, make=clip, sizes=SIZES, keys=KEYS, shape="two towers", older=older, newer=newer,
    model_types=("clip", *ALONE), prefixes=("text_model.", "vision_model."), prefixed=BARE,
    config=dict(project="projection_dim", temperature="logit_scale_init_value"),
    heads=classes("CLIP", " ".join(ENDS), **ENDS),
    nested=dict(text=("text_config", WORDS), image=("vision_config", CELLS)),
)  # fmt: skip
