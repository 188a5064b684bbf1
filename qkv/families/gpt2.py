"""GPT-2, and the decoder that GPT, GPT-3, CTRL and Sparse Transformer share with it.

paper    Radford et al. 2019
purpose  generate text: complete, score
differs  pre-norm, byte-level BPE; projections into the residual stream are initialized smaller"""

from dataclasses import replace

from qkv import spec as s
from qkv.families.family import Family, common_heads, head_classes, summary_head


def gpt2(
    vocab_size: int = 50257, width: int = 768, depth: int = 12, heads: int = 12,
    ffn_width: int | None = None, activation: str = "gelu_new", max_positions: int = 1024,
    norm_eps: float = 1e-5, dropout: float = 0.1, embedding_dropout: float = 0.1,
    attention_dropout: float = 0.1, scale_attn_weights: bool = True,
    scale_attn_by_inverse_layer_idx: bool = False, add_cross_attention: bool = False,
    summary_type: str = "cls_index", summary_use_proj: bool = True,
    summary_activation: str | None = None, summary_proj_to_labels: bool = True,
    summary_dropout: float = 0.1, init_std: float = 0.02, tie_embeddings: bool = True,
    num_labels: int = 2, head: str = "lm", family: str = "gpt2", head_dim: int | None = None,
    norm_position: str = "pre", layer_norm_eps: float | None = None, sinusoidal: bool = False,
    lm_bias: bool = False, scale_residual_init: bool = True,
) -> s.Spec:  # fmt: skip
    """Return the spec. `layer_norm_eps`: epsilon of the norms in layers, if not that of the final norm.

    `sinusoidal`: sinusoidal positions, and token embeddings scaled by sqrt(width).
    `scale_residual_init`: projections into the residual stream have std init_std / sqrt(2 * depth)."""
    head_dim = head_dim or s.head_width(width, heads)
    attention = s.AttentionSpec(
        heads=heads, head_dim=head_dim, pattern=s.causal, dropout=attention_dropout
    )
    layer = s.LayerSpec(
        attention=attention,
        feed_forward=s.FeedForwardSpec(width=ffn_width or 4 * width, activation=activation),
        norm=s.NormSpec(eps=layer_norm_eps or norm_eps),
        norm_position=norm_position,
        dropout=dropout,
    )
    base_scale = head_dim**-0.5 if scale_attn_weights else 1.0
    layers = []
    for i in range(depth):
        scale = base_scale / (i + 1) if scale_attn_by_inverse_layer_idx else base_scale
        scaled = replace(attention, scale=scale)
        cross_attention = replace(scaled, pattern=s.full) if add_cross_attention else None
        layers.append(replace(layer, attention=scaled, cross_attention=cross_attention))
    embedding = s.EmbeddingSpec(
        vocab_size=vocab_size,
        positions=s.LearnedPositions(count=max_positions),
        token_types="tokens",
        dropout=embedding_dropout,
    )
    if sinusoidal:
        embedding = replace(
            embedding, positions=s.SinusoidalPositions(), scale=width**0.5, scale_inputs_embeds=True
        )
    stack = s.StackSpec(
        width=width,
        embedding=embedding,
        layers=tuple(layers),
        final_norm=s.NormSpec(eps=norm_eps) if norm_position == "pre" else None,
    )
    lm = s.HeadSpec(name="lm", out_features=vocab_size, bias=lm_bias, tie_embeddings=tie_embeddings)
    choice = summary_head(
        1 if summary_proj_to_labels else width,
        summary_type,
        summary_use_proj,
        summary_activation,
        outputs=("mc_logits",),
        dropout=summary_dropout,
    )
    head_specs = common_heads(num_labels, 0.1, lm) | {"double-heads": (lm, choice)}
    residual_std = init_std / (2 * depth) ** 0.5 if scale_residual_init else init_std
    init = (
        ("*.attention.o.weight", residual_std),
        ("*.cross_attention.o.weight", residual_std),
        ("*.feed_forward.down.weight", residual_std),
        ("*", init_std),
    )
    return s.Spec(family=family, decoder=stack, heads=head_specs[head], init=init)


SIZES = {
    "small":  {},
    "medium": dict(width=1024, depth=24, heads=16),
    "large":  dict(width=1280, depth=36, heads=20),
    "xl":     dict(width=1600, depth=48, heads=25),
}  # fmt: skip

CONFIG = dict(
    vocab_size="vocab_size", width="n_embd", depth="n_layer", heads="n_head",
    max_positions="n_positions", norm_eps="layer_norm_epsilon", dropout="resid_pdrop",
    embedding_dropout="embd_pdrop", init_std="initializer_range",
    tie_embeddings="tie_word_embeddings",
)  # fmt: skip
SUMMARY_CONFIG = dict(
    attention_dropout="attn_pdrop", summary_type="summary_type",
    summary_use_proj="summary_use_proj", summary_activation="summary_activation",
    summary_proj_to_labels="summary_proj_to_labels", summary_dropout="summary_first_dropout",
)  # fmt: skip

SHARED_KEYS = """
    decoder.layers.{}.attention.q,k,v         transformer.h.{}.attn.c_attn        conv1d
    decoder.layers.{}.attention.o             transformer.h.{}.attn.c_proj        conv1d
    decoder.layers.{}.feed_forward.(up|down)  transformer.h.{}.mlp.(c_fc|c_proj)  conv1d
    heads.summary.dense                       multiple_choice_head.summary
    heads.summary.dense                       multiple_choice_head.linear         alias
    heads.lm.out                              lm_head.decoder                     alias
    heads.sequence_classification.out         score
    heads.token_classification.out            classifier
    heads.question_answering.out              qa_outputs
    -                                         transformer.h.{}.attn.bias
"""
KEYS = """
    decoder.embedding.(tokens|positions)        transformer.(wte|wpe)
    decoder.layers.{}.pre_attention_norm        transformer.h.{}.ln_1
    decoder.layers.{}.pre_cross_attention_norm  transformer.h.{}.ln_cross_attn
    decoder.layers.{}.pre_feed_forward_norm     transformer.h.{}.ln_2
    decoder.layers.{}.cross_attention.q         transformer.h.{}.crossattention.q_attn  conv1d
    decoder.layers.{}.cross_attention.k,v       transformer.h.{}.crossattention.c_attn  conv1d
    decoder.layers.{}.cross_attention.o         transformer.h.{}.crossattention.c_proj  conv1d
    decoder.final_norm                          transformer.ln_f
    (-|-)                                       transformer.h.{}.(attn|crossattention).masked_bias
    -                                           transformer.h.{}.crossattention.bias
    heads.value.out                             v_head.summary
    heads.lm.out                                lm_head
"""

HEADS = "none lm double-heads sequence-classification token-classification question-answering"
FAMILY = Family(
    name="gpt2", doc=__doc__, shape="decoder", build_spec=gpt2, sizes=SIZES,
    config=CONFIG | SUMMARY_CONFIG | dict(
        ffn_width="n_inner", activation="activation_function",
        scale_attn_weights="scale_attn_weights", add_cross_attention="add_cross_attention",
        scale_attn_by_inverse_layer_idx="scale_attn_by_inverse_layer_idx",
    ),
    model_types=("gpt2",), heads=head_classes("GPT2", HEADS),
    names_table=SHARED_KEYS + KEYS, prefixes=("transformer.",),
)  # fmt: skip
