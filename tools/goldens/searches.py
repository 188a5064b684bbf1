"""Prompts and settings of `generate` for the golden files. Does not depend on models."""

from collections.abc import Iterator
from typing import Any, TypeAlias

Ids: TypeAlias = list[list[int]]
Settings: TypeAlias = dict[str, Any]

# The reference counts ids of the prompt as generated, so that no prompt contains a forced id. It also counts
# padding, so that rows have equal length in cases with a repetition penalty.
RAGGED: Ids = [[5, 17, 9, 30, 12, 8, 21], [14, 6, 27], [23, 11, 11, 7, 19]]
SHORT: Ids = [[5, 17, 9], [14, 6, 27]]
LONG: Ids = [[5, 17, 9, 30, 12, 8, 21, 14, 6], [23, 11, 11, 7, 19, 4, 28, 13, 29]]

LENGTH: Settings = {"max_new_tokens": 12}
RULES: Settings = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "min_new_tokens": 4}


def diverse(beams: int, groups: int, penalty: float, *, returns: int, **more: Any) -> Settings:
    """Return settings of diverse beam search."""
    sizes = dict(num_beams=beams, num_beam_groups=groups, num_return_sequences=returns)
    return sizes | dict(diversity_penalty=penalty) | more


GROUPS: dict[str, Settings] = {
    "group":          diverse(4, 2, 1.0, returns=4),
    "group-three":    diverse(6, 3, 0.5, returns=3, length_penalty=2.0),
    "group-wide":     diverse(6, 2, 5.0, returns=6, early_stopping=True),
    "group-single":   diverse(4, 4, 2.0, returns=4),
    "group-never":    diverse(4, 2, 0.3, returns=2, length_penalty=0.5, early_stopping="never"),
    "group-sum":      diverse(4, 2, 1.5, returns=3, length_penalty=0.0),
    "group-rules":    diverse(4, 2, 1.0, returns=2, **RULES),
}  # fmt: skip
CONTRASTS: dict[str, Settings] = {
    "contrast":       dict(penalty_alpha=0.6, top_k=4),
    "contrast-mild":  dict(penalty_alpha=0.2, top_k=6),
    "contrast-hard":  dict(penalty_alpha=0.9, top_k=3, forced_eos_token_id=None),  # cannot be forced
    "contrast-rules": dict(penalty_alpha=0.5, top_k=5) | RULES,
}  # fmt: skip
FORCED: dict[str, Settings] = {
    "force-word":     dict(num_beams=6, force_words_ids=[[35]], num_return_sequences=2),
    "force-phrase":   dict(num_beams=4, force_words_ids=[[33, 40, 36]]),
    "force-two":      dict(num_beams=6, force_words_ids=[[33, 38], [41]]),
    "force-any":      dict(num_beams=6, force_words_ids=[[[34, 39], [42]]], num_return_sequences=2),
    "force-both":     dict(num_beams=8, force_words_ids=[[37, 32], [[35], [40, 41, 33]]], length_penalty=0.5),
    "force-stop":     dict(num_beams=4, force_words_ids=[[36, 34]], early_stopping=True),
    "force-rules":    dict(num_beams=4, force_words_ids=[[36], [39]]) | RULES,
}  # fmt: skip
PLAIN: dict[str, Settings] = {
    "greedy":         {},
    "beam":           dict(num_beams=4, num_return_sequences=2),
}  # fmt: skip

# 4.35.2 divides the score of a beam by a length that includes the prompt and excludes EOS, later versions by
# the number of generated tokens. A penalty of 0 makes both equal.
SUM: Settings = {"length_penalty": 0.0}
REMEMBERED: dict[str, Settings] = {
    "greedy":         {},
    "greedy-far":     dict(min_new_tokens=14, max_new_tokens=16),
    "greedy-rules":   RULES,
    "beam":           dict(num_beams=4, num_return_sequences=4) | SUM,
    "beam-far":       dict(num_beams=4, num_return_sequences=3, min_new_tokens=10, max_new_tokens=14) | SUM,
    "beam-stop":      dict(num_beams=3, num_return_sequences=2, early_stopping=True) | SUM,
    "beam-rules":     dict(num_beams=4, num_return_sequences=2) | RULES | SUM,
    "group":          diverse(4, 2, 3.0, returns=4, **SUM),
    "force-both":     dict(num_beams=6, force_words_ids=[[37, 32], [[35], [40, 41, 33]]]) | SUM,
}  # fmt: skip


def searches() -> Iterator[tuple[str, Ids, Settings]]:
    """Yield names, prompts and settings."""
    for name, settings in {**PLAIN, **GROUPS, **CONTRASTS, **FORCED}.items():
        yield name, LONG if settings.keys() >= RULES.keys() else RAGGED, LENGTH | settings
    yield (
        "force-tight",
        RAGGED[:1],
        dict(num_beams=4, force_words_ids=[[33, 40, 36]], max_new_tokens=5),
    )


def remembered() -> Iterator[tuple[str, Ids, Settings]]:
    """Yield the cases of Transformer-XL, which does not support padding: rows have equal length."""
    for name, settings in REMEMBERED.items():
        yield name, SHORT, LENGTH | settings
        yield f"{name}-long", LONG, LENGTH | settings
