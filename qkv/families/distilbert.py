"""DistilBERT: half of BERT's layers, no types, taught by BERT.

paper    Sanh et al. 2019, arXiv:1910.01108
purpose  understand, at half the cost
differs  half of BERT's layers, distilled; no segment types, no pooler"""

from qkv.families.bert import bert
from qkv.families.family import COMMON, Family, classes

KEYS = """
    encoder.embed.(tokens|positions)       distilbert.embeddings.(word|position)_embeddings
    encoder.embed.norm                     distilbert.embeddings.LayerNorm
    -                                      distilbert.embeddings.position_ids
    encoder.layers.{}.attend.(q|k|v|o)     distilbert.transformer.layer.{}.attention.(q|k|v|out)_lin
    encoder.layers.{}.feed.(up|down)       distilbert.transformer.layer.{}.ffn.(lin1|lin2)
    encoder.layers.{}.after_(attend|feed)  distilbert.transformer.layer.{}.(sa|output)_layer_norm
    heads.lm.(dense|norm|out)              vocab_(transform|layer_norm|projector)
    heads.(label|choice).dense             (pre_classifier|pre_classifier)
    heads.(label|choice|tag|span).out      (classifier|classifier|classifier|qa_outputs)
"""

FAMILY = Family(
    name="distilbert", doc=__doc__, make=bert, sizes={"base": {}}, keys=KEYS, model_types=("distilbert",),
    prefixes=("distilbert.",),
    given=dict(depth=6, types=0, label_drop=0.2, span_drop=0.1, read_act="relu", family="distilbert"),
    config=COMMON | dict(
        width="dim", depth="n_layers", heads="n_heads", feed="hidden_dim", act="activation", drop="dropout",
        label_drop="seq_classif_dropout", span_drop="qa_dropout",
    ),
    heads=classes("DistilBert", "none masked-lm label choice tag span"),
)  # fmt: skip
