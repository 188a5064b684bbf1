"""Explorer: answers to the questions of the page, and what it keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from qkv.explorer import explorer as explorer_module
from qkv.explorer.explorer import Explorer, NamedModel, UnknownTraceError
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import UserInput
from qkv.explorer.view_settings import ViewSettings
from tests.explorer import models
from tests.explorer.inputs.test_images import encode
from tests.explorer.trace.test_trace import look
from tests.support import saved_models, tiny
from tests.support.errors import assert_error


def ask(explorer: Explorer, text: str = models.TEXT, **body: Any) -> dict[str, str]:
    """Return the number of a new trace, as a part of later questions."""
    return {"trace_id": explorer.trace({"text": text, **body})["trace_id"]}


@pytest.mark.parametrize("name", ["bert", "t5", "transformer-xl"])
def test_weights_are_those_of_look(name: str) -> None:
    explorer = models.build_explorer(name)
    number = ask(explorer, **({"target": models.TARGET} if name == "t5" else {}))
    for path, expected in look(explorer.traces[number["trace_id"]]).items():
        query = number | {"path": path}
        heads, num_queries, num_keys = expected.shape
        every = explorer.weights(query | {"heads": f"0-{heads - 1}"})
        assert every.dtype == torch.uint16
        torch.testing.assert_close(every / 65_535, expected.float(), rtol=0, atol=1e-5)
        some = explorer.weights(query | {"heads": "2,0", "rows": "1:3", "columns": "0:4"})
        assert torch.equal(some, every[[2, 0], 1:3, :4])
        mean = explorer.weights(query)
        assert torch.equal(mean, explorer.weights(query | {"heads": "mean", "rollout": "0"}))
        torch.testing.assert_close(mean / 65_535, expected.float().mean(0)[None], rtol=0, atol=1e-5)
        pooled = explorer.weights(query | {"heads": "1", "pool": "100"})
        assert pooled.shape == (1, 1, 1)
        assert int(pooled) == int(every[1].int().max())
        assert every.shape == (heads, num_queries, num_keys)
    if name == "bert":
        rollout = explorer.weights(query | {"rollout": "1", "heads": "0-3"})
        trace = explorer.traces[number["trace_id"]]
        exact = trace.compute_rollout(path, slice(None), slice(None))
        torch.testing.assert_close(rollout / 65_535, exact, rtol=0, atol=1e-5)


def test_neurons_are_those_of_the_trace() -> None:
    explorer = models.build_explorer("bert")
    query = ask(explorer) | {"path": "encoder.layers.1.attention"}
    scale, parts = explorer.neurons(query | {"head": "2", "row": "3"})
    assert scale == pytest.approx(6**-0.5)
    arrays = {part.name: part.values for part in parts}
    weights = explorer.weights(query | {"heads": "2", "rows": "3:4"})
    torch.testing.assert_close(arrays["weight"], weights[0, 0] / 65_535, rtol=0, atol=1e-5)
    first, _ = explorer.neurons(query)[1], None
    assert [part.name for part in first] == [*arrays]


WRONG_PLACES: dict[str, dict[str, list[str]]] = {
    "weights": {
        "path": ["", "encoder", "encoder.layers.2.attention", "../x", "a" * 5000],
        "rows": ["0:9", "-1:2", "2:2", "a", "1"],
        "columns": ["0:9", "5:1", "x:y", "9" * 50],
        "pool": ["0", "-1", "4097", "1.5", "two", ""],
        "heads": ["4", "-1", "0-4", "all", "", "1;2"],
        "rollout": ["2", "yes", "", "true"],
    },
    "neurons": {
        "path": ["", "encoder", "decoder.layers.0.attention"],
        "head": ["4", "-1", "", "a", "1.0", "9" * 30],
        "row": ["8", "-1", "", "x"],
    },
    "patterns": {"size": ["1", "257", "0", "-5", "", "a", "4.5", "9" * 30]},
}


@pytest.mark.parametrize(
    ("question", "name", "value"),
    [
        (question, name, value)
        for question, names in WRONG_PLACES.items()
        for name, values in names.items()
        for value in values
    ],
)
def test_wrong_parameters_are_refused(question: str, name: str, value: str) -> None:
    explorer = models.build_explorer("bert")
    query = ask(explorer) | {"path": "encoder.layers.1.attention"}
    answer = getattr(explorer, question)
    answer(query)
    message = assert_error(lambda: answer(query | {name: value}), name)
    assert len(message) < 400
    answer(query)  # the lock is free


WRONG_BODIES: dict[str, dict[str, list[Any]]] = {
    "trace": {
        "text": ["", "  ", 5, [], {}, True, "x" * 200_001],
        "target": ["a", 5, ["a"]],
        "text_pair": [5, [], {"a": 1}],
        "image": ["abc", 5, [], {}, True, 0],
        "model": ["other", "", "second", 5, None, [], {}, "x" * 5000],
    },
    "step": {
        "text": ["", 5, None],
        "text_pair": ["a"],
        "token_ids": [None, "1", [-1], [10**9], ["a"], [1.5], [[]], [None], [0] * 4097, [5] * 65],
        "settings": [None, [], "a", {"temperature": -1}, {"top_k": 3}, {"seed": -1}, {"top_p": [[[[]]]]}],
        "candidates": [0, -1, 101, 1.5, "5", None, [], {}, True, float("nan"), float("inf")],
        "image": ["abc"],
    },
    "beams": {
        "text": ["", 5],
        "num_beams": [1, 0, 17, 2.5, "4", None, [], float("nan")],
        "max_new_tokens": [0, -1, 201, 1.5, "4", None, {}, float("inf")],
        "image": [{"a": 1}],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("question", "name", "index"),
    [
        (question, name, index)
        for question, names in WRONG_BODIES.items()
        for name, values in names.items()
        for index in range(len(values))
    ],
)
def test_wrong_bodies_are_refused(question: str, name: str, index: int) -> None:
    explorer = models.build_explorer("bert" if question == "trace" else "gpt2")
    value = WRONG_BODIES[question][name][index]
    message = assert_error(lambda: getattr(explorer, question)({"text": "the cat", name: value}))
    assert len(message) < 400
    assert not explorer.traces
    assert not explorer.lock.locked()


def test_unknown_traces() -> None:
    explorer = models.build_explorer("bert")
    for query in ({}, {"trace_id": ""}, {"trace_id": "1"}, {"trace_id": "x" * 5000}):
        for answer in (explorer.weights, explorer.neurons):
            with pytest.raises(UnknownTraceError, match="send the text again") as caught:
                answer(query)
            assert len(str(caught.value)) < 100


def test_the_oldest_traces_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer_module, "MAX_TRACES", 2)
    explorer = models.build_explorer("bert")
    path = {"path": "encoder.layers.0.attention"}
    first, second = ask(explorer), ask(explorer, "a bird")
    explorer.weights(first | path)  # used later than the second
    third = ask(explorer, "the dog")
    assert [*explorer.traces] == [first["trace_id"], third["trace_id"]]
    assert_error(lambda: explorer.weights(second | path), "not known", error=UnknownTraceError)
    num_bytes = explorer.traces[third["trace_id"]].num_bytes
    monkeypatch.setattr(explorer_module, "MAX_RECORD_BYTES", num_bytes)
    last = ask(explorer)  # alone needs more than the limit
    assert [*explorer.traces] == [last["trace_id"]]
    explorer.weights(last | path)


def test_numbers_of_traces_are_never_used_again() -> None:
    explorer = models.build_explorer("bert")
    numbers = [ask(explorer)["trace_id"] for _ in range(3)]
    explorer.traces.clear()
    assert ask(explorer)["trace_id"] not in numbers


def test_answers_with_too_many_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = models.build_explorer("bert")
    query = ask(explorer) | {"path": "encoder.layers.0.attention"}
    monkeypatch.setattr(explorer_module, "MAX_ANSWER_WEIGHTS", 100)
    explorer.weights(query | {"heads": "0-3", "rows": "0:5", "columns": "3:8"})
    assert_error(
        lambda: explorer.weights(query | {"heads": "0-3", "rows": "0:5", "columns": "2:8"}),
        "120 weights, expected at most 100", "fewer heads, rows or columns",
    )  # fmt: skip
    explorer.weights(query | {"heads": "0-3", "pool": "2"})


def test_two_models() -> None:
    explorer = models.build_explorer("bert", "albert")
    description = explorer.describe_model()
    assert description["other_model"] == "albert"
    main, other = (explorer.trace({"text": "the cat", "model": name}) for name in ("main", "other"))
    assert [len(trace["attentions"]) for trace in (main, other)] == [2, 4]
    assert main["trace_id"] != other["trace_id"]
    explorer = models.build_explorer("bart", "gpt2")  # the decoder reads no target
    body = {"text": "the cat", "target": "a bird"}
    main, other = (explorer.trace(body | {"model": name}) for name in ("main", "other"))
    assert (main["target"], other["target"]) == ("a bird", None)


def test_descriptions_of_models() -> None:
    def describe(name: str) -> tuple[str, str, bool]:
        description = models.build_explorer(name).describe_model()
        parameters = models.build_model(name).parameters()
        assert description["num_parameters"] == sum(parameter.numel() for parameter in parameters)
        return description["description"], description["architecture"], description["can_generate"]

    assert describe("bert") == ("bert, 2 layers, width 24", "encoder", False)
    assert describe("albert") == ("albert, 4 layers, width 24", "encoder", False)
    assert describe("t5") == ("t5, 2 + 3 layers, width 24", "encoder-decoder", True)
    assert describe("bahdanau") == ("bahdanau, recurrent, width 24", "encoder-decoder", True)
    description, *_ = describe("show-attend-tell")
    assert description.startswith("show-attend-tell, recurrent, width")
    assert describe("clip")[1:] == ("dual-encoder", False)


def test_images_are_kept_under_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer_module, "MAX_IMAGES", 2)
    explorer = models.build_explorer("vit")
    names = [
        explorer.add_image(encode(models.build_image((shade, 0, 0))))["image"]
        for shade in (10, 120, 250)
    ]
    assert [*explorer.images] == names[1:]
    descriptions = [explorer.trace({"image": name}) for name in names[1:]]
    pictures = [description["sequences"]["encoder"]["picture"] for description in descriptions]
    assert pictures[0] != pictures[1]
    assert_error(lambda: explorer.trace({"image": names[0]}), "the image is not known any more")
    assert_error(lambda: explorer.trace({"image": ""}), "no image is given")
    assert_error(lambda: explorer.add_image(b"text"), "the image")
    assert [*explorer.images] == names[1:]


def test_images_of_many_threads() -> None:
    explorer = models.build_explorer("vit")
    data = [encode(models.build_image((shade, 0, 0))) for shade in range(40)]
    with ThreadPoolExecutor(8) as pool:
        names = [answer["image"] for answer in pool.map(explorer.add_image, data * 5)]
    assert len({*names}) == 40
    assert len(explorer.images) == explorer_module.MAX_IMAGES


def test_the_first_image_of_a_page_is_always_kept(tmp_path: Path) -> None:
    explorer = models.build_explorer("vit")
    models.build_image((1, 2, 3)).save(tmp_path / "start.png")
    config = explorer.build_config(UserInput(image=tmp_path / "start.png"), ViewSettings())
    for shade in range(explorer_module.MAX_IMAGES + 2):
        explorer.add_image(encode(models.build_image((shade, 0, 0))))
    assert len(explorer.images) == explorer_module.MAX_IMAGES + 1
    assert explorer.trace({"image": config["image"]})["sequences"]


# --- what the page starts with ---


def build_config(
    name: str, user_input: UserInput, settings: ViewSettings | None = None
) -> tuple[Explorer, dict[str, Any]]:
    explorer = models.build_explorer(name)
    return explorer, explorer.build_config(user_input, settings or ViewSettings())


def test_a_page_without_text_has_no_trace() -> None:
    explorer, config = build_config("bert", UserInput())
    assert config.keys() == {"mode", "model", "examples", "state"}
    assert not explorer.traces
    assert all(example["text"] for example in config["examples"])


def test_a_page_with_a_text_has_its_trace() -> None:
    settings = ViewSettings(view="matrix", layer=1, head=2, query=3, rollout=True)
    explorer, config = build_config("bert", UserInput(text="the cat", text_pair="sat"), settings)
    assert config["trace"]["trace_id"] in explorer.traces
    assert (config["trace"]["text"], config["trace"]["text_pair"]) == ("the cat", "sat")
    state = config["state"]
    assert state["view"] == "matrix"
    assert state["path"] == "encoder.layers.1.attention"
    assert (state["head"], state["focus"], state["rollout"]) == (2, "q3", True)
    wrong = ViewSettings(head=9)
    assert_error(lambda: build_config("bert", UserInput(text="a"), wrong), "head is 9")


def test_weights_that_are_no_numbers_are_refused() -> None:
    explorer = models.build_explorer("gpt2")
    model = models.build_changed_model("gpt2", torch.float32)
    torch.nn.init.constant_(next(model.net.parameters()), torch.nan)
    explorer.main = NamedModel(name="broken", inputs=InputBuilder(model=model))
    query = ask(explorer) | {"path": "decoder.layers.0.attention"}
    assert_error(lambda: explorer.weights(query), "the attention weights are NaN")


def test_the_page_keeps_the_target_of_its_user() -> None:
    for target in (None, "sat"):
        _, config = build_config("t5", UserInput(text="the cat", target=target))
        assert config["target"] == target
        assert config["trace"]["target"]


def test_a_page_with_an_image(tmp_path: Path) -> None:
    models.build_image().save(tmp_path / "image.png")
    explorer, config = build_config("vit", UserInput(image=tmp_path / "image.png"))
    assert config["image"] in explorer.images
    assert config["state"]["view"] == "image"
    assert explorer.trace({"image": config["image"]})["attentions"] == config["trace"]["attentions"]
    (tmp_path / "text.png").write_text("text")
    user_input = UserInput(image=tmp_path / "text.png")
    assert_error(lambda: build_config("vit", user_input), "the image")


def test_examples_are_inputs_of_the_model() -> None:
    for name in ("bert", "gpt2", "clip", "transformer-xl"):
        explorer, config = build_config(name, UserInput())
        assert config["examples"]
        for example in config["examples"]:
            explorer.trace(example)
    for name in ("vit", "show-attend-tell", "bart"):  # images, and unknown languages
        assert not build_config(name, UserInput())[1]["examples"]


def test_examples_of_a_translation_model_have_its_languages() -> None:
    tokenizer = models.train_tokenizer("seq2seq")
    assert not tokenizer.languages
    languages = type(tokenizer).train(
        saved_models.TEXTS, type="bpe", vocab_size=90, template="seq2seq", extra_tokens=["de", "en"]
    )
    model = tiny.build("bart", vocab_size=len(languages), dtype=torch.float32)
    model.tokenizer = languages
    explorer = Explorer(NamedModel(name="x", inputs=InputBuilder(model=model)))
    assert explorer.build_config(UserInput(), ViewSettings())["examples"]


# --- threads ---


def test_threads_get_the_answers_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are computed again all the time, and traces of other threads come and go."""
    monkeypatch.setattr("qkv.explorer.trace.trace.MAX_RECORD_BYTES", 2000)
    explorer = models.build_explorer("bert")
    texts = ["the cat", "a bird sang in the tall tree", "we saw the dog"]
    expected = {}
    for text in texts:
        query = ask(explorer, text)
        expected[text] = [
            explorer.weights(query | {"path": path, "heads": "0-3"})
            for path in explorer.traces[query["trace_id"]].shapes
        ]

    def work(number: int) -> bool:
        text = texts[number % 3]
        query = ask(explorer, text)
        paths = [*explorer.traces[query["trace_id"]].shapes]
        return all(
            torch.equal(explorer.weights(query | {"path": path, "heads": "0-3"}), weights)
            for path, weights in [*zip(paths, expected[text], strict=True)] * 2
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))
