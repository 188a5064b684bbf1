"""RoBERTa: BERT with positions counted from behind the pad id, and other heads.

paper    Liu et al. 2019, arXiv:1907.11692
purpose  understand: classify, tag, answer
differs  BERT trained longer on whole texts, without next sentence; positions start behind the pad id"""

from qkv.families.bert import CONFIG, EMBED, STACK, bert, lm_bias
from qkv.families.family import Family, classes

SIZES = {
    "base":  dict(length=514, types=1, eps=1e-5),
    "large": dict(length=514, types=1, eps=1e-5, width=1024, depth=24, heads=16, feed=4096),
}  # fmt: skip

BERT = (EMBED + STACK).replace("(classifier|", "(classifier.out_proj|").replace(" bert.", " roberta.")
KEYS = """
    heads.label.dense                    classifier.dense
    heads.lm.(dense|norm)                lm_head.(dense|layer_norm)
    heads.lm.out.weight                  lm_head.decoder.weight
"""

FAIRSEQ = """
    encoder.embed.(tokens|positions)     encoder.sentence_encoder.embed_(tokens|positions)
    encoder.embed.norm                   encoder.sentence_encoder.emb_layer_norm
    encoder.layers.{}.attend.(q|k|v|o)   encoder.sentence_encoder.layers.{}.self_attn.(q|k|v|out)_proj
    encoder.layers.{}.feed.(up|down)     encoder.sentence_encoder.layers.{}.(fc1|fc2)
    encoder.layers.{}.after_(attend|feed)  encoder.sentence_encoder.layers.{}.(self_attn|final)_layer_norm
    heads.lm.(dense|norm)                encoder.lm_head.(dense|layer_norm)
    heads.lm.out                         encoder.lm_head
"""

FAMILY = Family(
    name="roberta", doc=__doc__, make=bert, sizes=SIZES, config=CONFIG, model_types=("roberta",),
    prefixes=("roberta.",),
    given=dict(vocab=50265, pad=1, after_pad=True, lm_act="gelu", read_act="tanh", family="roberta"),
    keys=lambda args: BERT + KEYS + lm_bias(args, "lm_head"),
    heads=classes("Roberta", "none masked-lm lm label choice tag span", lm="ForCausalLM"),
    only={"position_embedding_type": ("absolute",)},
)  # fmt: skip
