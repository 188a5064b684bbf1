"""Invalid input gives an error of one line: the file, the value and what was expected. No code in a
file is run, nothing blocks, and no file can cause a large allocation."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

import qkv
from qkv.families.clip import IMAGE, TEXT
from tests.support import tiny

GOLDEN = Path(__file__).parent.parent / "goldens" / "xl"
FILE = "model.safetensors"
SECONDS, BYTES, WAIT = 1.0, 200 << 20, 10
Folder = Callable[[str], Path]


class TimedOutError(BaseException):
    """The call did not return in time."""


@contextmanager
def limit_time_and_memory() -> Iterator[None]:
    """Allow one second of CPU time, 200 MB of memory and ten seconds in all."""

    def raise_timeout(*_: object) -> None:
        raise TimedOutError

    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(WAIT)
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, hard))
    start = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - start
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert took < SECONDS, f"{took:.1f} s"


def get_error_message(
    run: Callable[[], object],
    expected: type[Exception] | tuple[type[Exception], ...] = ValueError,
) -> str:
    """Return the message of the error that the call must raise, on one line, within time and memory
    limits."""
    with limit_time_and_memory(), pytest.raises(expected) as caught:
        run()
    message = str(caught.value)
    assert message
    assert message.isprintable(), "expected one line"
    return message


def assert_load_fails(folder: Path, *words: object) -> None:
    message = get_error_message(lambda: qkv.load(folder))
    missing = [word for word in (folder.name, *words) if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A valid model folder for each family, written and loaded once."""

    @cache
    def model(family: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / family
        if family == "transformer-xl":  # no longer written in Hugging Face's format
            shutil.copytree(GOLDEN / "xl-base", folder)
        else:
            tiny.build(family, dtype=torch.float32).save(folder)
        qkv.load(folder)
        return folder

    return model


@pytest.fixture
def folder(models: Folder, tmp_path: Path) -> Folder:
    """A copy of it that a test may change."""
    return lambda family: Path(
        shutil.copytree(models(family), tmp_path / family, dirs_exist_ok=True)
    )


def change_config(folder: Path, **changes: Any) -> Path:
    """Change keys of config.json; a dot leads into a nested object."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for key, value in changes.items():
        tower, _, inner = key.rpartition(".")
        (content[tower] if tower else content)[inner] = value
    path.write_text(json.dumps(content))
    return folder


# --- config.json as a file ---

DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
INVALID_CONFIG_FILES = {
    "empty": (b"", "config.json empty"),
    "blank": (b" \n", "config.json not~JSON"),
    "list": (b'[{"model_type": "bert"}]', "config.json list object"),
    "number": (b"12", "config.json int object"),
    "null": (b"null", "config.json object"),
    "cut": (b'{"model_type": "bert", "vocab_si', "config.json not~JSON"),
    "latin": ('{"model_type": "bért"}'.encode("latin-1"), "config.json UTF-8"),
    "utf-16": ('{"model_type": "bert"}'.encode("utf-16"), "config.json UTF-8"),
    "deep": (DEEP, "config.json deep"),
    "deep list": (b"[" * 10_000, "config.json deep"),
    "digits": (b'{"model_type": "bert", "vocab_size": ' + b"9" * 10_000 + b"}", "config.json"),
    "no kind": (b"{}", "config.json model_type None"),
    "numeric kind": (b'{"model_type": 5}', "config.json model_type 5"),
    "kinds": (b'{"model_type": ["bert"]}', "config.json model_type bert"),
    "unknown kind": (b'{"model_type": "rocket"}', "config.json model_type rocket bert gpt2"),
    "unknown family": (
        b'{"model_type": "qkv", "format_version": 2, "family": "rocket"}',
        "config.json family rocket bert",
    ),
    "of version 0.2": (
        b'{"model_type": "qkv", "family": "bert"}',
        "config.json format_version is None, expected 2 saved by qkv 0.2",
    ),
    "no family": (b'{"model_type": "qkv", "format_version": 2}', "config.json family None"),
    "arguments": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": [1]}',
        "config.json arguments [1]",
    ),
    "argument": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": {"wings": 2}}',
        "config.json wings",
    ),
    "head": (
        b'{"model_type": "qkv", "format_version": 2, "family": "bert", "arguments": {"head": ["x"]}}',
        "config.json head ['x']",
    ),
    "positions": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": "gps"}',
        "config.json position_embedding_type gps",
    ),
    "positions [5]": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": [5]}',
        "config.json position_embedding_type [5]",
    ),
    "positions 5": (
        b'{"model_type": "qkv", "format_version": 2, "family": "gpt2", "position_embedding_type": 5}',
        "config.json position_embedding_type 5",
    ),
}


@pytest.mark.parametrize(
    ("content", "words"), INVALID_CONFIG_FILES.values(), ids=INVALID_CONFIG_FILES
)
def test_invalid_config_json(folder: Folder, content: bytes, words: str) -> None:
    broken = folder("bert")
    (broken / "config.json").write_bytes(content)
    assert_load_fails(broken, *(word.replace("~", " ") for word in words.split()))


def test_config_json_is_no_regular_file(folder: Folder) -> None:
    path = folder("bert") / "config.json"
    path.unlink()
    assert_load_fails(path.parent, "config.json")
    os.mkfifo(path)
    assert_load_fails(path.parent, "config.json")
    path.unlink()
    path.mkdir()
    assert_load_fails(path.parent, "config.json")


@pytest.mark.parametrize(
    "model_folder", ["no/such/folder", "./none", "/none", "no-such-model", "a b", "a/b/c", "~x"]
)
def test_missing_folder(model_folder: str) -> None:
    assert model_folder.strip("./~") in get_error_message(lambda: qkv.load(model_folder))


def test_file_instead_of_folder(folder: Folder) -> None:
    assert FILE in get_error_message(lambda: qkv.load(folder("bert") / FILE))


@pytest.mark.parametrize(
    "names", [["BertForRockets"], "BertModel", 5, [5], [None], [["BertModel"]], {"a": 1}, True]
)
def test_architectures(folder: Folder, names: object) -> None:
    assert_load_fails(
        change_config(folder("bert"), architectures=names),
        "config.json",
        "architectures",
        repr(names),
    )


def test_remote_code_is_never_run(folder: Folder) -> None:
    model_folder, marker = folder("bert"), folder("bert") / "ran"
    (model_folder / "modeling_rocket.py").write_text(f"open({str(marker)!r}, 'w')")
    auto = {
        "AutoModel": "modeling_rocket.RocketModel",
        "AutoConfig": "modeling_rocket.RocketConfig",
    }
    assert (
        qkv.load(change_config(model_folder, auto_map=auto, trust_remote_code=True)).config[
            "auto_map"
        ]
        == auto
    )
    assert not marker.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"device": "quantum"}, "device quantum"), ({"device": "cuda:99"}, "device cuda:99"),
     ({"dtype": torch.int64}, "dtype int64"), ({"dtype": "float16"}, "dtype float16")],
    ids=str,
)  # fmt: skip
def test_options(models: Folder, options: dict[str, Any], words: str) -> None:
    message = get_error_message(lambda: qkv.load(models("bert"), **options))
    assert all(word in message for word in words.split()), message


# --- config.json by its keys ---

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
    1.5,
    12.0,
    "12",
    True,
    [12],
    {"a": 12},
    None,
    10**9,
    10**12,
    10**30,
    float("inf"),
    float("nan"),
]
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
    null = get_default(family, path) is None or (name in NONE_ALLOWED and "." not in path)
    invalid = [value for value in INVALID_INTEGERS if not (null and value is None)]
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
    good = (folder / "config.json").read_text()
    for value, changes in changes_by_value.items():
        change_config(folder, **changes)
        try:
            message = get_error_message(lambda: qkv.load(folder))
        except (Exception, TimedOutError, pytest.fail.Exception) as error:
            problems.append(f"{value}: {type(error).__name__} {error}"[:300])
        else:
            missing = [word for word in ("config.json", key, value) if word not in message]
            problems += [f"{value}: {missing} not in: {message[:300]}"] if missing else []
        (folder / "config.json").write_text(good)
    return problems


KEYS = [
    (f, name) for f in FAMILIES for name in list_integer_arguments(f) if name in get_config_keys(f)
]


@pytest.mark.parametrize(("family", "name"), KEYS, ids=[f"{f}-{n}" for f, n in KEYS])
def test_invalid_sizes(family: str, name: str, folder: Folder) -> None:
    key = get_config_keys(family)[name]
    changes_by_value = {repr(value): {key: value} for value in list_invalid_values(family, name)}
    assert find_wrong_messages(folder(family), get_leaf(key), changes_by_value) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_invalid_sizes_in_native_format(family: str, folder: Folder) -> None:
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
            for words in find_wrong_messages(folder(family), inner or name, changes_by_value)
        ]
    assert problems == []


@pytest.mark.parametrize(
    ("family", "sizes", "positions"),
    [("sparse", dict(heads=2**28, width=2**28, split="heads"), None),
     ("gpt2", dict(heads=2**27, width=2**28), "alibi"), ("gpt2", dict(heads=1, width=2**28), "rotary"),
     ("transformer-xl", dict(mem_len=2**28), None)],
)  # fmt: skip
def test_sizes_too_large_for_memory(
    family: str, sizes: Any, positions: str | None, folder: Folder
) -> None:
    native = dict(
        model_type="qkv",
        format_version=2,
        family=family,
        position_embedding_type=positions,
        arguments=tiny.SIZES[family] | sizes,
    )
    assert_load_fails(change_config(folder(family), **native), "config.json", "expected")


DEPTHS = [
    (f, name)
    for f, name in KEYS
    if get_leaf(name) in MODULES.split() and (f, name) != ("albert", "depth")
]


@pytest.mark.parametrize(("family", "name"), DEPTHS, ids=[f"{f}-{n}" for f, n in DEPTHS])
def test_more_layers_than_tensors(family: str, name: str, folder: Folder) -> None:
    key = get_config_keys(family)[name]
    assert find_wrong_messages(folder(family), "layers", {"5000": {key: 5000}}) == []


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
HEAD_ARGUMENTS = (
    "summary_type",
    "summary_activation",
    "classifier_pooling",
)  # read by one head only
OTHER_ARGUMENTS = [
    (f, name) for f in FAMILIES for name in get_config_keys(f)
    if get_leaf(name) not in (*MIN_VALUES, *HEAD_ARGUMENTS)
    and (type(get_default(f, name)) in INVALID_VALUES or name in RATES)
]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "name"), OTHER_ARGUMENTS, ids=[f"{f}-{n}" for f, n in OTHER_ARGUMENTS]
)
def test_invalid_values_of_other_keys(family: str, name: str, folder: Folder) -> None:
    default_value, key = get_default(family, name), get_config_keys(family)[name]
    is_rate = get_leaf(name) in RATES
    value_type = float if is_rate else type(default_value)
    none_is_invalid = value_type is not bool and default_value is not None
    invalid = INVALID_VALUES[value_type] + ([None] if none_is_invalid else [])
    invalid += [-0.1, 1.5] if is_rate else [-1.0] if name.endswith("eps") else []
    changes_by_value = {repr(value): {key: value} for value in invalid}
    assert find_wrong_messages(folder(family), get_leaf(key), changes_by_value) == []


SUPPORTED_KEYS = [(f, key) for f, family in FAMILIES.items() for key in family.supported_values]


@pytest.mark.parametrize(
    ("family", "key"), SUPPORTED_KEYS, ids=[f"{f}-{k}" for f, k in SUPPORTED_KEYS]
)
def test_unsupported_values(family: str, key: str, folder: Folder) -> None:
    supported = FAMILIES[family].supported_values[key]
    candidates: list[Any] = ["rocket", 7, [], {}, None, True, False]
    invalid = [value for value in candidates if not any(value is item for item in supported)]
    changes_by_value = {repr(value): {key: value} for value in invalid}
    assert find_wrong_messages(folder(family), key, changes_by_value) == []


# Family, changes of its config.json, and words of the error message.
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
    (
        "modernbert",
        {"global_attn_every_n_layers": 0, "layer_types": None},
        "global_attn_every_n_layers 0",
    ),
    ("transformer-xl", {"cutoffs": [20, 10]}, "cutoffs [20,~10]"),
    ("transformer-xl", {"cutoffs": ["x"]}, "cutoffs ['x']"),
    ("transformer-xl", {"cutoffs": 10}, "cutoffs 10"),
    ("transformer-xl", {"cutoffs": [10**9]}, "cutoffs [1000000000]"),
    ("transformer-xl", {"tie_projs": 5}, "tie_projs 5"),
    ("transformer-xl", {"div_val": 1000}, "div_val 1000"),
    ("albert", {"num_hidden_groups": 5000, "inner_group_num": 5000}, "5000"),
    ("albert", {"num_hidden_layers": 5000, "inner_group_num": 5000}, "5000"),
    ("switch", {"num_layers": 5000, "num_experts": 5000}, "5000"),
    (
        "llama",
        {"hidden_size": 2**28, "num_attention_heads": 1, "num_key_value_heads": 1},
        "hidden_size",
    ),
    ("llama", {"head_dim": 2**28}, "head_dim"),  # one frequency for each pair
    (
        "t5",
        {"num_heads": 2**28, "d_kv": 2**28, "d_model": 2**28},
        "d_model",
    ),  # a shape past 64 bits
    ("clip", {"vision_config.image_size": 2**28, "vision_config.patch_size": 1}, "image_size"),
    ("clip", {"vision_config.num_channels": 2**28}, "num_channels"),
    ("transformer-xl", {"mem_len": 2**28}, "mem_len"),  # memory starts with zeros
    ("electra", {"summary_activation": "rocket"}, "summary_activation 'rocket'"),
    ("xlnet", {"summary_activation": ["tanh"]}, "summary_activation ['tanh']"),
    (
        "electra",
        {"summary_type": "rocket", "architectures": ["ElectraForMultipleChoice"]},
        "summary_type",
    ),
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
]


@pytest.mark.parametrize(
    ("family", "changes", "words"), INVALID_CONFIGS, ids=[f"{f}-{w}" for f, _, w in INVALID_CONFIGS]
)
def test_invalid_combinations(
    family: str, changes: dict[str, Any], words: str, folder: Folder
) -> None:
    model_folder = folder(family)
    if "label" in str(changes):
        changes = changes | {"architectures": ["BertForSequenceClassification"]}
    expected = [word.replace("~", " ") for word in words.split()]
    assert_load_fails(change_config(model_folder, **changes), "config.json", *expected)


# --- weights ---


def change_tensors(folder: Path, **tensors: Tensor | None) -> Path:
    """Change tensors of the file; None removes one."""
    stored = load_file(folder / FILE) | {name: x for name, x in tensors.items() if x is not None}
    save_file(
        {name: x for name, x in stored.items() if tensors.get(name, x) is not None}, folder / FILE
    )
    return folder


def test_all_mismatches_are_reported_at_once(folder: Folder) -> None:
    new = {
        "bert.embeddings.LayerNorm.bias": None,
        "bert.encoder.layer.1.output.dense.weight": None,
        "bert.encoder.layer.0.output.dense.weight": torch.zeros(24, 41),
        "bert.encoder.layer.0.output.dense.bias": torch.zeros(()),
        "bert.encoder.layer.7.output.dense.bias": torch.zeros(24),
        "rocket.engine": torch.zeros(3),
    }
    shapes = ("[24, 41]", "[24, 40]", "[]", "[24]")
    assert_load_fails(change_tensors(folder("bert"), **new), *new, *shapes)


def test_weights_of_another_model(folder: Folder) -> None:
    model_folder = folder("gpt2")
    shutil.copy(folder("bert") / FILE, model_folder / FILE)
    assert_load_fails(model_folder, "wte.weight", "bert.embeddings.word_embeddings.weight")


def test_no_tensors(folder: Folder) -> None:
    model_folder = folder("t5")
    save_file({}, model_folder / FILE)
    assert_load_fails(model_folder)


def test_unprintable_tensor_names(folder: Folder) -> None:
    assert_load_fails(
        change_tensors(folder("bert"), **{"two\nlines\x1b[31m": torch.zeros(1)}), "two"
    )


@pytest.mark.parametrize(
    "kind", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_weights_of_other_dtypes(kind: torch.dtype, folder: Folder) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    assert_load_fails(
        change_tensors(folder("bert"), **{name: torch.zeros(24, 40).to(kind)}),
        name,
        str(kind).removeprefix("torch."),
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_weights(value: float, folder: Folder) -> None:
    tensor = torch.zeros(53, 24)
    tensor[2, 3] = value
    model_folder = change_tensors(
        folder("bert"), **{"bert.embeddings.word_embeddings.weight": tensor}
    )
    with pytest.warns(UserWarning, match=r"embed.*(tokens|word_embeddings).*not finite") as caught:
        model = qkv.load(model_folder)
    assert len(caught) == 1
    assert model(tiny.random_ids(1, 3))["logits"].shape == (1, 3, 53)


def header(**entry: Any) -> bytes:
    text = json.dumps({"a": dict(dtype="F32", shape=[2], data_offsets=[0, 8]) | entry}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 8


GOOD = save({"a": torch.zeros(2)})
INVALID_FILES: dict[str, bytes] = {
    "empty": b"",
    "three bytes": b"abc",
    "cut in the length": GOOD[:5],
    "cut in the header": GOOD[:20],
    "cut in the data": GOOD[:-3],
    "too long": GOOD + b"\0",
    "a length of 2^63": struct.pack("<Q", 1 << 63) + GOOD[8:],
    "a length of 10^9": struct.pack("<Q", 10**9) + GOOD[8:],
    "no JSON": struct.pack("<Q", 8) + b"{rocket}",
    "deep": struct.pack("<Q", len(DEEP)) + DEEP,
    "a kind that is none": header(dtype="F33"),
    "a shape of 10^18": header(shape=[10**18]),
    "a shape of 2^64": header(shape=[1 << 32, 1 << 32]),
    "a negative shape": header(shape=[-2]),
    "offsets past the end": header(shape=[10**9], data_offsets=[0, 4 * 10**9]),
    "offsets that cross": header(data_offsets=[8, 0]),
    "a shape that is not its data": header(shape=[3]),
    "a pickle": pickle.dumps({"a": 1}),
    "an LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "a zip": b"PK\x03\x04" + b"\0" * 60,
    "text": b"<html>not found</html>",
}


@pytest.mark.parametrize("content", INVALID_FILES.values(), ids=INVALID_FILES)
def test_invalid_safetensors(content: bytes, folder: Folder) -> None:
    model_folder = folder("bert")
    (model_folder / FILE).write_bytes(content)
    assert_load_fails(model_folder, FILE)


class Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("file_format", ["zip", "old", "bare"])
@pytest.mark.parametrize("name", [FILE, "pytorch_model.bin"])
def test_code_in_a_pickle_is_never_run(
    name: str, file_format: str, folder: Folder, tmp_path: Path
) -> None:
    model_folder, marker = folder("bert"), tmp_path / "ran"
    (model_folder / FILE).unlink()
    stored = {"a": torch.zeros(2), "b": Code(marker)}
    if file_format == "bare":
        (model_folder / name).write_bytes(pickle.dumps({"b": Code(marker)}))
    else:
        torch.save(stored, model_folder / name, _use_new_zipfile_serialization=file_format == "zip")
    assert_load_fails(model_folder, name)
    assert not marker.exists()


def test_no_weights(folder: Folder) -> None:
    model_folder = folder("bert")
    (model_folder / FILE).unlink()
    assert_load_fails(model_folder, FILE, "pytorch_model.bin")


def write_index(model_folder: Path, shard: str) -> Path:
    stored = load_file(model_folder / FILE)
    (model_folder / FILE).unlink()
    save_file(stored, model_folder / "good.safetensors")
    names = dict.fromkeys(stored, "good.safetensors") | {"bert.embeddings.LayerNorm.bias": shard}
    (model_folder / f"{FILE}.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": names})
    )
    return model_folder


@pytest.mark.parametrize(
    "variant", ["up", "absolute", "link", "fifo", "folder", "missing", "device", "link to device"]
)
def test_shards_outside_of_the_folder(variant: str, folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.copy(folder("bert") / FILE, outside)
    shard = {"up": "../outside.safetensors", "absolute": str(outside), "device": "/dev/zero"}.get(
        variant, "x.safetensors"
    )
    model_folder = write_index(folder("bert"), shard)
    if variant == "link":
        (model_folder / shard).symlink_to(outside)
    elif variant == "fifo":
        os.mkfifo(model_folder / shard)
    elif variant == "folder":
        (model_folder / shard).mkdir()
    elif variant == "link to device":
        (model_folder / shard).symlink_to("/dev/zero")
    assert_load_fails(model_folder, "index.json", shard)


@pytest.mark.parametrize("variant", ["fifo", "folder", "device"])
def test_weights_are_no_regular_file(variant: str, folder: Folder) -> None:
    path = folder("bert") / FILE
    path.unlink()
    if variant == "fifo":
        os.mkfifo(path)
    elif variant == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    assert_load_fails(path.parent, FILE)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {}}']
)
def test_invalid_index(index: str, folder: Folder) -> None:
    model_folder = folder("bert")
    (model_folder / FILE).unlink()
    (model_folder / f"{FILE}.index.json").write_text(index)
    assert_load_fails(model_folder, model_folder.name)


# --- Model.run ---

B, T = 2, 5
IDS, MASK = tiny.random_ids(B, T), torch.ones(B, T, dtype=torch.bool)
LONG = tiny.random_ids(1, 65)
X = torch.zeros(B, T, tiny.WIDTH)
HALF = torch.ones(B, T)
STATES = torch.zeros(B, 3, tiny.WIDTH)
PICTURE = torch.zeros(B, 3, 12, 12)
IDS_WITH_EOS = torch.cat([IDS, torch.full((B, 1), 2)], 1)
CROSS_ATTENTION: dict[str, Any] = dict(is_decoder=True, add_cross_attention=True)
MEMS = torch.zeros(2, B, 4, tiny.WIDTH)
EYE = torch.eye(T).expand(B, T, T)
# Family, changes, inputs, and words of the error message.
INVALID_RUNS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *(
        (family, {}, {}, "no~input input_ids inputs_embeds")
        for family in tiny.FAMILIES
        if family != "clip"
    ),
    ("clip", {}, {}, "no~input input_ids pixel_values"),
    ("bert", {}, dict(attention_mask=MASK), "attention_mask input_ids"),
    ("bert", {}, dict(input_ids=[[5, 6]]), "input_ids list tensor"),
    ("bert", {}, dict(input_ids=5), "input_ids int tensor"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=[[1]]), "attention_mask list tensor"),
    ("bert", {}, dict(input_ids=IDS.float()), "input_ids float32 int64"),
    ("bert", {}, dict(input_ids=IDS.bool()), "input_ids bool int64"),
    ("bert", {}, dict(input_ids=IDS[0]), "input_ids (5,) (B,~T)"),
    ("bert", {}, dict(input_ids=IDS[None]), "input_ids (1,~2,~5) (B,~T)"),
    ("bert", {}, dict(input_ids=torch.tensor(5)), "input_ids () (B,~T)"),
    ("bert", {}, dict(input_ids=IDS[:, :0]), "input_ids (2,~0)"),
    ("bert", {}, dict(input_ids=IDS[:0]), "input_ids (0,~5)"),
    ("bert", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("bert", {}, dict(input_ids=IDS - 60), "input_ids -"),
    ("bert", {}, dict(input_ids=LONG), "input_ids 65 64"),
    ("bert", {}, dict(inputs_embeds=torch.zeros(1, 65, 24)), "inputs_embeds 65 64"),
    ("bert", {}, dict(input_ids=IDS, inputs_embeds=X), "input_ids inputs_embeds"),
    ("bert", {}, dict(inputs_embeds=X[..., :7]), "inputs_embeds (2,~5,~7) 24"),
    ("bert", {}, dict(inputs_embeds=X.long()), "inputs_embeds int64 float"),
    ("bert", {}, dict(inputs_embeds=X[0]), "inputs_embeds (5,~24)"),
    ("albert", {}, dict(inputs_embeds=X), "inputs_embeds (2,~5,~24) 12"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:, 1:]), "attention_mask (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:1]), "attention_mask (1,~5) 2"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK[:, None]), "attention_mask (2,~1,~5)"),
    ("bert", {}, dict(input_ids=IDS, attention_mask=-1e9 * HALF), "attention_mask float32 bool"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS[:, 1:]), "position_ids (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS.float()), "position_ids float32 int64"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS + 60), "position_ids 63"),
    ("bert", {}, dict(input_ids=IDS, position_ids=IDS - 60), "position_ids -"),
    ("roberta", {}, dict(input_ids=tiny.random_ids(1, 59)), "input_ids 59 58"),
    ("roberta", {}, dict(input_ids=IDS, position_ids=IDS + 50), "position_ids 57"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS), "token_type_ids 2"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=-IDS), "token_type_ids -"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS[:, 1:] * 0), "token_type_ids (2,~4) 5"),
    ("bert", {}, dict(input_ids=IDS, token_type_ids=IDS.float() * 0), "token_type_ids float32"),
    ("gpt2", {}, dict(input_ids=IDS, token_type_ids=IDS + 53), "token_type_ids 52"),
    *(
        (f, {}, dict(input_ids=IDS, decoder_input_ids=IDS), "decoder_input_ids decoder")
        for f in ("bert", "gpt2", "xlnet", "llama")
    ),
    *(
        (f, {}, dict(input_ids=IDS, decoder_attention_mask=MASK), "decoder_attention_mask decoder")
        for f in ("bert", "gpt2", "bart")
    ),
    *(
        (f, {}, dict(input_ids=IDS, encoder_hidden_states=STATES), "encoder_hidden_states cross")
        for f in ("bert", "gpt2", "llama", "xlnet")
    ),
    *((f, {}, dict(input_ids=IDS, mems=MEMS), "mems recurrence") for f in ("bert", "gpt2", "bart")),
    *(
        (f, {}, dict(input_ids=IDS, perm_mask=EYE), "perm_mask stream")
        for f in ("bert", "gpt2", "transformer-xl")
    ),
    *(
        (f, {}, dict(input_ids=IDS, target_mapping=EYE), "target_mapping stream")
        for f in ("bert", "gpt2", "transformer-xl")
    ),
    *(
        (f, {}, dict(input_ids=IDS, mc_token_ids=IDS[:, 0]), "mc_token_ids head")
        for f in ("bert", "gpt2", "xlnet")
    ),
    *(
        (f, {}, dict(input_ids=IDS, pixel_values=PICTURE), "pixel_values tower")
        for f in ("bert", "gpt2", "bart")
    ),
    *(
        (f, {}, dict(input_ids=IDS), "decoder_input_ids")
        for f in ("transformer", "marian", "t5", "switch")
    ),
    *((f, {}, dict(inputs_embeds=X), "decoder_input_ids") for f in ("bart", "mbart", "t5")),
    *(
        (f, {}, dict(input_ids=IDS, decoder_input_ids=IDS + 53), "decoder_input_ids 52")
        for f in tiny.ENCODER_DECODERS
    ),
    ("bart", {}, dict(input_ids=IDS, decoder_input_ids=IDS[:1]), "decoder_input_ids (1,~5) 2"),
    (
        "bart",
        {},
        dict(input_ids=IDS, decoder_input_ids=IDS.float()),
        "decoder_input_ids float32 int64",
    ),
    ("bart", {}, dict(input_ids=IDS, decoder_input_ids=IDS[0]), "decoder_input_ids (5,)"),
    ("bart", {}, dict(input_ids=IDS[:1], decoder_input_ids=LONG), "decoder_input_ids 65 64"),
    ("bart", {}, dict(input_ids=LONG), "input_ids 65 64"),
    (
        "bart",
        {},
        dict(input_ids=IDS, decoder_input_ids=IDS, decoder_attention_mask=MASK[:, 1:]),
        "decoder_attention_mask (2,~4) 5",
    ),
    ("bart", {}, dict(decoder_input_ids=IDS), "no~input encoder_hidden_states"),
    ("bart", {}, dict(encoder_hidden_states=STATES), "decoder_input_ids"),
    (
        "bart",
        {},
        dict(encoder_hidden_states=STATES[..., :7], decoder_input_ids=IDS),
        "encoder_hidden_states (2,~3,~7) 24",
    ),
    ("bart", {"head": "sequence-classification"}, dict(input_ids=IDS), "end 2"),
    (
        "bart",
        {"head": "sequence-classification"},
        dict(inputs_embeds=X, decoder_input_ids=IDS),
        "inputs_embeds end input_ids",
    ),
    ("t5", {"head": "sequence-classification"}, dict(input_ids=IDS_WITH_EOS), "end 1"),
    (
        "bart",
        {"head": "sequence-classification"},
        dict(input_ids=IDS_WITH_EOS, decoder_input_ids=IDS),
        "decoder_input_ids 5 6 sequence_classification",
    ),
    ("clip", {}, dict(inputs_embeds=X), "inputs_embeds end input_ids"),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[..., :7]),
        "encoder_hidden_states (2,~3,~7) 24",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[:1]),
        "encoder_hidden_states (1,~3,~24) 2",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES[0]),
        "encoder_hidden_states (3,~24)",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES.long()),
        "encoder_hidden_states int64",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_hidden_states=STATES, encoder_attention_mask=MASK),
        "encoder_attention_mask (2,~5) 3",
    ),
    (
        "bert",
        CROSS_ATTENTION,
        dict(input_ids=IDS, encoder_attention_mask=MASK),
        "encoder_attention_mask encoder_hidden_states",
    ),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:1]), "mems (1,~2,~4,~24) 2"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:, :1]), "mems (2,~1,~4,~24)"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[..., :7]), "mems (2,~2,~4,~7) 24"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[0]), "mems (2,~4,~24)"),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS.long()), "mems int64"),
    ("transformer-xl", {}, dict(input_ids=IDS, mems=MEMS[:1]), "mems (1,~2,~4,~24) 2"),
    ("transformer-xl", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE[:, 1:]), "perm_mask (2,~4,~5) 5"),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE[0]), "perm_mask (5,~5)"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE[..., 1:]), "target_mapping (2,~5,~4) 5"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE * 0), "target_mapping 1"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE * 0 + 1), "target_mapping 1"),
    ("xlnet", {}, dict(input_ids=IDS, target_mapping=EYE / 2), "target_mapping 1"),
    ("gpt2", {"head": "double-heads"}, dict(input_ids=IDS), "input_ids (2,~5) (B,~C,~T)"),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], attention_mask=MASK),
        "attention_mask (2,~5)",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=IDS[None, :, 0]),
        "mc_token_ids 0 4",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=-IDS[None, :, 0]),
        "mc_token_ids -",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=IDS[0, :1]),
        "mc_token_ids (1,)",
    ),
    (
        "gpt2",
        {"head": "double-heads"},
        dict(input_ids=IDS[None], mc_token_ids=HALF[None, :, 0]),
        "mc_token_ids float32",
    ),
    ("bert", {"head": "multiple-choice"}, dict(input_ids=IDS), "input_ids (2,~5) (B,~C,~T)"),
    ("clip", {}, dict(pixel_values=PICTURE[:, :1]), "pixel_values (2,~1,~12,~12) 3"),
    ("clip", {}, dict(pixel_values=PICTURE[..., 1:]), "pixel_values (2,~3,~12,~11) 12"),
    ("clip", {}, dict(pixel_values=PICTURE[0]), "pixel_values (3,~12,~12)"),
    ("clip", {}, dict(pixel_values=PICTURE.to(torch.uint8)), "pixel_values uint8 float"),
    ("clip", {}, dict(input_ids=LONG), "input_ids 65 64"),
    ("clip", {}, dict(input_ids=IDS + 53), "input_ids 52"),
    ("clip", {"head": "text"}, dict(pixel_values=PICTURE), "pixel_values tower"),
    ("clip", {"head": "image"}, dict(input_ids=IDS), "input_ids tower"),
    ("clip", {"head": "image"}, {}, "pixel_values"),
    (
        "bert",
        {},
        dict(input_ids=IDS, extra_outputs=("rocket",)),
        "extra_outputs rocket hidden_states",
    ),
    ("bert", {}, dict(input_ids=IDS, extra_outputs="hidden_states"), "extra_outputs hidden_states"),
    ("bert", {}, dict(input_ids=IDS, extra_outputs=5), "extra_outputs 5"),
    (
        "bert",
        {},
        dict(input_ids=IDS, extra_outputs=("router_logits",)),
        "extra_outputs router_logits experts",
    ),
]
RUN_NAMES = [f"{family} {words} {n}" for n, (family, _, _, words) in enumerate(INVALID_RUNS)]


@cache
def build_tiny(family: str, *changes: tuple[str, Any]) -> qkv.Model:
    return tiny.build(family, dtype=torch.float32, **dict(changes))


@pytest.mark.parametrize(("family", "changes", "inputs", "words"), INVALID_RUNS, ids=RUN_NAMES)
def test_invalid_inputs(
    family: str, changes: dict[str, Any], inputs: dict[str, Any], words: str
) -> None:
    model = build_tiny(family, *changes.items())
    message = get_error_message(lambda: model(**inputs))
    missing = [word for word in words.split() if word.replace("~", " ") not in message]
    assert not missing, f"{missing} not in: {message}"
    assert len(message) < 200


# Unusual inputs that are valid.
VALID_RUNS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("bert", {}, dict(input_ids=IDS.int(), token_type_ids=IDS.int() * 0)),
    *(
        (f, {}, dict(input_ids=IDS, token_type_ids=IDS * 0))
        for f in ("distilbert", "llama", "modernbert")
    ),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK.long())),
    (
        "bert",
        {},
        dict(input_ids=tiny.random_ids(1, 70), attention_mask=torch.arange(70)[None] < 64),
    ),  # 64 tokens on 64 positions
    (
        "bert",
        {},
        dict(input_ids=tiny.random_ids(1, 70), attention_mask=torch.arange(70)[None] >= 6),
    ),
    ("bert", {}, dict(input_ids=IDS, attention_mask=MASK & False)),
    ("roberta", {}, dict(input_ids=tiny.random_ids(1, 58))),
    ("bert", {}, dict(input_ids=IDS, extra_outputs=["hidden_states"])),
    ("bert", CROSS_ATTENTION, dict(input_ids=IDS)),
    ("bart", {}, dict(encoder_hidden_states=STATES, decoder_input_ids=IDS)),
    ("bart", {}, dict(input_ids=IDS)),
    ("xlnet", {}, dict(input_ids=IDS, mems=MEMS[:, :, :0])),
    ("xlnet", {}, dict(input_ids=IDS, token_type_ids=IDS)),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE.bool(), target_mapping=EYE.bool())),
    ("xlnet", {}, dict(input_ids=IDS, perm_mask=EYE.long(), target_mapping=EYE.long())),
    (
        "switch",
        {},
        dict(
            input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits", "hidden_states")
        ),
    ),
    (
        "switch",
        dict(decoder_depth=1, num_sparse_decoder_layers=1),
        dict(input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits",)),
    ),
    (
        "switch",
        dict(depth=2, num_sparse_encoder_layers=0),
        dict(input_ids=IDS, decoder_input_ids=IDS, extra_outputs=("router_logits",)),
    ),
    ("llama", {}, dict(input_ids=IDS, position_ids=IDS + 10_000)),
    ("clip", {}, dict(input_ids=IDS)),
    ("clip", {}, dict(input_ids=IDS[:1], pixel_values=PICTURE)),
]


@pytest.mark.parametrize(("family", "changes", "inputs"), VALID_RUNS, ids=range(len(VALID_RUNS)))
def test_unusual_valid_inputs(family: str, changes: dict[str, Any], inputs: dict[str, Any]) -> None:
    out = build_tiny(family, *changes.items())(**inputs)
    assert out
    assert all(x.isfinite().all() for x in out.values())


# --- qkv.build and Model.save ---

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
def test_invalid_arguments(arguments: tuple[Any, ...], changes: dict[str, Any], words: str) -> None:
    message = get_error_message(lambda: qkv.build(*arguments, **changes))
    missing = [word for word in words.split() if word not in message]
    assert not missing, f"{missing} not in: {message}"


def test_save_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    message = get_error_message(
        lambda: build_tiny("bert").save(tmp_path / "file"), (ValueError, OSError)
    )
    assert "file" in message
    assert (tmp_path / "file").read_text() == "mine"
    assert "file" in get_error_message(
        lambda: build_tiny("bert").save(tmp_path / "file" / "x"), (ValueError, OSError)
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_save_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert tmp_path.name in get_error_message(
        lambda: build_tiny("bert").save(tmp_path / "x"), (ValueError, OSError)
    )


@pytest.mark.parametrize("file_format", ["rocket", "", None, 5])
def test_save_in_an_unknown_format(file_format: Any, tmp_path: Path) -> None:
    message = get_error_message(lambda: build_tiny("bert").save(tmp_path / "x", format=file_format))
    assert repr(file_format) in message
    assert "hf" in message
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("family", "changes", "word"),
    [("gpt3", {}, "gpt3"), ("sparse", {}, "sparse"), ("transformer", {}, "transformer"),
     ("transformer-xl", {}, "transformer-xl"), ("gpt2", {"positions": "alibi"}, "alibi")],
)  # fmt: skip
def test_save_what_hugging_face_does_not_support(
    family: str, changes: Any, word: str, tmp_path: Path
) -> None:
    model = tiny.build(family, dtype=torch.float32, **changes)
    assert word in get_error_message(lambda: model.save(tmp_path / "x", format="hf"))
    assert not (tmp_path / "x").exists()


def test_loading_does_not_warn(models: Folder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in FAMILIES:
            qkv.load(models(family))
