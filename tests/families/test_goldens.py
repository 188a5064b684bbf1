"""The golden folders of searches and pipelines: they open, and what lies beside a model fits it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import qkv

ROOT = Path(__file__).parent.parent / "goldens"
FOLDERS = sorted(
    file.parent for kind in ("generate", "pipelines") for file in (ROOT / kind).rglob("golden.safetensors")
)
WRITERS = [folder for folder in FOLDERS if folder.parent.name == "generate"]
ASKED = [folder for folder in FOLDERS if folder.parent.name == "pipelines"]
INPUTS = {"ids", "target", "images"}
OURS = {"start_logits": "start", "end_logits": "end", "logits_per_image": "logits"}
RULES = {"diversity_penalty", "repetition_penalty", "min_new_tokens"}  # a score is not the model's alone


def each(folders: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("folder", folders, ids=lambda folder: str(folder.relative_to(ROOT)))


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


def test_the_goldens_are_there() -> None:
    assert (len(WRITERS), len(ASKED)) == (9, 15)
    tasks = sorted((ROOT / "pipelines").glob("*.json"))
    assert len(tasks) == 10
    assert {row["model"] for file in tasks for row in read(file)} == {folder.name for folder in ASKED}


@each(FOLDERS)
def test_one_forward(folder: Path) -> None:
    golden = load_file(folder / "golden.safetensors")
    inputs: dict[str, Any] = {name: golden.pop(name) for name in INPUTS & golden.keys()}
    out = qkv.load(folder).run(**inputs)
    assert golden
    for name, theirs in golden.items():
        close(out[OURS.get(name, name)], theirs)


@each(ASKED)
def test_the_tokenizer_gives_the_ids_of_the_forward(folder: Path) -> None:
    with safe_open(folder / "golden.safetensors", "pt") as file:
        text, ids = file.metadata()["text"], file.get_tensor("ids")
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(text).ids == ids[0].tolist()


def logits(model: qkv.Model, prompt: list[int], new: list[int], start: int | None) -> Tensor:
    """Those of which every new token was chosen: (T, words)."""
    given = torch.tensor([prompt])
    if start is not None:
        return model.run(given, target=torch.tensor([[start, *new[:-1]]]))["logits"][0]
    if not model.args.get("memory"):
        return model.run(torch.tensor([prompt + new[:-1]]))["logits"][0, len(prompt) - 1 :]
    out = model.run(given)  # what it remembers is not all that it has read: a step at a time
    found = [out["logits"][0, -1]]
    for token in new[:-1]:
        out = model.run(torch.tensor([[token]]), memory=out["memory"])
        found.append(out["logits"][0, -1])
    return torch.stack(found)


def forced_at(settings: dict[str, Any]) -> list[int]:
    """Where a token is not chosen: a first one, and a last one where nothing more fits."""
    places = {"forced_bos_token_id": 0, "forced_eos_token_id": settings["max_new_tokens"] - 1}
    return [place for name, place in places.items() if settings.get(name) is not None]


@each(WRITERS)
def test_scores_are_those_of_the_model(folder: Path) -> None:
    model, own = qkv.load(folder), read(folder / "generation_config.json")
    banned = [ids[0] for ids in own.get("bad_words_ids", [])]
    checked = set()
    for case in read(folder / "cases.json"):
        settings = own | case["settings"]
        if RULES & settings.keys():
            continue
        checked.add(case["name"])
        beams = "num_beams" in settings
        for prompt, rows, scores in zip(case["prompts"], case["ids"], case["scores"], strict=True):
            for new, score in zip(rows, scores, strict=True):
                chosen_of = logits(model, prompt, new, own.get("decoder_start_token_id"))
                chosen_of[:, [] if beams else banned] = -torch.inf  # beams do not share out what is banned
                logs = chosen_of.log_softmax(-1)[torch.arange(len(new)), new]
                forced = [n for n in forced_at(settings) if n < len(new)]
                logs[forced] = 0.0
                if beams:
                    logs = logs.sum() / len(new) ** settings.get("length_penalty", 1.0)
                close(logs, torch.tensor(score))
                if case["name"] == "greedy":
                    best = chosen_of.argmax(-1).tolist()
                    assert all(best[n] == word for n, word in enumerate(new) if n not in forced)
    assert {"greedy", "beam"} <= checked


def test_features_and_plain_scores_are_those_of_the_model() -> None:
    for row in read(ROOT / "pipelines" / "feature-extraction.json"):
        model = qkv.load(ROOT / "pipelines" / row["model"])
        assert model.tokenizer is not None
        ids = torch.tensor([model.tokenizer.encode(row["inputs"]).ids])
        close(model.run(ids)["hidden"], torch.tensor(row["output"]))
    for row in read(ROOT / "pipelines" / "text-classification.json"):
        if row["settings"].get("function_to_apply") == "none":
            model = qkv.load(ROOT / "pipelines" / row["model"])
            assert model.tokenizer is not None
            out = model.run(torch.tensor([model.tokenizer.encode(row["inputs"]).ids]))["logits"][0]
            scores = {each["label"]: each["score"] for each in row["output"]}
            close(out, torch.tensor([scores[label] for label in model.config["id2label"].values()]))


def test_every_preprocessor_has_the_pixels_of_every_image() -> None:
    pixels = load_file(ROOT / "pipelines" / "images" / "pixels.safetensors")
    names = [row["name"] for row in read(ROOT / "pipelines" / "images" / "preprocessors.json")]
    images = [file.stem for file in (ROOT / "pipelines" / "images").glob("*.png")]
    assert pixels.keys() == {f"{name}.{image}" for name in names for image in images}
    assert len(pixels) == 99
    assert torch.equal(pixels["usual.tall"], pixels["older.tall"])
