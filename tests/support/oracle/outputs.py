"""Outputs of the reference model under the names of `qkv.Model`, row by row without padding."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.oracle.cases import Case
from tests.support.oracle.inputs import Inputs, P, select_row, to_reference_inputs
from tests.support.oracle.models import DEVICE, build_reference

Outputs = dict[str, tuple[Tensor, str]]  # name: tensor, axes
Row = dict[str, Tensor]


def compute_expected(
    case: Case, inputs: Inputs, padding: str, dtype: torch.dtype
) -> tuple[list[Row], dict[str, str]]:
    """Return the reference values at tokens, row by row, and the axes of each output."""
    model = build_reference(case, dtype)
    if not case.runs_rows_alone(padding, dtype):
        outputs = run_reference(case, model, inputs)
        return split_rows(outputs, inputs), {name: axes for name, (_, axes) in outputs.items()}
    parts = [select_row(inputs, n) for n in range(inputs["input_ids"].shape[:-1].numel())]
    results = [run_reference(case, model, part) for part in parts]
    axes = {name: axes for name, (_, axes) in results[0].items() if "n" in axes}
    if "attention_mask" in inputs:
        axes.pop("mems", None)  # padding is remembered too
    rows = [
        split_rows({name: outputs[name] for name in axes}, part)[0]
        for outputs, part in zip(results, parts, strict=True)
    ]
    return rows, axes


def run_reference(case: Case, model: Any, inputs: Inputs) -> Outputs:
    """Run the reference model on DEVICE; return its outputs under the names of `qkv.Model`."""
    if DEVICE == "cpu":
        return run_on_device(case, model, inputs)
    outputs = run_on_device(case, model, {name: value.to(DEVICE) for name, value in inputs.items()})
    return {name: (value.cpu(), axes) for name, (value, axes) in outputs.items()}


def run_on_device(case: Case, model: Any, inputs: Inputs) -> Outputs:
    captured: dict[str, Tensor] = {}
    hooks = []
    # The beam head returns the best starts and ends only.
    for name in ("start_logits", "end_logits") if "beam" in case.traits else ():
        capture = lambda module, args, out, name=name: captured.update({name: out})  # noqa: E731
        hooks.append(getattr(model, name).register_forward_hook(capture))
    settings = {"output_hidden_states": True, "output_attentions": True}
    if "router_logits" in case.extra_outputs:
        settings["output_router_logits"] = True
    out = model(**to_reference_inputs(case, inputs), **settings)
    for hook in hooks:
        hook.remove()
    if case.family == "vit":  # hidden_states are taken before the final norm
        final_norm = getattr(model, "vit", model).layernorm
        out.hidden_states = (*out.hidden_states[:-1], final_norm(out.hidden_states[-1]))
    if captured:
        captured["end_logits"] = captured["end_logits"].transpose(1, 2)  # (B, T, K) -> (B, K, T)
    fields = {**out, **captured}
    outputs: Outputs = {name: (fields[field], axes) for name, (axes, field) in case.outputs.items()}
    if case.class_name == "CLIPModel":
        text_weights = out.text_model_output.attentions
        image_weights = out.vision_model_output.attentions
        outputs |= name_attention_weights("text.encoder", "attention", text_weights, "n.tt")
        return outputs | name_attention_weights("image.encoder", "attention", image_weights, "n...")
    if case.is_encoder_decoder:
        return outputs | name_encoder_decoder_outputs(out)
    if "target_mapping" in inputs:  # the head reads the targets
        outputs = {
            name: (value, "n." if axes == "nt" else axes) for name, (value, axes) in outputs.items()
        }
    return outputs | name_stack_outputs(case, inputs, out)


def name_encoder_decoder_outputs(out: Any) -> Outputs:
    """Return states, router logits and attention weights of an encoder-decoder."""
    encoder_router_logits = out.get("encoder_router_logits") or ()
    return {
        **number_outputs("hidden_states", out.decoder_hidden_states, "nt"),
        **number_outputs("encoder_hidden_states", out.encoder_hidden_states, "ns"),
        "last_hidden_state": (out.decoder_hidden_states[-1], "nt"),
        "encoder_last_hidden_state": (out.encoder_last_hidden_state, "ns"),
        **number_outputs("router_logits", out.get("decoder_router_logits") or (), "nt"),
        **number_outputs("encoder_router_logits", encoder_router_logits, "ns"),
        **name_attention_weights("encoder", "attention", out.encoder_attentions, "n.ss"),
        **name_attention_weights("decoder", "attention", out.decoder_attentions, "n.tt"),
        **name_attention_weights("decoder", "cross_attention", out.cross_attentions, "n.ts"),
    }


def name_stack_outputs(case: Case, inputs: Inputs, out: Any) -> Outputs:
    """Return states, mems, router logits and attention weights of a single stack."""
    last = out.get("last_hidden_state")
    hidden_states = list(out.hidden_states)
    weights = list(out.attentions)
    stack = "decoder" if case.is_decoder_only else "encoder"
    state_axes, weight_axes = "nt", "n.tk"
    outputs: Outputs = {}
    if "image" in case.traits:
        state_axes, weight_axes = "n.", "n..."
    if case.family == "clip":
        stack = "text.encoder" if "text" in case.traits else "image.encoder"
        if last is not None:  # hidden_states are taken before the final norm
            hidden_states[-1] = last
    if "target_mapping" in inputs:
        # Streams alternate; the query stream's weights have a row a token.
        streams = zip(hidden_states[::2], hidden_states[1::2], strict=True)
        hidden_states = [torch.cat(stream, 1) for stream in streams]
        index = inputs["target_mapping"].argmax(2)[:, None, :, None]  # (B, 1, P, 1)
        weights = [torch.cat([h, g.take_along_dim(index, 2)], 2) for h, g in weights]
        outputs["last_hidden_state"] = (hidden_states[-1][:, -P:], "n.")
        state_axes, weight_axes = "nq", "n.qk"
    elif case.family != "clip" or last is not None:
        outputs["last_hidden_state"] = (hidden_states[-1], state_axes)
    if out.get("mems") is not None and "attention_mask" not in inputs:
        outputs["mems"] = (torch.stack(out.mems).transpose(1, 2), ".n.")
    cross_weights = out.get("cross_attentions") or ()
    return {
        **outputs,
        **number_outputs("hidden_states", hidden_states, state_axes),
        **number_outputs("router_logits", out.get("router_logits") or (), "nt"),
        **name_attention_weights(stack, "attention", weights, weight_axes),
        **name_attention_weights(stack, "cross_attention", cross_weights, "n.ts"),
    }


def number_outputs(name: str, tensors: Iterable[Tensor], axes: str) -> Outputs:
    return {f"{name}.{n}": (tensor, axes) for n, tensor in enumerate(tensors)}


def name_attention_weights(
    stack: str, sublayer: str, tensors: Iterable[Tensor], axes: str
) -> Outputs:
    return {f"{stack}.layers.{n}.{sublayer}": (tensor, axes) for n, tensor in enumerate(tensors)}


def split_rows(outputs: Outputs, inputs: Inputs) -> list[Row]:
    """Return the values at tokens, row by row; what belongs to no row goes to the first."""
    batch_shape = next(iter(inputs.values())).shape[:1]  # (B,) or (B, C)
    width = 0
    if "input_ids" in inputs:
        *batch_dims, width = inputs["input_ids"].shape
        batch_shape = torch.Size(batch_dims)
    elif "inputs_embeds" in inputs:
        batch_shape = inputs["inputs_embeds"].shape[:1]
        width = inputs["inputs_embeds"].shape[1]
    count = batch_shape.numel()
    t = torch.ones(count, width, dtype=torch.bool)
    if "attention_mask" in inputs:
        t = inputs["attention_mask"].flatten(0, -2)
    s = t
    if "encoder_hidden_states" in inputs:
        s = torch.ones(inputs["encoder_hidden_states"].shape[:2], dtype=torch.bool)
    s = inputs.get("encoder_attention_mask", s)
    if "decoder_input_ids" in inputs:
        no_padding = torch.ones_like(inputs["decoder_input_ids"], dtype=torch.bool)
        t = inputs.get("decoder_attention_mask", no_padding)
    num_mems = inputs["mems"].shape[2] if "mems" in inputs else 0
    memory = torch.ones(count, num_mems, dtype=torch.bool)
    num_targets = inputs["target_mapping"].shape[1] if "target_mapping" in inputs else 0
    targets = torch.ones(count, num_targets, dtype=torch.bool)
    masks = {"t": t, "s": s, "k": torch.cat([memory, t], 1), "q": torch.cat([t, targets], 1)}
    rows: list[Row] = [{} for _ in range(count)]
    for name, (value, axes) in outputs.items():
        if "n" not in axes:
            rows[0][name] = value
            continue
        if len(batch_shape) == 2 and value.shape[:2] == batch_shape:
            value = value.flatten(0, 1)  # (B, C, ...) -> (B*C, ...)
        for n in range(count):
            part = value
            for axis, letter in reversed(list(enumerate(axes))):
                if letter == "n":
                    part = part.select(axis, n)
                elif letter != ".":
                    part = part.index_select(axis, masks[letter][n].nonzero()[:, 0])
            rows[n][name] = part
    return rows


def compute_loss(rows: list[Row]) -> Tensor:
    """Return one number that depends on every output with a gradient."""
    total = torch.zeros((), dtype=torch.float64)
    for n, row in enumerate(rows):
        for name, value in row.items():
            if name == "mems" or "." in name:  # detached; part of another output
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{n} {name}".encode()))
            weight = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            total = total + (value * weight).sum() / value.numel() ** 0.5
    return total


def collect_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients, zeros where there are none, and reset them."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()
    }
    model.zero_grad(set_to_none=True)
    return gradients
