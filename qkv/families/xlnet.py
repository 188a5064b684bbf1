"""XLNet: a permuted language model in two streams, with Transformer-XL's distances and memory.

paper    Yang et al. 2019, arXiv:1906.08237
purpose  understand long texts; write
differs  predicts words in any order through a second stream; remembers segments"""

from qkv import spec as s
from qkv.families.family import Family, classes, one_of, readers, summary
from qkv.families.transformer_xl import CONFIG


def xlnet(
    vocab: int = 32000, width: int = 1024, depth: int = 24, heads: int = 16, head_dim: int = 64,
    feed: int = 4096, act: str = "gelu", attend_kind: str = "bi", clamp: int = -1, same_length: bool = False,
    memory: int | None = 512, reuse: int | None = None, eps: float = 1e-12, drop: float = 0.1,
    summary_kind: str = "last", summary_project: bool = True, summary_act: str | None = "tanh",
    summary_drop: float = 0.1, starts: int = 5, std: float = 0.02, tied: bool = True, labels: int = 2,
    head: str = "lm",
) -> s.Spec:  # fmt: skip
    uni = s.Recent() if same_length else s.causal
    pattern = one_of("attn_type", attend_kind, {"bi": s.everyone, "uni": uni})
    one_of("d_head", head_dim, {width // heads: "d_model / n_head"})
    xl = s.XL(width=width, clamp=clamp, segments=True, drop=drop)
    dense = s.Dense(width=feed, act=act, drop=drop)
    attend = s.Attend(heads=heads, head_dim=head_dim, pattern=pattern, bias=False, drop=drop, relate=xl)
    layer = s.Layer(attend=attend, feed=dense, norm=s.Norm(eps=eps), place="after", drop=drop)
    embed, recall = s.Embed(vocab=vocab, query=True, drop=drop), s.Recall(length=memory, reuse=reuse)
    stack = s.Stack(width=width, embed=embed, layers=(layer,) * depth, drop=drop, recall=recall)
    lm, how = s.Head(name="lm", size=vocab, tied=tied), (summary_kind, summary_project, summary_act)
    vector = summary(width, *how, out=("summary",), mid_drop=summary_drop)
    found = readers(labels, 0.0, lm, vector=dict(take="summary"))
    found |= {name: (vector, *found[name]) for name in ("label", "choice")}
    found["beam"] = (s.BeamSpan(name="beam", starts=starts, eps=eps),)
    return s.Spec(family="xlnet", encoder=stack, heads=found[head], init=(("*", std),))


SIZES = {
    "base":  dict(width=768, depth=12, heads=12, feed=3072),
    "large": {},
}  # fmt: skip

KEYS = """
    encoder.embed.tokens                                transformer.word_embedding
    encoder.embed.query                                 transformer.mask_emb
    encoder.layers.{}.attend.(q|k|v|relative.r).weight  transformer.layer.{}.rel_attn.(q|k|v|r)  heads:HEADS
    encoder.layers.{}.attend.o.weight                   transformer.layer.{}.rel_attn.o  back:HEADS
    encoder.layers.{}.attend.relative.(u|v|s)           transformer.layer.{}.rel_attn.r_(w|r|s)_bias
    encoder.layers.{}.attend.relative.e                 transformer.layer.{}.rel_attn.seg_embed
    encoder.layers.{}.after_(attend|feed)               transformer.layer.{}.(rel_attn|ff).layer_norm
    encoder.layers.{}.feed.(up|down)                    transformer.layer.{}.ff.(layer_1|layer_2)
    heads.(lm|label|choice).out                         (lm_loss|logits_proj|logits_proj)
    heads.(tag|span).out                                (classifier|qa_outputs)
    heads.summary.dense                                 sequence_summary.summary
    heads.beam.start                                    start_logits.dense
    heads.beam.end_(dense|norm|out)                     end_logits.(dense_0|LayerNorm|dense_1)
    heads.beam.answer_(dense|out)                       answer_class.(dense_0|dense_1)
"""


BEAM = "ForQuestionAnswering"
FAMILY = Family(
    name="xlnet", doc=__doc__, make=xlnet, sizes=SIZES,
    keys=lambda args: KEYS.replace("HEADS", str(args["heads"])), model_types=("xlnet",),
    prefixes=("transformer.",),
    config=CONFIG | dict(
        act="ff_activation", attend_kind="attn_type", reuse="reuse_len", eps="layer_norm_eps",
        starts="start_n_top", summary_kind="summary_type", summary_project="summary_use_proj",
        summary_act="summary_activation", summary_drop="summary_last_dropout", std="initializer_range",
    ),
    heads=classes("XLNet", "none lm label choice tag span beam", span=f"{BEAM}Simple", beam=BEAM),
    only={"summary_proj_to_labels": (False,), "bi_data": (False,), "untie_r": (True,)},
)  # fmt: skip
