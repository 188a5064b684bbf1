"""config.json: every key that changes outputs is read, or named here with the reason why not."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
import torch

from qkv.families import family_of_model_type
from qkv.families.family import Args
from qkv.model.config import parse_config
from tests.support.hf_configs import MODEL_TYPES, TOWERS, get_config_class, to_plain_dict
from tests.support.oracle.cases import CASES, Case
from tests.support.oracle.inputs import build_inputs
from tests.support.oracle.models import build_reference
from tests.support.oracle.outputs import run_reference

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
    ("vit modernbert", "head_dim", ..., "width / heads"),
    ("vit", "encoder_stride", 3, "of the decoder of masked image modeling"),
]

# Keys that the class of transformers derives from others, or lacks, and yet follows where they are set.
DERIVED_KEYS: list[tuple[str, str, Any]] = [
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


def find_read_keys(model_type: str) -> set[str]:
    """Return the config keys that the code of transformers reads."""
    config_class = get_config_class(model_type)
    source = inspect.getsource(
        importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    )
    parsed = re.findall(r"\bconfig\.(\w+)", source) + re.findall(
        r'attr\((?:self\.)?config, "(\w+)"', source
    )
    called = re.findall(r"\bconfig\.(\w+)\(", source)
    return {config_class.attribute_map.get(name, name) for name in parsed} - set(called)


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
            inner_key
            for argument, inner_key in tower_keys.items()
            if argument in TOWERS[name] and side in ("", name)
        }
    read_keys = find_read_keys(model_type) if not side else set()  # one module for all three
    keys = to_plain_dict(get_config_class(model_type)()).keys() | read_keys
    mapped |= {key for owner, key, _ in DERIVED_KEYS if owner == model_type}
    assert (
        keys - mapped - family.supported_values.keys() - list_harmless_keys(model_type).keys()
        == set()
    )


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    DERIVED_KEYS,
    ids=[f"{model_type}-{key}" for model_type, key, _ in DERIVED_KEYS],
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
    for alias in get_config_class(model_type).attribute_map
]


@pytest.mark.parametrize(
    ("model_type", "alias"), ALIASES, ids=[f"{model_type}-{alias}" for model_type, alias in ALIASES]
)
def test_aliases_of_keys_are_followed_or_refused(model_type: str, alias: str) -> None:
    """`hidden_size` for `n_embd` of GPT-2: transformers accepts both."""
    parsed = parse_or_error(model_type, {alias: 36})
    key = get_config_class(model_type).attribute_map[alias]
    assert (
        alias in parsed
        if isinstance(parsed, str)
        else parsed == parse_or_error(model_type, {key: 36})
    )


def test_harmless_keys_exist() -> None:
    keys = {
        model_type: to_plain_dict(get_config_class(model_type)()).keys()
        | find_read_keys(model_type)
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
    """The reference gives the same outputs with every such key at another value."""
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
    # Without a cache the keys have another memory layout, and sums another order: rounding in fp32,
    # about 3e-6 in outputs up to 5. A key that is not harmless changes outputs by far more.
    for name, (tensor, _) in before.items():
        torch.testing.assert_close(after[name][0], tensor, atol=1e-5, rtol=1e-5, msg=name)
