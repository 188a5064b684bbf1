"""ModernBERT: an encoder with alternating local and global attention layers.

paper    Warner et al. 2024, arXiv:2412.13663
purpose  understand long texts; an example of a family in one file
differs  two local layers, then a global one; rotary positions, gated feed-forward"""

from dataclasses import replace
from typing import Any

from qkv import spec as s
from qkv.families.family import COMMON_CONFIG, Args, Family, common_heads, head_classes, lookup
from qkv.families.llama import rotary_spec


def modernbert(
    vocab_size: int = 50368, width: int = 768, depth: int = 22, heads: int = 12,
    ffn_width: int = 1152, activation: str = "gelu", max_positions: int = 8192,
    norm_eps: float = 1e-5, norm_bias: bool = False, attention_bias: bool = False,
    ffn_bias: bool = False, layer_types: tuple[str, ...] | None = None,
    global_attn_every_n_layers: int = 3, rope_parameters: dict[str, Any] | None = None,
    local_attention: int = 128, embedding_dropout: float = 0.0, attention_dropout: float = 0.0,
    mlp_dropout: float = 0.0, classifier_dropout: float = 0.0, classifier_pooling: str = "cls",
    classifier_bias: bool = False, classifier_activation: str = "gelu", lm_bias: bool = True,
    pad_token_id: int | None = 50283, init_std: float = 0.02, tie_embeddings: bool = True,
    num_labels: int = 2, head: str = "none",
) -> s.Spec:  # fmt: skip
    """Return the spec. Without `layer_types`, layer 0 and every `global_attn_every_n_layers`-th are
    global."""
    norm = s.NormSpec(eps=norm_eps, bias=norm_bias)
    rope = rope_parameters or {}
    global_attention = s.AttentionSpec(
        heads=heads,
        head_dim=s.head_width(width, heads),
        bias=attention_bias,
        dropout=attention_dropout,
        relative_position=rotary_spec(rope.get("full_attention"), 160000.0),
    )
    attentions = {
        "full_attention": global_attention,
        "sliding_attention": replace(
            global_attention,
            pattern=s.Local(local_attention // 2),
            relative_position=rotary_spec(rope.get("sliding_attention")),
        ),
    }
    layer = s.LayerSpec(
        attention=global_attention,
        feed_forward=s.FeedForwardSpec(
            width=ffn_width,
            activation=activation,
            is_gated=True,
            bias=ffn_bias,
            dropout=mlp_dropout,
        ),
        norm=norm,
        attention_output_dropout=attention_dropout,
    )
    layer_types = layer_types or tuple(
        "sliding_attention" if i % global_attn_every_n_layers else "full_attention"
        for i in range(depth)
    )
    layers = [replace(layer, attention=attentions[layer_type]) for layer_type in layer_types]
    layers[0] = replace(layers[0], skip_first_norm=True)
    embedding = s.EmbeddingSpec(
        vocab_size=vocab_size, norm=norm, dropout=embedding_dropout, padding_idx=pad_token_id
    )
    stack = s.StackSpec(width=width, embedding=embedding, final_norm=norm, layers=tuple(layers))
    pooling = lookup("classifier_pooling", classifier_pooling, {"cls": "first", "mean": "mean"})
    dense: dict[str, Any] = dict(
        dense_width=width, dense_bias=classifier_bias, activation=classifier_activation, norm=norm
    )
    lm = s.HeadSpec(
        name="lm", out_features=vocab_size, bias=lm_bias, tie_embeddings=tie_embeddings, **dense
    )
    head_specs = common_heads(
        num_labels,
        0.0,
        lm,
        pooling=dict(pooling=pooling),
        classifier_dropout=classifier_dropout,
        **dense,
    )
    output_std = init_std / (2 * depth) ** 0.5
    init = (
        ("*.o.weight", output_std),
        ("*.down.weight", output_std),
        ("heads.*.dense.*", output_std),
        ("heads.lm.*", output_std),
        ("heads.*", width**-0.5),
        ("*", init_std),
    )
    return s.Spec(
        family="modernbert", encoder=stack, heads=head_specs[head], init=init, init_truncation=2.0
    )


SIZES = {
    "base":  {},
    "large": dict(width=1024, depth=28, heads=16, ffn_width=2624),
}  # fmt: skip

KEYS = """
    encoder.embedding.(tokens|norm)                    model.embeddings.(tok_embeddings|norm)
    encoder.layers.{}.pre_attention_norm               model.layers.{}.attn_norm
    encoder.layers.{}.pre_feed_forward_norm            model.layers.{}.mlp_norm
    encoder.layers.{}.attention.q,k,v                  model.layers.{}.attn.Wqkv
    encoder.layers.{}.feed_forward.gate,up             model.layers.{}.mlp.Wi
    encoder.layers.{}.(attention.o|feed_forward.down)  model.layers.{}.(attn|mlp).Wo
    encoder.final_norm                                 model.final_norm
    heads.lm.(dense|norm|out)                          (head.dense|head.norm|decoder)
    heads.sequence_classification.(dense|norm|out)     (head.dense|head.norm|classifier)
    heads.token_classification.(dense|norm|out)        (head.dense|head.norm|classifier)
    heads.question_answering.(dense|norm|out)          (head.dense|head.norm|classifier)
    heads.multiple_choice.(dense|norm|out)             (head.dense|head.norm|classifier)
"""


def upgrade_config(config: Args) -> Args:
    """Convert `global_rope_theta` and `local_rope_theta` to `rope_parameters`."""
    rope_parameters = {
        "full_attention": {"rope_theta": config.get("global_rope_theta", 160000.0)},
        "sliding_attention": {"rope_theta": config.get("local_rope_theta", 10000.0)},
    }
    return {"rope_parameters": rope_parameters} | config


HEADS = """
    none masked-lm sequence-classification multiple-choice token-classification question-answering
"""
FAMILY = Family(
    name="modernbert", doc=__doc__, build_spec=modernbert, sizes=SIZES,
    config=COMMON_CONFIG | dict(
        activation="hidden_activation", norm_eps="norm_eps", norm_bias="norm_bias",
        attention_bias="attention_bias", ffn_bias="mlp_bias", layer_types="layer_types",
        global_attn_every_n_layers="global_attn_every_n_layers", rope_parameters="rope_parameters",
        local_attention="local_attention", embedding_dropout="embedding_dropout",
        mlp_dropout="mlp_dropout", classifier_dropout="classifier_dropout",
        classifier_pooling="classifier_pooling", classifier_bias="classifier_bias",
        classifier_activation="classifier_activation", lm_bias="decoder_bias",
    ),
    upgrade_config=upgrade_config,
    model_types=("modernbert",), heads=head_classes("ModernBert", HEADS),
    names_table=KEYS, prefixes=("model.",),
)  # fmt: skip
