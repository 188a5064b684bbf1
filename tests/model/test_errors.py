"""Bad input gets one clear line: the file, the value and what was expected. Nothing is run that should
not be, nothing waits, and nothing large is allocated because a file says so."""

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


class Waited(BaseException):
    """It hung."""


@contextmanager
def frugal() -> Iterator[None]:
    """What runs within has a second of work and 200 MB, and may not wait."""

    def stop(*_: object) -> None:
        raise Waited

    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
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


def complaint(run: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    """The message of the error that it must end in: one line, in good time and little memory."""
    with frugal(), pytest.raises(kind) as caught:
        run()
    message = str(caught.value)
    assert message
    assert message.isprintable(), "more than one line"
    return message


def refused(folder: Path, *words: object) -> None:
    message = complaint(lambda: qkv.load(folder))
    missing = [word for word in (folder.name, *words) if str(word) not in message]
    assert not missing, f"{missing} not in: {message}"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A family's folder as it should be; written once, opened once."""

    @cache
    def model(family: str) -> Path:
        folder = tmp_path_factory.mktemp("models") / family
        if family == "transformer-xl":  # no longer written in Hugging Face's form
            shutil.copytree(GOLDEN / "xl-base", folder)
        else:
            tiny.model(family, dtype=torch.float32).save(folder)
        qkv.load(folder)
        return folder

    return model


@pytest.fixture
def folder(models: Folder, tmp_path: Path) -> Folder:
    """The same, to be broken."""
    return lambda family: Path(shutil.copytree(models(family), tmp_path / family, dirs_exist_ok=True))


def config(folder: Path, **changes: Any) -> Path:
    """Changes keys of config.json; a dot leads into a nested object."""
    path = folder / "config.json"
    values = json.loads(path.read_text())
    for key, value in changes.items():
        side, _, last = key.rpartition(".")
        (values[side] if side else values)[last] = value
    path.write_text(json.dumps(values))
    return folder


# --- config.json as a file ----------------------------------------------------------------------------------

DEEP = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
CONFIGS = {
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
    "unknown family": (b'{"model_type": "qkv", "family": "rocket"}', "config.json family rocket bert"),
    "no family": (b'{"model_type": "qkv"}', "config.json family None"),
    "arguments": (b'{"model_type": "qkv", "family": "bert", "arguments": [1]}', "config.json arguments [1]"),
    "argument": (b'{"model_type": "qkv", "family": "bert", "arguments": {"wings": 2}}', "config.json wings"),
    "head": (
        b'{"model_type": "qkv", "family": "bert", "arguments": {"head": ["x"]}}',
        "config.json head ['x']",
    ),
    "positions": (
        b'{"model_type": "qkv", "family": "gpt2", "positions": "gps"}',
        "config.json positions gps",
    ),
    "positions [5]": (
        b'{"model_type": "qkv", "family": "gpt2", "positions": [5]}',
        "config.json positions [5]",
    ),
    "positions 5": (b'{"model_type": "qkv", "family": "gpt2", "positions": 5}', "config.json positions 5"),
}


@pytest.mark.parametrize(("content", "words"), CONFIGS.values(), ids=CONFIGS)
def test_config_that_is_wrong(folder: Folder, content: bytes, words: str) -> None:
    broken = folder("bert")
    (broken / "config.json").write_bytes(content)
    refused(broken, *(word.replace("~", " ") for word in words.split()))


def test_config_that_is_no_file(folder: Folder) -> None:
    path = folder("bert") / "config.json"
    path.unlink()
    refused(path.parent, "config.json")
    os.mkfifo(path)
    refused(path.parent, "config.json")
    path.unlink()
    path.mkdir()
    refused(path.parent, "config.json")


@pytest.mark.parametrize(
    "place", ["no/such/folder", "./none", "/none", "no-such-model", "a b", "a/b/c", "~x"]
)
def test_no_folder(place: str) -> None:
    assert place.strip("./~") in complaint(lambda: qkv.load(place))


def test_file_for_a_folder(folder: Folder) -> None:
    assert FILE in complaint(lambda: qkv.load(folder("bert") / FILE))


@pytest.mark.parametrize(
    "names", [["BertForRockets"], "BertModel", 5, [5], [None], [["BertModel"]], {"a": 1}, True]
)
def test_architectures(folder: Folder, names: object) -> None:
    refused(config(folder("bert"), architectures=names), "config.json", "architectures", repr(names))


def test_code_beside_the_weights_is_never_run(folder: Folder) -> None:
    place, mark = folder("bert"), folder("bert") / "ran"
    (place / "modeling_rocket.py").write_text(f"open({str(mark)!r}, 'w')")
    auto = {"AutoModel": "modeling_rocket.RocketModel", "AutoConfig": "modeling_rocket.RocketConfig"}
    assert qkv.load(config(place, auto_map=auto, trust_remote_code=True)).config["auto_map"] == auto
    assert not mark.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [({"device": "quantum"}, "device quantum"), ({"device": "cuda:99"}, "device cuda:99"),
     ({"dtype": torch.int64}, "dtype int64"), ({"dtype": "float16"}, "dtype float16")],
    ids=str,
)  # fmt: skip
def test_options(models: Folder, options: dict[str, Any], words: str) -> None:
    message = complaint(lambda: qkv.load(models("bert"), **options))
    assert all(word in message for word in words.split()), message


# --- config.json by its keys --------------------------------------------------------------------------------

FAMILIES = {kin.name: kin for kin in qkv.list_families()}
TOWERS: dict[str, dict[str, Any]] = {"text": TEXT, "image": IMAGE}
# Our arguments that are whole numbers, and the smallest there may be.
MODULES = "depth decoder_depth image_depth groups inner experts"
SIZES = f"""
    {MODULES} vocab target_vocab width embed_width image_width heads decoder_heads image_heads kv_heads
    head_dim feed decoder_feed image_feed length image patch channels project text_project image_project
    capacity buckets reach window starts divide stride cells band
"""
LEAST = dict.fromkeys(SIZES.split(), 1)
LEAST |= dict.fromkeys("types memory reuse sparse decoder_sparse start end".split(), 0)
LEAST |= dict.fromkeys("clamp pad".split(), -1)
NULLABLE = {"memory", "target_vocab", "decoder_depth", "pad", "start", "end"}  # where a default is a number
WRONG: list[Any] = [
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
UNUSED = {"clamp", "reach"}  # a large one costs nothing


def last(path: str) -> str:
    return path.rpartition(".")[2]


@cache
def keys(family: str) -> dict[str, str]:
    """Our arguments and the keys of config.json, with a dot where one lies in another (CLIP)."""
    kin = FAMILIES[family]
    inner = {
        f"{side}.{ours}": f"{key}.{theirs}"
        for side, (key, words) in kin.nested.items()
        for ours, theirs in words.items()
        if ours in TOWERS[side]
    }
    return dict(kin.config) | inner


def default(family: str, path: str) -> Any:
    """What an argument is if nobody says otherwise."""
    side, _, name = path.rpartition(".")
    return TOWERS[side][name] if side else FAMILIES[family].defaults[name]


def wholes(family: str) -> list[str]:
    names = dict.fromkeys([*FAMILIES[family].defaults, *keys(family)])
    return [name for name in names if last(name) in LEAST and name not in FAMILIES[family].nested]


def values(family: str, path: str) -> list[Any]:
    """What no model of the family can have there."""
    name = last(path)
    null = default(family, path) is None or (name in NULLABLE and "." not in path)
    wrong = [value for value in WRONG if not (null and value is None)]
    wrong = [value for value in wrong if not (name in UNUSED and type(value) is int)]
    wrong += [-1, -(10**12)] if LEAST[name] >= 0 else []
    wrong += [0] if LEAST[name] == 1 else []
    return wrong + ([10**7] if name in MODULES.split() else [])


def complaints(folder: Path, key: str, tries: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong with the complaints about these changes to config.json, each under its value."""
    wrong = []
    good = (folder / "config.json").read_text()
    for value, changes in tries.items():
        config(folder, **changes)
        try:
            message = complaint(lambda: qkv.load(folder))
        except (Exception, Waited, pytest.fail.Exception) as error:
            wrong.append(f"{value}: {type(error).__name__} {error}"[:300])
        else:
            lost = [word for word in ("config.json", key, value) if word not in message]
            wrong += [f"{value}: {lost} not in: {message[:300]}"] if lost else []
        (folder / "config.json").write_text(good)
    return wrong


KEYS = [(f, name) for f in FAMILIES for name in wholes(f) if name in keys(f)]


@pytest.mark.parametrize(("family", "name"), KEYS, ids=[f"{f}-{n}" for f, n in KEYS])
def test_sizes(family: str, name: str, folder: Folder) -> None:
    key = keys(family)[name]
    tries = {repr(value): {key: value} for value in values(family, name)}
    assert complaints(folder(family), last(key), tries) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_in_our_own_form(family: str, folder: Folder) -> None:
    """`model_type: qkv`: family and arguments, as they are."""
    wrong = []
    for name in wholes(family):
        side, _, inner = name.rpartition(".")
        tries = {}
        for value in values(family, name):
            change = {side: tiny.SIZES[family][side] | {inner: value}} if side else {name: value}
            own = dict(model_type="qkv", family=family, arguments=tiny.SIZES[family] | change)
            tries[repr(value)] = own
        wrong += [f"{name} {words}" for words in complaints(folder(family), inner or name, tries)]
    assert wrong == []


@pytest.mark.parametrize(
    ("family", "sizes", "positions"),
    [("sparse", dict(heads=2**28, width=2**28, split="heads"), None),
     ("gpt2", dict(heads=2**27, width=2**28), "alibi"), ("gpt2", dict(heads=1, width=2**28), "rotary"),
     ("transformer-xl", dict(memory=2**28), None)],
)  # fmt: skip
def test_lists_as_long_as_a_size(family: str, sizes: Any, positions: str | None, folder: Folder) -> None:
    own = dict(model_type="qkv", family=family, positions=positions, arguments=tiny.SIZES[family] | sizes)
    refused(config(folder(family), **own), "config.json", "expected")


DEPTHS = [(f, name) for f, name in KEYS if last(name) in MODULES.split() and (f, name) != ("albert", "depth")]


@pytest.mark.parametrize(("family", "name"), DEPTHS, ids=[f"{f}-{n}" for f, n in DEPTHS])
def test_more_layers_than_the_file_holds(family: str, name: str, folder: Folder) -> None:
    key = keys(family)[name]
    assert complaints(folder(family), "layers", {"5000": {key: 5000}}) == []


# What is wrong for arguments of other kinds.
KINDS: dict[type, list[Any]] = {
    float: ["0.1", True, [0.1], {}, float("nan"), float("inf")],
    bool: ["yes", 1, 0, 0.0, None, []],
    str: [5, True, ["gelu"], {}, "rocket", ""],
}
RATES = "drop attend_drop label_drop feed_drop embed_drop span_drop summary_drop image_drop".split()
ONE_HEAD = ("summary_kind", "summary_act", "pooling")  # words that one head alone reads
OTHER = [
    (f, name) for f in FAMILIES for name in keys(f)
    if last(name) not in (*LEAST, *ONE_HEAD) and (type(default(f, name)) in KINDS or name in RATES)
]  # fmt: skip


@pytest.mark.parametrize(("family", "name"), OTHER, ids=[f"{f}-{n}" for f, n in OTHER])
def test_other_keys(family: str, name: str, folder: Folder) -> None:
    usual, key = default(family, name), keys(family)[name]
    rate = last(name) in RATES
    kind = float if rate else type(usual)
    wrong = KINDS[kind] + ([None] if kind is not bool and usual is not None else [])
    wrong += [-0.1, 1.5] if rate else [-1.0] if name.endswith("eps") else []
    tries = {repr(value): {key: value} for value in wrong}
    assert complaints(folder(family), last(key), tries) == []


ONLY = [(f, key) for f, kin in FAMILIES.items() for key in kin.only]


@pytest.mark.parametrize(("family", "key"), ONLY, ids=[f"{f}-{k}" for f, k in ONLY])
def test_keys_with_one_supported_value(family: str, key: str, folder: Folder) -> None:
    supported = FAMILIES[family].only[key]
    tried: list[Any] = ["rocket", 7, [], {}, None, True, False]
    wrong = [value for value in tried if not any(value is each for each in supported)]
    assert complaints(folder(family), key, {repr(value): {key: value} for value in wrong}) == []


# Family, what is changed in its config.json, and what the complaint names.
TOGETHER: list[tuple[str, dict[str, Any], str]] = [
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
    ("llama", {"head_dim": 5}, "head_dim 5"),  # rotary turns pairs
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
    ("llama", {"head_dim": 2**28}, "head_dim"),  # a rate for each pair
    ("t5", {"num_heads": 2**28, "d_kv": 2**28, "d_model": 2**28}, "d_model"),  # a shape past 64 bits
    ("clip", {"vision_config.image_size": 2**28, "vision_config.patch_size": 1}, "image_size"),
    ("clip", {"vision_config.num_channels": 2**28}, "num_channels"),
    ("transformer-xl", {"mem_len": 2**28}, "mem_len"),  # zeros to begin with
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
]


@pytest.mark.parametrize(("family", "changes", "words"), TOGETHER, ids=[f"{f}-{w}" for f, _, w in TOGETHER])
def test_keys_that_do_not_go_together(
    family: str, changes: dict[str, Any], words: str, folder: Folder
) -> None:
    place = folder(family)
    if "label" in str(changes):
        changes = changes | {"architectures": ["BertForSequenceClassification"]}
    refused(config(place, **changes), "config.json", *(word.replace("~", " ") for word in words.split()))


# --- weights ------------------------------------------------------------------------------------------------


def change(folder: Path, **tensors: Tensor | None) -> Path:
    """Changes tensors of the file; None takes one away."""
    held = load_file(folder / FILE) | {name: x for name, x in tensors.items() if x is not None}
    save_file({name: x for name, x in held.items() if tensors.get(name, x) is not None}, folder / FILE)
    return folder


def test_all_that_does_not_fit_is_told_at_once(folder: Folder) -> None:
    new = {
        "bert.embeddings.LayerNorm.bias": None,
        "bert.encoder.layer.1.output.dense.weight": None,
        "bert.encoder.layer.0.output.dense.weight": torch.zeros(24, 41),
        "bert.encoder.layer.0.output.dense.bias": torch.zeros(()),
        "bert.encoder.layer.7.output.dense.bias": torch.zeros(24),
        "rocket.engine": torch.zeros(3),
    }
    shapes = ("[24, 41]", "[24, 40]", "[]", "[24]")
    refused(change(folder("bert"), **new), *new, *shapes)


def test_nothing_fits(folder: Folder) -> None:
    place = folder("gpt2")
    shutil.copy(folder("bert") / FILE, place / FILE)
    refused(place, "wte.weight", "bert.embeddings.word_embeddings.weight")


def test_no_tensors_at_all(folder: Folder) -> None:
    place = folder("t5")
    save_file({}, place / FILE)
    refused(place)


def test_names_that_are_no_words(folder: Folder) -> None:
    refused(change(folder("bert"), **{"two\nlines\x1b[31m": torch.zeros(1)}), "two")


@pytest.mark.parametrize("kind", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_that_are_no_floats(kind: torch.dtype, folder: Folder) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    refused(
        change(folder("bert"), **{name: torch.zeros(24, 40).to(kind)}), name, str(kind).removeprefix("torch.")
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(value: float, folder: Folder) -> None:
    tensor = torch.zeros(53, 24)
    tensor[2, 3] = value
    place = change(folder("bert"), **{"bert.embeddings.word_embeddings.weight": tensor})
    with pytest.warns(UserWarning, match=r"embed.*(tokens|word_embeddings).*not finite") as caught:
        model = qkv.load(place)
    assert len(caught) == 1
    assert model.run(tiny.ids(1, 3))["logits"].shape == (1, 3, 53)


def header(**entry: Any) -> bytes:
    text = json.dumps({"a": dict(dtype="F32", shape=[2], data_offsets=[0, 8]) | entry}).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * 8


GOOD = save({"a": torch.zeros(2)})
FILES: dict[str, bytes] = {
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


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_safetensors_that_lie(content: bytes, folder: Folder) -> None:
    place = folder("bert")
    (place / FILE).write_bytes(content)
    refused(place, FILE)


class Code:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("form", ["zip", "old", "bare"])
@pytest.mark.parametrize("name", [FILE, "pytorch_model.bin"])
def test_code_in_a_pickle_is_never_run(name: str, form: str, folder: Folder, tmp_path: Path) -> None:
    place, mark = folder("bert"), tmp_path / "ran"
    (place / FILE).unlink()
    held = {"a": torch.zeros(2), "b": Code(mark)}
    if form == "bare":
        (place / name).write_bytes(pickle.dumps({"b": Code(mark)}))
    else:
        torch.save(held, place / name, _use_new_zipfile_serialization=form == "zip")
    refused(place, name)
    assert not mark.exists()


def test_no_weights(folder: Folder) -> None:
    place = folder("bert")
    (place / FILE).unlink()
    refused(place, FILE, "pytorch_model.bin")


def sharded(place: Path, shard: str) -> Path:
    held = load_file(place / FILE)
    (place / FILE).unlink()
    save_file(held, place / "good.safetensors")
    names = dict.fromkeys(held, "good.safetensors") | {"bert.embeddings.LayerNorm.bias": shard}
    (place / f"{FILE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return place


@pytest.mark.parametrize(
    "how", ["up", "absolute", "link", "fifo", "folder", "missing", "device", "link to device"]
)
def test_shards_that_lead_elsewhere(how: str, folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.copy(folder("bert") / FILE, outside)
    shard = {"up": "../outside.safetensors", "absolute": str(outside), "device": "/dev/zero"}.get(
        how, "x.safetensors"
    )
    place = sharded(folder("bert"), shard)
    if how == "link":
        (place / shard).symlink_to(outside)
    elif how == "fifo":
        os.mkfifo(place / shard)
    elif how == "folder":
        (place / shard).mkdir()
    elif how == "link to device":
        (place / shard).symlink_to("/dev/zero")
    refused(place, "index.json", shard)


@pytest.mark.parametrize("how", ["fifo", "folder", "device"])
def test_weights_that_are_no_plain_file(how: str, folder: Folder) -> None:
    path = folder("bert") / FILE
    path.unlink()
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    refused(path.parent, FILE)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {}}']
)
def test_index_that_is_wrong(index: str, folder: Folder) -> None:
    place = folder("bert")
    (place / FILE).unlink()
    (place / f"{FILE}.index.json").write_text(index)
    refused(place, place.name)


# --- Model.run ----------------------------------------------------------------------------------------------

B, T = 2, 5
IDS, MASK = tiny.ids(B, T), torch.ones(B, T, dtype=torch.bool)
LONG = tiny.ids(1, 65)
X = torch.zeros(B, T, tiny.WIDTH)
HALF = torch.ones(B, T)
STATES = torch.zeros(B, 3, tiny.WIDTH)
PICTURE = torch.zeros(B, 3, 12, 12)
ENDED = torch.cat([IDS, torch.full((B, 1), 2)], 1)
CROSS: dict[str, Any] = dict(decoder=True, cross=True)
MEMORY = torch.zeros(2, B, 4, tiny.WIDTH)
EYE = torch.eye(T).expand(B, T, T)
# Family, changes, the arguments, and what the complaint names.
RUNS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    *((family, {}, {}, "nothing ids embeds") for family in tiny.FAMILIES if family != "clip"),
    ("clip", {}, {}, "nothing ids images"),
    ("bert", {}, dict(mask=MASK), "mask ids"),
    ("bert", {}, dict(ids=[[5, 6]]), "ids list tensor"),
    ("bert", {}, dict(ids=5), "ids int tensor"),
    ("bert", {}, dict(ids=IDS, mask=[[1]]), "mask list tensor"),
    ("bert", {}, dict(ids=IDS.float()), "ids float32 int64"),
    ("bert", {}, dict(ids=IDS.bool()), "ids bool int64"),
    ("bert", {}, dict(ids=IDS[0]), "ids (5,) (B,~T)"),
    ("bert", {}, dict(ids=IDS[None]), "ids (1,~2,~5) (B,~T)"),
    ("bert", {}, dict(ids=torch.tensor(5)), "ids () (B,~T)"),
    ("bert", {}, dict(ids=IDS[:, :0]), "ids (2,~0)"),
    ("bert", {}, dict(ids=IDS[:0]), "ids (0,~5)"),
    ("bert", {}, dict(ids=IDS + 53), "ids 52"),
    ("bert", {}, dict(ids=IDS - 60), "ids -"),
    ("bert", {}, dict(ids=LONG), "ids 65 64"),
    ("bert", {}, dict(embeds=torch.zeros(1, 65, 24)), "embeds 65 64"),
    ("bert", {}, dict(ids=IDS, embeds=X), "ids embeds"),
    ("bert", {}, dict(embeds=X[..., :7]), "embeds (2,~5,~7) 24"),
    ("bert", {}, dict(embeds=X.long()), "embeds int64 float"),
    ("bert", {}, dict(embeds=X[0]), "embeds (5,~24)"),
    ("albert", {}, dict(embeds=X), "embeds (2,~5,~24) 12"),
    ("bert", {}, dict(ids=IDS, mask=MASK[:, 1:]), "mask (2,~4) 5"),
    ("bert", {}, dict(ids=IDS, mask=MASK[:1]), "mask (1,~5) 2"),
    ("bert", {}, dict(ids=IDS, mask=MASK[:, None]), "mask (2,~1,~5)"),
    ("bert", {}, dict(ids=IDS, mask=-1e9 * HALF), "mask float32 bool"),
    ("bert", {}, dict(ids=IDS, positions=IDS[:, 1:]), "positions (2,~4) 5"),
    ("bert", {}, dict(ids=IDS, positions=IDS.float()), "positions float32 int64"),
    ("bert", {}, dict(ids=IDS, positions=IDS + 60), "positions 63"),
    ("bert", {}, dict(ids=IDS, positions=IDS - 60), "positions -"),
    ("roberta", {}, dict(ids=tiny.ids(1, 59)), "ids 59 58"),
    ("roberta", {}, dict(ids=IDS, positions=IDS + 50), "positions 57"),
    ("bert", {}, dict(ids=IDS, types=IDS), "types 2"),
    ("bert", {}, dict(ids=IDS, types=-IDS), "types -"),
    ("bert", {}, dict(ids=IDS, types=IDS[:, 1:] * 0), "types (2,~4) 5"),
    ("bert", {}, dict(ids=IDS, types=IDS.float() * 0), "types float32"),
    ("gpt2", {}, dict(ids=IDS, types=IDS + 53), "types 52"),
    *((f, {}, dict(ids=IDS, types=IDS * 0), "types") for f in ("distilbert", "llama", "modernbert")),
    *((f, {}, dict(ids=IDS, target=IDS), "target decoder") for f in ("bert", "gpt2", "xlnet", "llama")),
    *((f, {}, dict(ids=IDS, target_mask=MASK), "target") for f in ("bert", "gpt2", "bart")),
    *((f, {}, dict(ids=IDS, source=STATES), "source cross") for f in ("bert", "gpt2", "llama", "xlnet")),
    *((f, {}, dict(ids=IDS, memory=MEMORY), "memory recurrence") for f in ("bert", "gpt2", "bart")),
    *((f, {}, dict(ids=IDS, permute=EYE), "permute stream") for f in ("bert", "gpt2", "transformer-xl")),
    *((f, {}, dict(ids=IDS, targets=EYE), "targets stream") for f in ("bert", "gpt2", "transformer-xl")),
    *((f, {}, dict(ids=IDS, choice=IDS[:, 0]), "choice head") for f in ("bert", "gpt2", "xlnet")),
    *((f, {}, dict(ids=IDS, images=PICTURE), "images tower") for f in ("bert", "gpt2", "bart")),
    *((f, {}, dict(ids=IDS), "target") for f in ("transformer", "marian", "t5", "switch")),
    *((f, {}, dict(embeds=X), "target") for f in ("bart", "mbart", "t5")),
    *((f, {}, dict(ids=IDS, target=IDS + 53), "target 52") for f in tiny.PAIRS),
    ("bart", {}, dict(ids=IDS, target=IDS[:1]), "target (1,~5) 2"),
    ("bart", {}, dict(ids=IDS, target=IDS.float()), "target float32 int64"),
    ("bart", {}, dict(ids=IDS, target=IDS[0]), "target (5,)"),
    ("bart", {}, dict(ids=IDS[:1], target=LONG), "target 65 64"),
    ("bart", {}, dict(ids=LONG), "ids 65 64"),
    ("bart", {}, dict(ids=IDS, target=IDS, target_mask=MASK[:, 1:]), "target_mask (2,~4) 5"),
    ("bart", {}, dict(target=IDS), "nothing source"),
    ("bart", {}, dict(source=STATES), "target"),
    ("bart", {}, dict(source=STATES[..., :7], target=IDS), "source (2,~3,~7) 24"),
    ("bart", {"head": "label"}, dict(ids=IDS), "end 2"),
    ("bart", {"head": "label"}, dict(embeds=X, target=IDS), "embeds end ids"),
    ("t5", {"head": "label"}, dict(ids=ENDED), "end 1"),
    ("bart", {"head": "label"}, dict(ids=ENDED, target=IDS), "target 5 6 label"),
    ("clip", {}, dict(embeds=X), "embeds end ids"),
    ("bert", CROSS, dict(ids=IDS, source=STATES[..., :7]), "source (2,~3,~7) 24"),
    ("bert", CROSS, dict(ids=IDS, source=STATES[:1]), "source (1,~3,~24) 2"),
    ("bert", CROSS, dict(ids=IDS, source=STATES[0]), "source (3,~24)"),
    ("bert", CROSS, dict(ids=IDS, source=STATES.long()), "source int64"),
    ("bert", CROSS, dict(ids=IDS, source=STATES, source_mask=MASK), "source_mask (2,~5) 3"),
    ("bert", CROSS, dict(ids=IDS, source_mask=MASK), "source_mask source"),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY[:1]), "memory (1,~2,~4,~24) 2"),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY[:, :1]), "memory (2,~1,~4,~24)"),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY[..., :7]), "memory (2,~2,~4,~7) 24"),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY[0]), "memory (2,~4,~24)"),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY.long()), "memory int64"),
    ("transformer-xl", {}, dict(ids=IDS, memory=MEMORY[:1]), "memory (1,~2,~4,~24) 2"),
    ("transformer-xl", {}, dict(ids=IDS + 53), "ids 52"),
    ("xlnet", {}, dict(ids=IDS, permute=EYE[:, 1:]), "permute (2,~4,~5) 5"),
    ("xlnet", {}, dict(ids=IDS, permute=EYE[0]), "permute (5,~5)"),
    ("xlnet", {}, dict(ids=IDS, targets=EYE[..., 1:]), "targets (2,~5,~4) 5"),
    ("xlnet", {}, dict(ids=IDS, targets=EYE * 0), "targets 1"),
    ("xlnet", {}, dict(ids=IDS, targets=EYE * 0 + 1), "targets 1"),
    ("xlnet", {}, dict(ids=IDS, targets=EYE / 2), "targets 1"),
    ("gpt2", {"head": "double"}, dict(ids=IDS), "ids (2,~5) (B,~C,~T)"),
    ("gpt2", {"head": "double"}, dict(ids=IDS[None], mask=MASK), "mask (2,~5)"),
    ("gpt2", {"head": "double"}, dict(ids=IDS[None], choice=IDS[None, :, 0]), "choice 0 4"),
    ("gpt2", {"head": "double"}, dict(ids=IDS[None], choice=-IDS[None, :, 0]), "choice -"),
    ("gpt2", {"head": "double"}, dict(ids=IDS[None], choice=IDS[0, :1]), "choice (1,)"),
    ("gpt2", {"head": "double"}, dict(ids=IDS[None], choice=HALF[None, :, 0]), "choice float32"),
    ("bert", {"head": "choice"}, dict(ids=IDS), "ids (2,~5) (B,~C,~T)"),
    ("clip", {}, dict(images=PICTURE[:, :1]), "images (2,~1,~12,~12) 3"),
    ("clip", {}, dict(images=PICTURE[..., 1:]), "images (2,~3,~12,~11) 12"),
    ("clip", {}, dict(images=PICTURE[0]), "images (3,~12,~12)"),
    ("clip", {}, dict(images=PICTURE.to(torch.uint8)), "images uint8 float"),
    ("clip", {}, dict(ids=LONG), "ids 65 64"),
    ("clip", {}, dict(ids=IDS + 53), "ids 52"),
    ("clip", {"head": "text"}, dict(images=PICTURE), "images tower"),
    ("clip", {"head": "image"}, dict(ids=IDS), "ids tower"),
    ("clip", {"head": "image"}, {}, "images"),
    ("bert", {}, dict(ids=IDS, keep=("rocket",)), "keep rocket hiddens"),
    ("bert", {}, dict(ids=IDS, keep="hiddens"), "keep hiddens"),
    ("bert", {}, dict(ids=IDS, keep=5), "keep 5"),
    ("bert", {}, dict(ids=IDS, keep=("router",)), "keep router experts"),
]
NAMES = [f"{family} {words} {n}" for n, (family, _, _, words) in enumerate(RUNS)]


@cache
def made(family: str, *changes: tuple[str, Any]) -> qkv.Model:
    return tiny.model(family, dtype=torch.float32, **dict(changes))


@pytest.mark.parametrize(("family", "changes", "given", "words"), RUNS, ids=NAMES)
def test_run(family: str, changes: dict[str, Any], given: dict[str, Any], words: str) -> None:
    model = made(family, *changes.items())
    message = complaint(lambda: model.run(**given))
    lost = [word for each in words.split() if (word := each.replace("~", " ")) not in message]
    assert not lost, f"{lost} not in: {message}"
    assert len(message) < 200


# What is odd and yet all right.
FINE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("bert", {}, dict(ids=IDS.int(), types=IDS.int() * 0)),
    ("bert", {}, dict(ids=IDS, mask=MASK.long())),
    ("bert", {}, dict(ids=tiny.ids(1, 70), mask=torch.arange(70)[None] < 64)),  # 64 tokens on 64 positions
    ("bert", {}, dict(ids=tiny.ids(1, 70), mask=torch.arange(70)[None] >= 6)),
    ("bert", {}, dict(ids=IDS, mask=MASK & False)),
    ("roberta", {}, dict(ids=tiny.ids(1, 58))),
    ("bert", {}, dict(ids=IDS, keep=["hiddens"])),
    ("bert", CROSS, dict(ids=IDS)),
    ("bart", {}, dict(source=STATES, target=IDS)),
    ("bart", {}, dict(ids=IDS)),
    ("xlnet", {}, dict(ids=IDS, memory=MEMORY[:, :, :0])),
    ("xlnet", {}, dict(ids=IDS, types=IDS)),
    ("xlnet", {}, dict(ids=IDS, permute=EYE.bool(), targets=EYE.bool())),
    ("xlnet", {}, dict(ids=IDS, permute=EYE.long(), targets=EYE.long())),
    ("switch", {}, dict(ids=IDS, target=IDS, keep=("router", "hiddens"))),
    ("switch", dict(decoder_depth=1, decoder_sparse=1), dict(ids=IDS, target=IDS, keep=("router",))),
    ("switch", dict(depth=2, sparse=0), dict(ids=IDS, target=IDS, keep=("router",))),
    ("llama", {}, dict(ids=IDS, positions=IDS + 10_000)),
    ("clip", {}, dict(ids=IDS)),
    ("clip", {}, dict(ids=IDS[:1], images=PICTURE)),
]


@pytest.mark.parametrize(("family", "changes", "given"), FINE, ids=range(len(FINE)))
def test_run_on_what_is_odd_but_right(family: str, changes: dict[str, Any], given: dict[str, Any]) -> None:
    out = made(family, *changes.items()).run(**given)
    assert out
    assert all(x.isfinite().all() for x in out.values())


# --- qkv.build and Model.save -------------------------------------------------------------------------------

BUILDS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("rocket",), {}, "rocket bert gpt2"),
    ((5,), {}, "5 bert"),
    (("bert", "gigantic"), {}, "gigantic base large"),
    (("bert", 5), {}, "5 base"),
    (("bert", "tiny"), dict(wings=2), "wings width"),
    (("bert", "tiny"), dict(head="rocket"), "rocket label"),
    (("bert", "tiny"), dict(head=["label"]), "head"),
    (("bert", "tiny"), dict(positions="gps"), "gps rotary"),
    (("bert", "tiny"), dict(positions=5), "positions 5"),
    (("bert", "tiny"), dict(width=-1), "width -1"),
    (("bert", "tiny"), dict(width="wide"), "width wide"),
    (("bert", "tiny"), dict(depth=10**7), "depth 10000000"),
    (("bert", "tiny"), dict(depth=2.0), "depth 2.0"),
    (("bert", "tiny"), dict(vocab=10**12), "vocab 1000000000000"),
    (("bert", "tiny"), dict(heads=3), "128 3"),
    (("bert", "tiny"), dict(act="rocket"), "rocket gelu"),
    (("bert", "tiny"), dict(eps=None), "eps None"),
    (("gpt2", "small"), dict(labels=10**9, head="label"), "labels 1000000000"),
    (("sparse",), dict(pattern="rocket"), "rocket strided fixed"),
    (("sparse",), dict(split="rocket"), "rocket merged"),
    (("sparse",), dict(stride=8, cells=9), "cells 9 8"),
    (("llama", "7b"), dict(kv_heads=5), "5 32"),
    (("llama", "7b"), dict(rope={"rope_type": "rocket"}), "rocket"),
    (("t5", "small"), dict(feed_kind="gated-rocket"), "rocket"),
    (("xlnet", "base"), dict(positions="rotary"), "positions rotary"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "changes", "words"), BUILDS, ids=[f"{g} {c}" for g, c, _ in BUILDS])
def test_build(given: tuple[Any, ...], changes: dict[str, Any], words: str) -> None:
    message = complaint(lambda: qkv.build(*given, **changes))
    lost = [word for word in words.split() if word not in message]
    assert not lost, f"{lost} not in: {message}"


def test_save_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    message = complaint(lambda: made("bert").save(tmp_path / "file"), (ValueError, OSError))  # type: ignore[arg-type]
    assert "file" in message
    assert (tmp_path / "file").read_text() == "mine"
    assert "file" in complaint(lambda: made("bert").save(tmp_path / "file" / "x"), (ValueError, OSError))  # type: ignore[arg-type]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_save_where_one_may_not_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert tmp_path.name in complaint(lambda: made("bert").save(tmp_path / "x"), (ValueError, OSError))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["rocket", "", None, 5])
def test_save_in_an_unknown_form(form: Any, tmp_path: Path) -> None:
    message = complaint(lambda: made("bert").save(tmp_path / "x", form=form))
    assert repr(form) in message
    assert "hf" in message
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("family", "changes", "word"),
    [("gpt3", {}, "gpt3"), ("sparse", {}, "sparse"), ("transformer", {}, "transformer"),
     ("transformer-xl", {}, "transformer-xl"), ("gpt2", {"positions": "alibi"}, "alibi")],
)  # fmt: skip
def test_save_what_hugging_face_cannot_hold(family: str, changes: Any, word: str, tmp_path: Path) -> None:
    model = tiny.model(family, dtype=torch.float32, **changes)
    assert word in complaint(lambda: model.save(tmp_path / "x", form="hf"))
    assert not (tmp_path / "x").exists()


def test_loading_warns_of_nothing_else(models: Folder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in FAMILIES:
            qkv.load(models(family))
