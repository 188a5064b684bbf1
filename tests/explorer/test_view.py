"""View: pages and pictures of what a model attends to, in a notebook and in files."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import qkv
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.view import View
from qkv.explorer.view_settings import QUERY_VIEWS, VIEW_NAMES
from tests.explorer import models
from tests.explorer.server.test_page import Document
from tests.explorer.test_embedding import decode_array
from tests.explorer.trace.test_trace import look
from tests.support.errors import assert_error

# The views of each architecture.
VIEWS = {
    "bert": "head model matrix neuron patterns",
    "bert-alibi": "head model matrix neuron patterns",
    "gpt2": "head model matrix neuron generation beams patterns",
    "transformer-xl": "head model matrix neuron generation beams patterns",
    "sparse-strided-heads": "head model matrix neuron generation beams patterns",
    "bart": "head model matrix alignment neuron generation beams patterns",
    "bahdanau": "head model matrix alignment neuron generation beams",
    "lstmn": "head model matrix alignment neuron generation beams",
    "vit": "head model matrix neuron patterns image",
    "clip": "head model matrix neuron patterns image",
    "show-attend-tell": "head model matrix alignment neuron generation beams image",
    "vision-encoder-decoder": "head model matrix alignment neuron generation beams patterns image",
}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
HOSTILE = "</script> ]]> <!-- & \" ' \x00\x1b\u202e\u2028 \ufffe 👍🏽 the cat"


def build_view(name: str, **settings: Any) -> View:
    model = models.build_model(name, torch.float32)
    user_input = models.build_user_input(InputBuilder(model=model))
    settings = {
        "image": user_input.image,
        "target": user_input.target,
        "max_new_tokens": 4,
    } | settings
    return qkv.view(model, settings.pop("text", user_input.text), **settings)


def parse_svg(svg: str) -> ET.Element:
    root = ET.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    return root


def get_text(root: ET.Element) -> str:
    return " ".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text"))


# --- pages ---


@pytest.mark.parametrize("name", ["bert", "bart", "transformer-xl", "clip", "bahdanau"])
def test_a_page_holds_the_weights(name: str) -> None:
    view = build_view(name)
    document = Document(view.html())
    config = document.get_config()
    expected = look(view.trace)
    assert config["weights"].keys() == expected.keys()
    for path, weights in expected.items():
        actual = decode_array(config["weights"][path]) / 65_535
        torch.testing.assert_close(actual, weights.double(), rtol=0, atol=1e-5)
    assert config["mode"] == "embedded"
    assert config["trace"]["text"] == models.TEXT
    assert config["trace"]["target"] == view.trace.inputs.target
    assert config["model"]["name"] == view.trace.model.family.name
    assert config["state"]["view"] == view.settings.choose_view(view.trace)


def test_settings_are_the_state_of_the_page() -> None:
    view = build_view(
        "t5", view="matrix", layer=1, head=2, query=3, rollout=True, paths="encoder.*"
    )
    config = Document(view.html()).get_config()
    assert config["state"]["path"] == "encoder.layers.1.attention"
    assert (config["state"]["head"], config["state"]["focus"]) == (2, "q3")
    assert {path.partition(".")[0] for path in config["weights"]} == {"encoder"}


def test_a_page_of_a_pair_has_both_texts() -> None:
    view = qkv.view(models.build_model("bert", torch.float32), "the cat", "a bird")
    config = Document(view.html()).get_config()
    assert (config["trace"]["text"], config["trace"]["text_pair"]) == ("the cat", "a bird")
    segments = {token["segment"] for token in config["trace"]["sequences"]["encoder"]["tokens"]}
    assert segments == {None, 0, 1}


def test_a_notebook_shows_the_page_in_a_frame() -> None:
    view = build_view("bert", text=HOSTILE)
    frame = view._repr_html_()
    document = Document(frame)
    ((tag, attributes, texts),) = document.elements
    assert (tag, texts) == ("iframe", [])
    assert attributes["sandbox"] == "allow-scripts allow-downloads"  # no access to the notebook
    assert attributes["title"]
    assert html.unescape(str(attributes["srcdoc"])) == html.unescape(html.escape(view.html()))
    assert "<script" not in frame
    assert frame.isascii()  # whatever the encoding of the notebook is
    assert Document(view.html()).get_config()["trace"]["text"] == HOSTILE


# --- pictures ---


@pytest.mark.parametrize(
    ("name", "view_name"), [(name, view) for name, views in VIEWS.items() for view in views.split()]
)
def test_pictures_of_every_view(name: str, view_name: str) -> None:
    view = build_view(name, view=view_name, num_beams=2)
    root = parse_svg(view.svg())
    text = get_text(root)
    assert view.trace.model.family.name in text or view.explorer.main.name in text
    info = view.settings.find_attention(view.trace)
    if view_name in ("head", "matrix"):
        for key in (info.queries, *info.keys):
            for token in view.trace.sequences[key].tokens:
                assert token.text in text
    if view_name == "neuron":
        for key in info.keys:
            for token in view.trace.sequences[key].tokens:
                assert token.text in text
    if view_name == "alignment":
        for key in (info.queries, *info.keys):
            for word in view.trace.sequences[key].words:
                assert word in text
    view = build_view(name, view=view_name, head=0, query=1, num_beams=3)
    if view_name in QUERY_VIEWS:
        parse_svg(view.svg())
    else:
        assert_error(view.svg, "query 1", f"view '{view_name}'", "head or neuron or image")


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_a_model_does_not_have_are_refused(name: str) -> None:
    for view_name in sorted({*VIEW_NAMES} - {*VIEWS[name].split()}):
        words = (
            ("does not generate text token by token",)
            if view_name in ("generation", "beams")
            else ("view 'compare'", "a second model")
            if view_name == "compare"
            else (f"view '{view_name}'", "nothing to show in it, expected a")
        )
        assert_error(lambda: build_view(name, view=view_name).svg(), *words)  # noqa: B023


@pytest.mark.parametrize(
    ("name", "view_name"),
    [*(("bert", view) for view in VIEWS["bert"].split()),
     *(("bart", view) for view in ("alignment", "generation", "beams"))],
)  # fmt: skip
def test_pictures_of_hostile_texts(name: str, view_name: str) -> None:
    """SVG is XML: it has no control characters, and its markup is escaped."""
    model = models.build_changed_model(name, torch.float32)
    tokenizer_type = "char"
    tokenizer = qkv.Tokenizer.train(
        [HOSTILE], type=tokenizer_type, vocab_size=60, template="bos-eos"
    )
    assert len(tokenizer) <= model.args["vocab_size"]
    model.tokenizer = tokenizer
    target = HOSTILE if name == "bart" else None
    view = qkv.view(model, HOSTILE, target=target, view=view_name, max_new_tokens=3)
    svg = view.svg()
    parse_svg(svg)
    assert not re.findall("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]", svg)
    assert not set(svg) & {"\u202e", "\u2028"}


@pytest.mark.parametrize(
    ("name", "captions"),
    [
        ("gpt3", ["causal: decoder self-attention, layers 0, 2 ×2",
                  "banded(3): decoder self-attention, layer 1 "]),
        ("t5", ["full: encoder self-attention, layers 0-1 ×2", "full: decoder cross-attention, layers 0-2 ×3",
                "T5 relative position bias of encoder self-attention, layers 0-1 ×2",
                "T5 relative position bias of decoder self-attention, layers 0-2 ×3"]),
        ("transformer-xl",
         ["causal: decoder self-attention, layers 0-1 ×2 (the first 5 columns are memory)"]),
    ],
)  # fmt: skip
def test_the_picture_of_patterns_names_all_layers(name: str, captions: list[str]) -> None:
    text = " ".join(get_text(parse_svg(build_view(name, view="patterns").svg())).split())
    plain = text.replace("\u2068", "").replace("\u2069", "")
    for caption in captions:
        assert caption in plain


def test_one_head_and_one_query() -> None:
    every, one, query = (
        build_view("bert", view="head", **settings).svg()
        for settings in ({}, {"head": 1}, {"head": 1, "query": 2})
    )
    assert len({every, one, query}) == 3
    assert "all heads" in every
    assert "head 1" in one
    layers = {build_view("bert", view="matrix", layer=layer).svg() for layer in (0, 1)}
    rollout = build_view("bert", view="matrix", layer=1, rollout=True).svg()
    assert len(layers | {rollout}) == 3
    assert "rollout" in rollout


def test_a_matrix_shows_the_weights() -> None:
    view = build_view("bert", view="matrix", layer=1, head=2)
    root = parse_svg(view.svg())
    titles = [node.text or "" for node in root.iter() if node.tag.endswith("title")]
    weights = look(view.trace)["encoder.layers.1.attention"][2]
    values = [float(match[1]) for title in titles if (match := re.search(r"(\d\.\d+)$", title))]
    assert len(values) == weights.numel()
    torch.testing.assert_close(torch.tensor(values), weights.flatten().float(), rtol=0, atol=6e-3)


def test_long_texts_are_refused_in_pictures_with_labels() -> None:
    model = models.build_tiny_model("bart", torch.float32, max_positions=500)
    text = "the cat " * 201
    for view_name in ("head", "matrix", "neuron"):
        view = qkv.view(model, text, target="a", view=view_name)
        assert_error(view.svg, "a picture of 405 tokens, expected at most 400", "the view model")
    view = qkv.view(model, text, target="a", view="alignment")
    assert_error(view.svg, "a picture of 402 words, expected at most 400")
    parse_svg(qkv.view(model, text, target="a", view="model").svg())


def test_a_text_without_room_for_tokens_has_no_generation() -> None:
    view = qkv.view(models.build_model("gpt2", torch.float32), "the cat " * 50, view="generation")
    assert_error(view.svg, "leaves no room for new tokens")


# --- two models ---


def build_comparison(**settings: Any) -> View:
    pair = [models.build_model(name, torch.float32) for name in ("gpt2", "sparse")]
    return qkv.view(pair[0], models.TEXT, compare=pair[1], **settings)


def test_a_page_of_two_models_holds_the_weights_of_both() -> None:
    view = build_comparison(layer=1, head=2)
    config = Document(view.html()).get_config()
    assert config["model"]["other_model"] == "sparse"
    assert config["state"]["view"] == "compare"
    assert view.other_trace is not None
    for trace, part in ((view.trace, config), (view.other_trace, config["other"])):
        for path, weights in look(trace).items():
            actual = decode_array(part["weights"][path]) / 65_535
            torch.testing.assert_close(actual, weights.double(), rtol=0, atol=1e-5)
        assert [info["path"] for info in part["trace"]["attentions"]] == [*trace.shapes]


def test_a_picture_of_two_models_shows_the_weights_of_both() -> None:
    view = build_comparison(layer=1, head=2)
    root = parse_svg(view.svg())
    text = get_text(root)
    assert "gpt2: decoder self-attention, layer 1, head 2" in text
    assert "sparse: decoder self-attention, layer 1, head 2" in text
    titles = [node.text or "" for node in root.iter() if node.tag.endswith("title")]
    values = [float(match[1]) for title in titles if (match := re.search(r"(\d\.\d+)$", title))]
    assert view.other_trace is not None
    path = "decoder.layers.1.attention"
    expected = torch.stack([look(trace)[path][2] for trace in (view.trace, view.other_trace)])
    torch.testing.assert_close(torch.tensor(values), expected.flatten().float(), rtol=0, atol=6e-3)


def test_a_picture_of_an_image_in_two_models() -> None:
    pair = [models.build_model(name, torch.float32) for name in ("vit", "clip")]
    image = models.build_image()
    text = get_text(parse_svg(qkv.view(pair[0], image=image, compare=pair[1]).svg()))
    assert {"vit", "clip"} <= {*text.split()}


def test_models_are_compared_on_one_target() -> None:
    """What the first one generates, or the target of the user; a decoder reads the text alone."""
    pair = [models.build_changed_model(name, torch.float32) for name in ("bart", "t5")]
    view = qkv.view(pair[0], models.TEXT, compare=pair[1])
    assert view.other_trace is not None
    assert view.trace.inputs.target
    assert view.other_trace.inputs.target == view.trace.inputs.target
    decoder = models.build_model("gpt2", torch.float32)
    view = qkv.view(pair[0], models.TEXT, target=models.TARGET, compare=decoder)
    assert view.other_trace is not None
    assert view.other_trace.inputs.target is None
    assert parse_svg(view.svg()) is not None


def test_errors_of_comparisons_name_the_model() -> None:
    bert, vit = (models.build_model(name, torch.float32) for name in ("bert", "vit"))
    assert_error(lambda: qkv.view(bert, "the cat", compare=vit), "vit: no image is given")
    gpt2 = models.build_model("gpt2", torch.float32)
    view = qkv.view(bert, "the cat", compare=gpt2, paths="encoder.*")
    assert_error(view.html, "gpt2: paths='encoder.*' matches none of")
    assert_error(lambda: qkv.view(bert, "the cat", compare=gpt2, rollout=True), "rollout of two")


def test_saved_pages_have_no_views_that_run_the_model() -> None:
    for name in ("generation", "beams"):
        view = build_view("gpt2", view=name)
        assert_error(view.html, f"view '{name}'", "a saved page runs no model")


def test_paths_that_leave_out_the_view_are_refused() -> None:
    for settings in (dict(path="encoder.layers.0.attention"), dict(view="head", layer=1)):
        view = build_view("bart", paths="decoder.*", **settings)
        assert_error(view.html, "leaves out encoder.layers.")
    assert build_view("bart", paths="decoder.*", path="decoder.layers.0.attention").html()


def test_a_comparison_has_no_picture_of_other_views() -> None:
    assert_error(
        lambda: build_comparison(view="head").svg(), "view 'head'", "expected compare or image"
    )
    assert build_comparison(view="head").html()
    model = models.build_model("gpt2", torch.float32)
    small = models.build_tiny_model("gpt2", torch.float32, depth=1)
    assert_error(lambda: qkv.view(model, "a cat", compare=small, layer=1), "-attention is 1")


# --- files ---


def test_files_of_every_format(tmp_path: Path) -> None:
    view = build_view("bert", view="matrix", layer=0, head=0)
    for name in ("page.html", "PAGE.HTML"):
        view.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == view.html()
    view.save(str(tmp_path / "picture.svg"))
    assert (tmp_path / "picture.svg").read_text(encoding="utf-8") == view.svg()
    pytest.importorskip("resvg_py")
    view.save(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG_SIGNATURE)
    root = parse_svg(view.svg())
    with Image.open(tmp_path / "picture.png") as picture:
        size = [2 * float(root.attrib[side]) for side in ("width", "height")]
        assert [*picture.size] == pytest.approx(size, abs=2)
        assert len(picture.convert("RGB").getcolors(2**16) or ()) > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "PAGE.HTML", "page.html", "picture.png", "picture.svg",
    ]  # fmt: skip


def test_wrong_file_names_are_refused(tmp_path: Path) -> None:
    view = build_view("bert")
    for name in ("page", "page.pdf", "page.html.gz", ".svg"):
        assert_error(lambda: view.save(tmp_path / name), name, ".html, .svg or .png")  # noqa: B023
    with pytest.raises(OSError, match=r"none/page\.html: not written: .*No such file"):
        view.save(tmp_path / "none" / "page.html")
    assert not [*tmp_path.iterdir()]


def test_png_without_its_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    view = build_view("bert", view="matrix")
    assert_error(
        lambda: view.save(tmp_path / "a.png"), "resvg-py", "pip install 'qkv[png]'", ".svg"
    )
    assert not [*tmp_path.iterdir()]


# --- models ---


def test_models_may_be_folders(tmp_path: Path) -> None:
    models.build_changed_model("bert", torch.float32).save(tmp_path / "bert")
    view = qkv.view(tmp_path / "bert", "the cat")
    assert view.explorer.main.name == str(tmp_path / "bert")
    expected = qkv.view(models.build_model("bert", torch.float32), "the cat")
    for path, weights in look(expected.trace).items():
        torch.testing.assert_close(look(view.trace)[path], weights)
    assert qkv.view(str(tmp_path / "bert"), "the cat").trace.shapes == view.trace.shapes


def test_wrong_inputs_are_refused() -> None:
    model = models.build_model("bert", torch.float32)
    assert_error(lambda: qkv.view(model, ""), "the text is empty")
    assert_error(lambda: qkv.view(model, "a", target="b"), "target: this model (bert) reads")
    assert_error(lambda: qkv.view(model, "a", head=4), "head is 4")
    assert_error(lambda: qkv.view(model, "a", paths="x").html(), "paths='x' matches none")
    with pytest.raises(TypeError, match="heads"):
        qkv.view(model, "a", heads=1)  # type: ignore[call-arg]
