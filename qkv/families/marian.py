"""Marian: the OPUS-MT translators, post-norm with sinusoids.

paper    Junczys-Dowmunt et al. 2018, arXiv:1804.00344
purpose  translate one pair of languages, fast
differs  the original with swish, and two vocabularies if asked"""

from qkv.families.bart import CONFIG, ONLY, bart, keys
from qkv.families.family import Family, classes
from qkv.families.transformer import BASE

FAMILY = Family(
    name="marian", doc=__doc__, make=bart, keys=keys, model_types=("marian",), prefixes=("model.",),
    shape="encoder-decoder",
    given=dict(
        vocab=58101, embed_norm=False, sinusoid="halves", offset=0, shift=None, start=58100, pad=58100, end=0,
        labels=2, family="marian",
    ),
    config=CONFIG | dict(target_vocab="decoder_vocab_size", shared="share_encoder_decoder_embeddings"),
    sizes={"base": BASE | dict(act="swish", length=512, scaled=True)},
    heads=classes("Marian", "none lm causal", lm="MTModel"),
    only=ONLY | {"static_position_embeddings": (True,), "normalize_embedding": (False,)},
)  # fmt: skip
