"""Arguments that no model can have, in config.json and in `qkv.build`: one line names the value."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.families.clip import IMAGE, TEXT
from tests.support import tiny
from tests.support.limits import TimedOutError, get_error_message
from tests.support.model_folders import FolderOf, assert_load_fails, change_config

FAMILIES = {family.name: family for family in qkv.list_families()}
TOWERS: dict[str, dict[str, Any]] = {"text": TEXT, "image": IMAGE}
# Integer arguments and their smallest values.
MODULES = "depth decoder_depth num_groups inner_group_num num_experts"
SIZES = f"""
    {MODULES} vocab_size decoder_vocab_size width embedding_width heads decoder_heads kv_heads
    head_dim ffn_width decoder_ffn_width max_positions image_size patch_size num_channels projection_dim
    expert_capacity relative_attention_num_buckets relative_attention_max_distance local_attention
    start_n_top div_val stride num_summary window
"""
MIN_VALUES = dict.fromkeys(SIZES.split(), 1)
MIN_VALUES |= dict.fromkeys(
    """
    type_vocab_size mem_len reuse_len num_sparse_encoder_layers num_sparse_decoder_layers
    decoder_start_token_id eos_token_id
    """.split(),
    0,
)
MIN_VALUES |= dict.fromkeys("clamp_len pad_token_id".split(), -1)
NONE_ALLOWED = {  # although the default is a number
    "mem_len", "decoder_vocab_size", "decoder_depth", "pad_token_id", "decoder_start_token_id",
    "eos_token_id",
}  # fmt: skip
INVALID_INTEGERS: list[Any] = [
    1.5, 12.0, "12", True, [12], {"a": 12}, None, 10**9, 10**12, 10**30, float("inf"), float("nan"),
]  # fmt: skip
UNLIMITED = {"clamp_len", "relative_attention_max_distance"}  # a large one costs nothing


def get_leaf(path: str) -> str:
    return path.rpartition(".")[2]


@cache
def get_config_keys(family: str) -> dict[str, str]:
    """Return arguments and their keys of config.json, with a dot for a nested key (CLIP)."""
    definition = FAMILIES[family]
    inner = {
        f"{side}.{argument}": f"{key}.{inner_key}"
        for side, (key, tower_keys) in definition.nested.items()
        for argument, inner_key in tower_keys.items()
        if argument in TOWERS[side]
    }
    return dict(definition.config) | inner


def get_default(family: str, path: str) -> Any:
    """Return the default of an argument."""
    side, _, name = path.rpartition(".")
    return TOWERS[side][name] if side else FAMILIES[family].defaults[name]


def list_integer_arguments(family: str) -> list[str]:
    names = dict.fromkeys([*FAMILIES[family].defaults, *get_config_keys(family)])
    return [
        name
        for name in names
        if get_leaf(name) in MIN_VALUES and name not in FAMILIES[family].nested
    ]


def list_invalid_values(family: str, path: str) -> list[Any]:
    """Return values that no model of the family can have."""
    name = get_leaf(path)
    none_is_valid = get_default(family, path) is None or (name in NONE_ALLOWED and "." not in path)
    invalid = [value for value in INVALID_INTEGERS if not (none_is_valid and value is None)]
    invalid = [value for value in invalid if not (name in UNLIMITED and type(value) is int)]
    invalid += [-1, -(10**12)] if MIN_VALUES[name] >= 0 else []
    invalid += [0] if MIN_VALUES[name] == 1 else []
    return invalid + ([10**7] if name in MODULES.split() else [])


def find_wrong_messages(
    folder: Path, key: str, changes_by_value: dict[str, dict[str, Any]]
) -> list[str]:
    """Return the changes of config.json, by value, that give no error or one without the file, key
    and value."""
    problems = []
    valid_config = (folder / "config.json").read_text()
    for value, changes in changes_by_value.items():
        change_config(folder, **changes)
        try:
            message = get_error_message(lambda: qkv.load(folder))
        except (Exception, TimedOutError, pytest.fail.Exception) as error:
            problems.append(f"{value}: {type(error).__name__} {error}"[:300])
        else:
            missing = [word for word in ("config.json", key, value) if word not in message]
            problems += [f"{value}: {missing} not in: {message[:300]}"] if missing else []
        (folder / "config.json").write_text(valid_config)
    return problems


KEYS = [
    (f, name) for f in FAMILIES for name in list_integer_arguments(f) if name in get_config_keys(f)
]


@pytest.mark.parametrize(("family", "name"), KEYS, ids=[f"{f}-{n}" for f, n in KEYS])
def test_invalid_sizes_are_errors(family: str, name: str, copy_folder: FolderOf) -> None:
    key = get_config_keys(family)[name]
    changes_by_value = {repr(value): {key: value} for value in list_invalid_values(family, name)}
    assert find_wrong_messages(copy_folder(family), get_leaf(key), changes_by_value) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_invalid_sizes_in_native_format_are_errors(family: str, copy_folder: FolderOf) -> None:
    """`model_type: qkv`: the family and its arguments."""
    problems = []
    for name in list_integer_arguments(family):
        side, _, inner = name.rpartition(".")
        changes_by_value = {}
        for value in list_invalid_values(family, name):
            change = {side: tiny.SIZES[family][side] | {inner: value}} if side else {name: value}
            native = dict(
                model_type="qkv",
                format_version=2,
                family=family,
                arguments=tiny.SIZES[family] | change,
            )
            changes_by_value[repr(value)] = native
        problems += [
            f"{name} {words}"
            for words in find_wrong_messages(copy_folder(family), inner or name, changes_by_value)
        ]
    assert problems == []


@pytest.mark.parametrize(
    ("family", "sizes", "positions"),
    [("sparse", dict(heads=2**28, width=2**28, split="heads"), None),
     ("gpt2", dict(heads=2**27, width=2**28), "alibi"), ("gpt2", dict(heads=1, width=2**28), "rotary"),
     ("transformer-xl", dict(mem_len=2**28), None)],
)  # fmt: skip
def test_sizes_too_large_for_memory_are_errors(
    family: str, sizes: Any, positions: str | None, copy_folder: FolderOf
) -> None:
    native = dict(
        model_type="qkv",
        format_version=2,
        family=family,
        position_embedding_type=positions,
        arguments=tiny.SIZES[family] | sizes,
    )
    assert_load_fails(change_config(copy_folder(family), **native), "config.json", "expected")


DEPTHS = [
    (f, name)
    for f, name in KEYS
    if get_leaf(name) in MODULES.split() and (f, name) != ("albert", "depth")
]


@pytest.mark.parametrize(("family", "name"), DEPTHS, ids=[f"{f}-{n}" for f, n in DEPTHS])
def test_more_layers_than_tensors_is_an_error(
    family: str, name: str, copy_folder: FolderOf
) -> None:
    key = get_config_keys(family)[name]
    assert find_wrong_messages(copy_folder(family), "layers", {"5000": {key: 5000}}) == []


# Invalid values of other types.
INVALID_VALUES: dict[type, list[Any]] = {
    float: ["0.1", True, [0.1], {}, float("nan"), float("inf")],
    bool: ["yes", 1, 0, 0.0, None, []],
    str: [5, True, ["gelu"], {}, "rocket", ""],
}
RATES = """
    dropout attention_dropout classifier_dropout mlp_dropout activation_dropout embedding_dropout
    qa_dropout summary_dropout
""".split()
# Read by one head only.
HEAD_ARGUMENTS = ("summary_type", "summary_activation", "classifier_pooling")
OTHER_ARGUMENTS = [
    (f, name) for f in FAMILIES for name in get_config_keys(f)
    if get_leaf(name) not in (*MIN_VALUES, *HEAD_ARGUMENTS)
    and (type(get_default(f, name)) in INVALID_VALUES or name in RATES)
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name"), OTHER_ARGUMENTS, ids=[f"{f}-{n}" for f, n in OTHER_ARGUMENTS]
)
def test_invalid_values_of_other_keys_are_errors(
    family: str, name: str, copy_folder: FolderOf
) -> None:
    default_value, key = get_default(family, name), get_config_keys(family)[name]
    is_rate = get_leaf(name) in RATES
    value_type = float if is_rate else type(default_value)
    none_is_invalid = value_type is not bool and default_value is not None
    invalid = INVALID_VALUES[value_type] + ([None] if none_is_invalid else [])
    invalid += [-0.1, 1.5] if is_rate else [-1.0] if name.endswith("eps") else []
    changes_by_value = {repr(value): {key: value} for value in invalid}
    assert find_wrong_messages(copy_folder(family), get_leaf(key), changes_by_value) == []


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_unknown_pooling_of_a_classifier_is_an_error(family: str) -> None:
    with pytest.raises(ValueError, match="classifier_pooling is 'first_eos': expected one of"):
        qkv.build(family, head="sequence-classification", classifier_pooling="first_eos")


SUPPORTED_KEYS = [(f, key) for f, family in FAMILIES.items() for key in family.supported_values]


@pytest.mark.parametrize(
    ("family", "key"), SUPPORTED_KEYS, ids=[f"{f}-{k}" for f, k in SUPPORTED_KEYS]
)
def test_unsupported_values_are_errors(family: str, key: str, copy_folder: FolderOf) -> None:
    supported = FAMILIES[family].supported_values[key]
    candidates: list[Any] = ["rocket", 7, [], {}, None, True, False]
    invalid = [value for value in candidates if not any(value is item for item in supported)]
    changes_by_value = {repr(value): {key: value} for value in invalid}
    assert find_wrong_messages(copy_folder(family), key, changes_by_value) == []


# Family, changes of its config.json, and words of the error message (~ is a space).
INVALID_CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("bert", {"num_attention_heads": 5}, "24 5"),
    ("roberta", {"num_attention_heads": 5}, "24 5"),
    ("albert", {"num_attention_heads": 5}, "24 5"),
    ("distilbert", {"n_heads": 5}, "24 5"),
    ("electra", {"num_attention_heads": 5}, "24 5"),
    ("xlnet", {"n_head": 5}, "d_head 6"),
    ("xlnet", {"d_head": 7}, "d_head 7"),
    ("gpt", {"n_head": 5}, "24 5"),
    ("gpt2", {"n_head": 5}, "24 5"),
    ("ctrl", {"n_head": 5}, "24 5"),
    ("bart", {"encoder_attention_heads": 5}, "24 5"),
    ("bart", {"decoder_attention_heads": 5}, "24 5"),
    ("clip", {"text_config.num_attention_heads": 5}, "24 5"),
    ("clip", {"vision_config.num_attention_heads": 5}, "16 5"),
    ("clip", {"vision_config.patch_size": 13}, "patch 13 12"),
    ("clip", {"text_config": [1]}, "text_config [1]"),
    ("clip", {"vision_config": "x"}, "vision_config 'x'"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "24 5"),
    ("llama", {"num_key_value_heads": 3}, "4 3"),
    ("llama", {"num_key_value_heads": 8}, "4 8"),
    ("llama", {"head_dim": 5}, "head_dim 5"),  # rotary needs an even size
    ("llama", {"rope_parameters": "x"}, "rope_parameters 'x'"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type 'yarn'"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor"),
    ("llama", {"rope_parameters": {"rope_theta": "x"}}, "rope_theta 'x'"),
    ("llama", {"rope_parameters": None, "rope_theta": "x"}, "rope_theta 'x'"),
    ("llama", {"rope_parameters": None, "rope_scaling": "x"}, "rope_scaling 'x'"),
    ("modernbert", {"num_attention_heads": 5}, "24 5"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types full_attention 3"),
    ("modernbert", {"layer_types": ["rocket"] * 3}, "layer_types rocket"),
    ("modernbert", {"layer_types": 3}, "layer_types 3"),
    ("modernbert", {"layer_types": [[], 1, None]}, "layer_types"),
    ("modernbert", {"rope_parameters": [1]}, "rope_parameters [1]"),
    ("modernbert", {"global_attn_every_n_layers": 0, "layer_types": None}, "global_attn_every_n_layers 0"),
    ("transformer-xl", {"cutoffs": [20, 10]}, "cutoffs [20,~10]"),
    ("transformer-xl", {"cutoffs": ["x"]}, "cutoffs ['x']"),
    ("transformer-xl", {"cutoffs": 10}, "cutoffs 10"),
    ("transformer-xl", {"cutoffs": [10**9]}, "cutoffs [1000000000]"),
    ("transformer-xl", {"tie_projs": 5}, "tie_projs 5"),
    ("transformer-xl", {"div_val": 1000}, "div_val 1000"),
    ("albert", {"num_hidden_groups": 5000, "inner_group_num": 5000}, "5000"),
    ("albert", {"num_hidden_layers": 5000, "inner_group_num": 5000}, "5000"),
    ("switch", {"num_layers": 5000, "num_experts": 5000}, "5000"),
    ("llama", {"hidden_size": 2**28, "num_attention_heads": 1, "num_key_value_heads": 1}, "hidden_size"),
    ("llama", {"head_dim": 2**28}, "head_dim"),  # one frequency for each pair
    ("t5", {"num_heads": 2**28, "d_kv": 2**28, "d_model": 2**28}, "d_model"),  # a shape past 64 bits
    ("clip", {"vision_config.image_size": 2**28, "vision_config.patch_size": 1}, "image_size"),
    ("clip", {"vision_config.num_channels": 2**28}, "num_channels"),
    ("transformer-xl", {"mem_len": 2**28}, "mem_len"),  # memory starts with zeros
    ("electra", {"summary_activation": "rocket"}, "summary_activation 'rocket'"),
    ("xlnet", {"summary_activation": ["tanh"]}, "summary_activation ['tanh']"),
    ("electra", {"summary_type": "rocket", "architectures": ["ElectraForMultipleChoice"]}, "summary_type"),
    ("bert", {"pad_token_id": 53}, "pad_token_id 53"),
    ("bert", {"pad_token_id": 10**12}, "pad_token_id 1000000000000"),
    ("bart", {"decoder_start_token_id": 53}, "decoder_start_token_id 53"),
    ("bert", {"num_labels": "3", "id2label": None}, "num_labels '3'"),
    ("bert", {"num_labels": -1, "id2label": None}, "num_labels -1"),
    ("bert", {"num_labels": 10**9, "id2label": None}, "num_labels 1000000000"),
    ("bert", {"num_labels": 2.0, "id2label": None}, "num_labels 2.0"),
    ("bert", {"id2label": 10**9}, "id2label 1000000000"),
    ("bert", {"id2label": "x"}, "id2label 'x'"),
    ("bert", {"id2label": {}}, "id2label"),
    ("bert", {"id2label": {str(i): "x" for i in range(100_000)}}, "100000"),
    ("bert", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes", "words"), INVALID_CONFIGS, ids=[f"{f}-{w}" for f, _, w in INVALID_CONFIGS]
)
def test_invalid_combinations_are_errors(
    family: str, changes: dict[str, Any], words: str, copy_folder: FolderOf
) -> None:
    model_folder = copy_folder(family)
    if "label" in str(changes):
        changes = changes | {"architectures": ["BertForSequenceClassification"]}
    expected = [word.replace("~", " ") for word in words.split()]
    assert_load_fails(change_config(model_folder, **changes), "config.json", *expected)


INVALID_BUILDS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("rocket",), {}, "rocket bert gpt2"),
    ((5,), {}, "5 bert"),
    (("bert", "gigantic"), {}, "gigantic base large"),
    (("bert", 5), {}, "5 base"),
    (("bert", "tiny"), dict(wings=2), "wings width"),
    (("bert", "tiny"), dict(head="rocket"), "rocket sequence-classification"),
    (("bert", "tiny"), dict(head=["sequence-classification"]), "head"),
    (("bert", "tiny"), dict(position_embedding_type="gps"), "gps rotary"),
    (("bert", "tiny"), dict(position_embedding_type=5), "position_embedding_type 5"),
    (("bert", "tiny"), dict(width=-1), "width -1"),
    (("bert", "tiny"), dict(width="wide"), "width wide"),
    (("bert", "tiny"), dict(depth=10**7), "depth 10000000"),
    (("bert", "tiny"), dict(depth=2.0), "depth 2.0"),
    (("bert", "tiny"), dict(vocab_size=10**12), "vocab_size 1000000000000"),
    (("bert", "tiny"), dict(heads=3), "128 3"),
    (("bert", "tiny"), dict(activation="rocket"), "rocket gelu"),
    (("bert", "tiny"), dict(norm_eps=None), "norm_eps None"),
    (("gpt2", "small"), dict(num_labels=10**9, head="sequence-classification"), "num_labels 1000000000"),
    (("sparse",), dict(pattern="rocket"), "rocket strided fixed"),
    (("sparse",), dict(split="rocket"), "rocket merged"),
    (("sparse",), dict(stride=8, num_summary=9), "num_summary 9 8"),
    (("llama", "7b"), dict(kv_heads=5), "5 32"),
    (("llama", "7b"), dict(rope_parameters={"rope_type": "rocket"}), "rocket"),
    (("t5", "small"), dict(feed_forward_proj="gated-rocket"), "rocket"),
    (("xlnet", "base"), dict(position_embedding_type="rotary"), "position_embedding_type rotary"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "changes", "words"),
    INVALID_BUILDS,
    ids=[f"{g} {c}" for g, c, _ in INVALID_BUILDS],
)
def test_invalid_arguments_of_build_are_errors(
    arguments: tuple[Any, ...], changes: dict[str, Any], words: str
) -> None:
    message = get_error_message(lambda: qkv.build(*arguments, **changes))
    missing = [word for word in words.split() if word not in message]
    assert not missing, f"{missing} not in: {message}"
