"""What a model may be asked to be: the kind and range of every argument, and which of them must go together.

Looked at before anything is made of them, so that no file can ask for what no memory holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qkv.families.family import Args, Family
from qkv.nn.embedding import ACTS
from qkv.spec import Spec, Two

LIMIT, MOST = 1 << 28, 10_000  # of any size; of modules
MOSTS = dict.fromkeys("depth decoder_depth image_depth groups inner experts".split(), MOST)
# Where sizes multiply, or make a list: together they stay far from what a shape or a memory can hold.
MOSTS |= dict.fromkeys("width embed_width memory reuse".split(), 1 << 20)
MOSTS |= dict.fromkeys("heads decoder_heads kv_heads head_dim".split(), 1 << 16)
MOSTS |= dict(image=1 << 14, patch=1 << 14, channels=1 << 10)
FROM_ZERO = "types memory reuse sparse decoder_sparse start end offset".split()
NULLABLE = (
    "pad start end memory reuse target_vocab decoder_depth summary_act sinusoid shift".split()
)  # whatever the default is
LAYER_KINDS = ("full_attention", "sliding_attention")
ROPES = {
    "default": (), "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}  # fmt: skip

# Keys of config.json that are read on the way to the arguments: what they may be, None apart.
OBJECT, WHOLE, NUMBER, ABSENT = (
    "an object",
    "a whole number from 1 on",
    "a number above 0",
    "none: not supported",
)
RAW: dict[str, str] = {
    "text_config": OBJECT, "vision_config": OBJECT, "rope_parameters": OBJECT, "rope_scaling": OBJECT,
    "id2label": OBJECT, "num_labels": WHOLE, "global_attn_every_n_layers": WHOLE, "rope_theta": NUMBER,
    "global_rope_theta": NUMBER, "local_rope_theta": NUMBER, "quantization_config": ABSENT,
}  # fmt: skip


def check_config(kin: Family, config: Mapping[str, Any]) -> None:
    """A config.json as it lies in the file, before any older spelling in it is read."""
    for key, wanted in RAW.items():
        value = config.get(key)
        good = {
            OBJECT: isinstance(value, dict), WHOLE: whole(value, 1, LIMIT), ABSENT: False,
            NUMBER: above_zero(value),
        }  # fmt: skip
        if value is not None and not good[wanted]:
            raise ValueError(f"{key} is {short(value)}, expected {wanted}")
    check_worked_out(kin, config)
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"architectures is {short(names)}, expected a list of the names of classes")
    check_kinds(kin, {ours: config[key] for ours, key in kin.config.items() if key in config}, kin.config)


def check_kinds(kin: Family, args: Args, called: Mapping[str, str] | None = None) -> None:
    """Each argument by itself, against its annotation and its name; `called` says what the file calls it."""
    hints: dict[str, Any] = {}
    for function in (kin.base, kin.make):
        hints |= get_type_hints(function) if function else {}
    for name, value in args.items():
        if name not in kin.defaults:
            continue
        kinds = options(hints[name])
        if value is None and NoneType in kinds and (kin.defaults[name] is None or name in NULLABLE):
            continue
        check_kind(
            name, value, [kind for kind in kinds if kind is not NoneType], (called or {}).get(name, name)
        )
        if name in kin.nested:
            check_tower(name, value, kin.nested[name][1], bool(called))


def check_tower(name: str, args: Args, theirs: Mapping[str, str], called: bool) -> None:
    """The arguments of one of two towers, whose names tell their kinds."""
    for inner, value in args.items():
        if inner not in theirs:
            raise ValueError(f"{name} holds {inner!r}, expected some of {', '.join(theirs)}")
        kind: type = float if inner.endswith(("eps", "drop", "std", "factor")) else int
        kind = {"act": str, "tied": bool}.get(inner, kind)
        if value is not None or inner != "pad":
            check_kind(inner, value, [kind], theirs[inner] if called else inner)


def check_kind(name: str, value: Any, kinds: list[Any], key: str) -> None:
    if not any(fits(name, value, kind) for kind in kinds):
        wanted = " or ".join(words(name, kind) for kind in kinds)
        raise ValueError(f"{key} is {short(value)}, expected {wanted}")


def check_together(kin: Family, args: Args, called: Mapping[str, str] | None = None) -> None:
    """Complete arguments of the right kinds: do they go together?"""
    for name, (_, theirs) in kin.nested.items():
        check_pairs(args[name] or {}, theirs if called else {})
    check_pairs(args, called or {})
    if "cutoffs" in args:
        bands = [0, *args["cutoffs"], args["vocab"]]
        narrow = args["embed_width"] // args["divide"] ** len(args["cutoffs"])
        demand(bands == sorted(set(bands)), args, "cutoffs", called, f"rising ids below {args['vocab']}")
        demand(narrow > 0, args, "divide", called, f"less: it leaves nothing of {args['embed_width']}")
    if args.get("same_length") and "tied_projects" in args:  # the window of Transformer-XL is its memory
        demand(
            args["memory"] > 0, args, "memory", called, "1 or more: same_length shows as much as it is long"
        )
    if args.get("kinds") is not None:
        good = len(args["kinds"]) == args["depth"] and set(args["kinds"]) <= {*LAYER_KINDS}
        demand(good, args, "kinds", called, f"{args['depth']} of {' or '.join(LAYER_KINDS)}")
    if "rope" in args:
        ropes = args["rope"] or {}
        size = number(args, "head_dim", args["width"] // args["heads"])
        owner = "width" if args.get("head_dim") is None else "head_dim"
        demand(size % 2 == 0, args, owner, called, "heads of an even size: rotary turns pairs")
        for rope in (ropes, *(each for each in ropes.values() if isinstance(each, dict))):
            check_rope(rope)


def check_pairs(args: Args, called: Mapping[str, str]) -> None:
    """Arguments of which one is a limit for the other, where both are there."""
    most, depth = number(args, "vocab", LIMIT), number(args, "depth", 1)
    limits = {
        "pad": most - 1,
        "start": number(args, "target_vocab", most) - 1,
        "patch": number(args, "image", LIMIT),
        "cells": number(args, "stride", LIMIT),
        "sparse": depth,
        "decoder_sparse": number(args, "decoder_depth", depth),
        "inner": MOST // max(depth, number(args, "groups", 1)),
    }
    for name, limit in limits.items():
        if args.get(name) is not None:
            demand(args[name] <= limit, args, name, called, f"at most {limit:,}")
    demand(number(args, "pad", 0) >= -most, args, "pad", called, f"at least {-most}")
    shares = number(args, "heads", 1) % number(args, "kv_heads", 1) == 0
    demand(shares, args, "kv_heads", called, f"a divisor of {args.get('heads')} heads")
    demand(number(args, "buckets", 4) >= 4, args, "buckets", called, "4 or more")
    near = (number(args, "buckets", 0) // 2, number(args, "buckets", 0) // 4)  # beyond these, bins grow
    demand(
        number(args, "reach", -1) not in near, args, "reach", called, f"other than {near[0]} and {near[1]}"
    )


def number(args: Args, name: str, other: int) -> int:
    return other if args.get(name) is None else args[name]


def demand(good: bool, args: Args, name: str, called: Mapping[str, str] | None, wanted: str) -> None:
    if not good:
        raise ValueError(f"{(called or {}).get(name, name)} is {short(args[name])}, expected {wanted}")


def check_worked_out(kin: Family, config: Mapping[str, Any]) -> None:
    """Keys that follow from others may stand beside them, and must agree."""
    right: dict[str, object] = {}
    kind = config.get("feed_forward_proj", "gated-gelu" if config.get("model_type") == "mt5" else "relu")
    if kin.name == "t5" and isinstance(kind, str):
        act = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
        right = {"is_gated_act": kind.startswith("gated-"), "dense_act_fn": act}
    for side, layers in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
        depth, count = config.get(layers, 12), config.get(f"num_sparse_{side}_layers", 3)
        if kin.name == "switch" and whole(depth, 1, MOST) and whole(count, 0, MOST):
            right[f"{side}_sparse_step"] = depth // count if count else depth
    for key, value in right.items():
        if config.get(key, value) != value:
            raise ValueError(
                f"{key} is {short(config[key])}, supported: {value!r}, as the other keys have it"
            )


def check_rope(rope: Mapping[str, Any]) -> None:
    kind = rope.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in ROPES:
        raise ValueError(f"rope_type is {short(kind)}, expected {' or '.join(ROPES)}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor is {short(rope['partial_rotary_factor'])}, supported: 1.0")
    needed = {key: rope.get(key) for key in ROPES[kind]} | {"rope_theta": rope.get("rope_theta", 1.0)}
    for key, value in needed.items():
        if not above_zero(value):
            raise ValueError(f"{key} is {short(value)}, expected {NUMBER}: rope_type is {kind!r}")


def check_size(spec: Spec | Two, tensors: int) -> None:
    """No more layers and experts than there are tensors for: a network of them is not even begun."""
    halves = [spec.text, spec.image] if isinstance(spec, Two) else [spec]
    stacks = [stack for half in halves if half for stack in (half.encoder, half.decoder) if stack]
    counts = [getattr(layer.feed, "count", 1) for stack in stacks for layer in stack.layers]
    if sum(counts) > tensors:
        most = f" with {max(counts)} experts" if max(counts) > 1 else ""
        depths = " and ".join(str(len(stack.layers)) for stack in stacks)
        raise ValueError(f"{depths} layers{most}, but the weights hold no more than {tensors} tensors")


def options(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def fits(name: str, value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is tuple:
        inner = "" if get_args(kind)[0] is int else name
        return isinstance(value, list | tuple) and all(fits(inner, each, get_args(kind)[0]) for each in value)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is int:
        return whole(value, *whole_range(name))
    if kind is float:
        low, high = real_range(name)
        return type(value) in (int, float) and low <= value <= high
    if kind is str and name.endswith(("act", "feed_kind")):
        return isinstance(value, str) and value.removeprefix("gated-" if name == "feed_kind" else "") in ACTS
    return isinstance(value, origin or kind) if kind is not Any else True


def words(name: str, kind: Any) -> str:
    """What would have been right."""
    low, high = whole_range(name)
    if kind is int:
        return f"a whole number from {low} to {high:,}"
    if kind is float:
        least, most = real_range(name)
        return (
            "a number"
            if least < 0
            else f"a number from {least:g}" + (f" to {most:g}" if most == 1 else " on")
        )
    if kind is str and name.endswith(("act", "feed_kind")):
        return f"one of {', '.join(ACTS)}"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return {bool: "true or false", str: "a word", tuple: "a list", dict: OBJECT}[get_origin(kind) or kind]


def whole_range(name: str) -> tuple[int, int]:
    low = -LIMIT if name in ("clamp", "pad") else 0 if name in FROM_ZERO else 1
    return low, MOSTS.get(name, LIMIT)


def real_range(name: str) -> tuple[float, float]:
    if name == "temperature":
        return -1e30, 1e30
    return 0.0, 1.0 if name.endswith("drop") else 1e30


def whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def above_zero(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(text)} characters)"
