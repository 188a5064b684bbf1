"""Exported ONNX files, run in onnxruntime as Optimum runs them. Knows nothing of qkv."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
from torch import Tensor

Arrays = dict[str, np.ndarray]


class OnnxModel:
    """An ONNX file with named inputs and outputs."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {value.name: value.shape for value in self.session.get_inputs()}
        self.outputs = {value.name: value.shape for value in self.session.get_outputs()}

    def __call__(self, inputs: Mapping[str, Tensor | np.ndarray]) -> Arrays:
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        return dict(zip(self.outputs, self.session.run(None, arrays), strict=True))


def generate_greedily(
    folder: Path, input_ids: Tensor, attention_mask: Tensor, steps: int
) -> np.ndarray:
    """Return the ids (B, steps) that a decoder generates after prompts padded on the left."""
    model = OnnxModel(folder / "model.onnx")
    mask = np.asarray(attention_mask)
    ids = np.asarray(input_ids)
    past = {
        name: np.zeros((len(ids), shape[1], 0, shape[3]), np.float32)
        for name, shape in model.inputs.items()
        if name.startswith("past_key_values")
    }
    generated = []
    for _ in range(steps):
        positions = np.clip(mask.cumsum(1) - 1, 0, None)[:, -ids.shape[1] :]
        named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        out = model({**named, **past})
        past = {name: out[name.replace("past_key_values", "present")] for name in past}
        ids = out["logits"][:, -1].argmax(-1)[:, None]
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        generated.append(ids)
    return np.concatenate(generated, axis=1)


def translate_greedily(
    folder: Path, input_ids: Tensor, attention_mask: Tensor, start: int, steps: int
) -> np.ndarray:
    """Return the ids (B, steps) that an encoder-decoder generates."""
    names = ("encoder_model", "decoder_model", "decoder_with_past_model")
    encoder, first, later = (OnnxModel(folder / f"{name}.onnx") for name in names)
    states = encoder({"input_ids": input_ids, "attention_mask": attention_mask})
    ids = np.full((len(input_ids), 1), start)
    source: dict[str, Tensor | np.ndarray] = {"encoder_attention_mask": attention_mask}
    out = first({"input_ids": ids, "encoder_hidden_states": states["last_hidden_state"], **source})
    past: Arrays = {}
    generated = []
    for _ in range(steps):
        past |= {
            name.replace("present", "past_key_values"): value
            for name, value in out.items()
            if name.startswith("present")
        }
        ids = out["logits"][:, -1].argmax(-1)[:, None]
        generated.append(ids)
        out = later({"input_ids": ids, **source, **past})
    return np.concatenate(generated, axis=1)
