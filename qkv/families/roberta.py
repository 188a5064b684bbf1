"""RoBERTa (Liu et al. 2019): BERT with positions counted from behind the pad id, and other heads."""

from __future__ import annotations

from typing import Any

from qkv.families.bert import CONFIG, STACK, bert_stack, lm_bias
from qkv.families.family import Family, choice, label, span, tag
from qkv.spec import Head, Norm, Spec


def roberta(
    vocab: int = 50265, width: int = 768, depth: int = 12, heads: int = 12, feed: int = 3072, act: str = "gelu",
    length: int = 512, types: int = 2, eps: float = 1e-12, drop: float = 0.1, attend_drop: float = 0.1,
    label_drop: float | None = None, pad: int = 1, std: float = 0.02, tied: bool = True,
    decoder: bool = False, cross: bool = False, labels: int = 2, head: str = "none",
) -> Spec:  # fmt: skip
    stack = bert_stack(
        vocab=vocab, width=width, depth=depth, heads=heads, feed=feed, act=act, length=length, types=types, eps=eps,
        drop=drop, attend_drop=attend_drop, pad=pad, decoder=decoder, cross=cross, offset=pad + 1,
    )  # fmt: skip
    last = drop if label_drop is None else label_drop
    pooler = Head(name="pooler", out=("pooled",), take="first", dense=width, act="tanh")
    lm = Head(name="lm", dense=width, act="gelu", norm=Norm(eps=eps), size=vocab, tied="encoder" if tied else "")
    classify = label(labels, last, take="first", dense=width, act="tanh", mid_drop=last)
    found: dict[str, tuple[Any, ...]] = {
        "none": (pooler,), "lm": (lm,), "masked-lm": (lm,), "label": (classify,),
        "choice": (pooler, choice(last, take="pooled")), "tag": (tag(labels, last),), "span": (span(),),
    }  # fmt: skip
    return Spec(family="roberta", encoder=stack, heads=found[head], choices=head == "choice", init=(("*", std),))


SIZES = {
    "base":  dict(length=514, types=1, eps=1e-5),
    "large": dict(length=514, types=1, eps=1e-5, width=1024, depth=24, heads=16, feed=4096),
}  # fmt: skip

KEYS = STACK.replace("classifier\n    heads.tag", "classifier.out_proj\n    heads.tag").replace("  bert.", "  roberta.") + """
    heads.label.dense                    classifier.dense
    heads.lm.dense                       lm_head.dense
    heads.lm.norm                        lm_head.layer_norm
    heads.lm.out.weight                  lm_head.decoder.weight
"""

FAIRSEQ = """
    encoder.embed.tokens                 encoder.sentence_encoder.embed_tokens
    encoder.embed.positions              encoder.sentence_encoder.embed_positions
    encoder.embed.norm                   encoder.sentence_encoder.emb_layer_norm
    encoder.layers.{}.attend.q,k,v       encoder.sentence_encoder.layers.{}.self_attn.in_proj
    encoder.layers.{}.attend.q           encoder.sentence_encoder.layers.{}.self_attn.q_proj
    encoder.layers.{}.attend.k           encoder.sentence_encoder.layers.{}.self_attn.k_proj
    encoder.layers.{}.attend.v           encoder.sentence_encoder.layers.{}.self_attn.v_proj
    encoder.layers.{}.attend.o           encoder.sentence_encoder.layers.{}.self_attn.out_proj
    encoder.layers.{}.after_attend       encoder.sentence_encoder.layers.{}.self_attn_layer_norm
    encoder.layers.{}.feed.up            encoder.sentence_encoder.layers.{}.fc1
    encoder.layers.{}.feed.down          encoder.sentence_encoder.layers.{}.fc2
    encoder.layers.{}.after_feed         encoder.sentence_encoder.layers.{}.final_layer_norm
    heads.lm.dense                       encoder.lm_head.dense
    heads.lm.norm                        encoder.lm_head.layer_norm
    heads.lm.out.bias                    encoder.lm_head.bias
    heads.lm.out.weight                  encoder.lm_head.weight
"""

FAMILY = Family(
    name="roberta", make=roberta, sizes=SIZES, config=CONFIG, model_types=("roberta",), prefix="roberta.",
    keys=lambda args: KEYS + lm_bias(args, "lm_head"),
    heads={
        "none": "RobertaModel", "masked-lm": "RobertaForMaskedLM", "lm": "RobertaForCausalLM",
        "label": "RobertaForSequenceClassification", "choice": "RobertaForMultipleChoice",
        "tag": "RobertaForTokenClassification", "span": "RobertaForQuestionAnswering",
    },
    only={"position_embedding_type": ("absolute",)},
    paper="Liu et al. 2019, arXiv:1907.11692", purpose="understand: classify, tag, answer",
    differs="BERT trained longer on whole texts, no next sentence; positions start behind the pad id",
)  # fmt: skip
