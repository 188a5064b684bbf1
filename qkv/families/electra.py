"""ELECTRA: a generator fills masks, a discriminator tells which tokens were replaced.

paper    Clark et al. 2020, arXiv:2003.10555
purpose  understand, with little compute
differs  learns from every token: which were replaced by a small generator"""

from qkv.families.bert import CONFIG, EMBED, STACK, bert
from qkv.families.family import Args, Family, classes

SIZES: dict[str, Args] = {
    "small":           {},
    "base":            dict(width=768, heads=12, feed=3072, embed_width=768),
    "large":           dict(width=1024, depth=24, heads=16, feed=4096, embed_width=1024),
    "small-generator": dict(head="masked-lm"),
    "base-generator":  dict(embed_width=768, head="masked-lm"),
    "large-generator": dict(depth=24, embed_width=1024, head="masked-lm"),
}  # fmt: skip

BERT = (EMBED + STACK).replace("(classifier|", "(classifier.out_proj|").replace(" bert.", " electra.")
KEYS = """
    encoder.embed.project        electra.embeddings_project
    heads.label.dense            classifier.dense
    heads.replaced.(dense|out)   discriminator_predictions.(dense|dense_prediction)
    heads.lm.(dense|norm)        generator_predictions.(dense|LayerNorm)
    heads.lm.out                 generator_lm_head
    heads.summary.dense          sequence_summary.summary
"""

HEADS = "none replaced masked-lm lm label choice tag span"
FAMILY = Family(
    name="electra", doc=__doc__, make=bert, sizes=SIZES, keys=BERT + KEYS, model_types=("electra",),
    prefixes=("electra.",),
    given=dict(
        width=256, heads=4, feed=1024, embed_width=128, lm_act="gelu", read_act="gelu", summary_kind="first",
        summary_act="gelu", summary_drop=0.1, head="replaced", family="electra",
    ),
    config=CONFIG | dict(
        embed_width="embedding_size", summary_kind="summary_type", summary_project="summary_use_proj",
        summary_act="summary_activation", summary_drop="summary_last_dropout",
    ),
    heads=classes("Electra", HEADS, replaced="ForPreTraining", lm="ForCausalLM"),
    only={"summary_proj_to_labels": (False,), "position_embedding_type": ("absolute",)},
)  # fmt: skip
