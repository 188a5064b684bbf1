"""BERT, and the encoder that RoBERTa, ALBERT, DistilBERT and ELECTRA share with it.

paper    Devlin et al. 2018, arXiv:1810.04805
purpose  understand text: classify, tag, answer questions
differs  masked LM and next sentence prediction; post-norm, learned positions, token types"""

from collections.abc import Mapping
from dataclasses import replace

from qkv import spec as s
from qkv.families.family import COMMON_CONFIG, Args, Family, common_heads, head_classes, lookup

Heads = tuple[s.HeadSpec | s.AdaptiveSoftmaxSpec | s.SpanBeamSpec, ...]


def bert(
    vocab_size: int = 30522, width: int = 768, depth: int = 12, heads: int = 12,
    ffn_width: int = 3072, activation: str = "gelu", max_positions: int = 512,
    type_vocab_size: int = 2, norm_eps: float = 1e-12, dropout: float = 0.1,
    attention_dropout: float = 0.1, classifier_dropout: float | None = None,
    pad_token_id: int | None = 0, init_std: float = 0.02, tie_embeddings: bool = True,
    is_decoder: bool = False, add_cross_attention: bool = False, num_labels: int = 2,
    head: str = "none", family: str = "bert", embedding_width: int | None = None,
    positions_after_pad: bool = False, lm_activation: str | None = None,
    classifier_pooling: str | None = None,
) -> s.Spec:  # fmt: skip
    """Return the spec. `positions_after_pad`: positions start at pad_token_id + 1, and tokens with
    this id are not counted.

    `classifier_pooling`: pooling of sequence classification ("mean"), instead of the pooler."""
    norm = s.NormSpec(eps=norm_eps)
    attention = s.AttentionSpec(
        heads=heads,
        head_dim=s.head_width(width, heads),
        dropout=attention_dropout,
        pattern=s.causal if is_decoder else s.full,
    )
    layer = s.LayerSpec(
        attention=attention,
        cross_attention=replace(attention, pattern=s.full)
        if add_cross_attention and is_decoder
        else None,
        feed_forward=s.FeedForwardSpec(width=ffn_width, activation=activation),
        norm=norm,
        norm_position="post",
        dropout=dropout,
    )
    position_offset = (pad_token_id or 0) + 1 if positions_after_pad else 0
    embedding = s.EmbeddingSpec(
        vocab_size=vocab_size,
        width=None if embedding_width == width else embedding_width,
        positions=s.LearnedPositions(
            count=max_positions,
            offset=position_offset,
            padding_idx=pad_token_id if positions_after_pad else None,
        ),
        token_types=type_vocab_size,
        norm=norm,
        dropout=dropout,
        padding_idx=pad_token_id,
    )
    stack = s.StackSpec(width=width, embedding=embedding, layers=(layer,) * depth)
    lm = s.HeadSpec(
        name="lm",
        dense_width=embedding_width or width,
        activation=lm_activation or activation,
        norm=norm,
        out_features=vocab_size,
        tie_embeddings=tie_embeddings,
    )
    pooler = pooler_head(width)
    next_sentence = s.HeadSpec(
        name="next_sentence_prediction",
        outputs=("seq_relationship_logits",),
        pooling="pooler_output",
        out_features=2,
    )
    head_dropout = dropout if classifier_dropout is None else classifier_dropout
    head_specs = common_heads(num_labels, head_dropout, lm, pooling=dict(pooling="pooler_output"))
    head_specs |= {
        "none": (pooler,),
        "pretraining": (pooler, lm, next_sentence),
        "next-sentence-prediction": (pooler, next_sentence),
        "sequence-classification": (pooler, *head_specs["sequence-classification"]),
        "multiple-choice": (pooler, *head_specs["multiple-choice"]),
    }
    if classifier_pooling:
        poolings = {name: name for name in ("first", "last", "mean", "max")}
        pooling = lookup("classifier_pooling", classifier_pooling, poolings)
        pooled_heads = common_heads(num_labels, head_dropout, pooling=dict(pooling=pooling))
        head_specs["sequence-classification"] = pooled_heads["sequence-classification"]
    return s.Spec(family=family, encoder=stack, heads=head_specs[head], init=(("*", init_std),))


def pooler_head(width: int) -> s.HeadSpec:
    return s.HeadSpec(
        name="pooler",
        outputs=("pooler_output",),
        pooling="first",
        dense_width=width,
        activation="tanh",
    )


def bert_with_heads(head_specs: Mapping[str, Heads], args: Args) -> s.Spec:
    """Return BERT's spec with these heads instead of its own, unless `classifier_pooling` is set."""
    head = args["head"]
    if head not in head_specs or (head == "sequence-classification" and args["classifier_pooling"]):
        return bert(**args)
    return replace(bert(**args | {"head": "none"}), heads=head_specs[head])


def get_classifier_dropout(args: Args) -> float:
    return args["dropout"] if args["classifier_dropout"] is None else args["classifier_dropout"]


def first_token_pooling(args: Args, activation: str, dropout: float) -> Args:
    """Return the settings of a head with a dense layer on the first token."""
    return dict(
        pooling="first",
        dropout=dropout,
        dense_width=args["width"],
        activation=activation,
        classifier_dropout=get_classifier_dropout(args),
    )


SIZES = {
    "tiny":   dict(width=128, depth=2, heads=2, ffn_width=512),
    "mini":   dict(width=256, depth=4, heads=4, ffn_width=1024),
    "small":  dict(width=512, depth=4, heads=8, ffn_width=2048),
    "medium": dict(width=512, depth=8, heads=8, ffn_width=2048),
    "base":   {},
    "large":  dict(width=1024, depth=24, heads=16, ffn_width=4096),
}  # fmt: skip

CONFIG = COMMON_CONFIG | dict(
    type_vocab_size="type_vocab_size", norm_eps="layer_norm_eps", dropout="hidden_dropout_prob",
    is_decoder="is_decoder", attention_dropout="attention_probs_dropout_prob",
    classifier_dropout="classifier_dropout", add_cross_attention="add_cross_attention",
)  # fmt: skip

EMBEDDING_KEYS = """
    encoder.embedding.(tokens|positions|token_types)  bert.embeddings.(word|position|token_type)_embeddings
    encoder.embedding.norm                            bert.embeddings.LayerNorm
    (-|-)                                             bert.embeddings.(position|token_type)_ids
"""
LAYER_KEYS = """
    encoder.layers.{}.attention.(q|k|v)          bert.encoder.layer.{}.attention.self.(query|key|value)
    encoder.layers.{}.attention.o                bert.encoder.layer.{}.attention.output.dense
    encoder.layers.{}.post_attention_norm        bert.encoder.layer.{}.attention.output.LayerNorm
    encoder.layers.{}.cross_attention.(q|k|v)    bert.encoder.layer.{}.crossattention.self.(query|key|value)
    encoder.layers.{}.cross_attention.o          bert.encoder.layer.{}.crossattention.output.dense
    encoder.layers.{}.post_cross_attention_norm  bert.encoder.layer.{}.crossattention.output.LayerNorm
    encoder.layers.{}.feed_forward.(up|down)     bert.encoder.layer.{}.(intermediate|output).dense
    encoder.layers.{}.post_feed_forward_norm     bert.encoder.layer.{}.output.LayerNorm
    heads.pooler.dense                           bert.pooler.dense
"""
HEAD_KEYS = """
    heads.sequence_classification.out  classifier
    heads.token_classification.out     classifier
    heads.multiple_choice.out          classifier
    heads.question_answering.out       qa_outputs
"""
KEYS = """
    heads.lm.(dense|norm)               cls.predictions.transform.(dense|LayerNorm)
    heads.lm.out.weight                 cls.predictions.decoder.weight
    heads.next_sentence_prediction.out  cls.seq_relationship
"""


def lm_bias_rows(args: Args, lm_head: str) -> str:
    """Return the rows of the LM head's bias, which checkpoints contain under two names.

    The model uses `{lm_head}.bias` if embeddings are tied, else `{lm_head}.decoder.bias`. Hugging
    Face writes both."""
    if args["tie_embeddings"]:
        return f"heads.lm.out.bias {lm_head}.bias\nheads.lm.out.bias {lm_head}.decoder.bias alias\n"
    return f"heads.lm.out.bias {lm_head}.decoder.bias\nheads.lm.out.bias {lm_head}.bias copy\n"


def names_table(args: Args) -> str:
    return EMBEDDING_KEYS + LAYER_KEYS + HEAD_KEYS + KEYS + lm_bias_rows(args, "cls.predictions")


HEADS = """
    none masked-lm lm pretraining next-sentence-prediction sequence-classification multiple-choice
    token-classification question-answering
"""
FAMILY = Family(
    name="bert", doc=__doc__, build_spec=bert, sizes=SIZES,
    config=CONFIG, supported_values={"position_embedding_type": ("absolute",)},
    model_types=("bert",), heads=head_classes("Bert", HEADS),
    names_table=names_table, prefixes=("bert.",),
)  # fmt: skip
