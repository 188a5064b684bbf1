"""ELECTRA (Clark et al. 2020): a generator fills masks, a discriminator tells which tokens were replaced."""

from __future__ import annotations

from typing import Any

from qkv.families.bert import CONFIG, STACK, bert_stack
from qkv.families.family import Family, choice, label, span, summary, tag
from qkv.spec import Head, Norm, Spec


def electra(
    vocab: int = 30522, width: int = 256, depth: int = 12, heads: int = 4, feed: int = 1024, act: str = "gelu",
    embed_width: int = 128, length: int = 512, types: int = 2, eps: float = 1e-12, drop: float = 0.1,
    attend_drop: float = 0.1, label_drop: float | None = None, summary_kind: str = "first",
    summary_project: bool = True, summary_act: str | None = "gelu", summary_drop: float = 0.1,
    pad: int | None = 0, std: float = 0.02, tied: bool = True, decoder: bool = False, cross: bool = False,
    labels: int = 2, head: str = "replaced",
) -> Spec:  # fmt: skip
    stack = bert_stack(
        vocab=vocab, width=width, depth=depth, heads=heads, feed=feed, act=act, length=length, types=types, eps=eps,
        drop=drop, attend_drop=attend_drop, pad=pad, decoder=decoder, cross=cross,
        embed_width=None if embed_width == width else embed_width,
    )  # fmt: skip
    last = drop if label_drop is None else label_drop
    lm = Head(
        name="lm", dense=embed_width, act="gelu", norm=Norm(eps=eps), size=vocab, tied="encoder" if tied else ""
    )
    replaced = Head(name="replaced", out=("logits",), dense=width, act=act, size=1, flat=True)
    vector = summary(
        width, summary_kind, summary_project, summary_act, out=("summary",), mid_drop=summary_drop
    )
    classify = label(labels, last, take="first", dense=width, act="gelu", mid_drop=last)
    found: dict[str, tuple[Any, ...]] = {
        "none": (), "replaced": (replaced,), "masked-lm": (lm,), "lm": (lm,), "label": (classify,),
        "choice": (vector, choice(take="summary")), "tag": (tag(labels, last),), "span": (span(),),
    }  # fmt: skip
    return Spec(family="electra", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


SIZES = {
    "small":           dict(),
    "base":            dict(width=768, heads=12, feed=3072, embed_width=768),
    "large":           dict(width=1024, depth=24, heads=16, feed=4096, embed_width=1024),
    "small-generator": dict(head="masked-lm"),
    "base-generator":  dict(width=256, heads=4, feed=1024, embed_width=768, head="masked-lm"),
    "large-generator": dict(width=256, depth=24, heads=4, feed=1024, embed_width=1024, head="masked-lm"),
}  # fmt: skip

KEYS = STACK.replace("classifier\n    heads.tag", "classifier.out_proj\n    heads.tag").replace("  bert.", "  electra.") + """
    encoder.embed.project                electra.embeddings_project
    heads.label.dense                    classifier.dense
    heads.replaced.dense                 discriminator_predictions.dense
    heads.replaced.out                   discriminator_predictions.dense_prediction
    heads.lm.dense                       generator_predictions.dense
    heads.lm.norm                        generator_predictions.LayerNorm
    heads.lm.out                         generator_lm_head
    heads.summary.dense                  sequence_summary.summary
"""

FAMILY = Family(
    name="electra", make=electra, sizes=SIZES, keys=KEYS, model_types=("electra",), prefix="electra.",
    config=CONFIG | dict(
        embed_width="embedding_size", summary_kind="summary_type", summary_project="summary_use_proj",
        summary_act="summary_activation", summary_drop="summary_last_dropout",
    ),
    heads={
        "none": "ElectraModel", "replaced": "ElectraForPreTraining", "masked-lm": "ElectraForMaskedLM",
        "lm": "ElectraForCausalLM", "label": "ElectraForSequenceClassification",
        "choice": "ElectraForMultipleChoice", "tag": "ElectraForTokenClassification",
        "span": "ElectraForQuestionAnswering",
    },
    only={"position_embedding_type": ("absolute",)},
    paper="Clark et al. 2020, arXiv:2003.10555", purpose="understand, with little compute",
    differs="learns from every token: which were replaced by a small generator",
)  # fmt: skip
