"""XLNet: a permuted language model in two streams, with Transformer-XL's distances and memory.

paper    Yang et al. 2019, arXiv:1906.08237
purpose  understand long texts; write
differs  predicts words in any order through a second stream; remembers segments"""

from qkv.families.family import Family, choice, classes, label, span, summary, tag
from qkv.spec import XL, Attend, BeamSpan, Dense, Embed, Head, Layer, Norm, Recall, Recent, Spec, Stack
from qkv.spec import causal, everyone


def xlnet(
    vocab: int = 32000, width: int = 1024, depth: int = 24, heads: int = 16, head_dim: int = 64, feed: int = 4096,
    act: str = "gelu", attend_kind: str = "bi", clamp: int = -1, same_length: bool = False, memory: int | None = 512,
    reuse: int | None = None, eps: float = 1e-12, drop: float = 0.1, summary_kind: str = "last",
    summary_project: bool = True, summary_act: str | None = "tanh", summary_drop: float = 0.1, starts: int = 5,
    std: float = 0.02, tied: bool = True, labels: int = 2, head: str = "lm",
) -> Spec:  # fmt: skip
    kinds = {"bi": everyone, "uni": Recent() if same_length else causal}
    if attend_kind not in kinds:
        raise ValueError(f"config.json: attn_type is {attend_kind!r}, supported: 'bi' or 'uni'")
    if head_dim * heads != width:
        raise ValueError(f"config.json: d_head is {head_dim}, expected d_model / n_head = {width / heads}")
    attend = Attend(
        heads=heads, head_dim=head_dim, pattern=kinds[attend_kind], bias=False, drop=drop,
        relate=XL(width=width, clamp=clamp, segments=True, drop=drop),
    )  # fmt: skip
    layer = Layer(attend=attend, feed=Dense(width=feed, act=act, drop=drop), after=Norm(eps=eps), drop=drop)
    stack = Stack(
        width=width, embed=Embed(vocab=vocab, query=True, drop=drop), layers=(layer,) * depth, drop=drop,
        recall=Recall(length=memory, reuse=reuse),
    )  # fmt: skip
    lm = Head(name="lm", size=vocab, tied="encoder" if tied else "")
    vector = summary(width, summary_kind, summary_project, summary_act, out=("summary",), mid_drop=summary_drop)
    found = {
        "none": (), "lm": (lm,), "label": (vector, label(labels, take="summary")), "tag": (tag(labels),),
        "choice": (vector, choice(take="summary")), "span": (span(),),
        "beam": (BeamSpan(name="beam", starts=starts, eps=eps),),
    }  # fmt: skip
    return Spec(family="xlnet", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


SIZES = {
    "base":  dict(width=768, depth=12, heads=12, feed=3072),
    "large": dict(),
}  # fmt: skip

KEYS = """
    encoder.embed.tokens                  transformer.word_embedding
    encoder.embed.query                   transformer.mask_emb
    encoder.layers.{}.attend.(q|k|v|relative.r).weight  transformer.layer.{}.rel_attn.(q|k|v|r)  heads:HEADS
    encoder.layers.{}.attend.o.weight                   transformer.layer.{}.rel_attn.o          back:HEADS
    encoder.layers.{}.attend.relative.(u|v|s|e)         transformer.layer.{}.rel_attn.(r_w_bias|r_r_bias|r_s_bias|seg_embed)
    encoder.layers.{}.after_(attend|feed)               transformer.layer.{}.(rel_attn|ff).layer_norm
    encoder.layers.{}.feed.(up|down)                    transformer.layer.{}.ff.(layer_1|layer_2)
    heads.(lm|label|choice|tag|span).out                (lm_loss|logits_proj|logits_proj|classifier|qa_outputs)
    heads.summary.dense                                 sequence_summary.summary
    heads.beam.start                                    start_logits.dense
    heads.beam.end_(dense|norm|out)                     end_logits.(dense_0|LayerNorm|dense_1)
    heads.beam.answer_(dense|out)                       answer_class.(dense_0|dense_1)
"""


FAMILY = Family(
    name="xlnet", doc=__doc__, make=xlnet, sizes=SIZES, keys=lambda args: KEYS.replace("HEADS", str(args["heads"])), model_types=("xlnet",), prefix="transformer.",
    config=dict(
        vocab="vocab_size", width="d_model", depth="n_layer", heads="n_head", head_dim="d_head", feed="d_inner",
        act="ff_activation", attend_kind="attn_type", clamp="clamp_len", same_length="same_length", memory="mem_len",
        reuse="reuse_len", eps="layer_norm_eps", drop="dropout", summary_kind="summary_type",
        summary_project="summary_use_proj", summary_act="summary_activation", summary_drop="summary_last_dropout",
        starts="start_n_top", std="initializer_range", tied="tie_word_embeddings",
    ),
    heads=classes("XLNet", "none lm label choice tag span beam", span="ForQuestionAnsweringSimple", beam="ForQuestionAnswering"),
    only={"bi_data": (False,), "untie_r": (True,)},
)  # fmt: skip
