"""Graphs: the functions of plain tensors that a model is exported as, with the names of files, inputs,
outputs and axes that Hugging Face's Optimum gives to ONNX files. Does not depend on a file format."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from qkv.export.modules import (
    DecoderModule,
    EncoderModule,
    ForwardModule,
    Seq2SeqDecoderModule,
    Tensors,
)
from qkv.model.inputs import list_accepted_inputs, list_stack_specs
from qkv.model.model import Model
from qkv.nn.network import Network
from qkv.spec import (
    DualSpec,
    MixtureOfExpertsSpec,
    RecurrentStackSpec,
    SpanBeamSpec,
    Spec,
    find_patches,
)

# Sizes of the example inputs. They differ, so that tracing does not take two axes for one.
BATCH, IMAGES, CHOICES, LENGTH, CACHED, SOURCE = 3, 2, 4, 5, 7, 11

Axes = dict[int, str]  # a dynamic axis -> its name
TEXT_AXES: Axes = {0: "batch_size", 1: "sequence_length"}
CHOICE_AXES: Axes = {0: "batch_size", 1: "num_choices", 2: "sequence_length"}
SOURCE_AXES: Axes = {0: "batch_size", 1: "encoder_sequence_length"}
TARGET_AXES: Axes = {0: "batch_size", 1: "decoder_sequence_length"}
TOTAL_LENGTH = "past_sequence_length + sequence_length"
# Cached keys and values (B, H, S, D): of a decoder, of an encoder-decoder, of its cross-attention.
PAST_AXES: Axes = {0: "batch_size", 2: "past_sequence_length"}
PRESENT_AXES: Axes = {0: "batch_size", 2: TOTAL_LENGTH}
PAST_TARGET_AXES: Axes = {0: "batch_size", 2: "past_decoder_sequence_length"}
FIRST_TARGET_AXES: Axes = {0: "batch_size", 2: "decoder_sequence_length"}
PRESENT_TARGET_AXES: Axes = {
    0: "batch_size", 2: "past_decoder_sequence_length + decoder_sequence_length",
}  # fmt: skip
PAST_SOURCE_AXES: Axes = {0: "batch_size", 2: "encoder_sequence_length"}


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A function of named tensors: `module(inputs)` returns the outputs by name."""

    name: str  # the name of its file, without the suffix
    module: nn.Module
    example_inputs: Tensors
    input_axes: dict[str, Axes]
    output_axes: dict[str, Axes]


def build_graphs(model: Model) -> list[Graph]:
    """Return the graphs of a model; raise ValueError if they cannot hold a part of it.

    A decoder that generates has a KV cache. An encoder-decoder that generates has three graphs: the
    encoder, the decoder of the first tokens, and the decoder of later tokens."""
    check_exportable(model)
    spec, net = model.spec, model.net
    if isinstance(spec, Spec) and isinstance(net, Network) and spec.decoder is not None:
        head = model.args.get("head")
        if spec.encoder is not None and head in ("lm", "none"):
            return build_seq2seq_graphs(net, "logits" if spec.heads else "last_hidden_state")
        if spec.encoder is None and head in ("lm", "causal-lm"):
            return [build_decoder_graph(net)]
    return [build_forward_graph(model)]


def check_exportable(model: Model) -> None:
    """Raise ValueError if the model has a part that a graph of plain tensors cannot hold."""
    spec = model.spec
    stacks = list_stack_specs(spec)
    layers = [layer for stack in stacks for layer in stack.layers]
    heads = spec.heads if isinstance(spec, Spec) else ()
    is_alone = isinstance(spec, Spec) and len(stacks) == 1
    unsupported = {
        "recurrent layers": any(isinstance(stack, RecurrentStackSpec) for stack in stacks),
        "segment memory": isinstance(spec, Spec) and bool(spec.decoder and spec.decoder.recurrence),
        "a mixture of experts": any(
            isinstance(layer.feed_forward, MixtureOfExpertsSpec) for layer in layers
        ),
        "cross-attention without an encoder": is_alone
        and any(layer.cross_attention for layer in layers),
        "an attention without softmax of dot products": any(
            not layer.attention.has_fast_kernel for layer in layers
        ),
        "an answer head with a beam": any(isinstance(head, SpanBeamSpec) for head in heads),
    }
    for part, is_present in unsupported.items():
        if is_present:
            raise ValueError(
                f"{model.family.name}: {part} cannot be exported to ONNX or pt2; "
                "expected --to hf or --to qkv"
            )


# --- one forward pass ---


def build_forward_graph(model: Model) -> Graph:
    """Return the graph of one forward pass: an encoder, or any model with a classifier."""
    spec = model.spec
    accepted = list_accepted_inputs(spec)
    is_dual = isinstance(spec, DualSpec)
    axes = TEXT_AXES | ({0: "text_batch_size"} if is_dual else {})
    shape: tuple[int, ...] = (BATCH, LENGTH)
    if isinstance(spec, Spec) and spec.is_multiple_choice:
        axes, shape = CHOICE_AXES, (BATCH, CHOICES, LENGTH)
    examples: Tensors = {}
    if "input_ids" in accepted:
        examples["input_ids"] = torch.zeros(shape, dtype=torch.long)
        examples["attention_mask"] = torch.ones(shape, dtype=torch.long)
        has_types = list_stack_specs(spec)[0].embedding.token_types != 1  # RoBERTa has a single one
        if "token_type_ids" in accepted and has_types and model.family.shape == "encoder":
            examples["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    input_axes = dict.fromkeys(examples, axes)
    if "mc_token_ids" in accepted:
        examples["mc_token_ids"] = torch.zeros(shape[:2], dtype=torch.long)
        input_axes["mc_token_ids"] = {0: "batch_size", 1: "num_choices"}
    if (patches := find_patches(spec)) is not None:
        clip_axes: Axes = {1: "num_frames"} if "T" in patches.pixel_shape else {}
        size = [LENGTH if axis == "T" else int(axis) for axis in patches.pixel_shape]
        examples["pixel_values"] = torch.zeros(IMAGES, *size, dtype=model.dtype)
        input_axes["pixel_values"] = {
            0: "image_batch_size" if is_dual else "batch_size"
        } | clip_axes
    examples = {name: x.to(model.device) for name, x in examples.items()}
    module = ForwardModule(model.net)
    return Graph(
        name="model",
        module=module,
        example_inputs=examples,
        input_axes=input_axes,
        output_axes=find_output_axes(module, examples, input_axes),
    )


@torch.no_grad()
def find_output_axes(
    module: nn.Module, examples: Tensors, input_axes: dict[str, Axes]
) -> dict[str, Axes]:
    """Return the dynamic axes of the outputs: those that shrink with an axis of the inputs."""
    outputs = module(examples)
    output_axes: dict[str, Axes] = {name: {} for name in outputs}
    for axis_name in {name for axes in input_axes.values() for name in axes.values()}:
        smaller = dict(examples)
        for name, axes in input_axes.items():
            for axis in (axis for axis in axes if axes[axis] == axis_name):
                smaller[name] = smaller[name].narrow(axis, 0, examples[name].shape[axis] - 1)
        for name, output in module(smaller).items():
            for axis, size in enumerate(output.shape):
                if size != outputs[name].shape[axis]:
                    output_axes[name][axis] = axis_name
    return output_axes


# --- decoders with a KV cache ---


def build_decoder_graph(net: Network) -> Graph:
    """Return the graph of a decoder; a prompt has a cache of length 0."""
    past = build_cache_examples(net, "", CACHED)
    like = next(iter(past.values()))
    position_ids = torch.arange(CACHED, CACHED + LENGTH, device=like.device).expand(BATCH, -1)
    return Graph(
        name="model",
        module=DecoderModule(net),
        example_inputs={
            "input_ids": torch.zeros_like(position_ids),
            "attention_mask": position_ids.new_ones(BATCH, CACHED + LENGTH),
            "position_ids": position_ids,
            **past,
        },
        input_axes={
            "input_ids": TEXT_AXES,
            "attention_mask": {0: "batch_size", 1: TOTAL_LENGTH},
            "position_ids": TEXT_AXES,
            **dict.fromkeys(past, PAST_AXES),
        },
        output_axes={
            "logits": TEXT_AXES,
            **dict.fromkeys(rename_to_present(past), PRESENT_AXES),
        },
    )


def build_seq2seq_graphs(net: Network, output: str) -> list[Graph]:
    """Return the graphs of an encoder-decoder: encoder, first tokens, later tokens."""
    past = build_cache_examples(net, "decoder.", CACHED)
    keys = build_cache_examples(net, "encoder.", SOURCE)
    like = next(iter(past.values()))
    mask = torch.ones(BATCH, SOURCE, dtype=torch.long, device=like.device)
    input_ids = mask.new_zeros(BATCH, LENGTH)
    decoder_axes = {"input_ids": TARGET_AXES, "encoder_attention_mask": SOURCE_AXES}
    encoder = Graph(
        name="encoder_model",
        module=EncoderModule(net),
        example_inputs={"input_ids": torch.zeros_like(mask), "attention_mask": mask},
        input_axes={"input_ids": SOURCE_AXES, "attention_mask": SOURCE_AXES},
        output_axes={"last_hidden_state": SOURCE_AXES},
    )
    first = Graph(
        name="decoder_model",
        module=Seq2SeqDecoderModule(net, output),
        example_inputs={
            "input_ids": input_ids,
            "encoder_attention_mask": mask,
            "encoder_hidden_states": like.new_zeros(BATCH, SOURCE, net.last_stack.spec.width),
        },
        input_axes={**decoder_axes, "encoder_hidden_states": SOURCE_AXES},
        output_axes={
            output: TARGET_AXES,
            **{
                name: PAST_SOURCE_AXES if ".encoder." in name else FIRST_TARGET_AXES
                for name in rename_to_present(past | keys)
            },
        },
    )
    later = Graph(
        name="decoder_with_past_model",
        module=Seq2SeqDecoderModule(net, output),
        example_inputs={"input_ids": input_ids, "encoder_attention_mask": mask, **past, **keys},
        input_axes={
            **decoder_axes,
            **dict.fromkeys(past, PAST_TARGET_AXES),
            **dict.fromkeys(keys, PAST_SOURCE_AXES),
        },
        output_axes={
            output: TARGET_AXES,
            **dict.fromkeys(rename_to_present(past), PRESENT_TARGET_AXES),
        },
    )
    return [encoder, first, later]


def build_cache_examples(net: Network, side: str, length: int) -> Tensors:
    """Return cached keys and values (B, H, S, D) by name: past_key_values.0.decoder.key ..."""
    stack = net.last_stack
    like = next(stack.parameters())
    examples: Tensors = {}
    for depth, index in enumerate(stack.layer_order):
        layer = stack.spec.layers[index]
        attention = layer.cross_attention if side == "encoder." else layer.attention
        assert attention is not None
        shape = (BATCH, attention.kv_heads or attention.heads, length, attention.head_dim)
        for kind in ("key", "value"):
            examples[f"past_key_values.{depth}.{side}{kind}"] = like.new_zeros(shape)
    return examples


def rename_to_present(past: Tensors) -> list[str]:
    """Return the names of the outputs that become these cached inputs, by layer: present.0.key ..."""
    names = sorted(past, key=lambda name: int(name.split(".")[1]))
    return [name.replace("past_key_values", "present") for name in names]
