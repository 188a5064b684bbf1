"""Read and write generation_config.json; older folders have the same keys in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from qkv.decode.config import (
    GENERATION_DEFAULTS,
    GenerationConfig,
    add_do_sample,
    check_generation_field,
    find_ineffective_fields,
    format_setting_value,
)

# One value or a list in the file.
VALUE_OR_LIST_FIELDS = ("eos_token_id", "forced_eos_token_id", "stop_strings")
DEFAULT_TOP_K = 50  # Hugging Face's default when the file samples and has no top_k
RawConfig = Mapping[str, Any]


def read_generation_config(
    generation_json: RawConfig | None,
    config_json: RawConfig | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> GenerationConfig:
    """Return the settings of a model folder, overridden by `settings`, which are values of fields.

    They come from generation_config.json if it exists, else from config.json. The entry of `task`
    in config.json's task_specific_params overrides them. A value of the folder that contradicts the
    others or has no effect with them is ignored, because published files contain many; in `settings`,
    it is an error."""
    config_json = config_json or {}
    raw = read_legacy_fields(config_json) if generation_json is None else dict(generation_json)
    all_task_params = config_json.get("task_specific_params")
    task_params = (
        all_task_params.get(task) if task and isinstance(all_task_params, Mapping) else None
    )
    if isinstance(task_params, Mapping):
        raw |= {key: value for key, value in task_params.items() if key in GENERATION_DEFAULTS}
    for name, value in settings.items():
        check_generation_field(name, value)
    values = {**GENERATION_DEFAULTS, **read_generation_fields(raw), **settings}
    for name in find_ineffective_fields(values).keys() - settings.keys():
        values[name] = GENERATION_DEFAULTS[name]
    return GenerationConfig(**values)


def override_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with changes, without the old settings that have no effect with the changes:
    `do_sample=False` removes a temperature."""
    for name, value in changes.items():
        check_generation_field(name, parse_field_value(name, value))
    merged = {**settings, **changes}
    values = {name: parse_field_value(name, value) for name, value in merged.items()}
    ineffective = find_ineffective_fields({**GENERATION_DEFAULTS, **add_do_sample(values)})
    for name in ineffective.keys() & settings.keys() - changes.keys():
        del merged[name]
    return merged


def read_generation_fields(raw: RawConfig) -> dict[str, Any]:
    """Return the fields that a JSON object sets, validated one by one; null means not set."""
    values: dict[str, Any] = {}
    for name in GENERATION_DEFAULTS:
        if raw.get(name) is not None:
            values[name] = parse_field_value(name, raw[name])
            check_generation_field(name, values[name])
    if values.get("do_sample"):
        values.setdefault("top_k", DEFAULT_TOP_K)
    elif not values.get("penalty_alpha"):
        values.pop("top_k", None)  # older files contain the default, which has no effect
    if values.get("num_beam_groups", 1) == 1:
        values.pop("diversity_penalty", None)
    return values


def read_legacy_fields(config_json: RawConfig) -> dict[str, Any]:
    """Return the generation settings of a config.json."""
    raw = {
        name: config_json[name] for name in GENERATION_DEFAULTS if config_json.get(name) is not None
    }
    if (
        config_json.get("force_bos_token_to_be_generated")
        and config_json.get("bos_token_id") is not None
    ):
        raw.setdefault("forced_bos_token_id", config_json["bos_token_id"])
    return raw


def write_generation_config(
    config: GenerationConfig, raw: RawConfig | None = None
) -> dict[str, Any]:
    """Return the JSON object of a config; keys of `raw` that it does not change are kept."""
    output = dict(raw or {})
    for _ in range(2):  # a change can give an old value of the file an effect
        previous = vars(read_generation_config(output))
        for name, previous_value in previous.items():
            value = getattr(config, name)
            if value == previous_value:
                continue
            if value in (None, ()):
                output.pop(name, None)
            else:
                output[name] = serialize_field_value(name, value)
        if config.do_sample and config.top_k == 0:
            output["top_k"] = 0  # readers use DEFAULT_TOP_K if the key is missing
    return output


def parse_field_value(name: str, value: Any) -> Any:
    """Convert a JSON value, or a keyword as Hugging Face accepts it, to the value of a field."""
    if value is None and GENERATION_DEFAULTS.get(name) == ():
        return ()
    if name in VALUE_OR_LIST_FIELDS and not isinstance(value, list | tuple):
        value = [value]
    if name == "sequence_bias" and isinstance(value, Mapping):
        value = list(value.items())
    value = convert_lists_to_tuples(value)
    if name == "force_words_ids" and isinstance(value, tuple):
        value = tuple((item,) if _is_single_phrase(item) else item for item in value)
    return value


def _is_single_phrase(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, int) for item in value)


def serialize_field_value(name: str, value: Any) -> Any:
    """Convert the value of a field to a JSON value."""
    if name in VALUE_OR_LIST_FIELDS and len(value) == 1:
        return value[0]
    if name == "force_words_ids":
        phrases = [choices[0] if len(choices) == 1 else choices for choices in value]
        return [convert_tuples_to_lists(item) for item in phrases]
    return convert_tuples_to_lists(value)


def convert_lists_to_tuples(value: Any) -> Any:
    """Convert nested lists to tuples."""
    return tuple(map(convert_lists_to_tuples, value)) if isinstance(value, list | tuple) else value


def convert_tuples_to_lists(value: Any) -> Any:
    """Convert nested tuples to lists."""
    return [*map(convert_tuples_to_lists, value)] if isinstance(value, tuple) else value


def check_config_token_ids(config: GenerationConfig, vocab_size: int) -> None:
    """Raise an error if a setting contains a token id outside the vocabulary."""
    invalid = sorted({token_id for token_id in config.all_token_ids if token_id >= vocab_size})
    if invalid:
        raise ValueError(
            f"generation_config has the token ids {format_setting_value(invalid)}, "
            f"expected ids below the vocabulary size {vocab_size:,}"
        )
