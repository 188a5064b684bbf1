"""`caption`: models learn to name colored shapes; batches, candidates, bad input."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.cli import main
from qkv.decode import GenerationConfig, generate
from qkv.decode.encoder_states import encode_images
from qkv.tasks.images import load_image_processor
from tests.support import tiny
from tests.support.shapes import write_shapes

pytest.importorskip("PIL.Image")
SIZES: dict[str, dict[str, Any]] = {
    "show-attend-tell": dict(
        conv_widths=[16, 32], feature_width=32, width=48, embedding_width=32, attention_width=32,
    ),
    "vision-encoder-decoder": dict(
        conv_widths=[16, 32], width=32, depth=1, heads=2, ffn_width=64, decoder_depth=1,
        decoder_heads=2, decoder_ffn_width=64, init_std=0.1,
    ),
}  # fmt: skip
RECIPE = """
[model]
family = "{family}"
image_size = 16
patch_size = 4
dropout = 0.0
{sizes}
[tokenizer]
type = "word"
vocab_size = 20
[data]
train = "train"
test = "test"
max_length = 8
batch_size = 16
[objective]
name = "image-captioning"
translate = 0.05
{objective}
[train]
steps = {steps}
lr = 0.005
warmup_steps = 10
log_every = 50
"""
HARD = 'attention_select = {name = "hard", expected_prob = 0.5}\n'
CASES = {
    "soft":        ("show-attend-tell", "", "coverage_weight = 0.05", 100),
    "hard":        ("show-attend-tell", HARD, "baseline_decay = 0.9\nentropy_weight = 0.005", 120),
    "transformer": ("vision-encoder-decoder", "", "", 100),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder / "train", 24)
    write_shapes(folder / "test", 4, seed=1)
    return folder


def train(folder: Path, name: str) -> Path:
    """Train a model in the folder of the shapes, once per session."""
    family, model, objective, steps = CASES[name]
    sizes = model + "".join(f"{key} = {value}\n" for key, value in SIZES[family].items())
    recipe = RECIPE.format(family=family, sizes=sizes, objective=objective, steps=steps)
    run = folder / name
    if not run.exists():
        (folder / f"{name}.toml").write_text(recipe)
        assert main(["train", f"{name}.toml", "--run", name]) == 0
    return run / "last"


@pytest.mark.parametrize("name", CASES)
def test_models_learn_to_name_shapes(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    model = train(folder, name)
    capsys.readouterr()
    assert main(["eval", name, "--json", "--num-beams", "2", "--max-new-tokens", "5"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["exact_match"] > (0.4 if name == "hard" else 0.8)  # by chance, 1/6
    task = qkv.task("caption", model, num_beams=2)
    images = sorted((folder / "test").glob("*.png"))[:6]
    results = task.map(images)
    alone = [task(str(image)) for image in images]
    assert [result.text for result in results] == [result.text for result in alone]
    assert task.map(images, batch_tokens=1) == alone
    assert main(["caption", *map(str, images[:2]), "--model", str(model)]) == 0
    assert capsys.readouterr().out.splitlines() == [result.text for result in alone[:2]]


def test_candidates_and_json(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    model = train(folder, "transformer")
    image = next((folder / "test").glob("red-square-*.png"))
    capsys.readouterr()
    arguments = ["caption", str(image), "--model", str(model), "--num-return-sequences", "3"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["image"] == str(image)
    assert result["candidates"][0]["text"] == result["text"]
    scores = [candidate["score"] for candidate in result["candidates"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    task = qkv.task("caption", model)
    outcomes = task.map([image, folder / "captions.tsv", image], return_exceptions=True)
    assert isinstance(outcomes[1], ValueError)
    assert outcomes[0] == outcomes[2] == task(image)


@pytest.mark.parametrize("name", ["soft", "transformer"])
def test_the_attention_of_every_token_is_drawn(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    model = train(folder, name)
    image = next((folder / "test").glob("red-cross-*.png"))
    result = qkv.task("caption", model)(image, return_attention=True)
    assert len(result.attention) == len(result.tokens) > 1
    loaded = qkv.load(model)
    assert loaded.tokenizer is not None
    ids = [loaded.tokenizer.get_vocab()[token] for token in result.tokens]
    processor = load_image_processor(loaded)
    with qkv.look(loaded) as weights:
        loaded(
            pixel_values=torch.from_numpy(processor(image))[None],
            decoder_input_ids=torch.tensor([[loaded.args["decoder_start_token_id"], *ids[:-1]]]),
        )
    cross = [value[0].mean(0) for path, value in weights.items() if "cross_attention" in path]
    expected = torch.stack(cross).mean(0)
    torch.testing.assert_close(torch.tensor(result.attention), expected, atol=1e-5, rtol=0)
    arguments = ["caption", str(image), "--model", str(model), "--save"]
    assert main([*arguments, "attention.svg"]) == 0
    svg = Path("attention.svg").read_text()
    assert svg.count("<image ") == 1
    assert svg.count("<use ") == len(result.tokens)  # the image, once for each token
    assert svg.count("<rect ") == len(result.tokens) * expected.shape[1]
    capsys.readouterr()
    assert main([*arguments, "attention.png"]) == 2
    assert main([*arguments, "attention.svg", str(image)]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_the_saved_picture_has_the_pixels_that_the_model_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.chdir(folder)
    model = train(folder, "transformer")
    processor = load_image_processor(qkv.load(model))
    image = Image.open(next((folder / "test").glob("red-cross-*.png"))).resize((90, 60))
    for name, image_format in (("cross.tiff", "TIFF"), ("photo.png", "JPEG")):
        image.convert("RGB").save(name, format=image_format)
        assert main(["caption", name, "--model", str(model), "--save", "cross.svg"]) == 0
        (data,) = re.findall(r'href="data:image/png;base64,([^"]*)"', Path("cross.svg").read_text())
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.format == "PNG"
            assert np.array_equal(np.asarray(picture), processor.read_pixels(name))


def test_bad_images_are_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    monkeypatch.chdir(folder)
    model = str(train(folder, "transformer"))
    Path("text.png").write_text("no image")
    Image.new("1", (9_000, 9_000)).save("bomb.png")
    for arguments, message in (
        (["none.png", "--model", model], "none.png: not a readable image"),
        (["text.png", "--model", model], "text.png: not a readable image"),
        (["bomb.png", "--model", model], "bomb.png: the image has too many pixels"),
        (["test", "--model", model], "test: not a readable image"),
        (["--model", model], "no image; expected at least one image file"),
        (["text.png", "--model", "builtin:translate"], "`caption` needs an encoder of images"),
        (["text.png"], "--model"),
    ):
        capsys.readouterr()
        assert main(["caption", *arguments]) == 2
        out, err = capsys.readouterr()
        assert not out
        assert message in err
        assert err.count("\n") == 1


def test_bad_data_is_one_line(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(folder)
    train(folder, "transformer")
    write_shapes(tmp_path / "uncaptioned", 1)
    (tmp_path / "uncaptioned" / "captions.tsv").unlink()
    write_shapes(tmp_path / "missing", 1)
    (tmp_path / "missing" / "red-square-0.png").unlink()
    for data, flags, message in (
        ("uncaptioned", [], "no caption"),
        ("missing", [], "'red-square-0.png' is not in"),
        ("none", [], "none"),
        ("train", ["--objective.translate", "2"], "objective.translate is 2"),
        ("train", ["--objective.coverage_weight", "0.1"], "the decoder is not recurrent"),
    ):
        capsys.readouterr()
        path = data if data == "train" else str(tmp_path / data)
        flags = ["--run", str(tmp_path / "run"), "--data.train", path, *flags]
        assert main(["train", "transformer.toml", *flags]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1, err


@pytest.mark.parametrize("family", tiny.CAPTION_FAMILIES)
def test_sources_are_encoder_states(family: str) -> None:
    """Greedy search over the states of an image equals the argmax of the whole network."""
    model = tiny.build(family)
    pixel_values = tiny.build_pixel_values(model, tiny.random_ids(3, 4))
    config = GenerationConfig(max_new_tokens=5, decoder_start_token_id=1)
    sources = encode_images(model.net, pixel_values)  # type: ignore[arg-type]
    results = generate(model.net, sources=sources, generation_config=config)  # type: ignore[arg-type]
    ids = torch.full((3, 1), 1)
    for _ in range(5):
        logits = model(pixel_values=pixel_values, decoder_input_ids=ids)["logits"]
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    assert [result.token_ids for (result,) in results] == ids[:, 1:].tolist()
    for source, message in (
        ([1, 2], "expected the encoder states"),
        (torch.zeros(4, 5), r"a tensor of shape 4x5 .*, expected hidden states"),
        (torch.zeros(3, 12, 12), "expected hidden states"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(model.net, sources=[source], generation_config=config)  # type: ignore[arg-type]
