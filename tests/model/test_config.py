"""config.json both ways: what is left out means what it means to the original, what is written comes back,
and no key of the original that changes the numbers goes unread."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from typing import Any

import pytest
import torch
import transformers

from qkv.families import by_model_type
from qkv.families.clip import IMAGE, TEXT
from qkv.families.family import Args, Family
from qkv.model.config import understand, write_config
from tests.support import oracle, tiny

KINDS = """
    bert roberta albert distilbert electra xlnet openai-gpt gpt2 ctrl bart mbart marian t5 mt5
    switch_transformers clip clip_text_model clip_vision_model llama modernbert
""".split()

WORDS = (
    "bert roberta albert distilbert electra xlnet openai-gpt gpt2 ctrl switch_transformers llama modernbert"
)

# Keys that no argument of ours stands for: of which `model_type`s (* of all), another value, and why that
# gives the same numbers. `...`: none is tried, it is read some other way or changes no number at all.
HARMLESS: list[tuple[str, str, Any, str]] = [
    ("*", "model_type", ..., "names the family"),
    ("*", "architectures", ..., "names the head"),
    ("*", "id2label", ..., "counted, and kept as it is"),
    ("*", "label2id", ..., "the other way round"),
    ("*", "num_labels", ..., "counted where id2label is not there"),
    ("*", "dtype", ..., "the tensors in the file have theirs"),
    ("*", "transformers_version", "0", "who wrote it"),
    ("*", "_name_or_path", "x", "where it was"),
    ("*", "problem_type", "multi_label_classification", "chooses a loss"),
    ("*", "return_dict", ..., "the form of the output"),
    ("*", "output_hidden_states", ..., "asks for more"),
    ("*", "output_attentions", ..., "asks for more"),
    ("*", "_attn_implementation", ..., "chooses a kernel"),
    ("*", "chunk_size_feed_forward", 3, "the same feed in pieces"),
    ("*", "use_cache", False, "remembers keys and values"),
    ("*", "bos_token_id", 3, "for generation"),
    (WORDS, "eos_token_id", 3, "for generation"),
    ("*", "forced_eos_token_id", 3, "for generation"),
    ("openai-gpt gpt2 ctrl", "pad_token_id", ..., "where the tokens stand, which the mask says"),
    ("xlnet t5 mt5 switch_transformers clip_text_model", "pad_token_id", 3, "for generation and losses"),
    ("switch_transformers", "decoder_start_token_id", 3, "for generation and losses"),
    ("*", "is_encoder_decoder", ..., "each class says so itself"),
    ("bart mbart marian t5 mt5 switch_transformers", "is_decoder", ..., "each class says so itself"),
    ("switch_transformers", "add_cross_attention", True, "each class says so itself"),
    ("bart mbart marian", "encoder_layerdrop", 0.5, "training alone"),
    ("bart mbart marian", "decoder_layerdrop", 0.5, "training alone"),
    ("mbart", "gradient_checkpointing", ..., "training alone"),
    ("electra xlnet", "summary_first_dropout", 0.5, "training alone"),
    ("openai-gpt gpt2", "summary_last_dropout", 0.5, "training alone"),
    ("gpt2", "classifier_dropout", 0.5, "training alone"),
    ("gpt2", "hidden_dropout", 0.5, "training alone"),
    ("distilbert", "sinusoidal_pos_embds", True, "how the table begins; it lies in the file"),
    ("modernbert", "initializer_cutoff_factor", 3.0, "how tensors begin"),
    ("gpt2", "reorder_and_upcast_attn", True, "more precision in half types"),
    ("xlnet", "use_mems_eval", ..., "whether memory is returned: always"),
    ("xlnet", "use_mems_train", True, "whether memory is returned"),
    ("xlnet", "end_n_top", 4, "how many of the ends are returned: all"),
    ("xlnet", "n_layers", ..., "in a conversion from TensorFlow"),
    ("switch_transformers", "router_z_loss_coef", 0.5, "a loss"),
    ("switch_transformers", "router_aux_loss_coef", 0.5, "a loss"),
    ("switch_transformers", "router_ignore_padding_tokens", True, "never read"),
    ("switch_transformers", "add_router_probs", True, "never read"),
    ("bert roberta", "embedding_size", ..., "only loosens a check"),
    ("clip", "text_config", ..., "its keys are looked at one by one"),
    ("clip", "vision_config", ..., "its keys are looked at one by one"),
    ("clip", "initializer_factor", 2.0, "how tensors begin"),
    ("modernbert", "cls_token_id", 3, "for generation"),
    ("modernbert", "sep_token_id", 3, "for generation"),
    ("modernbert", "deterministic_flash_attn", True, "chooses a kernel"),
    ("modernbert", "sparse_prediction", True, "chooses what a loss reads"),
    ("modernbert", "sparse_pred_ignore_index", 5, "a loss"),
    ("modernbert", "sliding_window", ..., "read off local_attention"),
    ("modernbert", "head_dim", ..., "a name for width / heads"),
]

# Keys that the original's class works out from others, or does not have, and yet follows where stated.
STATED: list[tuple[str, str, Any]] = [
    ("t5", "dense_act_fn", "silu"),
    ("t5", "is_gated_act", True),
    ("mt5", "dense_act_fn", "silu"),
    ("mt5", "is_gated_act", False),
    ("switch_transformers", "encoder_sparse_step", 1),
    ("switch_transformers", "decoder_sparse_step", 1),
    ("electra", "summary_proj_to_labels", True),
    ("xlnet", "summary_proj_to_labels", True),
    ("llama", "rope_parameters", {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}),
]

# What older versions wrote into every config.json, and into each of two nested ones.
DUMP: dict[str, Any] = dict(
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


def config_class(kind: str) -> Any:
    return transformers.CONFIG_MAPPING[kind]


def plain(config: Any) -> dict[str, Any]:
    """A config of theirs as it would lie in a file."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict()))
    return values


def stated(config: dict[str, Any], kin: Family) -> Args:
    """What a config of theirs says of our arguments, key by key."""
    if config["model_type"].startswith("clip_"):
        config = {config["model_type"].removeprefix("clip_").replace("_model", "_config"): config}
    args = {name: config[key] for name, key in kin.config.items() if key in config and name != "act"}
    for name, (key, words) in kin.nested.items():
        inner = config.get(key, {})
        args[name] = {ours: inner[theirs] for ours, theirs in words.items() if ours in TOWERS[name] and inner}
    return args


def effective(args: Args) -> Args:
    """Arguments with what None stands for in its place."""
    if "vocab" not in args:
        return args | {side: sizes | (args[side] or {}) for side, sizes in TOWERS.items()}
    args = dict(args)
    stands: Args = {"target_vocab": args["vocab"], "decoder_depth": args["depth"], "kv_heads": args["heads"]}
    stands |= {"head_dim": args["width"] // args["heads"], "feed": 4 * args["width"]}
    if "kinds" in args:
        kinds = [
            "sliding_attention" if i % args.get("every", 3) else "full_attention"
            for i in range(args["depth"])
        ]
        args = {k: v for k, v in args.items() if k != "every"} | {"kinds": list(args["kinds"] or kinds)}
        thetas = {"full_attention": 160000.0, "sliding_attention": 10000.0}
        rope = {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()}
        given = args["rope"] or {}
        args["rope"] = {name: rope[name] | given.get(name, {}) for name in rope}
    elif "rope" in args:
        args["rope"] = {"rope_type": "default", "rope_theta": 10000.0} | (args["rope"] or {})
    return {k: stands[k] if v is None and k in stands else v for k, v in args.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_means_what_it_means_to_the_original(kind: str) -> None:
    kin, args, _ = understand({"model_type": kind})
    theirs = plain(config_class(kind)())
    found, whole = effective(args), effective(understand(theirs)[1])
    assert found | {"head": ""} == whole | {"head": ""}
    assert found == effective(found | stated(theirs, kin))


@pytest.mark.parametrize("kind", KINDS)
def test_what_older_versions_wrote_everywhere(kind: str) -> None:
    inner = DUMP | dict(pad_token_id=None, tie_word_embeddings=True)
    nested = dict(text_config=inner, vision_config=inner) if kind == "clip" else {}
    found = effective(understand({"model_type": kind} | DUMP | nested)[1])
    usual = effective(understand({"model_type": kind} | dict(id2label=DUMP["id2label"]))[1])
    towers = dict.fromkeys(TOWERS) if kind.startswith("clip") else {}
    assert found | towers == usual | towers
    assert all(found[side].items() >= sizes.items() for side, sizes in TOWERS.items() if towers)


OTHER: Args = {  # another value for every argument that is no number and no switch
    "act": "relu", "image_act": "relu", "head_act": "relu", "summary_act": "relu", "feed_kind": "gated-silu",
    "summary_kind": "mean", "attend_kind": "uni", "pooling": "mean", "kinds": ["full_attention"] * 3,
    "rope": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}, "label_drop": 0.3, "every": 2,
}  # fmt: skip
BY_KIND = {  # rope by kind of layer
    "full_attention": {"rope_type": "default", "rope_theta": 5e3},
    "sliding_attention": {"rope_type": "default", "rope_theta": 3e3},
}


def other(args: Args) -> Args:
    """The same arguments, each with another value."""
    found: Args = {}
    for name, value in args.items():
        if isinstance(value, bool):
            found[name] = not value
        elif isinstance(value, float):
            found[name] = value / 2 + 0.01
        else:
            found[name] = value + 1 if isinstance(value, int) else 8
    return found | {name: value for name, value in OTHER.items() if name in args}


def unusual(kin: Family) -> Args:
    """Arguments none of which is at its default, as far as it can be another."""
    if kin.nested:
        towers = {side: other(sizes) | tiny.SIZES[kin.name][side] for side, sizes in TOWERS.items()}
        return kin.defaults | other({"project": 512, "temperature": 2.6}) | towers
    args = kin.defaults | other({name: kin.defaults[name] for name in kin.config})
    args |= {name: v for name, v in tiny.SIZES[kin.name].items() if name in kin.config and name not in OTHER}
    if kin.name == "modernbert":
        args["rope"] = BY_KIND
    if kin.name in ("t5", "switch"):  # one key for both families of it; the file tells what is tied
        args |= {"multilingual": False, "tied": True}
    return args


def heads() -> list[tuple[str, str]]:
    return [
        (kind, head) for kind in KINDS for head in by_model_type(kind).heads if not kind.startswith("clip_")
    ]


@pytest.mark.parametrize(("kind", "head"), heads(), ids=["-".join(each) for each in heads()])
def test_what_is_written_comes_back(kind: str, head: str) -> None:
    kin = by_model_type(kind)
    args = unusual(kin) | {"head": head, "labels": 5}
    if kind == "mt5":
        args["multilingual"] = True
    written = json.loads(json.dumps(write_config(kin, args)))
    assert written["model_type"] == kind or (kin.name == "clip" and written["model_type"].startswith("clip"))
    kind = written["model_type"]
    again = understand(written)[1]
    names = [name for name in effective(args) if name not in unread(kin, head)]
    assert {name: again[name] for name in names} == {name: args[name] for name in names}
    theirs = plain(config_class(kind).from_dict(written))
    through = effective(understand(theirs | {"architectures": written["architectures"]})[1])
    whole = effective(args)
    assert {name: through[name] for name in names} == {name: whole[name] for name in names}


def unread(kin: Family, head: str) -> set[str]:
    """Arguments that this head's class has no key for: CLIP's towers have each their own config."""
    if kin.name != "clip" or head in ("both", "image-label"):
        return set()
    return {*kin.config, "labels", "image" if head.startswith("text") else "text"}


def reads(kind: str) -> set[str]:
    """The keys that the original's code asks a config for, by their own names."""
    theirs = config_class(kind)
    source = inspect.getsource(
        importlib.import_module(theirs.__module__.replace("configuration_", "modeling_"))
    )
    found = re.findall(r"\bconfig\.(\w+)", source) + re.findall(r'attr\((?:self\.)?config, "(\w+)"', source)
    called = re.findall(r"\bconfig\.(\w+)\(", source)
    return {theirs.attribute_map.get(name, name) for name in found} - set(called)


def harmless(kind: str) -> dict[str, Any]:
    return {key: value for kinds, key, value, _ in HARMLESS if kinds == "*" or kind in kinds.split()}


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_goes_unread(kind: str) -> None:
    kin = by_model_type(kind)
    side = {"clip_text_model": "text", "clip_vision_model": "image"}.get(kind, "")
    mapped = set() if side else set(kin.config.values())
    for name, (_, words) in kin.nested.items():
        mapped |= {theirs for ours, theirs in words.items() if ours in TOWERS[name] and side in ("", name)}
    theirs = reads(kind) if not side else set()  # one module for all three
    keys = plain(config_class(kind)()).keys() | theirs
    mapped |= {key for each, key, _ in STATED if each == kind}
    assert keys - mapped - kin.only.keys() - harmless(kind).keys() == set()


@pytest.mark.parametrize(("kind", "key", "value"), STATED, ids=[f"{kind}-{key}" for kind, key, _ in STATED])
def test_what_is_stated_is_followed_or_refused(kind: str, key: str, value: Any) -> None:
    named = "partial_rotary_factor" if key == "rope_parameters" else key
    found = said(kind, {key: value})
    assert named in found if isinstance(found, str) else found != said(kind, {})


def said(kind: str, values: dict[str, Any]) -> Args | str:
    """The arguments in a config.json of these values, or the complaint about them."""
    try:
        return understand({"model_type": kind} | values)[1]
    except ValueError as error:
        return str(error)


ALIASES = [(kind, alias) for kind in KINDS for alias in config_class(kind).attribute_map]


@pytest.mark.parametrize(("kind", "alias"), ALIASES, ids=[f"{kind}-{alias}" for kind, alias in ALIASES])
def test_other_names_for_a_key(kind: str, alias: str) -> None:
    """`hidden_size` for GPT-2's `n_embd`: the original takes either."""
    found = said(kind, {alias: 36})
    key = config_class(kind).attribute_map[alias]
    assert alias in found if isinstance(found, str) else found == said(kind, {key: 36})


def test_no_key_is_listed_for_nothing() -> None:
    keys = {kind: plain(config_class(kind)()).keys() | reads(kind) for kind in KINDS}
    idle = [
        (kinds, key)
        for kinds, key, _, _ in HARMLESS
        for kind in (KINDS if kinds == "*" else kinds.split())
        if (kinds == "*" and not any(key in each for each in keys.values()))
        or (kinds != "*" and key not in keys[kind])
    ]
    assert idle == []


PLAIN = [case for case in oracle.CASES if case.name == f"{case.family}-{case.kind}"]


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_harmless_keys_are_harmless(case: oracle.Case) -> None:
    """The original itself, with every such key at another value."""
    model = oracle.make(case)
    kind = model.config.model_type
    known = plain(model.config).keys() | reads(kind)
    changes = {key: value for key, value in harmless(kind).items() if value is not ... and key in known}
    config = type(model.config)(**case.sizes | changes, attn_implementation="eager")
    assert {key: getattr(config, key) for key in changes} == changes
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    x = oracle.inputs(case, "none")
    with torch.no_grad():
        before, after = oracle.run(case, model, x), oracle.run(case, other, x)
    assert before.keys() == after.keys()
    for name, (tensor, _) in before.items():
        torch.testing.assert_close(after[name][0], tensor, atol=1e-6, rtol=1e-5, msg=name)
