"""Marian (Junczys-Dowmunt et al. 2018): the OPUS-MT translators, post-norm with sinusoids."""

from __future__ import annotations

from functools import partial

from qkv.families.bart import CONFIG, bart, class_names, keys
from qkv.families.family import Family

FAMILY = Family(
    name="marian", keys=keys, model_types=("marian",), prefix="model.", heads=class_names("Marian", "MTModel"),
    make=partial(
        bart, vocab=58101, embed_norm=False, sinusoid="halves", offset=0, shift=None, start=58100, pad=58100, end=0,
        labels=2, family="marian",
    ),
    config=CONFIG | dict(target_vocab="decoder_vocab_size", shared="share_encoder_decoder_embeddings"),
    sizes={"base": dict(
        width=512, depth=6, heads=8, feed=2048, decoder_depth=6, decoder_heads=8, decoder_feed=2048, act="swish",
        length=512, scaled=True,
    )},
    shape="encoder-decoder",
    only={
        "normalize_before": (False,), "add_final_layer_norm": (False,), "normalize_embedding": (False,),
        "static_position_embeddings": (True,),
    },
    paper="Junczys-Dowmunt et al. 2018, arXiv:1804.00344", purpose="translate one pair of languages, fast",
    differs="the original with swish, and two vocabularies if asked",
)  # fmt: skip
