"""ViT: a Transformer encoder over the patches of an image.

paper    Dosovitskiy et al. 2020, arXiv:2010.11929
purpose  classify images
differs  an image is a class token and square patches; pre-norm, learned positions"""

from qkv import spec as s
from qkv.families.family import COMMON_CONFIG, VIT_PREPROCESSOR, Args, Family, head_classes


def vit(
    image_size: int = 224, patch_size: int = 16, num_channels: int = 3, width: int = 768,
    depth: int = 12, heads: int = 12, ffn_width: int = 3072, activation: str = "gelu",
    norm_eps: float = 1e-12, dropout: float = 0.0, attention_dropout: float = 0.0,
    pooler_output_size: int | None = None, pooler_act: str = "tanh",
    init_std: float = 0.02, num_labels: int = 2, head: str = "none",
) -> s.Spec:  # fmt: skip
    """Return the spec. `pooler_output_size`: None is the width."""
    patches = s.PatchSpec(
        image_size=image_size, patch_size=patch_size, channels=num_channels, bias=True
    )
    norm = s.NormSpec(eps=norm_eps)
    attention = s.AttentionSpec(
        heads=heads,
        head_dim=s.head_width(width, heads),
        dropout=attention_dropout,
    )
    layer = s.LayerSpec(
        attention=attention,
        feed_forward=s.FeedForwardSpec(width=ffn_width, activation=activation),
        norm=norm,
        dropout=dropout,
    )
    pooler = s.HeadSpec(
        name="pooler",
        outputs=("pooler_output",),
        pooling="first",
        dense_width=pooler_output_size or width,
        activation=pooler_act,
    )
    head_specs = {
        "none": (pooler,),
        "image-classification": (image_classification_head(num_labels, "first"),),
    }
    return s.Spec(
        family="vit",
        encoder=image_stack(patches, layer, width, depth, final_norm=norm, dropout=dropout),
        heads=head_specs[head],
        init=(("*", init_std),),
    )


def image_stack(
    patches: s.PatchSpec | s.ConvolutionSpec, layer: s.LayerSpec, width: int, depth: int, *,
    embedding_norm: s.NormSpec | None = None, final_norm: s.NormSpec | None = None,
    dropout: float = 0.0,
) -> s.StackSpec:  # fmt: skip
    """Return a stack over the patches of an image, with learned positions."""
    embedding = s.EmbeddingSpec(
        vocab_size=1,
        positions=s.LearnedPositions(count=patches.num_tokens),
        norm=embedding_norm,
        dropout=dropout,
        patches=patches,
    )
    return s.StackSpec(
        width=width, embedding=embedding, layers=(layer,) * depth, final_norm=final_norm
    )


def image_classification_head(num_labels: int, pooling: str) -> s.HeadSpec:
    return s.HeadSpec(name="image_classification", pooling=pooling, out_features=num_labels)


SIZES: dict[str, Args] = {
    "tiny":     dict(width=192, heads=3, ffn_width=768),
    "small":    dict(width=384, heads=6, ffn_width=1536),
    "base":     {},
    "base-32":  dict(patch_size=32),
    "large":    dict(width=1024, depth=24, heads=16, ffn_width=4096),
    "large-32": dict(width=1024, depth=24, heads=16, ffn_width=4096, patch_size=32),
    "huge":     dict(width=1280, depth=32, heads=16, ffn_width=5120, patch_size=14),
}  # fmt: skip

CONFIG = {
    name: COMMON_CONFIG[name] for name in "width depth heads activation ffn_width init_std".split()
}
CONFIG |= dict(
    image_size="image_size", patch_size="patch_size", num_channels="num_channels",
    norm_eps="layer_norm_eps", dropout="hidden_dropout_prob",
    attention_dropout="attention_probs_dropout_prob",
    pooler_output_size="pooler_output_size", pooler_act="pooler_act",
)  # fmt: skip
# Published files have the names of `vit.encoder.layer`; models of transformers 5 have those of the aliases.
KEYS = """
    encoder.embedding.patches.class_token.weight  vit.embeddings.cls_token                                    vector
    encoder.embedding.positions.weight            vit.embeddings.position_embeddings                          row
    encoder.embedding.patches.projection          vit.embeddings.patch_embeddings.projection
    -                                             vit.embeddings.mask_token                                   keep
    encoder.layers.{}.attention.(q|k|v)           vit.encoder.layer.{}.attention.attention.(query|key|value)
    encoder.layers.{}.attention.o                 vit.encoder.layer.{}.attention.output.dense
    encoder.layers.{}.pre_attention_norm          vit.encoder.layer.{}.layernorm_before
    encoder.layers.{}.pre_feed_forward_norm       vit.encoder.layer.{}.layernorm_after
    encoder.layers.{}.feed_forward.(up|down)      vit.encoder.layer.{}.(intermediate|output).dense
    encoder.layers.{}.attention.(q|k|v|o)         vit.layers.{}.attention.(q|k|v|o)_proj                      alias
    encoder.layers.{}.pre_attention_norm          vit.layers.{}.layernorm_before                              alias
    encoder.layers.{}.pre_feed_forward_norm       vit.layers.{}.layernorm_after                               alias
    encoder.layers.{}.feed_forward.(up|down)      vit.layers.{}.mlp.(fc1|fc2)                                 alias
    encoder.final_norm                            vit.layernorm
    heads.pooler.dense                            vit.pooler.dense
    heads.image_classification.out                classifier
"""

FAMILY = Family(
    name="vit", doc=__doc__, build_spec=vit, sizes=SIZES, config=CONFIG, model_types=("vit",),
    preprocessor_config=VIT_PREPROCESSOR,
    supported_values={"qkv_bias": (True,)},
    heads=head_classes("ViT", "none image-classification"), names_table=KEYS, prefixes=("vit.",),
)  # fmt: skip
