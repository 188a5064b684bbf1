"""How and generation_config.json, both ways; older folders have the same keys in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from qkv.decode.config import How, check, short

# Our names, and those of the files.
THEIRS = dict(
    results="num_return_sequences", best_of="best_of",
    beams="num_beams", length_penalty="length_penalty", early="early_stopping", groups="num_beam_groups",
    diversity="diversity_penalty", words="force_words_ids",
    sample="do_sample", temperature="temperature", top_k="top_k", top_p="top_p", min_p="min_p",
    typical="typical_p", epsilon="epsilon_cutoff", eta="eta_cutoff",
    contrast="penalty_alpha",
    min_length="min_length", max_length="max_length", min_new="min_new_tokens", max_new="max_new_tokens",
    decay="exponential_decay_length_penalty",
    repetition="repetition_penalty", no_repeat="no_repeat_ngram_size",
    source_repetition="encoder_repetition_penalty", source_no_repeat="encoder_no_repeat_ngram_size",
    bad_words="bad_words_ids", bias="sequence_bias", suppress="suppress_tokens",
    first_suppress="begin_suppress_tokens", first="forced_bos_token_id", last="forced_eos_token_id",
    finite="remove_invalid_values", renormalise="renormalize_logits", stop="stop_ids",
    start="decoder_start_token_id", ends="eos_token_id", pad="pad_token_id", begin="bos_token_id",
    drafts="num_assistant_tokens",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(How)}
SEVERAL = ("ends", "last")  # one id, or a list of them
USUAL_TOP_K = 50  # what these files mean where they draw and say nothing
Raw = Mapping[str, Any]


def read_how(generation: Raw | None, config: Raw | None = None, task: str | None = None) -> How:
    """The settings of a folder: of generation_config.json, else of config.json; a task's own come on top."""
    config = config or {}
    raw = older(config) if generation is None else dict(generation)
    parts = config.get("task_specific_params")
    own = parts.get(task) if task and isinstance(parts, Mapping) else None
    own = own if isinstance(own, Mapping) else {}
    raw |= {key: value for key, value in own.items() if key in THEIRS.values()}
    return How(**read_fields(raw))


def read_fields(raw: Raw) -> dict[str, Any]:
    """What a file states, under our names; a key that says nothing is left out."""
    found: dict[str, Any] = {}
    for ours, key in THEIRS.items():
        if raw.get(key) is not None:
            found[ours] = ours_of(ours, raw[key])
            check(ours, found[ours], key)
    if found.get("sample") and "top_k" not in found:
        found["top_k"] = USUAL_TOP_K
    if not found.get("sample") and not found.get("contrast"):
        found.pop("top_k", None)  # older files state a default that nothing reads
    if found.get("groups", 1) == 1:
        found.pop("diversity", None)
    return found


def older(config: Raw) -> dict[str, Any]:
    """The settings in a config.json, from before they had a file of their own."""
    raw = {key: config[key] for key in THEIRS.values() if config.get(key) is not None}
    if config.get("force_bos_token_to_be_generated") and config.get("bos_token_id") is not None:
        raw.setdefault("forced_bos_token_id", config["bos_token_id"])
    return raw


def write_how(how: How, raw: Raw | None = None) -> dict[str, Any]:
    """A generation_config.json that states these settings; of `raw` all stays that they do not change."""
    out, held = dict(raw or {}), {**DEFAULTS, **read_fields(raw or {})}
    for ours, key in THEIRS.items():
        value = getattr(how, ours)
        if value == held[ours]:
            continue
        if value in (None, ()):
            out.pop(key, None)
        else:
            out[key] = theirs_of(ours, value)
    if how.sample and how.top_k == 0:
        out["top_k"] = 0  # or a reader would take its own
    return out


def ours_of(name: str, value: Any) -> Any:
    """A value of a JSON file as a field holds it."""
    if name in SEVERAL and not isinstance(value, list | tuple):
        value = [value]
    if name == "bias" and isinstance(value, Mapping):
        value = list(value.items())
    value = frozen(value)
    if name == "words" and isinstance(value, tuple):
        plain = [isinstance(each, tuple) and all(isinstance(x, int) for x in each) for each in value]
        value = tuple((each,) if one else each for each, one in zip(value, plain, strict=True))
    return value


def theirs_of(name: str, value: Any) -> Any:
    """And back."""
    if name in SEVERAL and len(value) == 1:
        return value[0]
    if name == "words":
        return [thawed(each[0] if len(each) == 1 else each) for each in value]
    return thawed(value)


def frozen(value: Any) -> Any:
    """Lists become tuples, and what is in them."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    return [*map(thawed, value)] if isinstance(value, tuple) else value


def check_ids(how: How, vocab: int) -> None:
    """No setting names an id that the vocabulary has not."""
    wrong = sorted({each for each in how.ids if each >= vocab})
    if wrong:
        raise ValueError(f"the settings name the ids {short(wrong)}, expected less than {vocab:,}")
