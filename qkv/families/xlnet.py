"""XLNet (Yang et al. 2019): a permuted language model in two streams, with Transformer-XL's distances and memory."""

from __future__ import annotations

from typing import Any

from qkv.families.family import Args, Family, choice, label, span, summary, tag
from qkv.spec import XL, Attend, BeamSpan, Dense, Embed, Head, Layer, Norm, Recall, Recent, Spec, Stack, causal, everyone


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
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "lm": (lm,), "label": (vector, label(labels, take="summary")), "tag": (tag(labels),),
        "choice": (vector, choice(take="summary")), "span": (span(),),
        "span-beam": (BeamSpan(name="beam", starts=starts, eps=eps),),
    }  # fmt: skip
    return Spec(family="xlnet", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


SIZES = {
    "base":  dict(width=768, depth=12, heads=12, feed=3072),
    "large": dict(),
}  # fmt: skip

KEYS = """
    encoder.embed.tokens                  transformer.word_embedding
    encoder.embed.query                   transformer.mask_emb
    encoder.layers.{}.attend.q.weight     transformer.layer.{}.rel_attn.q         heads:HEADS
    encoder.layers.{}.attend.k.weight     transformer.layer.{}.rel_attn.k         heads:HEADS
    encoder.layers.{}.attend.v.weight     transformer.layer.{}.rel_attn.v         heads:HEADS
    encoder.layers.{}.attend.o.weight     transformer.layer.{}.rel_attn.o         back:HEADS
    encoder.layers.{}.attend.relative.r.weight  transformer.layer.{}.rel_attn.r   heads:HEADS
    encoder.layers.{}.attend.relative.u   transformer.layer.{}.rel_attn.r_w_bias
    encoder.layers.{}.attend.relative.v   transformer.layer.{}.rel_attn.r_r_bias
    encoder.layers.{}.attend.relative.s   transformer.layer.{}.rel_attn.r_s_bias
    encoder.layers.{}.attend.relative.e   transformer.layer.{}.rel_attn.seg_embed
    encoder.layers.{}.after_attend        transformer.layer.{}.rel_attn.layer_norm
    encoder.layers.{}.feed.up             transformer.layer.{}.ff.layer_1
    encoder.layers.{}.feed.down           transformer.layer.{}.ff.layer_2
    encoder.layers.{}.after_feed          transformer.layer.{}.ff.layer_norm
    heads.lm.out                          lm_loss
    heads.summary.dense                   sequence_summary.summary
    heads.label.out                       logits_proj
    heads.choice.out                      logits_proj
    heads.tag.out                         classifier
    heads.span.out                        qa_outputs
    heads.beam.start                      start_logits.dense
    heads.beam.end_dense                  end_logits.dense_0
    heads.beam.end_norm                   end_logits.LayerNorm
    heads.beam.end_out                    end_logits.dense_1
    heads.beam.answer_dense               answer_class.dense_0
    heads.beam.answer_out                 answer_class.dense_1
"""


def keys(args: Args) -> str:
    return KEYS.replace("HEADS", str(args["heads"]))


FAMILY = Family(
    name="xlnet", make=xlnet, sizes=SIZES, keys=keys, model_types=("xlnet",), prefix="transformer.",
    config=dict(
        vocab="vocab_size", width="d_model", depth="n_layer", heads="n_head", head_dim="d_head", feed="d_inner",
        act="ff_activation", attend_kind="attn_type", clamp="clamp_len", same_length="same_length", memory="mem_len",
        reuse="reuse_len", eps="layer_norm_eps", drop="dropout", summary_kind="summary_type",
        summary_project="summary_use_proj", summary_act="summary_activation", summary_drop="summary_last_dropout",
        starts="start_n_top", std="initializer_range", tied="tie_word_embeddings",
    ),
    heads={
        "none": "XLNetModel", "lm": "XLNetLMHeadModel", "label": "XLNetForSequenceClassification",
        "choice": "XLNetForMultipleChoice", "tag": "XLNetForTokenClassification",
        "span": "XLNetForQuestionAnsweringSimple", "span-beam": "XLNetForQuestionAnswering",
    },
    only={"bi_data": (False,), "untie_r": (True,)},
    paper="Yang et al. 2019, arXiv:1906.08237", purpose="understand long texts; write",
    differs="predicts words in any order through a second stream; remembers segments",
)  # fmt: skip
