"""Golden outputs of searches that transformers no longer has (tests/goldens/generate/README.md)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.decode import generate, read_generation_config
from qkv.nn.network import Network

ROOT = Path(__file__).parent.parent / "goldens" / "generate"
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/cases.json"))


@cache
def load_model(folder: str) -> qkv.Model:
    return qkv.load(ROOT / folder)


def read_cases(folder: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / folder / "cases.json").read_text())
    return cases


def test_golden_files_are_complete() -> None:
    assert len(FOLDERS) == 9
    assert {case["name"].split("-")[0] for folder in FOLDERS for case in read_cases(folder)} == {
        "greedy", "beam", "group", "contrast", "force",
    }  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_token_ids_and_scores(folder: str) -> None:
    model = load_model(folder)
    net = model.net
    assert isinstance(net, Network)
    is_encoder_decoder = net.encoder is not None and net.decoder is not None
    different = []
    for case in read_cases(folder):
        config = read_generation_config(
            (model.generation_config or {}) | case["settings"], model.config
        )
        inputs: dict[str, Any] = {"sources" if is_encoder_decoder else "prompts": case["prompts"]}
        results = generate(net, **inputs, generation_config=config)
        if [[result.token_ids for result in row] for row in results] != case["ids"]:
            different.append(case["name"])
            continue
        for row, expected_row in zip(results, case["scores"], strict=True):
            scores = [result.score if config.num_beams > 1 else result.log_probs for result in row]
            for score, expected in zip(scores, expected_row, strict=True):
                assert score == pytest.approx(expected, abs=2e-5, rel=1e-4), case["name"]
    assert not different
