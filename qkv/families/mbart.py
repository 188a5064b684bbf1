"""mBART: BART for many languages, with norms before the steps.

paper    Liu et al. 2020, arXiv:2001.08210
purpose  translate among many languages
differs  pre-norm BART; the language's code wraps around to begin the target"""

from qkv.families.bart import CONFIG, HEADS, ONLY, bart, keys
from qkv.families.family import WRITER, Family, classes

FAMILY = Family(
    name="mbart", doc=__doc__, make=bart, config=CONFIG, keys=keys, model_types=("mbart",),
    prefixes=("model.",),
    given=dict(norms="before", final_norm=True, shift="wrap", start=None, labels=2, family="mbart"),
    sizes={"large": dict(vocab=250027, scaled=True)}, heads=classes("MBart", HEADS, lm=WRITER),
    shape="encoder-decoder", only=ONLY | {"normalize_before": (True,), "add_final_layer_norm": (True,)},
)  # fmt: skip
