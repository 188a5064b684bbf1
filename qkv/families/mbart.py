"""mBART (Liu et al. 2020): BART for many languages, with norms before the steps."""

from __future__ import annotations

from functools import partial

from qkv.families.bart import CONFIG, bart, class_names, keys
from qkv.families.family import Family

FAMILY = Family(
    name="mbart", config=CONFIG, keys=keys, model_types=("mbart",), prefix="model.", heads=class_names("MBart"),
    make=partial(bart, norms="before", final_norm=True, shift="wrap", start=None, labels=2, family="mbart"),
    sizes={"large": dict(vocab=250027, scaled=True)}, shape="encoder-decoder",
    only={"normalize_before": (True,), "add_final_layer_norm": (True,), "static_position_embeddings": (False,)},
    paper="Liu et al. 2020, arXiv:2001.08210", purpose="translate among many languages",
    differs="pre-norm BART; the language's code wraps around to begin the target",
)  # fmt: skip
