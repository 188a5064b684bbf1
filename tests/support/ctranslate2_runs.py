"""Runs of the same inputs in ctranslate2 and in qkv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import qkv
from qkv.spec import Spec
from tests.support import tiny
from tests.support.ctranslate2_checkpoints import import_ctranslate2

# Rows of different lengths: the first has no padding.
SOURCES = [[9, 17, 30, 12, 44, 8, 21], [25, 11, 40], [33, 19, 28, 10, 49]]
TARGETS = [[14, 26, 38, 9, 20], [31, 45, 12, 37, 18], [22, 16, 29, 41, 13]]
LANGUAGE_ID = 7  # the first input of a decoder without a start token, as of mBART


def read_tokens(folder: Path, side: str) -> list[str]:
    names = (f"{side}_vocabulary.json", "shared_vocabulary.json", "vocabulary.json")
    tokens = json.loads(
        next(folder / name for name in names if (folder / name).exists()).read_text()
    )
    assert isinstance(tokens, list)
    return tokens


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    length = max(map(len, rows))
    ids = torch.tensor([row + [8] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return ids, mask


def compute_qkv_outputs(model: qkv.Model) -> Tensor:
    """Return log probabilities of the targets, logits of the sources, or hidden states."""
    spec = model.spec
    assert isinstance(spec, Spec)
    ids, mask = pad(SOURCES)
    with torch.no_grad():
        if spec.decoder is None:
            return model(ids, attention_mask=mask).last_hidden_state * mask[..., None]
        if spec.encoder is None:
            return model(ids, attention_mask=mask).logits * mask[..., None]
        targets = torch.tensor(TARGETS)
        start = model.args["decoder_start_token_id"]
        first = torch.full((len(TARGETS), 1), LANGUAGE_ID if start is None else start)
        inputs = torch.cat([first, targets], 1)[:, :-1]
        logits = model(ids, attention_mask=mask, decoder_input_ids=inputs).logits
    return logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]


def compute_ctranslate2_outputs(folder: Path, model: qkv.Model) -> Tensor:
    """Return the same outputs as `compute_qkv_outputs`, computed by ctranslate2."""
    ctranslate2 = import_ctranslate2()
    spec = model.spec
    assert isinstance(spec, Spec)
    _, mask = pad(SOURCES)
    if spec.decoder is None:
        outputs = (
            ctranslate2.Encoder(str(folder), intra_threads=1)
            .forward_batch(SOURCES)
            .last_hidden_state
        )
        return torch.from_numpy(np.array(outputs)) * mask[..., None]
    if spec.encoder is None:
        outputs = ctranslate2.Generator(str(folder), intra_threads=1).forward_batch(SOURCES)
        return torch.from_numpy(np.array(outputs)) * mask[..., None]
    source_tokens, target_tokens = (read_tokens(folder, side) for side in ("source", "target"))
    sources = [[source_tokens[i] for i in row] for row in SOURCES]
    has_start = model.args["decoder_start_token_id"] is not None
    rows = [row if has_start else [LANGUAGE_ID, *row] for row in TARGETS]
    results = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(
        sources, [[target_tokens[i] for i in row] for row in rows]
    )
    return torch.tensor([result.log_probs[: len(TARGETS[0])] for result in results])


def generate_qkv_ids(model: qkv.Model, num_beams: int, length: int = 16) -> list[list[int]]:
    """Return at most `length` generated tokens of each source, without the end token."""
    spec = model.spec
    assert isinstance(spec, Spec)
    settings: dict[str, Any] = dict(num_beams=num_beams, max_new_tokens=length)
    end_id = find_unlikely_id(model)
    settings["eos_token_id"] = end_id
    if spec.encoder is not None and model.args["decoder_start_token_id"] is None:
        settings["decoder_start_token_id"] = LANGUAGE_ID
    rows = []
    for source in SOURCES:
        ids = model.generate(torch.tensor([source]), **settings)[0].tolist()
        new_ids = ids[1 if spec.encoder is not None else len(source) :]
        rows.append(new_ids[: new_ids.index(end_id)] if end_id in new_ids else new_ids)
    return rows


def find_unlikely_id(model: qkv.Model) -> int:
    """Return the token of the lowest probability, as a token that does not end a text.

    To exclude the end by a setting is no comparison: ctranslate2 normalizes the probabilities after it,
    transformers before."""
    spec = model.spec
    assert isinstance(spec, Spec)
    ids, _ = pad(SOURCES)
    targets = None if spec.encoder is None else torch.tensor(TARGETS)
    with torch.no_grad():
        logits = model(ids, decoder_input_ids=targets).logits
    scores = logits.log_softmax(-1).flatten(0, 1).amax(0)
    return int(scores[: tiny.VOCAB - 2].argmin())


def generate_ctranslate2_ids(
    folder: Path, model: qkv.Model, num_beams: int, length: int = 16
) -> list[list[int]]:
    """Return the same tokens as `generate_qkv_ids`, generated by ctranslate2."""
    ctranslate2 = import_ctranslate2()
    spec = model.spec
    assert isinstance(spec, Spec)
    source_tokens, target_tokens = (read_tokens(folder, side) for side in ("source", "target"))
    sources = [[source_tokens[i] for i in row] for row in SOURCES]
    end_token = target_tokens[find_unlikely_id(model)]
    if spec.encoder is None:
        results = ctranslate2.Generator(str(folder), intra_threads=1).generate_batch(
            sources, beam_size=num_beams, max_length=length,
            include_prompt_in_result=False, end_token=end_token,
        )  # fmt: skip
        return [result.sequences_ids[0] for result in results]
    prefix = None
    if model.args["decoder_start_token_id"] is None:
        prefix = [[target_tokens[LANGUAGE_ID]]] * len(sources)
    results = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        sources, target_prefix=prefix, beam_size=num_beams, max_decoding_length=length,
        end_token=end_token,
    )  # fmt: skip
    first_ids = {token: i for i, token in reversed([*enumerate(target_tokens)])}
    return [[first_ids[token] for token in result.hypotheses[0]] for result in results]
