"""XLNet: permutation language modeling in two streams, with Transformer-XL's recurrence.

paper    Yang et al. 2019, arXiv:1906.08237
purpose  understand long texts; generate text
differs  predicts tokens in any order through a query stream; segment recurrence"""

from qkv import spec as s
from qkv.families.family import Args, Family, common_heads, head_classes, lookup, summary_head
from qkv.families.transformer_xl import CONFIG


def xlnet(
    vocab_size: int = 32000, width: int = 1024, depth: int = 24, heads: int = 16,
    head_dim: int = 64, ffn_width: int = 4096, activation: str = "gelu", attn_type: str = "bi",
    clamp_len: int = -1, same_length: bool = False, mem_len: int | None = 512,
    reuse_len: int | None = None, norm_eps: float = 1e-12, dropout: float = 0.1,
    summary_type: str = "last", summary_use_proj: bool = True,
    summary_activation: str | None = "tanh", summary_dropout: float = 0.1, start_n_top: int = 5,
    init_std: float = 0.02, tie_embeddings: bool = True, num_labels: int = 2, head: str = "lm",
) -> s.Spec:  # fmt: skip
    causal = s.MemoryWindow() if same_length else s.causal
    lookup("d_head", head_dim, {width // heads: "d_model / n_head"})
    attention = s.AttentionSpec(
        heads=heads,
        head_dim=head_dim,
        pattern=lookup("attn_type", attn_type, {"bi": s.full, "uni": causal}),
        bias=False,
        dropout=dropout,
        relative_position=s.RelativeXLSpec(
            width=width, clamp_length=clamp_len, segment_bias=True, dropout=dropout
        ),
    )
    layer = s.LayerSpec(
        attention=attention,
        feed_forward=s.FeedForwardSpec(width=ffn_width, activation=activation, dropout=dropout),
        norm=s.NormSpec(eps=norm_eps),
        norm_position="post",
        dropout=dropout,
    )
    stack = s.StackSpec(
        width=width,
        embedding=s.EmbeddingSpec(vocab_size=vocab_size, query_stream=True, dropout=dropout),
        layers=(layer,) * depth,
        recurrence=s.SegmentRecurrence(memory_length=mem_len, reuse_length=reuse_len),
        dropout=dropout,
    )
    lm = s.HeadSpec(name="lm", out_features=vocab_size, tie_embeddings=tie_embeddings)
    summary = summary_head(
        width,
        summary_type,
        summary_use_proj,
        summary_activation,
        outputs=("summary",),
        classifier_dropout=summary_dropout,
    )
    span_beam = s.SpanBeamSpec(name="span_beam", num_starts=start_n_top, eps=norm_eps)
    head_specs = common_heads(num_labels, 0.0, lm, pooling=dict(pooling="summary"))
    head_specs |= {
        "sequence-classification": (summary, *head_specs["sequence-classification"]),
        "multiple-choice": (summary, *head_specs["multiple-choice"]),
        "question-answering-beam": (span_beam,),
    }
    return s.Spec(family="xlnet", encoder=stack, heads=head_specs[head], init=(("*", init_std),))


SIZES = {
    "base":  dict(width=768, depth=12, heads=12, ffn_width=3072),
    "large": {},
}  # fmt: skip

KEYS = """
    encoder.embedding.tokens                       transformer.word_embedding
    encoder.embedding.query                        transformer.mask_emb
    encoder.layers.{}.attention.q.weight           transformer.layer.{}.rel_attn.q  heads:NUM_HEADS
    encoder.layers.{}.attention.k.weight           transformer.layer.{}.rel_attn.k  heads:NUM_HEADS
    encoder.layers.{}.attention.v.weight           transformer.layer.{}.rel_attn.v  heads:NUM_HEADS
    encoder.layers.{}.attention.relative.r.weight  transformer.layer.{}.rel_attn.r  heads:NUM_HEADS
    encoder.layers.{}.attention.o.weight           transformer.layer.{}.rel_attn.o  back:NUM_HEADS
    encoder.layers.{}.attention.relative.(u|v|s)   transformer.layer.{}.rel_attn.r_(w|r|s)_bias
    encoder.layers.{}.attention.relative.e         transformer.layer.{}.rel_attn.seg_embed
    encoder.layers.{}.post_attention_norm          transformer.layer.{}.rel_attn.layer_norm
    encoder.layers.{}.post_feed_forward_norm       transformer.layer.{}.ff.layer_norm
    encoder.layers.{}.feed_forward.(up|down)       transformer.layer.{}.ff.(layer_1|layer_2)
    heads.lm.out                                   lm_loss
    heads.sequence_classification.out              logits_proj
    heads.multiple_choice.out                      logits_proj
    heads.token_classification.out                 classifier
    heads.question_answering.out                   qa_outputs
    heads.summary.dense                            sequence_summary.summary
    heads.span_beam.start                          start_logits.dense
    heads.span_beam.end_(dense|norm|out)           end_logits.(dense_0|LayerNorm|dense_1)
    heads.span_beam.answer_(dense|out)             answer_class.(dense_0|dense_1)
"""


def names_table(args: Args) -> str:
    return KEYS.replace("NUM_HEADS", str(args["heads"]))


HEADS = """
    none lm sequence-classification multiple-choice token-classification question-answering
    question-answering-beam
"""
CLASSES = {
    "question-answering": "ForQuestionAnsweringSimple",
    "question-answering-beam": "ForQuestionAnswering",
}
FAMILY = Family(
    name="xlnet", doc=__doc__, build_spec=xlnet, sizes=SIZES,
    config=CONFIG | dict(
        activation="ff_activation", attn_type="attn_type", reuse_len="reuse_len",
        norm_eps="layer_norm_eps", start_n_top="start_n_top", summary_type="summary_type",
        summary_use_proj="summary_use_proj", summary_activation="summary_activation",
        summary_dropout="summary_last_dropout", init_std="initializer_range",
    ),
    supported_values={"summary_proj_to_labels": (False,), "bi_data": (False,), "untie_r": (True,)},
    model_types=("xlnet",), heads=head_classes("XLNet", HEADS, **CLASSES),
    names_table=names_table, prefixes=("transformer.",),
)  # fmt: skip
