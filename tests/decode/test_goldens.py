"""What searches wrote that transformers no longer has (tests/goldens/generate/README.md)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.decode import generate, read_how
from qkv.nn.transformer import Transformer

ROOT = Path(__file__).parent.parent / "goldens" / "generate"
FOLDERS = sorted(path.parent.name for path in ROOT.glob("*/cases.json"))


@cache
def opened(folder: str) -> qkv.Model:
    return qkv.load(ROOT / folder)


def cases(folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / folder / "cases.json").read_text())
    return found


def test_they_are_there() -> None:
    assert len(FOLDERS) == 9
    assert {case["name"].split("-")[0] for folder in FOLDERS for case in cases(folder)} == {
        "greedy", "beam", "group", "contrast", "force",
    }  # fmt: skip


@pytest.mark.parametrize("folder", FOLDERS)
def test_ids_and_scores(folder: str) -> None:
    model, wrong = opened(folder), []
    net = model.net
    assert isinstance(net, Transformer)
    for case in cases(folder):
        how = read_how((model.generation or {}) | case["settings"], model.config)
        pair = net.encoder is not None and net.decoder is not None
        side: dict[str, Any] = {"sources": case["prompts"]} if pair else {"prompts": case["prompts"]}
        found = generate(net, **side, how=how)
        if [[one.ids for one in row] for row in found] != case["ids"]:
            wrong.append(case["name"])
            continue
        for row, scores in zip(found, case["scores"], strict=True):
            ours = [one.score if how.beams > 1 else one.scores for one in row]
            for mine, theirs in zip(ours, scores, strict=True):
                assert mine == pytest.approx(theirs, abs=2e-5, rel=1e-4), case["name"]
    assert not wrong
