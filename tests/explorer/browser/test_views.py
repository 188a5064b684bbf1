"""Every view of every architecture shows something: tokens, numbers as `qkv.look` gives them, pictures
that are not blank."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.models import GIVEN, TEXT, compute_weights, load_model, split_tokens
from tests.explorer.browser.site import Site
from tests.explorer.models import build_clip

ALL_MODELS = ["head", "model", "matrix"]
DECODERS = [*ALL_MODELS, "neuron", "generation", "beams", "patterns"]
ENCODER_DECODERS = [*ALL_MODELS, "alignment", "neuron", "generation", "beams", "patterns"]
VIEWS = {
    "bert": [*ALL_MODELS, "neuron", "patterns"],
    "gpt2": DECODERS,
    "sparse": DECODERS,
    "transformer-xl": DECODERS,
    "transformer": ENCODER_DECODERS,
    "t5": ENCODER_DECODERS,
    "bahdanau": ENCODER_DECODERS,
}
ROUNDING = 0.00501  # of a number with two digits
EXACT = 0.0001  # of a number with four digits; weights have 16 bits


def check_head(page: ExplorerPage, name: str) -> None:
    path, weights = next(iter(compute_weights(name).items()))
    num_heads, num_queries, num_keys = weights.shape
    assert path.startswith(page.select("Layer").input_value())
    assert page.find(".tokens.query li").count() == min(num_queries, 40)
    assert page.find(".tokens.key li").count() == min(num_keys, 40)
    assert page.find(".swatch").count() == num_heads
    assert page.count_colors(".head-stage canvas") > 10


def check_model(page: ExplorerPage, name: str) -> None:
    path, weights = next(iter(compute_weights(name).items()))
    kind = path.partition(".layers")[0], path.rpartition(".")[2]
    layers = [
        other for other in compute_weights(name)
        if (other.partition(".layers")[0], other.rpartition(".")[2]) == kind
    ]  # fmt: skip
    thumbnails = page.find(".thumbnail canvas")
    thumbnails.last.scroll_into_view_if_needed()
    page.wait()
    assert thumbnails.count() == len(layers) * weights.shape[0]
    shapes = thumbnails.evaluate_all("list => list.map(({ width, height }) => [height, width])")
    assert shapes == [[*weights.shape[1:]]] * thumbnails.count()
    assert page.count_colors(".thumbnail canvas") > 5


def check_matrix(page: ExplorerPage, name: str) -> None:
    path, weights = next(iter(compute_weights(name).items()))
    assert page.count_colors(".matrix-canvas") > 10
    page.find(".matrix-canvas").focus()
    page.press("ArrowDown", "ArrowDown", "ArrowRight")  # the first key puts the cursor on a cell
    assert "(query 1) → " in page.status
    assert "(key 1)" in page.status
    match = re.search(r"weight ([0-9.]+)", page.status)
    assert match is not None, path
    assert abs(float(match[1]) - float(weights[0, 1, 1])) < EXACT


def check_alignment(page: ExplorerPage, name: str) -> None:
    crosses = {path: w for path, w in compute_weights(name).items() if "cross" in path}
    best = [*crosses][max(len(crosses) - 2, 0)]
    page.page.get_by_label("merge pieces into words").uncheck()
    page.wait()
    _, num_queries, num_keys = crosses[best].shape
    assert page.find(".words.source span").count() == num_keys
    assert page.find(".words.target span").count() == num_queries - 1
    assert page.find(".alignment rect.best").count() == num_queries - 1
    page.hover(".words.target >> span >> nth=2")
    expected = crosses[best].mean(0)[2]
    assert page.status_weights, page.status
    for (_, value_on_page), value in zip(
        page.status_weights, expected.sort(descending=True).values, strict=False
    ):
        assert abs(value_on_page - float(value)) < ROUNDING


def check_neuron(page: ExplorerPage, name: str) -> None:
    weights = next(
        w for path, w in compute_weights(name).items()
        if path == page.select("Layer").input_value()
    )  # fmt: skip
    assert page.count_colors(".neuron-keys canvas") > 20
    assert page.count_colors(".neuron-headings") > 5
    page.find(".neuron-keys .tokens").focus()
    page.press("Home", "ArrowDown")
    match = re.search(r"weight <?([0-9.]+)", page.status)
    assert match is not None, page.status
    focus = re.match(r"q(\d+)", page.get_state()["focus"])  # the cell of the matrix, if it was open
    query = int(focus[1]) if focus else 0
    assert abs(float(match[1]) - float(weights[0, query, 1])) < ROUNDING


def check_generation(page: ExplorerPage, name: str) -> None:
    assert page.find(".candidates tbody tr").count() == 12
    assert page.find(".candidates tr.chosen").count() == 1
    probabilities = [float(text.strip("<")) for text in page.texts(".candidates td.before")]
    assert probabilities == sorted(probabilities, reverse=True)
    assert page.find(".heat span").count() > 5
    assert "weights, " in page.text(".generation .status")


def check_beams(page: ExplorerPage, name: str) -> None:
    assert page.status.startswith("Result: “")
    assert page.find(".beams-view svg rect").count() > 8
    assert page.texts(".beams-view svg >> text=/^step /")[0] == "step 1"


def check_patterns(page: ExplorerPage, name: str) -> None:
    if name == "bahdanau":
        assert page.status == "The attention of this model has no masks."
        return
    captions = page.texts(".card strong")
    expected = {
        "bert": ["full"],
        "gpt2": ["causal"],
        "sparse": ["chunk(4) | chunkends(4, 1)"],
        "transformer-xl": ["causal"],
    }
    assert captions == expected.get(name, ["full", "causal", "full"])
    assert page.count_colors(".card canvas") > (1 if captions[0] == "full" else 2)
    assert page.find(".chart svg path").count() == (8 if name == "t5" else 0)


CHECKS: dict[str, Callable[[ExplorerPage, str], None]] = {
    "head": check_head,
    "model": check_model,
    "matrix": check_matrix,
    "alignment": check_alignment,
    "neuron": check_neuron,
    "generation": check_generation,
    "beams": check_beams,
    "patterns": check_patterns,
}


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_of_an_architecture(open_page: OpenPage, site: Site, name: str) -> None:
    page = open_page(site.explore(name))
    assert page.views == VIEWS[name]
    for view in page.views:
        page.choose_view(view)
        assert page.view == view
        CHECKS[view](page, name)
        assert page.error == ""


def test_clip_reads_an_uploaded_picture(open_page: OpenPage, site: Site, picture: Path) -> None:
    page = open_page(site.explore("clip"))
    assert page.views == [*ALL_MODELS, "neuron", "patterns"]
    page.page.set_input_files("input[type=file]", picture)
    page.page.wait_for_selector("#tab-image")
    page.wait()
    page.choose_view("image")
    assert page.evaluate("document.querySelector('.overlay img').naturalWidth") == 12
    assert page.count_colors(".overlay canvas") > 3
    assert page.status.startswith("\u2068[class]\u2069 → ")
    page.find(".overlay canvas").hover(position={"x": 10, "y": 10})
    page.wait()
    assert page.status.startswith("\u20680,0\u2069 → ")
    status_weights = page.status_weights
    assert [value for _, value in status_weights] == sorted(
        (value for _, value in status_weights), reverse=True
    )
    page.choose_view("head")
    page.choose("Attention", "image.encoder self-attention")
    assert page.texts(".tokens.query .token") == ["[class]"] + [
        f"{row},{column}" for row in range(3) for column in range(3)
    ]


def test_the_frames_of_an_uploaded_clip(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    frames = [Image.fromarray(frame) for frame in build_clip(6)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    page = open_page(site.explore("video-transformer"))
    page.page.set_input_files("input[type=file]", tmp_path / "clip.gif")
    page.page.wait_for_selector("#tab-image")
    page.wait()
    page.choose_view("image")
    names = [f"frame {i}" for i in range(6)]
    options = page.select("Query").locator("option").all_text_contents()
    assert [text.strip("\u2068\u2069") for text in options] == names
    width, height = page.find(".overlay").evaluate("box => [box.clientWidth, box.clientHeight]")
    assert abs(width / height - 6) < 0.1  # six square frames in a row
    page.find(".overlay canvas").hover(position={"x": width * 2.5 / 6, "y": height / 2})
    page.wait()
    assert page.status.startswith("\u2068frame 2\u2069 → ")
    assert {token for token, _ in page.status_weights} <= {*names}
    page.choose_view("head")
    assert page.texts(".tokens.query .token") == names


def test_the_weights_over_a_picture(open_page: OpenPage, site: Site, picture: Path) -> None:
    page = open_page(site.explore("vit", image=picture))
    assert page.view == "image"
    assert page.views == [*ALL_MODELS, "neuron", "patterns", "image"]
    trace = next(iter(site.explorers["vit-image"].traces.values()))
    path = next(iter(trace.shapes))
    page.choose("Query", "4")
    page.click(".swatch >> nth=0")  # head 1 alone
    weights = trace.compute_weights(path, [1], slice(4, 5), slice(None))[0, 0]
    expected = weights.sort(descending=True)
    status_weights = page.status_weights
    names = page.select("Query").locator("option").all_text_contents()
    assert [token for token, _ in status_weights] == [
        names[index].strip("\u2068\u2069") for index in expected.indices[:5]
    ]
    for (_, value), other in zip(status_weights, expected.values, strict=False):
        assert abs(value - float(other)) < ROUNDING


def test_two_models_are_compared(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2", other="sparse"))
    page.choose_view("compare")
    assert page.texts(".columns h2") == ["gpt2", "sparse"]
    canvases = page.find(".columns .matrix-canvas")
    images = canvases.evaluate_all("list => list.map(canvas => canvas.toDataURL())")
    assert len({*images}) == 2
    canvases.first.focus()
    page.press("ArrowDown", "ArrowDown", "ArrowDown")
    page.wait_until(
        "[...document.querySelectorAll('.columns .status')]"
        ".every(({ textContent }) => textContent.includes('weight 0.'))"
    )
    status_weights = [float(text.rpartition(" ")[2]) for text in page.texts(".columns .status")]
    for name, value in zip(("gpt2", "sparse"), status_weights, strict=True):
        weights = next(iter(compute_weights(name).values()))
        assert abs(value - float(weights[0, 2, 0])) < EXACT


def test_a_thumbnail_opens_its_head(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.choose_view("model")
    page.click(".thumbnail >> nth=6")  # layer 1, head 2
    assert page.view == "head"
    assert page.select("Layer").input_value() == "decoder.layers.1.attention"
    assert page.texts(".swatch[aria-pressed=true]") == ["2"]
    page.choose_view("model")
    page.choose("A click opens", "matrix")
    page.find(".thumbnail").first.focus()
    page.press("ArrowDown", "ArrowRight", "Enter")
    assert page.view == "matrix"
    assert page.select("Head").input_value() == "1"


CAPTION = re.compile(r"(previous|itself|next|first|special) (\d+)%")
# Number of captions that the longest text does not fit, or makes higher.
CUT_CAPTIONS = """() => {
    const captions = [...document.querySelectorAll(".thumbnail .caption")];
    const heights = captions.map(caption => caption.offsetHeight);
    for (const caption of captions) caption.textContent = "previous 100%";
    const isCut = caption => caption.scrollWidth > caption.clientWidth;
    return captions.filter((caption, i) => isCut(caption) || caption.offsetHeight > heights[i]).length;
}"""


@pytest.mark.parametrize("width", [360, 1280])
def test_captions_of_thumbnails_say_what_their_number_is(
    open_page: OpenPage, site: Site, width: int
) -> None:
    """The first token of a short text gets most of the weight of a causal model."""
    page = open_page(f"{site.explore('gpt2')}#view=model&text=a%20b%20c%20d", width=width)
    trace = next(reversed(site.explorers["gpt2"].traces.values()))
    # A layer is loaded when it comes into sight.
    page.wait_until(
        "[...document.querySelectorAll('.thumbnail .caption')].filter(x => x.textContent).length > 4"
    )
    captions = page.texts(".thumbnail .caption")
    assert len([caption for caption in captions if caption]) > 4
    for (path, heads), layer_captions in zip(
        ((path, shape[0]) for path, shape in trace.shapes.items()),
        (captions[:4], captions[4:]),
        strict=True,
    ):
        weights = trace.compute_weights(path, range(heads), slice(None), slice(None))
        for head, caption in enumerate(layer_captions):
            match = CAPTION.fullmatch(caption)
            if match and match[1] == "first":
                assert abs(float(match[2]) - 100 * float(weights[head, :, 0].mean())) <= 0.51
    assert "percentage of its weights" in page.text(".model-view p.faint")
    for count in (4, 12):  # heads: as many thumbnails share the width
        page.evaluate(
            "count => document.querySelector('.thumbnails').style.setProperty('--heads', count)",
            count,
        )
        assert page.evaluate(CUT_CAPTIONS) == 0


def test_the_alignment_of_a_caption(open_page: OpenPage, site: Site, picture: Path) -> None:
    """A patch is a word of its own."""
    page = open_page(site.explore("show-attend-tell", image=picture))
    page.choose_view("alignment")
    num_words = page.find(".words.target span").count()
    num_patches = page.find(".words.source span").count()
    assert num_patches >= 4
    assert page.find(".alignment rect.best").count() == num_words > 0
    assert page.texts(".words.source span")[:2] == ["0,0", "0,1"]


def test_rollout_is_a_product_of_the_layers(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("gpt2"))
    page.choose_view("matrix")
    page.choose("Layer", "decoder.layers.1.attention")
    page.page.get_by_label("rollout").check()
    page.wait()
    page.find(".matrix-canvas").focus()
    page.press(*["ArrowDown"] * 6)
    rollout = torch.eye(len(split_tokens("gpt2", TEXT)))
    for weights in compute_weights("gpt2").values():
        rollout = (weights.mean(0) / 2 + torch.eye(len(rollout)) / 2) @ rollout
    match = re.search(r"weight ([0-9.]+)", page.status)
    assert match is not None
    assert abs(float(match[1]) - float(rollout[5, 0])) < EXACT
    assert "rollout" in page.status


def test_the_model_is_described(open_page: OpenPage, site: Site) -> None:
    page = open_page(site.explore("t5"))
    count = sum(p.numel() for p in load_model("t5").net.parameters())
    assert page.text(".model p") == f"t5, 2 + 3 layers, width 24 · {count:,} parameters"
    assert page.page.title() == "t5 · attention explorer"
    assert GIVEN.get("t5", {"text": TEXT})["text"] == page.field().input_value()
