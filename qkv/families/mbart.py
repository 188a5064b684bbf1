"""mBART: BART for many languages, with pre-norm.

paper    Liu et al. 2020, arXiv:2001.08210
purpose  translate between many languages
differs  pre-norm BART; the language code ends a target and is the first input of the decoder"""

from qkv.families.bart import (
    CONFIG,
    HEADS,
    SUPPORTED_VALUES,
    bart,
    finish_config,
    names_table,
    upgrade_config,
)
from qkv.families.family import CONDITIONAL_GENERATION, Family, head_classes

FAMILY = Family(
    name="mbart", doc=__doc__, shape="encoder-decoder", build_spec=bart,
    sizes={"large": dict(vocab_size=250027, scale_embedding=True)},
    default_overrides=dict(
        norm_position="pre", final_norm=True, shift_right="wrap", decoder_start_token_id=None,
        num_labels=2, family="mbart",
    ),
    config=CONFIG,
    supported_values=SUPPORTED_VALUES | {
        "normalize_before": (True,), "add_final_layer_norm": (True,)
    },
    upgrade_config=upgrade_config,
    model_types=("mbart",), heads=head_classes("MBart", HEADS, lm=CONDITIONAL_GENERATION),
    names_table=names_table, prefixes=("model.",), finish_config=finish_config,
)  # fmt: skip
