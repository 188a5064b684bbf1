"""View settings: the view, layer, head and query of a picture, and what the page shows when it opens."""

from __future__ import annotations

from typing import Any

import pytest

from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.view_settings import VIEW_NAMES, ViewSettings
from tests.explorer import models
from tests.support.errors import assert_error

DEFAULT_VIEWS = {
    "bert": "head", "gpt2": "head", "bart": "alignment", "bahdanau": "alignment", "vit": "image",
    "clip": "image", "show-attend-tell": "image", "vision-encoder-decoder": "image",
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT_VIEWS)
def test_default_views(name: str) -> None:
    trace = models.build_trace(name)
    settings = ViewSettings()
    settings.check(trace)
    assert settings.choose_view(trace) == DEFAULT_VIEWS[name]
    assert settings.build_state(trace) == {
        "view": DEFAULT_VIEWS[name], "rollout": False, "beams": 4, "maxNewTokens": 40,
    }  # fmt: skip
    assert ViewSettings(view="model").choose_view(trace) == "model"


def test_the_attention_that_a_view_shows_first() -> None:
    """Layers count those of one kind of attention in one stack."""

    def find(name: str, **settings: Any) -> str:
        return ViewSettings(**settings).find_attention(models.build_trace(name)).path

    expected = {
        ("bert", None, None): "encoder.layers.0.attention",
        ("bert", "matrix", 1): "encoder.layers.1.attention",
        ("bart", "head", 1): "encoder.layers.1.attention",
        ("t5", "alignment", None): "decoder.layers.1.cross_attention",  # the last but one
        ("t5", "alignment", 2): "decoder.layers.2.cross_attention",
        ("bart", "alignment", 0): "decoder.layers.0.cross_attention",
        ("bahdanau", "alignment", None): "decoder.cross_attention",
        ("clip", "image", 1): "image.encoder.layers.1.attention",
        ("show-attend-tell", "image", 0): "decoder.cross_attention",
        ("vision-encoder-decoder", "image", None): "decoder.layers.0.cross_attention",
        ("lstmn", "neuron", 1): "encoder.layers.1.attention",
    }
    for (name, view, layer), path in expected.items():
        assert find(name, view=view, layer=layer) == path
    path = "decoder.layers.0.attention"
    assert find("bart", path=path) == path
    message = "expected one such as decoder.layers.0.cross_attention"
    assert_error(lambda: find("bart", view="alignment", path=path), path, "'alignment'", message)
    trace = models.build_trace("bart")
    cross = "decoder.layers.1.cross_attention"
    for settings, view in (
        (ViewSettings(), "alignment"), (ViewSettings(path=path), "head"),
        (ViewSettings(path=cross), "alignment"), (ViewSettings(rollout=True), "matrix"),
    ):  # fmt: skip
        assert settings.choose_view(trace) == view
    for name, path in (
        ("vit", "encoder.layers.1.attention"),
        ("show-attend-tell", "decoder.cross_attention"),
    ):
        assert ViewSettings(path=path).choose_view(models.build_trace(name)) == "image"
    builder = InputBuilder(model=models.build_model("bert"))
    settings = ViewSettings(view="head", rollout=True)
    assert_error(lambda: settings.check_values(builder), "rollout", "'head'", "'matrix'")


def test_the_state_of_the_page() -> None:
    trace = models.build_trace("t5")
    settings = ViewSettings(
        view="alignment", layer=2, head=1, query=3, num_beams=7, max_new_tokens=5
    )
    settings.check(trace)
    path = "decoder.layers.2.cross_attention"
    assert settings.build_state(trace) == {
        "view": "alignment", "rollout": False, "beams": 7, "maxNewTokens": 5, "path": path, "cross": path,
        "head": 1, "heads": [1], "crossHead": 1, "focus": "q3",
    }  # fmt: skip
    path = "encoder.layers.0.attention"
    state = ViewSettings(view="matrix", path=path, rollout=True).build_state(trace)
    assert (state["path"], state["cross"], state["rollout"]) == (path, "", True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(view="bogus"), ("view is 'bogus'", "head", "patterns")), (dict(view=3), ("view is 3",)),
        (dict(view=""), ("view is ''",)),
        (dict(layer=2), ("self-attention is 2", "less than 2")), (dict(layer=-1), ("self-attention is -1",)),
        (dict(layer="0"), ("self-attention is '0'",)), (dict(layer=True), ("self-attention is True",)),
        (dict(head=4), ("head is 4", "less than 4")), (dict(head=-1), ("head is -1",)),
        (dict(head=1.0), ("head is 1.0",)), (dict(query=6), ("query is 6", "less than 6")),
        (dict(query=-1), ("query is -1",)), (dict(query="the"), ("query is 'the'",)),
        (dict(path="decoder"), ("path 'decoder'", "decoder.layers.1.attention")),
        (dict(path=3), ("path is 3",)), (dict(path=["a"]), ("path is ['a']",)),
        (dict(path="decoder.layers.0.attention", layer=0), ("layer 0 and path", "one of them")),
        (dict(rollout="yes"), ("rollout is 'yes'",)), (dict(num_beams=1), ("num_beams is 1",)),
        (dict(num_beams=17), ("num_beams is 17",)), (dict(num_beams="2"), ("num_beams is '2'",)),
        (dict(max_new_tokens=0), ("max_new_tokens is 0",)),
        (dict(max_new_tokens=201), ("max_new_tokens is 201",)),
        (dict(max_new_tokens=2.5), ("max_new_tokens is 2.5",)),
        (dict(view="alignment"), ("nothing to show", "an encoder-decoder")),
        (dict(view="image"), ("nothing to show", "a model of images")),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    def check() -> None:
        ViewSettings(**settings).check_values(InputBuilder(model=models.build_model("gpt2")))
        ViewSettings(**settings).check(models.build_trace("gpt2"))

    assert_error(check, *words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(view="generation"), ("view 'generation'", "does not generate text")),
        (dict(view="beams"), ("view 'beams'", "does not generate text")),
        (dict(view="compare"), ("view 'compare'", "a second model")),
        (dict(layer=1, has_input=False), ("layer 1 without an input", "a text or an image")),
        (dict(query=0, has_input=False), ("query 0 without an input",)),
    ],
)
def test_what_a_model_does_not_have_is_refused_before_it_runs(
    settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    builder = InputBuilder(model=models.build_model("bert"))
    values = {name: value for name, value in settings.items() if name != "has_input"}
    has_input = settings.get("has_input", True)
    assert_error(lambda: ViewSettings(**values).check_values(builder, has_input=has_input), *words)


def test_every_view_has_a_name() -> None:
    trace = models.build_trace("vision-encoder-decoder")
    builder = InputBuilder(model=trace.model)
    for name in VIEW_NAMES:
        ViewSettings(view=name).check_values(builder, is_comparison=True)
        ViewSettings(view=name).check(trace)


def test_the_state_of_a_comparison() -> None:
    trace = models.build_trace("gpt2")
    state = ViewSettings(view="compare", layer=1, head=2).build_state(trace)
    path = "decoder.layers.1.attention"
    assert (state["path"], state["otherPath"], state["otherHead"]) == (path, path, 2)
    assert ViewSettings(view="compare").build_start()["view"] == "compare"
    assert "view" not in ViewSettings().build_start()


def test_the_state_of_a_page_without_a_text() -> None:
    assert ViewSettings().build_start() == {"rollout": False, "beams": 4, "maxNewTokens": 40}
    state = ViewSettings(view="beams", num_beams=2, max_new_tokens=5).build_start()
    assert state == {"view": "beams", "rollout": False, "beams": 2, "maxNewTokens": 5}
