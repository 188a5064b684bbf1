"""Marian: the OPUS-MT translation models, post-norm with sinusoidal positions.

paper    Junczys-Dowmunt et al. 2018, arXiv:1804.00344
purpose  translate between two languages, fast
differs  the original Transformer with swish and, optionally, two vocabularies"""

from qkv.families.bart import (
    CONFIG,
    SUPPORTED_VALUES,
    bart,
    finish_config,
    names_table,
    upgrade_config,
)
from qkv.families.family import Family, head_classes
from qkv.families.transformer import BASE

FAMILY = Family(
    name="marian", doc=__doc__, shape="encoder-decoder", build_spec=bart,
    sizes={"base": BASE | dict(activation="swish", max_positions=512, scale_embedding=True)},
    default_overrides=dict(
        vocab_size=58101, embedding_norm=False, sinusoidal="halves", position_offset=0,
        shift_right=None, decoder_start_token_id=58100, pad_token_id=58100, eos_token_id=0,
        num_labels=2, family="marian",
    ),
    config=CONFIG | dict(
        decoder_vocab_size="decoder_vocab_size", share_embeddings="share_encoder_decoder_embeddings"
    ),
    supported_values=SUPPORTED_VALUES | {
        "static_position_embeddings": (True,), "normalize_embedding": (False,)
    },
    upgrade_config=upgrade_config,
    model_types=("marian",), heads=head_classes("Marian", "none lm causal-lm", lm="MTModel"),
    names_table=names_table, prefixes=("model.",), finish_config=finish_config,
)  # fmt: skip
