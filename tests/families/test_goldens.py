"""Golden folders of generation and pipelines: they load, and their files agree with the model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

import qkv
from tests.support import compare

ROOT = Path(__file__).parent.parent / "goldens"
FOLDERS = sorted(
    file.parent
    for kind in ("generate", "pipelines")
    for file in (ROOT / kind).rglob("golden.safetensors")
)
GENERATION = [folder for folder in FOLDERS if folder.parent.name == "generate"]
PIPELINES = [folder for folder in FOLDERS if folder.parent.name == "pipelines"]
# The names of inputs in a golden file, and those of the model.
INPUTS = {"ids": "input_ids", "target": "decoder_input_ids", "images": "pixel_values"}
# With these settings a score is not the model's alone.
SCORE_SETTINGS = {"diversity_penalty", "repetition_penalty", "min_new_tokens"}


def parametrize_folders(folders: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "folder", folders, ids=lambda folder: str(folder.relative_to(ROOT))
    )


def read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


# The goldens were computed in fp32, and are up to 2.5e-5 from the outputs in fp64, which do not
# depend on the CPU. Outputs in fp32 may be as far from those, to the other side.
FP64_ATOL = 3e-5
FP32_ATOL = 2 * FP64_ATOL


def assert_close(actual: Tensor, expected: Tensor) -> None:
    atol = FP64_ATOL if actual.dtype == torch.float64 else FP32_ATOL
    torch.testing.assert_close(actual, expected.to(actual.dtype), atol=atol, rtol=1e-4)


def test_all_goldens_are_present() -> None:
    assert (len(GENERATION), len(PIPELINES)) == (9, 15)
    tasks = sorted((ROOT / "pipelines").glob("*.json"))
    assert len(tasks) == 10
    assert {row["model"] for file in tasks for row in read_json(file)} == {
        folder.name for folder in PIPELINES
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@parametrize_folders(FOLDERS)
def test_outputs_equal_the_goldens(folder: Path, dtype: torch.dtype) -> None:
    golden = load_file(folder / "golden.safetensors")
    inputs: dict[str, Any] = {
        INPUTS[name]: golden.pop(name) for name in INPUTS.keys() & golden.keys()
    }
    if "pixel_values" in inputs:
        inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    out = qkv.load(folder, dtype=dtype)(**inputs)
    assert golden
    for name, expected in golden.items():
        assert_close(out["logits" if name == "logits_per_image" else name], expected)


@parametrize_folders(PIPELINES)
def test_the_tokenizer_gives_the_golden_ids(folder: Path) -> None:
    with safe_open(folder / "golden.safetensors", "pt") as file:
        text = file.metadata()["text"]
        ids = file.get_tensor("ids")
    tokenizer = qkv.load(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(text) == ids[0].tolist()


def compute_logits(
    model: qkv.Model, prompt: list[int], new: list[int], start: int | None
) -> Tensor:
    """Return the logits from which each new token was chosen, (T, vocab_size)."""
    input_ids = torch.tensor([prompt])
    if start is not None:
        return model(input_ids, decoder_input_ids=torch.tensor([[start, *new[:-1]]]))["logits"][0]
    if not model.args.get("mem_len"):
        return model(torch.tensor([prompt + new[:-1]]))["logits"][0, len(prompt) - 1 :]
    out = model(input_ids)  # step by step: the memory is shorter than the text
    steps = [out["logits"][0, -1]]
    for token in new[:-1]:
        out = model(torch.tensor([[token]]), mems=out["mems"])
        steps.append(out["logits"][0, -1])
    return torch.stack(steps)


def list_forced_steps(settings: dict[str, Any]) -> list[int]:
    """Return the steps at which a token is forced: the first, and the last possible one."""
    steps = {"forced_bos_token_id": 0, "forced_eos_token_id": settings["max_new_tokens"] - 1}
    return [step for name, step in steps.items() if settings.get(name) is not None]


@parametrize_folders(GENERATION)
def test_scores_are_those_of_the_model(folder: Path) -> None:
    model = qkv.load(folder)
    generation_config = read_json(folder / "generation_config.json")
    banned = [ids[0] for ids in generation_config.get("bad_words_ids", [])]
    checked = set()
    for case in read_json(folder / "cases.json"):
        settings = generation_config | case["settings"]
        if SCORE_SETTINGS & settings.keys():
            continue
        checked.add(case["name"])
        beams = "num_beams" in settings
        for prompt, rows, scores in zip(case["prompts"], case["ids"], case["scores"], strict=True):
            for new, score in zip(rows, scores, strict=True):
                step_logits = compute_logits(
                    model, prompt, new, generation_config.get("decoder_start_token_id")
                )
                if not beams:  # beam search keeps their probability
                    step_logits[:, banned] = -torch.inf
                log_probs = step_logits.log_softmax(-1)[torch.arange(len(new)), new]
                forced = [n for n in list_forced_steps(settings) if n < len(new)]
                log_probs[forced] = 0.0
                if beams:
                    log_probs = log_probs.sum() / len(new) ** settings.get("length_penalty", 1.0)
                assert_close(log_probs, torch.tensor(score))
                if case["name"] == "greedy":
                    best = step_logits.argmax(-1).tolist()
                    assert all(best[n] == token for n, token in enumerate(new) if n not in forced)
    assert {"greedy", "beam"} <= checked


def test_features_and_raw_scores_are_those_of_the_model() -> None:
    for row in read_json(ROOT / "pipelines" / "feature-extraction.json"):
        model = qkv.load(ROOT / "pipelines" / row["model"])
        assert model.tokenizer is not None
        ids = torch.tensor([model.tokenizer.encode(row["inputs"])])
        assert_close(model(ids)["last_hidden_state"], torch.tensor(row["output"]))
    for row in read_json(ROOT / "pipelines" / "text-classification.json"):
        if row["settings"].get("function_to_apply") == "none":
            model = qkv.load(ROOT / "pipelines" / row["model"])
            assert model.tokenizer is not None
            ids = torch.tensor([model.tokenizer.encode(row["inputs"])])
            out = model(ids)["logits"][0]
            scores = {item["label"]: item["score"] for item in row["output"]}
            assert_close(
                out, torch.tensor([scores[label] for label in model.config["id2label"].values()])
            )


def test_there_are_pixels_of_every_preprocessor_and_image() -> None:
    pixels = load_file(ROOT / "pipelines" / "images" / "pixels.safetensors")
    names = [row["name"] for row in read_json(ROOT / "pipelines" / "images" / "preprocessors.json")]
    images = [file.stem for file in (ROOT / "pipelines" / "images").glob("*.png")]
    assert pixels.keys() == {f"{name}.{image}" for name in names for image in images}
    assert len(pixels) == 99
    compare.assert_bitwise_equal(
        pixels["usual.tall"], pixels["older.tall"], because="both configs mean the same steps"
    )
