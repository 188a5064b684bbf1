"""Transformer-XL: segment recurrence, relative positions, adaptive embedding and softmax.

paper    Dai et al. 2019, arXiv:1901.02860
purpose  generate text beyond a fixed context length
differs  segments attend to the states of earlier segments; adaptive embedding and softmax"""

from qkv import spec as s
from qkv.families.family import Args, Family, common_heads, head_classes


def transformer_xl(
    vocab_size: int = 267735, cutoffs: tuple[int, ...] = (20000, 40000, 200000), div_val: int = 4,
    width: int = 1024, embedding_width: int = 1024, depth: int = 18, heads: int = 16,
    head_dim: int = 64, ffn_width: int = 4096, pre_lnorm: bool = False, mem_len: int = 1600,
    clamp_len: int = 1000, same_length: bool = True, untie_r: bool = True, norm_eps: float = 1e-5,
    dropout: float = 0.1, attention_dropout: float = 0.0, init_std: float = 0.02,
    proj_init_std: float = 0.01, tie_embeddings: bool = True,
    tie_projs: tuple[bool, ...] | None = None, num_labels: int = 2, head: str = "lm",
) -> s.Spec:  # fmt: skip
    """Return the spec. Without `tie_projs`, all projections but that of frequent tokens are tied."""
    if same_length and mem_len == 0:
        raise ValueError(
            "mem_len is 0, expected 1 or more: with same_length, it is the attention window"
        )
    relative_position = s.RelativeXLSpec(
        width=width, clamp_length=clamp_len, share_biases=not untie_r, dropout=dropout
    )
    attention = s.AttentionSpec(
        heads=heads,
        head_dim=head_dim,
        pattern=s.Banded(mem_len) if same_length else s.causal,
        bias=False,
        dropout=attention_dropout,
        relative_position=relative_position,
    )
    layer = s.LayerSpec(
        attention=attention,
        feed_forward=s.FeedForwardSpec(width=ffn_width, activation="relu", dropout=dropout),
        norm=s.NormSpec(eps=norm_eps),
        norm_position="pre" if pre_lnorm else "post",
        dropout=dropout,
    )
    embedding = s.EmbeddingSpec(
        vocab_size=vocab_size,
        width=embedding_width,
        cutoffs=tuple(cutoffs),
        div_val=div_val,
        dropout=dropout,
    )
    stack = s.StackSpec(
        width=width,
        embedding=embedding,
        layers=(layer,) * depth,
        recurrence=s.SegmentRecurrence(memory_length=mem_len, starts_with_zeros=True),
        dropout=dropout,
    )
    tie_projections = (False,) + (True,) * len(cutoffs) if tie_projs is None else tuple(tie_projs)
    lm = s.AdaptiveSoftmaxSpec(
        name="lm", tie_embeddings=tie_embeddings, tie_projections=tie_projections
    )
    head_specs = common_heads(num_labels, 0.0) | {"lm": (lm,)}
    return s.Spec(
        family="transformer-xl",
        decoder=stack,
        heads=head_specs[head],
        init=(("*.projections.*", proj_init_std), ("*", init_std)),
        norm_init_std=init_std,
    )


SIZES = {
    "wt103": {},
    "enwik8": dict(
        vocab_size=204, cutoffs=(), div_val=1, width=512, embedding_width=512, depth=12, heads=8,
        ffn_width=2048, mem_len=512, clamp_len=-1, same_length=False,
    ),
}  # fmt: skip

CONFIG = dict(
    vocab_size="vocab_size", width="d_model", depth="n_layer", heads="n_head", head_dim="d_head",
    ffn_width="d_inner", mem_len="mem_len", clamp_len="clamp_len", same_length="same_length",
    dropout="dropout", tie_embeddings="tie_word_embeddings",
)  # fmt: skip

KEYS = """
    decoder.embedding.tokens.tables.{}               transformer.word_emb.emb_layers.{}
    decoder.embedding.tokens.projections.{}.weight   transformer.word_emb.emb_projs.{}
    -                                                transformer.pos_emb.inv_freq
    decoder.layers.{}.attention.q,k,v                transformer.layers.{}.dec_attn.qkv_net
    decoder.layers.{}.attention.(o|relative.r)       transformer.layers.{}.dec_attn.(o|r)_net
    decoder.layers.{}.feed_forward.(up|down)         transformer.layers.{}.pos_ff.CoreNet.(0|3)
    decoder.layers.{}.PRE_OR_POST_attention_norm     transformer.layers.{}.dec_attn.layer_norm
    decoder.layers.{}.PRE_OR_POST_feed_forward_norm  transformer.layers.{}.pos_ff.layer_norm
    heads.lm.tables.{}                               crit.out_layers.{}
    heads.lm.projections.{}.weight                   crit.out_projs.{}
    heads.lm.clusters.(weight|bias)                  crit.cluster_(weight|bias)
    heads.sequence_classification.out                score
"""
BIAS_KEYS = """
    decoder.layers.{}.attention.relative.(u|v)  transformer.layers.{}.dec_attn.r_(w|r)_bias
"""
SHARED_BIAS_KEYS = """
    decoder.layers.{}.attention.relative.(u|v)  transformer.layers.{}.dec_attn.r_(w|r)_bias  alias
    decoder.layers.0.attention.relative.(u|v)   transformer.r_(w|r)_bias
"""


def names_table(args: Args) -> str:
    table = KEYS.replace("PRE_OR_POST", "pre" if args["pre_lnorm"] else "post")
    return table + (BIAS_KEYS if args["untie_r"] else SHARED_BIAS_KEYS)


FAMILY = Family(
    name="transformer-xl", doc=__doc__, shape="decoder", build_spec=transformer_xl, sizes=SIZES,
    config=CONFIG | dict(
        cutoffs="cutoffs", div_val="div_val", embedding_width="d_embed", pre_lnorm="pre_lnorm",
        untie_r="untie_r", norm_eps="layer_norm_epsilon", attention_dropout="dropatt",
        init_std="init_std", proj_init_std="proj_init_std", tie_projs="tie_projs",
    ),
    supported_values={"attn_type": (0,), "sample_softmax": (-1, 0)},
    model_types=("transfo-xl",), removed_from_hf=True,
    heads=head_classes("TransfoXL", "none lm sequence-classification"),
    names_table=names_table, prefixes=("transformer.",),
)  # fmt: skip
