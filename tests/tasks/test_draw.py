"""The task draw: exactly the codes of an image, the same for a seed, colors that were learned, errors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.image_tokenizer import ImageTokenizer
from tests.support.errors import assert_error

pytest.importorskip("PIL")
COLORS = {"red": (250, 10, 10), "blue": (10, 10, 250)}
NUM_TEXT_TOKENS = 5


@cache
def build_image_tokenizer() -> ImageTokenizer:
    images = [np.full((8, 8, 3), color, np.uint8) for color in (*COLORS.values(), (255, 255, 255))]
    images[0][:4] = 0
    return ImageTokenizer.train(np.stack(images), patch_size=2, vocab_size=8)


@cache
def build_model() -> qkv.Model:
    """Return a tiny model with random weights."""
    torch.manual_seed(0)
    image_tokenizer = build_image_tokenizer()
    tokenizer = qkv.Tokenizer.train(["a red square", "a blue square"], type="word", vocab_size=20)
    model = qkv.build(
        "gpt2",
        vocab_size=len(tokenizer) + len(image_tokenizer),
        width=16,
        depth=2,
        heads=2,
        max_positions=NUM_TEXT_TOKENS + image_tokenizer.num_codes,
        tie_embeddings=False,  # a random tied model repeats its last token
    )
    for parameter in model.net.parameters():
        if parameter.dim() > 1:  # a random bias would decide every code
            torch.nn.init.normal_(parameter, std=1.0)
    model.tokenizer = tokenizer
    model.image_tokenizer = image_tokenizer
    return model.eval()


def test_an_image_has_exactly_its_codes() -> None:
    model = build_model()
    draw = qkv.task("draw", model, num_return_sequences=3)
    for text in ("red", "a red square", "blue unknown"):
        drawing = draw(text)
        assert len(drawing.candidates) == 3
        for candidate in drawing.candidates:
            assert len(candidate.codes) == 16
            assert {*candidate.codes} <= {*range(len(build_image_tokenizer()))}
            expected = build_image_tokenizer().decode(np.array([candidate.codes]))[0]
            assert (candidate.pixels == expected).all()
        assert drawing.codes == drawing.candidates[0].codes
        assert drawing.score == max(candidate.score for candidate in drawing.candidates)
    image = draw("red").to_image(scale=3)
    assert image.size == (24, 24)
    assert image.getpixel((3, 23)) == tuple(draw("red").pixels[7, 1])


def test_a_seed_determines_the_image() -> None:
    draw = qkv.task("draw", build_model(), seed=4)
    assert draw("red") == draw("red")
    assert draw("red").codes == draw.map(["blue", "red"])[1].codes
    assert draw("red").codes != draw("red", seed=5).codes
    assert draw("red", do_sample=False) == draw("red", do_sample=False, seed=9)
    beams = draw("red", num_beams=3, num_return_sequences=3)
    assert len({candidate.codes for candidate in beams.candidates}) == 3
    assert beams == draw("red", num_beams=3, num_return_sequences=3, seed=9)


def test_the_codes_are_those_of_the_network() -> None:
    """Greedy codes are the most likely codes after the padded caption, without the text tokens."""
    model = build_model()
    assert model.tokenizer is not None
    vocab_size = len(model.tokenizer)
    ids = model.tokenizer.encode("a blue square", add_special_tokens=False)
    pad = model.tokenizer.pad_token_id or 0
    row = [*ids, *[pad] * (NUM_TEXT_TOKENS - len(ids))]
    for _ in range(16):
        logits = model(torch.tensor([row])).logits[0, -1]
        row.append(vocab_size + int(logits[vocab_size:].argmax()))
    drawing = qkv.task("draw", model, do_sample=False)("a blue square")
    assert [vocab_size + code for code in drawing.codes] == row[NUM_TEXT_TOKENS:]


def test_guidance_leads_away_from_the_image_without_a_caption() -> None:
    model = build_model()
    assert model.tokenizer is not None
    draw = qkv.task("draw", model, do_sample=False)
    pad = model.tokenizer.pad_token_id or 0
    vocab_size = len(model.tokenizer)
    guided = draw("a red square", guidance_scale=3.0)
    ids = model.tokenizer.encode("a red square", add_special_tokens=False)
    prompts = [[*ids, *[pad] * (NUM_TEXT_TOKENS - len(ids))], [pad] * NUM_TEXT_TOKENS]
    rows = torch.tensor(prompts)
    for code in guided.codes:
        scores = model(rows).logits[:, -1].log_softmax(-1)
        mixed = scores[1] + 3.0 * (scores[0] - scores[1])
        assert int(mixed[vocab_size:].argmax()) == code
        rows = torch.cat([rows, torch.full((2, 1), vocab_size + code)], 1)
    assert guided.codes != draw("a red square").codes


def test_a_small_model_learns_colors(tmp_path: Path) -> None:
    """Trained by `fit`, saved and loaded, it draws the color of the caption, which the loss measures."""
    model = build_model()
    torch.manual_seed(0)
    model = qkv.build("gpt2", **{k: v for k, v in model.args.items() if k in SIZES})
    model.tokenizer = build_model().tokenizer
    model.image_tokenizer = build_image_tokenizer()
    data = [
        {"image": np.full((8, 8, 3), color, np.uint8), "caption": f"a {name} square"}
        for name, color in COLORS.items()
    ] * 8
    report = qkv.fit(
        model, data, steps=60, batch_size=16, lr=1e-2, progress=False,
        objective_settings={"caption_dropout": 0.2}, validation=data,
    )  # fmt: skip
    assert report.objective == "text-to-image"
    assert report.metrics["loss"] < 0.05
    assert report.metrics["bits_per_dim"] == pytest.approx(report.metrics["bits_per_token"] / 12)
    model.save(tmp_path / "model")
    loaded = qkv.load(tmp_path / "model")
    assert repr(loaded.image_tokenizer) == repr(model.image_tokenizer)
    for task in (qkv.task("draw", model), qkv.task("draw", tmp_path / "model")):
        for name, color in COLORS.items():
            drawing = task(f"a {name} square", seed=1)
            assert (drawing.pixels == color).mean() > 0.9
    evaluation = qkv.evaluate(loaded, data)
    assert evaluation.metrics["loss"] == pytest.approx(report.metrics["loss"], rel=1e-4)


SIZES = ("vocab_size", "width", "depth", "heads", "max_positions")


def change_model(**changes: Any) -> qkv.Model:
    """Return a copy of the model with other attributes."""
    model = qkv.Model(build_model().family, build_model().args, build_model().net, {})
    model.tokenizer = build_model().tokenizer
    model.image_tokenizer = build_image_tokenizer()
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def test_models_that_cannot_draw() -> None:
    assert_error(
        lambda: qkv.task("draw", change_model(image_tokenizer=None)),
        "the model has no image tokenizer; `draw` needs a model that was trained with",
    )
    larger = replace(build_image_tokenizer(), codebook=np.zeros((9, 12), np.uint8))
    assert_error(
        lambda: qkv.task("draw", change_model(image_tokenizer=larger)),
        "and 9 codes of images; do the files belong together?",
    )
    longer = replace(build_image_tokenizer(), image_size=16)
    assert_error(
        lambda: qkv.task("draw", change_model(image_tokenizer=longer)),
        "21 positions, expected more than the 64 codes of an image",
    )
    assert_error(lambda: qkv.task("draw", "builtin:translate"), "a decoder with learned positions")


def test_invalid_inputs_and_settings() -> None:
    draw = qkv.task("draw", build_model())
    assert_error(lambda: draw(""), "text is empty")
    assert_error(lambda: draw("red " * 9), "9 tokens, expected at most 5")
    assert len(draw("red " * 9, overflow="truncate").codes) == 16
    assert_error(lambda: draw("red", max_new_tokens=3), "max_new_tokens has no effect", "16 codes")
    assert_error(lambda: draw("red", regex="a"), "regex is for texts")
    assert_error(lambda: draw("red", guidance_scale=2.0, num_beams=2), "guidance_scale is 2.0")
