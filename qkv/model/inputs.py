"""Inputs of a model: validation of names, dtypes, shapes and values, and conversion to a Batch.

    B rows   C choices   N = B*C   T tokens   U decoder tokens   S encoder states   P targets   M mems

Only the minimum and maximum of the values are read, in one synchronization with the device; a second
one is needed if a head reads the EOS position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from qkv.batch import Batch, Inputs
from qkv.nn.heads import last_true_index
from qkv.spec import (
    AnyStackSpec,
    ConvolutionSpec,
    DualSpec,
    HeadSpec,
    MixtureOfExpertsSpec,
    PatchSpec,
    RecurrentStackSpec,
    RelativeXLSpec,
    Spec,
    find_patches,
)
from qkv.validate import check_sequence_length

TOKEN_DTYPES = (torch.int64, torch.int32)
POSITION_DTYPES = (torch.int64,)
INPUT_DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    "input_ids": TOKEN_DTYPES,
    "decoder_input_ids": TOKEN_DTYPES,
    "token_type_ids": TOKEN_DTYPES,
    "position_ids": POSITION_DTYPES,
    "mc_token_ids": POSITION_DTYPES,
}
MASK_INPUTS = {"attention_mask", "decoder_attention_mask", "encoder_attention_mask"}
FLOAT_INPUTS = {"inputs_embeds", "encoder_hidden_states", "mems", "pixel_values"}
REQUIRED_INPUT = {  # an input -> the input that it needs
    "attention_mask": "input_ids",
    "position_ids": "input_ids",
    "token_type_ids": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
    "encoder_attention_mask": "encoder_hidden_states",
}
REQUIRED_MODEL_PART = {  # an input -> the part of a model that reads it
    "token_type_ids": "token types",
    "decoder_input_ids": "decoder next to its encoder",
    "encoder_hidden_states": "cross-attention",
    "mems": "segment recurrence",
    "perm_mask": "query stream",
    "target_mapping": "query stream",
    "mc_token_ids": "head that reads one token",
    "pixel_values": "image tower",
    "input_ids": "text tower",
}
EXTRA_OUTPUTS = ("hidden_states", "router_logits")


def check_inputs(
    spec: Spec | DualSpec, inputs: Mapping[str, object], extra_outputs: object = ()
) -> None:
    """Raise ValueError if a model cannot run on these inputs; inputs that are None are ignored."""
    check_extra_outputs(spec, extra_outputs)
    tensors: dict[str, Tensor] = {}
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
        tensors[name] = value
    check_input_names(spec, tensors)
    for name, tensor in tensors.items():
        check_input_dtype(name, tensor)
    sizes: dict[str, int] = {}
    upper_bounds: dict[str, int | None] = {}
    patches = find_patches(spec)
    if (
        patches is not None and "pixel_values" in tensors
    ):  # the images of CLIP have rows of their own
        image_sizes: dict[str, int] = {} if isinstance(spec, DualSpec) else sizes
        check_input_shape(
            "pixel_values", tensors["pixel_values"], ("B", *patches.pixel_shape), image_sizes
        )
    text_spec = spec.text if isinstance(spec, DualSpec) else spec
    if text_spec is not None:
        check_text_inputs(text_spec, tensors, sizes, upper_bounds)
    check_value_ranges({name: (tensors[name], bound) for name, bound in upper_bounds.items()})


def check_extra_outputs(spec: Spec | DualSpec, extra_outputs: object) -> None:
    """Raise ValueError unless the model has all of these extra outputs."""
    if not isinstance(extra_outputs, tuple | list | set | frozenset):
        raise ValueError(
            f"extra_outputs is {extra_outputs!r}, expected a tuple of names, such as ('hidden_states',)"
        )
    for name in extra_outputs:
        if name not in EXTRA_OUTPUTS:
            raise ValueError(f"extra_outputs holds {name!r}, expected {' or '.join(EXTRA_OUTPUTS)}")
    stacks = list_stack_specs(spec)
    if "hidden_states" in extra_outputs and isinstance(stacks[0], RecurrentStackSpec):
        raise ValueError(
            "extra_outputs holds 'hidden_states', but the layers of a recurrent model "
            "differ in width: use last_hidden_state"
        )
    layers = [layer for stack in stacks for layer in stack.layers]
    has_experts = any(isinstance(layer.feed_forward, MixtureOfExpertsSpec) for layer in layers)
    if "router_logits" in extra_outputs and not has_experts:
        raise ValueError("extra_outputs holds 'router_logits', but this model has no experts")


def check_input_names(spec: Spec | DualSpec, tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the model reads all of these inputs and no required input is missing."""
    accepted = list_accepted_inputs(spec)
    for name in tensors:
        if name not in accepted:
            part = (
                REQUIRED_MODEL_PART.get(name)
                or REQUIRED_MODEL_PART[REQUIRED_INPUT.get(name, "input_ids")]
            )
            raise ValueError(
                f"{name}: this model has no {part}; it reads {', '.join(sorted(accepted))}"
            )
        if name in REQUIRED_INPUT:
            required = REQUIRED_INPUT[name]
            if required == "input_ids" and required not in accepted:
                required = "pixel_values"  # the frames of a clip
            alternatives = {"input_ids", "inputs_embeds"} if required == "input_ids" else {required}
            if not tensors.keys() & alternatives:
                raise ValueError(f"{name} without {required}: expected both")
    if "input_ids" in tensors and "inputs_embeds" in tensors:
        raise ValueError("input_ids and inputs_embeds: expected only one of the two")
    is_encoder_decoder = (
        isinstance(spec, Spec) and spec.encoder is not None and spec.decoder is not None
    )
    main_inputs = {"input_ids", "inputs_embeds", "pixel_values"} & accepted
    if is_encoder_decoder:
        main_inputs.add("encoder_hidden_states")
    if not tensors.keys() & main_inputs:
        raise ValueError(f"no input: expected {' or '.join(sorted(main_inputs))}")
    text_spec = spec.text if isinstance(spec, DualSpec) else spec
    poolings = {get_head_pooling(head) for head in text_spec.heads} if text_spec else set()
    if "inputs_embeds" in tensors and poolings & {"eos", "first_eos", "max_id"}:
        raise ValueError(
            "inputs_embeds: a head of this model reads at the end-of-sequence token; expected input_ids"
        )
    if not isinstance(spec, Spec) or not is_encoder_decoder or "decoder_input_ids" in tensors:
        return
    if spec.shift_right is None or "input_ids" not in tensors:
        reason = (
            "only input_ids can be shifted"
            if spec.shift_right
            else "this model does not shift input_ids"
        )
        raise ValueError(
            f"decoder_input_ids is missing: expected the token ids of the decoder, {reason}"
        )


def check_input_dtype(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the input has one of its dtypes."""
    dtype = tensor.dtype
    expected = ""
    if name in INPUT_DTYPES and dtype not in INPUT_DTYPES[name]:
        expected = " or ".join(format_dtype(allowed) for allowed in INPUT_DTYPES[name])
    elif name in MASK_INPUTS and (dtype.is_floating_point or dtype.is_complex):
        expected = "bool, true for tokens and false for padding"
    elif name in FLOAT_INPUTS and not dtype.is_floating_point:
        expected = "floating point"
    if expected:
        raise ValueError(f"{name} is {format_dtype(dtype)}, expected {expected}")


def format_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")


def check_text_inputs(
    spec: Spec,
    tensors: Mapping[str, Tensor],
    sizes: dict[str, int],
    upper_bounds: dict[str, int | None],
) -> None:
    """Check the shapes of text inputs; add the sizes of axes to `sizes`, and the upper bounds of
    values to `upper_bounds`."""
    stacks = list_stack_specs(spec)
    first = stacks[0]
    last = stacks[-1]
    embedding = first.embedding
    rows = ("B", "C") if spec.is_multiple_choice else ("B",)
    flat = "N" if spec.is_multiple_choice else "B"
    embedding_width = first.width
    if embedding.cutoffs is None and embedding.width is not None:
        embedding_width = embedding.width
    axes: dict[str, tuple[str | int, ...]] = {
        "input_ids": (*rows, "T"),
        "inputs_embeds": (*rows, "T", embedding_width),
        "attention_mask": (*rows, "T"),
        "position_ids": (*rows, "T"),
        "token_type_ids": (*rows, "T"),
        "mc_token_ids": rows,
        "decoder_input_ids": (flat, "U"),
        "decoder_attention_mask": (flat, "U"),
        "encoder_hidden_states": (flat, "S", last.width),
        "encoder_attention_mask": (flat, "S"),
        "perm_mask": (flat, "T", "T"),
        "target_mapping": (flat, "P", "T"),
        "mems": (first.depth, flat, "M", first.width),
    }
    for name, expected in axes.items():
        if name in tensors:
            check_input_shape(name, tensors[name], expected, sizes)
            if name in ("input_ids", "inputs_embeds") and spec.is_multiple_choice:
                sizes["N"] = sizes["B"] * sizes["C"]
    for name, stack in (("input_ids", first), ("decoder_input_ids", last)):
        if name in tensors:
            upper_bounds[name] = stack.embedding.vocab_size
    if "token_type_ids" in tensors:
        token_types = embedding.token_types
        upper_bounds["token_type_ids"] = (
            embedding.vocab_size if token_types == "tokens" else int(token_types) or None
        )
    if "mc_token_ids" in tensors:
        upper_bounds["mc_token_ids"] = sizes["T"]
    if "position_ids" in tensors:
        upper_bounds["position_ids"] = first.max_positions
    elif "T" in sizes:
        names = ("input_ids", "inputs_embeds", "pixel_values")
        name = next(name for name in names if name in tensors)
        is_shifted = spec.shift_right is not None and "decoder_input_ids" not in tensors
        readers = [first, last] if is_shifted else [first]
        check_input_length(name, sizes["T"], tensors.get("attention_mask"), *readers)
    if "decoder_input_ids" in tensors:
        check_input_length(
            "decoder_input_ids", sizes["U"], tensors.get("decoder_attention_mask"), last
        )
    for head in spec.heads:
        if (
            get_head_pooling(head) == "eos"
            and isinstance(head, HeadSpec)
            and "input_ids" in tensors
        ):
            check_eos_token(tensors["input_ids"], head)
            if "decoder_input_ids" in tensors and sizes["U"] != sizes["T"]:
                raise ValueError(
                    f"decoder_input_ids has {sizes['U']} tokens, expected {sizes['T']} as "
                    "input_ids, "
                    f"for the {head.name} head"
                )


def check_eos_token(input_ids: Tensor, head: HeadSpec) -> None:
    """Raise ValueError unless each row has the EOS token whose state the head reads."""
    has_no_eos = torch.ne(input_ids, head.eos_token_id or 0).all(-1)
    if bool(has_no_eos.any()):
        row = int(has_no_eos.int().argmax())
        raise ValueError(
            f"input_ids: no end-of-sequence token {head.eos_token_id} in row {row}, expected one "
            "for the "
            f"{head.name} head"
        )


def check_input_shape(
    name: str, tensor: Tensor, expected: tuple[str | int, ...], sizes: dict[str, int]
) -> None:
    """Check a shape against numbers and letters; a letter stands for a size that all inputs share."""
    shape = tuple(tensor.shape)
    known = {axis: sizes[axis] for axis in expected if isinstance(axis, str) and axis in sizes}
    description = f"({', '.join(map(str, expected))})"
    description += "".join(f", {axis} = {size}" for axis, size in known.items())
    if len(shape) != len(expected):
        raise ValueError(f"{name} is {shape}, expected {description}")
    for axis, size in zip(expected, shape, strict=True):
        expected_size = sizes.setdefault(axis, size) if isinstance(axis, str) else axis
        if size != expected_size:
            raise ValueError(f"{name} is {shape}, expected {description}")
        if size == 0 and axis != "M":
            raise ValueError(f"{name} is {shape}, expected no axis of size 0")


def check_input_length(
    name: str,
    length: int,
    attention_mask: Tensor | None,
    *stack_specs: AnyStackSpec,
) -> None:
    """Check that no row has more tokens than positions; the mask is read only if necessary."""
    limits = [limit for stack in stack_specs if (limit := stack.max_positions) is not None]
    limit = min(limits, default=length)
    if length > limit and attention_mask is not None:
        length = int(attention_mask.bool().sum(-1).max())
    check_sequence_length(name, length, limit)


def check_value_ranges(bounds: Mapping[str, tuple[Tensor, int | None]]) -> None:
    """Check that all values are at least 0 and below their bound; None means no bound."""
    if not bounds:
        return
    tensors = [tensor for tensor, _ in bounds.values()]
    extremes = [
        value.to(tensors[0].device).long() for tensor in tensors for value in tensor.aminmax()
    ]
    values = torch.stack(extremes).tolist()
    for (name, (_, bound)), low, high in zip(
        bounds.items(), values[::2], values[1::2], strict=True
    ):
        expected = "0 or more" if bound is None else f"0 to {bound - 1}"
        if low < 0:
            raise ValueError(f"{name} holds {low}, expected {expected}")
        if bound is not None and high >= bound:
            raise ValueError(f"{name} holds {high}, expected {expected}")


def list_accepted_inputs(spec: Spec | DualSpec) -> set[str]:
    """Return the names of the inputs that this model reads."""
    text_inputs = {"input_ids", "inputs_embeds", "attention_mask", "position_ids"}
    if isinstance(spec, DualSpec):
        return (text_inputs if spec.text else set()) | ({"pixel_values"} if spec.image else set())
    if isinstance(patches := find_patches(spec), PatchSpec | ConvolutionSpec):
        text_inputs = {"pixel_values"}
    elif patches is not None:
        text_inputs = {"pixel_values", "attention_mask", "position_ids"}
    stacks = list_stack_specs(spec)
    embedding = stacks[0].embedding
    has_segment_bias = any(
        isinstance(layer.attention.relative_position, RelativeXLSpec)
        and layer.attention.relative_position.segment_bias
        for layer in stacks[0].layers[:1]
    )
    has_cross_attention = any(layer.cross_attention for layer in stacks[-1].layers[:1])
    if isinstance(stacks[0], RecurrentStackSpec):
        text_inputs.remove("position_ids")
    conditions = {
        "mc_token_ids": "mc_token" in map(get_head_pooling, spec.heads),
        "token_type_ids": bool(embedding.token_types) or has_segment_bias,
        "decoder_input_ids": len(stacks) == 2,
        "decoder_attention_mask": len(stacks) == 2,
        "encoder_hidden_states": has_cross_attention,
        "encoder_attention_mask": has_cross_attention,
        "mems": stacks[0].recurrence is not None,
        "perm_mask": embedding.query_stream,
        "target_mapping": embedding.query_stream,
    }
    return text_inputs | {name for name, is_accepted in conditions.items() if is_accepted}


def list_stack_specs(spec: Spec | DualSpec) -> list[AnyStackSpec]:
    """Return the encoder and decoder of a spec, or those of both towers."""
    if isinstance(spec, DualSpec):
        return [
            stack for tower in (spec.text, spec.image) if tower for stack in list_stack_specs(tower)
        ]
    return [stack for stack in (spec.encoder, spec.decoder) if stack]


def get_head_pooling(head: object) -> str:
    """Return the pooling of a head."""
    return head.pooling if isinstance(head, HeadSpec) else ""


def build_input_batch(
    spec: Spec | DualSpec, *, extra_outputs: tuple[str, ...] = (), **tensors: Tensor
) -> Batch:
    """Return the Batch of checked inputs."""
    input_ids = tensors.get("input_ids")
    inputs_embeds = tensors.get("inputs_embeds")
    pixel_values = tensors.get("pixel_values")
    encoder = decoder = image = encoder_hidden_states = None
    if input_ids is not None or inputs_embeds is not None:
        encoder = Inputs.create(
            input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=tensors.get("attention_mask"),
            position_ids=tensors.get("position_ids"),
            token_type_ids=tensors.get("token_type_ids"),
        )
    patches = find_patches(spec)
    if pixel_values is not None and patches is not None:
        image = Inputs.create(
            pixel_values=pixel_values,
            num_patches=patches.num_tokens,
            attention_mask=None if encoder else tensors.get("attention_mask"),
            position_ids=None if encoder else tensors.get("position_ids"),
        )
    if isinstance(spec, DualSpec):
        return Batch(encoder=encoder, image=image, extra_outputs=extra_outputs)
    encoder = encoder or image
    if spec.encoder is None:  # decoder-only
        encoder, decoder = None, encoder
    elif tensors.get("decoder_input_ids") is not None:
        decoder = Inputs.create(
            tensors["decoder_input_ids"], attention_mask=tensors.get("decoder_attention_mask")
        )
    elif spec.shift_right is not None and encoder is not None and input_ids is not None:
        decoder = shift_tokens_right(encoder, spec.shift_right)
    if tensors.get("encoder_hidden_states") is not None:
        encoder_hidden_states = Inputs.create(
            inputs_embeds=tensors["encoder_hidden_states"],
            attention_mask=tensors.get("encoder_attention_mask"),
        )
    permutation_mask = target_positions = None
    perm_mask = tensors.get("perm_mask")
    target_mapping = tensors.get("target_mapping")
    if perm_mask is not None or target_mapping is not None:
        inputs = encoder if decoder is None else decoder
        assert inputs is not None
        permutation_mask, target_positions = build_permutation_mask(
            inputs, perm_mask, target_mapping
        )
    return Batch(
        encoder=encoder,
        decoder=decoder,
        encoder_hidden_states=encoder_hidden_states,
        mems=tensors.get("mems"),
        permutation_mask=permutation_mask,
        target_positions=target_positions,
        mc_token_ids=tensors.get("mc_token_ids"),
        extra_outputs=extra_outputs,
    )


def build_permutation_mask(
    inputs: Inputs, perm_mask: Tensor | None, target_mapping: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return XLNet's attention mask (B, T + P, T), true where attention is allowed, and target
    positions (B, P)."""
    length = inputs.length
    device = inputs.position_ids.device
    if perm_mask is None:
        allowed = torch.ones(inputs.batch_size, length, length, dtype=torch.bool, device=device)
    else:
        allowed = ~perm_mask.bool()
    # In the content stream, a token always attends to itself.
    content = allowed | torch.eye(length, dtype=torch.bool, device=allowed.device)
    if target_mapping is None:
        return content, None
    target_mapping = target_mapping.float()
    if not bool((target_mapping.sum(-1) == 1).all()) or not bool(
        (target_mapping.max(-1).values == 1).all()
    ):
        raise ValueError("target_mapping: expected one 1 and zeros in each row of (B, P, T)")
    target_positions = target_mapping.argmax(-1)
    query = allowed.gather(1, target_positions[..., None].expand(-1, -1, length))
    return torch.cat([content, query], dim=1), target_positions


def shift_tokens_right(inputs: Inputs, shift: tuple[int, str]) -> Inputs:
    """Return decoder inputs for these labels: shifted right, with the start token or the last token
    first."""
    start_token_id, mode = shift
    assert inputs.input_ids is not None
    mask = inputs.attention_mask
    if mask is None:
        mask = torch.ones_like(inputs.input_ids, dtype=torch.bool)
    first_token = torch.full_like(inputs.input_ids, start_token_id)
    if mode == "wrap":
        last_token = inputs.input_ids.gather(1, last_true_index(mask)[:, None])
        first_token = last_token.expand_as(inputs.input_ids)
    is_first = mask & (mask.cumsum(1) == 1)
    input_ids = torch.where(is_first, first_token, inputs.input_ids.roll(1, dims=1))
    return replace(inputs, input_ids=input_ids, token_type_ids=None)
