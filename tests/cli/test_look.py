"""`qkv look`: files of every view, the explorer with its models and settings, and errors of one line."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.cli import look as look_module
from qkv.cli import main
from qkv.explorer.explorer import Explorer
from qkv.explorer.server.server import bind_port
from tests.cli.test_read import bad, good
from tests.explorer import models
from tests.explorer.server.test_page import Document
from tests.explorer.test_embedding import decode_array
from tests.explorer.trace.test_trace import look as compute_expected_weights

FAMILIES = ("bert", "gpt2", "bart", "vit", "show-attend-tell", "lstm-seq2seq", "clip")
TEXT = models.TEXT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each architecture, named by its family, and other files."""
    folder = tmp_path_factory.mktemp("look")
    for family in FAMILIES:
        models.build_changed_model(family, torch.float32, max_new_tokens=3).save(folder / family)
    models.build_image().save(folder / "image.png")
    (folder / "text.png").write_text("no image")
    (folder / "here").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _in_that_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def explore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `qkv look` without a server; return the explorer, the data of the page and the settings."""

    def run(*arguments: str) -> dict[str, Any]:
        served: dict[str, Any] = {}

        def serve(explorer: Explorer, config: dict[str, Any], **settings: Any) -> None:
            served.update(settings, explorer=explorer, config=config)

        monkeypatch.setattr("qkv.explorer.server.server.serve_explorer", serve)
        good(capsys, "look", *arguments)
        return served

    return run


# --- files ---


def test_a_saved_page_holds_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert (
        main(["look", TEXT, "--text-pair", "a bird", "--model", "bert", "--save", str(path)]) == 0
    )
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"wrote {path}\n")
    config = Document(path.read_text(encoding="utf-8")).get_config()
    expected = compute_expected_weights(qkv.view("bert", TEXT, "a bird").trace)
    for name, weights in expected.items():
        actual = decode_array(config["weights"][name]) / 65_535
        torch.testing.assert_close(actual, weights.double(), rtol=0, atol=1e-5)
    assert config["model"]["name"] == "bert"
    assert (config["trace"]["text"], config["trace"]["text_pair"]) == (TEXT, "a bird")


@pytest.mark.parametrize(
    "command",
    [
        f"bert {TEXT} | --view head --layer 1 --head 2 --query 3", f"bert {TEXT} | --view model",
        f"bert {TEXT} | --view matrix --rollout --layer 1", f"gpt2 {TEXT} | --view neuron --head 1",
        f"gpt2 {TEXT} | --view generation --max-new-tokens 3", f"gpt2 {TEXT} | --view patterns",
        f"bart {TEXT} | --view beams --num-beams 2 --max-new-tokens 3",
        f"bart {TEXT} | --view alignment --path decoder.layers.0.cross_attention", f"bart {TEXT} |",
        "vit | --image image.png", "show-attend-tell | --image image.png --query 1",
        f"clip {TEXT} | --image image.png",
    ],
)  # fmt: skip
def test_pictures(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, _, options = command.partition(" |")
    name, *text = words.split(" ", 1)
    path = tmp_path / "picture.svg"
    good(capsys, "look", *text, "--model", name, *options.split(), "--save", str(path))
    assert ET.fromstring(path.read_text(encoding="utf-8")).tag.endswith("svg")
    assert [*tmp_path.iterdir()] == [path]


def test_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("resvg_py")
    path = tmp_path / "picture.png"
    good(capsys, "look", "the cat", "--model", "bert", "--view", "matrix", "--save", str(path))
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_targets_are_those_of_the_user_or_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = []
    for options in ([], ["--target", models.TARGET]):
        path = tmp_path / "page.html"
        good(capsys, "look", TEXT, "--model", "bart", *options, "--save", str(path))
        config = Document(path.read_text(encoding="utf-8")).get_config()
        targets.append(config["trace"]["target"])
    assert targets[1] == models.TARGET
    assert targets[0] == qkv.task("translate", "bart", prefix="")(TEXT).text.strip() != targets[1]


def test_a_text_that_is_too_long_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    good(capsys, "look", TEXT * 20, "--model", "bert", "--save", str(path))
    config = Document(path.read_text(encoding="utf-8")).get_config()
    assert config["trace"]["notice"].startswith("Cut to 64 of ")
    assert len(config["trace"]["sequences"]["encoder"]["tokens"]) == 64
    for view in ("head", "model", "matrix"):
        path = tmp_path / f"{view}.svg"
        arguments = ["look", TEXT * 20, "--model", "bert", "--view", view, "--save", str(path)]
        assert main(arguments) == 0
        assert capsys.readouterr().err.startswith("Cut to 64 of ")
        assert "Cut to 64 of " in "".join(ET.parse(path).getroot().itertext())


def test_paths_select_the_attentions_of_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    arguments = ("look", TEXT, "--model", "bert", "--paths", r".*\.1\..*", "--save")
    good(capsys, *arguments, str(path))
    config = Document(path.read_text(encoding="utf-8")).get_config()
    assert config["weights"].keys() == {"encoder.layers.1.attention"}
    assert "--save FILE.html" in bad(capsys, *arguments, str(tmp_path / "page.svg"))


# --- the explorer ---


def test_settings_are_those_of_the_explorer(explore: Run) -> None:
    served = explore(
        TEXT, "--model", "bert", "--view", "matrix", "--layer", "1", "--head", "2", "--query", "3",
        "--rollout", "--num-beams", "5", "--port", "8123", "--no-browser",
    )  # fmt: skip
    assert (served["port"], served["open_browser"]) == (8123, False)
    config = served["config"]
    assert config["state"] == {
        "view": "matrix", "rollout": True, "beams": 5, "maxNewTokens": 40,
        "path": "encoder.layers.1.attention", "cross": "",
        "head": 2, "heads": [2], "crossHead": 2, "focus": "q3",
    }  # fmt: skip
    assert config["trace"]["text"] == TEXT
    plain = explore(TEXT, "--model", "bert")
    assert (plain["port"], plain["open_browser"]) == (0, True)
    assert plain["config"]["state"]["view"] == "head"


def test_the_address_is_printed(explore: Run, capsys: pytest.CaptureFixture[str]) -> None:
    served = explore("the cat", "--model", "bert")
    served["report"]("http://127.0.0.1:1/?token=x")
    assert capsys.readouterr().out == (
        "attention explorer: http://127.0.0.1:1/?token=x\n(Ctrl-C stops it)\n"
    )


def test_a_model_without_text_starts_with_none(explore: Run) -> None:
    served = explore("--model", "bert")
    assert "trace" not in served["config"]
    assert not served["explorer"].traces


def test_files_of_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("page.html", "picture.svg"):
        path = tmp_path / name
        good(capsys, "look", TEXT, "--model", "gpt2", "--compare", "bert", "--save", str(path))
        assert "bert" in path.read_text(encoding="utf-8")


def test_two_models(explore: Run) -> None:
    served = explore(TEXT, "--model", "bert", "--compare", "gpt2")
    explorer: Explorer = served["explorer"]
    assert served["config"]["model"]["other_model"] == "gpt2"
    other = explorer.trace({"text": TEXT, "model": "other"})
    assert other["attentions"][0]["path"] == "decoder.layers.0.attention"


def test_an_image(explore: Run) -> None:
    served = explore("--model", "vit", "--image", "image.png")
    assert served["config"]["image"] in served["explorer"].images
    assert served["config"]["state"]["view"] == "image"


def test_the_built_in_model_has_an_example(explore: Run) -> None:
    served = explore("--max-new-tokens", "5")
    config = served["config"]
    assert config["model"]["name"] == "builtin:translate"
    assert config["trace"]["text"] == look_module.EXAMPLE_TEXT
    assert config["trace"]["target"]
    assert config["state"]["view"] == "alignment"
    assert config["examples"][0]["text"] == look_module.EXAMPLE_TEXT


# --- errors ---

ERRORS = {
    "the cat --model bert --layer 2": "layer of encoder self-attention is 2: expected a whole number",
    "the cat --model bert --layer -1": "layer of encoder self-attention is -1",
    "the cat --model bert --layer one": "layer",
    "the cat --model bert --head 4": "head is 4",
    "the cat --model bert --head 1.5": "head",
    "the cat --model bert --query 99": "query is 99",
    "the cat --model bert --query -1": "query is -1",
    "the cat --model bert --view bogus": "view",
    "the cat --model bert --view alignment": "view 'alignment': this model has nothing to show in it",
    "the cat --model bert --view image": "view 'image'",
    "the cat --model bert --path encoder": "path 'encoder': expected one of encoder.layers.0.attention",
    "the cat --model bert --path encoder.layers.0.attention --layer 1": "expected one of them",
    "the cat --model gpt2 --view beams --num-beams 1": "num_beams is 1",
    "the cat --model gpt2 --view generation --max-new-tokens 0": "max_new_tokens is 0",
    "the cat --model bert --view generation --save x.svg": "does not generate text",
    "the cat --model bert --compare gpt2 --view head --save x.svg": "its picture shows one model",
    "the cat --model bert --view compare": "view 'compare': expected a second model to compare with",
    "--model bert --layer 1": "layer 1 without an input, expected a text or an image",
    "the cat --model bert --save x.pdf": "x.pdf: expected a file name that ends with .html or .svg or .png",
    "the cat --model bert --save none/x.svg": "--save none/x.svg: expected a file in an existing folder",
    "the cat --model bert --save here": "here",
    "--model bert --save x.svg": "the text is empty",
    " --model bert --save x.svg": "the text is empty",
    "the cat --model bert --target a": "target: this model (bert) reads text and text_pair; leave it out",
    "the cat --model gpt2 --text-pair a": "text_pair: this model (gpt2) reads text",
    "the cat --model bert --image image.png": "image: this model (bert) reads",
    "the cat --model vit --image image.png": "text: this model (vit) reads image",
    "--model vit --image none.png": "--image none.png: no such file, expected a picture",
    "--model vit --image here": "--image here: no such file",
    "--model vit --image text.png": "not a readable image",
    "--model vit --image text.png --save x.svg": "text.png: not a readable image",
    "the cat --model lstm-seq2seq": "lstm-seq2seq has no attention, expected a model with attention",
    "the cat --model none": "none",
    "the cat --model here": "here",
    "the cat --model bert --compare none": "none",
    "the cat --model bert --adapter here": "adapter_config.json",
    "the cat --model bart --src-lang de": "src_lang is 'de', expected none",
    "the cat --model bert --port -1": "port -1, expected a number from 0",
    "the cat --model bert --port 65536": "port 65536",
    "the cat --model bert --port x": "port",
    "the cat --model bert --device toaster": "toaster",
    "the cat --model bert --heads 1": "--head",
    "the cat --model bert --rollout yes": "yes",
}  # fmt: skip


@pytest.mark.parametrize("command", ERRORS)
def test_errors_are_one_line(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    text, dashes, options = command.partition("--")
    arguments = [*([text.removesuffix(" ")] if text else []), *(dashes + options).split()]
    assert ERRORS[command] in bad(capsys, "look", *arguments)
    assert sorted(folder.rglob("*")) == before


def test_a_port_of_another_server(capsys: pytest.CaptureFixture[str]) -> None:
    with bind_port(0) as listener:
        port = str(listener.getsockname()[1])
        message = bad(capsys, "look", "the cat", "--model", "bert", "--no-browser", "--port", port)
    assert f"port {port}: address already in use; choose another one" in message


def test_two_texts_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    bad(capsys, "look", "the cat", "a bird", "--model", "bert")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_that_is_not_writable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    try:
        path = str(tmp_path / "x.svg")
        assert "not written" in bad(capsys, "look", "the cat", "--model", "bert", "--save", path)
    finally:
        tmp_path.chmod(0o700)


def test_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file stays."""
    path = tmp_path / "page.svg"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("qkv.staging.sync_file", fail)
    message = bad(capsys, "look", "the cat", "--model", "bert", "--save", str(path))
    assert "No space left on device" in message
    assert "the old file is unchanged" in message
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]
