"""Generation step by step and the tree of beam search, compared with the tasks."""

from __future__ import annotations

import re

import pytest
import torch

import qkv
from qkv.explorer.explorer import Explorer
from qkv.explorer.inputs.trace_inputs import UserInput
from tests.explorer.browser.conftest import OpenPage
from tests.explorer.browser.explorer_page import ExplorerPage
from tests.explorer.browser.models import GERMAN, TEXT, load_model, name_model
from tests.explorer.browser.site import Site

ROUNDING = 0.00501


@pytest.fixture
def page(open_page: OpenPage, site: Site) -> ExplorerPage:
    page = open_page(site.explore("gpt2"))
    page.choose_view("generation")
    return page


def complete(prompt_ids: list[int], count: int) -> list[int]:
    """Return the greedy continuation of a prompt."""
    output = load_model("gpt2").generate(torch.tensor([prompt_ids]), max_new_tokens=count)
    return output[0, len(prompt_ids) :].tolist()


def get_prompt() -> list[int]:
    tokenizer = load_model("gpt2").tokenizer
    assert tokenizer is not None
    return tokenizer(TEXT)["input_ids"]


def get_tokens(page: ExplorerPage) -> list[int]:
    return page.get_state()["ids"]


def choose(page: ExplorerPage, row: int) -> int:
    """Continue with a candidate, and return its id."""
    button = page.find(".candidates tbody button").nth(row)
    title = re.search(r"\(id (\d+)\)$", button.get_attribute("title") or "")
    assert title is not None
    button.click()
    page.wait()
    return int(title[1])


def test_play_generates_the_greedy_output(page: ExplorerPage) -> None:
    expected = complete(get_prompt(), 6)
    page.page.get_by_role("button", name="Play").click()
    page.wait_until("qkvExplorer.state.ids.length >= 3")
    page.page.get_by_role("button", name="Pause").click()
    page.wait()
    ids = get_tokens(page)
    page.page.wait_for_timeout(600)  # longer than a step
    assert get_tokens(page) == ids
    while len(ids) < 6:
        page.page.get_by_role("button", name="Step", exact=True).click()
        ids = get_tokens(page.wait_until(f"qkvExplorer.state.ids.length > {len(ids)}"))
    assert ids == expected
    assert page.find(".chip").count() == 6
    assert page.status.startswith("Step 7: “")


def test_a_translation_is_that_of_the_task(open_page: OpenPage, site: Site) -> None:
    model = load_model("builtin:translate")
    page = open_page(site.explore("builtin:translate"))
    page.choose_view("generation")
    step = page.page.get_by_role("button", name="Step", exact=True)
    while step.is_enabled():
        step.click()
        page.wait()
    task = qkv.task("translate", model)
    expected = task.with_settings({"num_beams": 1})(GERMAN)
    assert "".join(page.texts(".chip")) == ("".join(token.strip("▁") for token in expected.tokens))
    assert (
        page.status == f"Step {len(expected.tokens) + 1}: “{expected.text}”. Finished: end token."
    )
    assert page.text(".candidates, .generation p >> nth=0") == "The text is finished (end token)."
    page.choose_view("beams")
    best = task(GERMAN)
    assert page.status.startswith(f"Result: “{best.text}”")
    assert page.find(".beams-view rect[stroke-width='3']").count() == len(best.tokens)
    labels = page.find(".beams-view text[font-weight='600']").all_text_contents()
    assert [label.strip("\u2068\u2069 ■") for label in labels] == [
        token.strip("▁") for token in best.tokens
    ]


def test_another_candidate_continues_the_text(page: ExplorerPage) -> None:
    page.page.get_by_role("button", name="Step", exact=True).click()
    (first,) = get_tokens(page.wait())
    other = choose(page, 2)
    page.page.get_by_role("button", name="Step", exact=True).click()
    page.wait()
    assert get_tokens(page) == [first, other, *complete([*get_prompt(), first, other], 1)]
    page.page.get_by_role("button", name="Back").click()
    page.wait()
    assert page.status.startswith("Step 3: ")
    page.find(".chip").first.click()  # the step that chose the first token
    assert page.wait().status.startswith("Step 1: ")
    third = choose(page, 3)
    assert get_tokens(page) == [third]
    page.page.get_by_role("button", name="Reset").click()
    page.wait()
    assert get_tokens(page) == []
    assert page.text(".output") == "No token chosen yet."


def test_the_probabilities_are_those_of_the_model(page: ExplorerPage) -> None:
    model = load_model("gpt2")
    with torch.no_grad():
        logits = model(torch.tensor([get_prompt()])).logits[0, -1]
    expected = logits.softmax(-1).topk(12).values
    for values in (page.texts(".candidates .before"), page.texts(".candidates .after")):
        for text, value in zip(values, expected, strict=True):
            assert abs(float(text.strip("<")) - float(value)) < ROUNDING


def test_a_setting_changes_the_processed_probabilities(page: ExplorerPage) -> None:
    before = page.texts(".candidates .after")
    field = page.page.get_by_label("top-k")
    field.fill("3")
    field.press("Enter")
    page.wait()
    after = [float(text.strip("<")) for text in page.texts(".candidates .after")]
    assert page.texts(".candidates .after") != before
    assert [value > 0 for value in after] == [True] * 3 + [False] * 9
    unfiltered = [float(text.strip("<")) for text in page.texts(".candidates .before")]
    for value, other in zip(after[:3], unfiltered[:3], strict=True):
        assert abs(value - other / sum(unfiltered[:3])) < 3 * ROUNDING
    assert page.page.get_by_label("sampling").is_checked()  # top-k implies it
    field.fill("-1")  # not allowed
    field.press("Enter")
    assert "top_k=3" in page.wait().get_state()["settings"]
    page.page.get_by_label("sampling").uncheck()
    page.wait()
    assert field.input_value() == "0"
    assert page.texts(".candidates .after") == before


def test_the_equation_has_the_order_of_the_processors(open_page: OpenPage, site: Site) -> None:
    settings = {"temperature": 2, "top_k": 8, "top_p": 0.6, "repetition_penalty": 3}
    text = "%26".join(f"{name}%3D{value}" for name, value in settings.items())
    page = open_page(f"{site.explore('gpt2')}#view=generation&settings={text}")
    page.click(".corner .round")
    equation = "p(next) = softmax(top_p(top_k(penalties(logits) / temperature)))"
    assert page.text(".help .equation") == equation
    with torch.no_grad():
        logits = load_model("gpt2")(torch.tensor([get_prompt()])).logits[0, -1]
    seen = logits[get_prompt()]
    penalized = logits.clone()
    penalized[get_prompt()] = torch.where(seen < 0, seen * 3, seen / 3)

    def keep_top_k(scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores < scores.topk(8).values[-1], -torch.inf)

    def keep_top_p(scores: torch.Tensor) -> torch.Tensor:
        values, order = scores.softmax(-1).sort(descending=True)
        return scores.masked_fill(
            values.new_zeros(len(values), dtype=torch.bool).scatter(
                0, order, values.cumsum(0) - values >= 0.6
            ),
            -torch.inf,
        )

    page_candidates = [float(number.strip("<")) for number in page.texts(".candidates .after")]
    expected = keep_top_p(keep_top_k(penalized / 2)).softmax(-1).topk(12).values.tolist()
    another = (keep_top_p(keep_top_k(penalized)) / 2).softmax(-1).topk(12).values.tolist()
    assert page_candidates == pytest.approx(expected, abs=ROUNDING)
    assert page_candidates != pytest.approx(another, abs=ROUNDING)


def test_the_tree_of_beam_search(page: ExplorerPage) -> None:
    task = qkv.task("complete", load_model("gpt2"), num_beams=2, max_new_tokens=40)
    page.choose_view("beams")
    field = page.page.get_by_label("Beams")
    field.fill("2")
    field.press("Enter")
    page.wait()
    result = task(TEXT)
    best = page.find(".beams-view rect[stroke-width='3']").count()
    assert best == len(result.tokens)
    title = page.find(".beams-view g title").first.text_content()
    assert re.fullmatch(r".* \(id \d+\), (kept|dropped)", title or "")
    num_kept = page.find(".beams-view g title >> text=/, kept$/").count()
    assert num_kept == 2 * best
    field.fill("99")  # too many: nothing happens
    field.press("Enter")
    assert page.wait().get_state()["beams"] == 2


def test_beam_search_starts_with_the_settings_of_the_command(
    open_page: OpenPage, site: Site
) -> None:
    explorer = Explorer(name_model(load_model("gpt2"), "gpt2"))
    settings = dict(view="beams", num_beams=3, max_new_tokens=5)
    page = open_page(site.add("short-beams", explorer, UserInput(text=TEXT), **settings))
    beams, limit = (page.page.get_by_label(label) for label in ("Beams", "Max new tokens"))
    assert [field.input_value() for field in (beams, limit)] == ["3", "5"]
    assert page.status.endswith(", 5 steps.")
    steps = page.find(".beams-view text >> text=/^step /")
    assert steps.count() == 5
    limit.fill("7")
    limit.press("Enter")
    page.wait_until("document.querySelector('.beams-view .status').textContent.includes('Result')")
    assert steps.count() == 7
    other = open_page(page.get_link())
    assert other.page.get_by_label("Max new tokens").input_value() == "7"
    assert other.find(".beams-view text >> text=/^step /").count() == 7
    limit.fill("201")  # too many: nothing happens
    limit.press("Enter")
    assert page.wait().get_state()["maxNewTokens"] == 7


def test_what_a_step_attended_to(page: ExplorerPage) -> None:
    model = load_model("gpt2")
    with torch.no_grad(), qkv.look(model) as weights:
        model(torch.tensor([get_prompt()]))
    page.choose("Head", "1")
    path = page.select("Layer").input_value()
    expected = weights[path][0, 1, -1].sort(descending=True).values
    text = page.text(".generation .status")
    weights_on_page = [float(number) for number in re.findall("\u2069 <?([0-9.]+)", text)]
    assert len(weights_on_page) >= 2
    for value, other in zip(weights_on_page, expected, strict=False):
        assert abs(value - float(other)) < ROUNDING
    page.press("[")
    assert page.select("Layer").input_value() == "decoder.layers.0.attention"
