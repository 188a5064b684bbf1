"""config.json: defaults match those of transformers, and arguments survive a round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qkv.families import family_of_model_type
from qkv.families.family import Args, Family
from qkv.model.config import build_hf_config, parse_config
from tests.support import tiny
from tests.support.hf_configs import MODEL_TYPES, TOWERS, get_config_class, to_plain_dict

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
            argument: inner[inner_key]
            for argument, inner_key in tower_keys.items()
            if argument in TOWERS[name] and inner
        }
    return args


def resolve_defaults(args: Args) -> Args:
    """Return the arguments with None replaced by the value that it implies."""
    if "text" in args:
        return args | {side: sizes | (args[side] or {}) for side, sizes in TOWERS.items()}
    args = dict(args)
    implied: Args = {
        "decoder_vocab_size": args.get("vocab_size"),
        "pooler_output_size": args["width"],
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
def test_defaults_match_transformers(model_type: str) -> None:
    family, args, _ = parse_config({"model_type": model_type})
    hf_config = to_plain_dict(get_config_class(model_type)())
    parsed, complete = resolve_defaults(args), resolve_defaults(parse_config(hf_config)[1])
    assert parsed | {"head": ""} == complete | {"head": ""}
    assert parsed == resolve_defaults(parsed | read_stated_arguments(hf_config, family))


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
    "activation": "relu", "pooler_act": "relu", "classifier_activation": "relu", "summary_activation": "relu",
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


def list_heads() -> list[tuple[str, str]]:
    return [
        (model_type, head)
        for model_type in MODEL_TYPES
        for head in family_of_model_type(model_type).heads
        if not model_type.startswith("clip_")
    ]


@pytest.mark.parametrize(
    ("model_type", "head"), list_heads(), ids=["-".join(head) for head in list_heads()]
)
def test_arguments_survive_a_round_trip(model_type: str, head: str) -> None:
    family = family_of_model_type(model_type)
    args = make_unusual_arguments(family) | {"head": head, "num_labels": 5}
    if model_type == "mt5":
        args["multilingual"] = True
    saved = json.loads(json.dumps(build_hf_config(family, args)))
    assert saved["model_type"] == model_type or (
        family.name == "clip" and saved["model_type"].startswith("clip")
    )
    model_type = saved["model_type"]
    parsed_again = parse_config(saved)[1]
    names = [
        name for name in resolve_defaults(args) if name not in find_unread_arguments(family, head)
    ]
    assert {name: parsed_again[name] for name in names} == {name: args[name] for name in names}
    hf_config = to_plain_dict(get_config_class(model_type).from_dict(saved))
    reparsed = resolve_defaults(
        parse_config(hf_config | {"architectures": saved["architectures"]})[1]
    )
    complete = resolve_defaults(args)
    assert {name: reparsed[name] for name in names} == {name: complete[name] for name in names}


def find_unread_arguments(family: Family, head: str) -> set[str]:
    """Return arguments that this head's class has no key for: each tower of CLIP has its own
    config."""
    if family.name != "clip" or head in ("both", "image-classification"):
        return set()
    return {*family.config, "num_labels", "image" if head.startswith("text") else "text"}
