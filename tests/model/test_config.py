"""config.json: defaults match the originals, arguments survive a round trip, and every key that
changes outputs is read."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from typing import Any

import pytest
import torch
import transformers

from qkv.families import family_of_model_type
from qkv.families.clip import IMAGE, TEXT
from qkv.families.family import Args, Family
from qkv.model.config import build_hf_config, parse_config
from tests.support import tiny
from tests.support.oracle.cases import CASES, Case
from tests.support.oracle.inputs import build_inputs
from tests.support.oracle.models import build_reference
from tests.support.oracle.outputs import run_reference

MODEL_TYPES = """
    bert roberta albert distilbert electra xlnet openai-gpt gpt2 ctrl bart mbart marian t5 mt5
    switch_transformers clip clip_text_model clip_vision_model llama modernbert
""".split()

EOS_UNUSED = (
    "bert roberta albert distilbert electra xlnet openai-gpt gpt2 ctrl switch_transformers llama "
    "modernbert"
)

# Keys without an argument: their model types (* is all), another value, and why it does not change
# outputs.
# `...`: no value is tried, the key is read in another way or cannot change outputs.
HARMLESS: list[tuple[str, str, Any, str]] = [
    ("*", "model_type", ..., "names the family"),
    ("*", "architectures", ..., "names the head"),
    ("*", "id2label", ..., "counted and kept"),
    ("*", "label2id", ..., "inverse of id2label"),
    ("*", "num_labels", ..., "used without id2label"),
    ("*", "dtype", ..., "tensors keep the dtype of the file"),
    ("*", "transformers_version", "0", "version of the writer"),
    ("*", "_name_or_path", "x", "path of the model"),
    ("*", "problem_type", "multi_label_classification", "chooses a loss"),
    ("*", "return_dict", ..., "type of the output"),
    ("*", "output_hidden_states", ..., "more outputs"),
    ("*", "output_attentions", ..., "more outputs"),
    ("*", "_attn_implementation", ..., "chooses a kernel"),
    ("*", "chunk_size_feed_forward", 3, "the same feed-forward in chunks"),
    ("*", "use_cache", False, "KV cache"),
    ("*", "bos_token_id", 3, "for generation"),
    (EOS_UNUSED, "eos_token_id", 3, "for generation"),
    ("*", "forced_eos_token_id", 3, "for generation"),
    (
        "openai-gpt gpt2 ctrl",
        "pad_token_id",
        ...,
        "positions of tokens, which the attention mask gives",
    ),
    (
        "xlnet t5 mt5 switch_transformers clip_text_model",
        "pad_token_id",
        3,
        "for generation and losses",
    ),
    ("switch_transformers", "decoder_start_token_id", 3, "for generation and losses"),
    ("*", "is_encoder_decoder", ..., "implied by the class"),
    ("bart mbart marian t5 mt5 switch_transformers", "is_decoder", ..., "implied by the class"),
    ("switch_transformers", "add_cross_attention", True, "implied by the class"),
    ("bart mbart marian", "encoder_layerdrop", 0.5, "training only"),
    ("bart mbart marian", "decoder_layerdrop", 0.5, "training only"),
    ("mbart", "gradient_checkpointing", ..., "training only"),
    ("electra xlnet", "summary_first_dropout", 0.5, "training only"),
    ("openai-gpt gpt2", "summary_last_dropout", 0.5, "training only"),
    ("gpt2", "classifier_dropout", 0.5, "training only"),
    ("gpt2", "hidden_dropout", 0.5, "training only"),
    ("distilbert", "sinusoidal_pos_embds", True, "initialization"),
    ("modernbert", "initializer_cutoff_factor", 3.0, "initialization"),
    ("gpt2", "reorder_and_upcast_attn", True, "precision of half dtypes"),
    ("xlnet", "use_mems_eval", ..., "mems are always returned"),
    ("xlnet", "use_mems_train", True, "mems are always returned"),
    ("xlnet", "end_n_top", 4, "all end logits are returned"),
    ("xlnet", "n_layers", ..., "in a conversion from TensorFlow"),
    ("switch_transformers", "router_z_loss_coef", 0.5, "a loss"),
    ("switch_transformers", "router_aux_loss_coef", 0.5, "a loss"),
    ("switch_transformers", "router_ignore_padding_tokens", True, "never read"),
    ("switch_transformers", "add_router_probs", True, "never read"),
    ("bert roberta", "embedding_size", ..., "loosens a check"),
    ("clip", "text_config", ..., "its keys are checked one by one"),
    ("clip", "vision_config", ..., "its keys are checked one by one"),
    ("clip", "initializer_factor", 2.0, "initialization"),
    ("modernbert", "cls_token_id", 3, "for generation"),
    ("modernbert", "sep_token_id", 3, "for generation"),
    ("modernbert", "deterministic_flash_attn", True, "chooses a kernel"),
    ("modernbert", "sparse_prediction", True, "chooses the inputs of a loss"),
    ("modernbert", "sparse_pred_ignore_index", 5, "a loss"),
    ("modernbert", "sliding_window", ..., "derived from local_attention"),
    ("modernbert", "head_dim", ..., "width / heads"),
]

# Keys that the original class derives from others, or lacks, and yet follows where they are set.
STATED: list[tuple[str, str, Any]] = [
    ("t5", "dense_act_fn", "silu"),
    ("t5", "is_gated_act", True),
    ("mt5", "dense_act_fn", "silu"),
    ("mt5", "is_gated_act", False),
    ("switch_transformers", "encoder_sparse_step", 1),
    ("switch_transformers", "decoder_sparse_step", 1),
    ("electra", "summary_proj_to_labels", True),
    ("xlnet", "summary_proj_to_labels", True),
    (
        "llama",
        "rope_parameters",
        {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    ),
]

# Keys that older versions wrote into every config.json, and into nested ones.
LEGACY_DUMP: dict[str, Any] = dict(
    add_cross_attention=False, bad_words_ids=None, begin_suppress_tokens=None, chunk_size_feed_forward=0,
    cross_attention_hidden_size=None, diversity_penalty=0.0, do_sample=False, early_stopping=False,
    encoder_no_repeat_ngram_size=0, exponential_decay_length_penalty=None, finetuning_task=None,
    forced_bos_token_id=None, forced_eos_token_id=None, is_decoder=False, length_penalty=1.0, max_length=20,
    min_length=0, no_repeat_ngram_size=0, num_beam_groups=1, num_beams=1, num_return_sequences=1,
    output_attentions=False, output_hidden_states=False, output_scores=False, prefix=None, problem_type=None,
    pruned_heads={}, remove_invalid_values=False, repetition_penalty=1.0, return_dict=True,
    return_dict_in_generate=False, sep_token_id=None, suppress_tokens=None, task_specific_params=None,
    temperature=1.0, tf_legacy_loss=False, tie_encoder_decoder=False, tokenizer_class=None, top_k=50,
    top_p=1.0, torch_dtype=None, torchscript=False, transformers_version="4.16.0", typical_p=1.0,
    use_bfloat16=False,
    id2label={"0": "LABEL_0", "1": "LABEL_1"}, label2id={"LABEL_0": 0, "LABEL_1": 1}, architectures=None,
)  # fmt: skip
TOWERS: dict[str, Args] = {"text": TEXT, "image": IMAGE}


def config_class(model_type: str) -> Any:
    return transformers.CONFIG_MAPPING[model_type]


def to_plain_dict(config: Any) -> dict[str, Any]:
    """Return a config of Hugging Face as in a file."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return values


def read_stated_arguments(config: dict[str, Any], family: Family) -> Args:
    """Return the arguments that a config of Hugging Face sets."""
    if config["model_type"].startswith("clip_"):
        config = {config["model_type"].removeprefix("clip_").replace("_model", "_config"): config}
    args = {
        name: config[key]
        for name, key in family.config.items()
        if key in config and name != "activation"
    }
    for name, (key, tower_keys) in family.nested.items():
        inner = config.get(key, {})
        args[name] = {
            ours: inner[theirs]
            for ours, theirs in tower_keys.items()
            if ours in TOWERS[name] and inner
        }
    return args


def resolve_defaults(args: Args) -> Args:
    """Return the arguments with None replaced by the value that it implies."""
    if "vocab_size" not in args:
        return args | {side: sizes | (args[side] or {}) for side, sizes in TOWERS.items()}
    args = dict(args)
    implied: Args = {
        "decoder_vocab_size": args["vocab_size"],
        "decoder_depth": args["depth"],
        "kv_heads": args["heads"],
        "head_dim": args["width"] // args["heads"],
        "ffn_width": 4 * args["width"],
    }
    if "layer_types" in args:
        every = args.pop("global_attn_every_n_layers", 3)
        layer_types = [
            "sliding_attention" if i % every else "full_attention" for i in range(args["depth"])
        ]
        args["layer_types"] = list(args["layer_types"] or layer_types)
        thetas = {"full_attention": 160000.0, "sliding_attention": 10000.0}
        rope = {
            name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()
        }
        stated_rope = args["rope_parameters"] or {}
        args["rope_parameters"] = {name: rope[name] | stated_rope.get(name, {}) for name in rope}
    elif "rope_parameters" in args:
        default_rope = {"rope_type": "default", "rope_theta": 10000.0}
        args["rope_parameters"] = default_rope | (args["rope_parameters"] or {})
    return {
        name: implied[name] if value is None and name in implied else value
        for name, value in args.items()
    }


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_defaults_match_the_original(model_type: str) -> None:
    family, args, _ = parse_config({"model_type": model_type})
    theirs = to_plain_dict(config_class(model_type)())
    parsed, complete = resolve_defaults(args), resolve_defaults(parse_config(theirs)[1])
    assert parsed | {"head": ""} == complete | {"head": ""}
    assert parsed == resolve_defaults(parsed | read_stated_arguments(theirs, family))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_legacy_keys_change_nothing(model_type: str) -> None:
    inner = LEGACY_DUMP | dict(pad_token_id=None, tie_word_embeddings=True)
    nested = dict(text_config=inner, vision_config=inner) if model_type == "clip" else {}
    parsed = resolve_defaults(parse_config({"model_type": model_type} | LEGACY_DUMP | nested)[1])
    usual = resolve_defaults(
        parse_config({"model_type": model_type} | dict(id2label=LEGACY_DUMP["id2label"]))[1]
    )
    towers = dict.fromkeys(TOWERS) if model_type.startswith("clip") else {}
    assert parsed | towers == usual | towers
    assert all(parsed[side].items() >= sizes.items() for side, sizes in TOWERS.items() if towers)


OTHER_VALUES: Args = {  # another value for every argument that is neither a number nor a bool
    "activation": "relu", "classifier_activation": "relu", "summary_activation": "relu",
    "feed_forward_proj": "gated-silu", "summary_type": "mean", "attn_type": "uni",
    "classifier_pooling": "mean", "layer_types": ["full_attention"] * 3, "classifier_dropout": 0.3,
    "global_attn_every_n_layers": 2,
    "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
}  # fmt: skip
BY_LAYER_TYPE = {  # rope by type of layer
    "full_attention": {"rope_type": "default", "rope_theta": 5e3},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
}


def change_values(args: Args) -> Args:
    """Return the arguments, each with another value."""
    parsed: Args = {}
    for name, value in args.items():
        if isinstance(value, bool):
            parsed[name] = not value
        elif isinstance(value, float):
            parsed[name] = value / 2 + 0.01
        else:
            parsed[name] = value + 1 if isinstance(value, int) else 8
    return parsed | {name: value for name, value in OTHER_VALUES.items() if name in args}


def make_unusual_arguments(family: Family) -> Args:
    """Return arguments that all differ from their defaults, as far as possible."""
    if family.nested:
        towers = {
            side: change_values(sizes) | tiny.SIZES[family.name][side]
            for side, sizes in TOWERS.items()
        }
        return family.defaults | change_values({"projection_dim": 512, "logit_scale": 2.6}) | towers
    args = family.defaults | change_values({name: family.defaults[name] for name in family.config})
    args |= {
        name: v
        for name, v in tiny.SIZES[family.name].items()
        if name in family.config and name not in OTHER_VALUES
    }
    if family.name == "modernbert":
        args["rope_parameters"] = BY_LAYER_TYPE
    if family.name in ("t5", "switch"):  # decided by model_type and by the tensors of the file
        args |= {"multilingual": False, "tie_embeddings": True}
    return args


def heads() -> list[tuple[str, str]]:
    return [
        (model_type, head)
        for model_type in MODEL_TYPES
        for head in family_of_model_type(model_type).heads
        if not model_type.startswith("clip_")
    ]


@pytest.mark.parametrize(("model_type", "head"), heads(), ids=["-".join(each) for each in heads()])
def test_config_round_trip(model_type: str, head: str) -> None:
    family = family_of_model_type(model_type)
    args = make_unusual_arguments(family) | {"head": head, "num_labels": 5}
    if model_type == "mt5":
        args["multilingual"] = True
    written = json.loads(json.dumps(build_hf_config(family, args)))
    assert written["model_type"] == model_type or (
        family.name == "clip" and written["model_type"].startswith("clip")
    )
    model_type = written["model_type"]
    parsed_again = parse_config(written)[1]
    names = [
        name for name in resolve_defaults(args) if name not in find_unread_arguments(family, head)
    ]
    assert {name: parsed_again[name] for name in names} == {name: args[name] for name in names}
    theirs = to_plain_dict(config_class(model_type).from_dict(written))
    reparsed = resolve_defaults(
        parse_config(theirs | {"architectures": written["architectures"]})[1]
    )
    complete = resolve_defaults(args)
    assert {name: reparsed[name] for name in names} == {name: complete[name] for name in names}


def find_unread_arguments(family: Family, head: str) -> set[str]:
    """Return arguments that this head's class has no key for: each tower of CLIP has its own
    config."""
    if family.name != "clip" or head in ("both", "image-classification"):
        return set()
    return {*family.config, "num_labels", "image" if head.startswith("text") else "text"}


def find_read_keys(model_type: str) -> set[str]:
    """Return the config keys that the original's code reads."""
    theirs = config_class(model_type)
    source = inspect.getsource(
        importlib.import_module(theirs.__module__.replace("configuration_", "modeling_"))
    )
    parsed = re.findall(r"\bconfig\.(\w+)", source) + re.findall(
        r'attr\((?:self\.)?config, "(\w+)"', source
    )
    called = re.findall(r"\bconfig\.(\w+)\(", source)
    return {theirs.attribute_map.get(name, name) for name in parsed} - set(called)


def list_harmless_keys(model_type: str) -> dict[str, Any]:
    return {
        key: value
        for kinds, key, value, _ in HARMLESS
        if kinds == "*" or model_type in kinds.split()
    }


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_key_is_read_or_listed(model_type: str) -> None:
    family = family_of_model_type(model_type)
    side = {"clip_text_model": "text", "clip_vision_model": "image"}.get(model_type, "")
    mapped = set() if side else set(family.config.values())
    for name, (_, tower_keys) in family.nested.items():
        mapped |= {
            theirs
            for ours, theirs in tower_keys.items()
            if ours in TOWERS[name] and side in ("", name)
        }
    theirs = find_read_keys(model_type) if not side else set()  # one module for all three
    keys = to_plain_dict(config_class(model_type)()).keys() | theirs
    mapped |= {key for each, key, _ in STATED if each == model_type}
    assert (
        keys - mapped - family.supported_values.keys() - list_harmless_keys(model_type).keys()
        == set()
    )


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    STATED,
    ids=[f"{model_type}-{key}" for model_type, key, _ in STATED],
)
def test_derived_keys_are_followed_or_refused(model_type: str, key: str, value: Any) -> None:
    expected_key = "partial_rotary_factor" if key == "rope_parameters" else key
    parsed = parse_or_error(model_type, {key: value})
    assert (
        expected_key in parsed
        if isinstance(parsed, str)
        else parsed != parse_or_error(model_type, {})
    )


def parse_or_error(model_type: str, values: dict[str, Any]) -> Args | str:
    """Return the arguments of a config.json with these values, or the error message."""
    try:
        return parse_config({"model_type": model_type} | values)[1]
    except ValueError as error:
        return str(error)


ALIASES = [
    (model_type, alias)
    for model_type in MODEL_TYPES
    for alias in config_class(model_type).attribute_map
]


@pytest.mark.parametrize(
    ("model_type", "alias"), ALIASES, ids=[f"{model_type}-{alias}" for model_type, alias in ALIASES]
)
def test_config_key_aliases(model_type: str, alias: str) -> None:
    """`hidden_size` for `n_embd` of GPT-2: the original accepts both."""
    parsed = parse_or_error(model_type, {alias: 36})
    key = config_class(model_type).attribute_map[alias]
    assert (
        alias in parsed
        if isinstance(parsed, str)
        else parsed == parse_or_error(model_type, {key: 36})
    )


def test_harmless_keys_exist() -> None:
    keys = {
        model_type: to_plain_dict(config_class(model_type)()).keys() | find_read_keys(model_type)
        for model_type in MODEL_TYPES
    }
    unused = [
        (kinds, key)
        for kinds, key, _, _ in HARMLESS
        for model_type in (MODEL_TYPES if kinds == "*" else kinds.split())
        if (kinds == "*" and not any(key in each for each in keys.values()))
        or (kinds != "*" and key not in keys[model_type])
    ]
    assert unused == []


PLAIN = [case for case in CASES if case.name == f"{case.family}-{case.class_name}"]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_harmless_keys_are_harmless(case: Case) -> None:
    """The original gives the same outputs with every such key at another value."""
    model = build_reference(case)
    model_type = model.config.model_type
    known = to_plain_dict(model.config).keys() | find_read_keys(model_type)
    changes = {
        key: value
        for key, value in list_harmless_keys(model_type).items()
        if value is not ... and key in known
    }
    config = type(model.config)(**case.sizes | changes, attn_implementation="eager")
    assert {key: getattr(config, key) for key in changes} == changes
    changed_model = type(model)(config).eval()
    changed_model.load_state_dict(model.state_dict())
    inputs = build_inputs(case, "none")
    with torch.no_grad():
        before, after = (run_reference(case, m, inputs) for m in (model, changed_model))
    assert before.keys() == after.keys()
    for name, (tensor, _) in before.items():
        torch.testing.assert_close(after[name][0], tensor, atol=1e-6, rtol=1e-5, msg=name)
