"""The pages of the site: headings, links, equations, excerpts, pictures, the reference."""

import inspect
import re
import tomllib
from dataclasses import fields
from xml.etree import ElementTree

import pytest

import qkv
from qkv.cli.models import get_family_facts
from qkv.decode import Engine, GenerationConfig
from qkv.families import get_family
from qkv.model.build import build_model_spec
from qkv.spec import Banded, ChunkEnds, Pattern, causal, full
from qkv.tasks.read.fill import FillResult, MaskPrediction
from qkv.tasks.registry import TASK_CLASSES
from qkv.train.objectives.registry import OBJECTIVE_SPECS
from qkv.train.recipe import TABLES
from tools.pages.equation import render_mathml
from tools.pages.excerpt import find_excerpt, insert_excerpts
from tools.pages.families import DESCRIPTIONS, supported_tasks, supporting_families
from tools.pages.meanings import ARGUMENT_MEANINGS, MEANINGS
from tools.pages.page import (
    Page,
    list_headings,
    list_links,
    make_anchor,
    resolve_links,
    split_sections,
)
from tools.pages.picture import GRID_SIZE, list_views, render_picture, render_view
from tools.pages.reference import format_signature, reference_pages
from tools.pages.settings import (
    Setting,
    argument_settings,
    command_settings,
    format_settings,
    generation_settings,
    hard_attention_settings,
    list_commands,
    objective_settings,
    recipe_settings,
    settings_pages,
    table_settings,
)
from tools.pages.tabs import insert_tabs

TEXT = """# Pets

Before.

## cat

See [dog](#dog), [training](training.md#lora), [the web](https://example.org/a.md).

```python
## no heading, and [no](link.md)
```

### Its `tail`, and more

## dog

Woof.
"""


def make_page(text: str, path: str = "pets/index.md", source: str = "docs/pets.md") -> Page:
    return Page(path=path, title="Pets", text=text, source=source)


# --- page ---


def test_sections_are_split_at_headings_outside_of_code() -> None:
    before, sections = split_sections(TEXT, 2)
    assert before == "# Pets\n\nBefore.\n\n"
    assert list(sections) == ["cat", "dog"]
    assert "## no heading" in sections["cat"]
    assert sections["dog"] == "\nWoof.\n"
    assert list_headings(TEXT) == ["Pets", "cat", "Its `tail`, and more", "dog"]


def test_anchors_are_those_of_the_generator() -> None:
    assert make_anchor("Its `tail`, and more") == "its-tail-and-more"
    assert make_anchor("qkv.decode.Engine") == "qkvdecodeengine"
    assert make_anchor("[0.2.0] - 2026-11-16") == "020-2026-11-16"


def test_links_are_resolved_to_pages() -> None:
    paths = {
        "docs/pets.md": "pets/index.md",
        "docs/pets.md#dog": "pets/dog.md",
        "docs/training.md": "training.md",
    }
    text = resolve_links(make_page(TEXT), paths).text
    assert (
        "[dog](dog.md), [training](../training.md#lora), [the web](https://example.org/a.md)"
        in text
    )
    assert "[no](link.md)" in text
    assert list_links(text) == [("dog.md", ""), ("../training.md", "lora")]
    part = make_page(
        "[cat](pets.md#cat) [here](#its-tail-and-more)", "pets/dog.md", "docs/pets.md#dog"
    )
    assert (
        resolve_links(part, paths).text == "[cat](index.md#cat) [here](index.md#its-tail-and-more)"
    )


def test_other_files_are_named_and_not_linked() -> None:
    text = "[license](../LICENSE), [`make`](../Makefile), [README.md](../README.md#the-families)"
    expected = "license (`LICENSE`), `make` (`Makefile`), [README.md](../index.md)"
    assert resolve_links(make_page(text), {"docs/index.md": "index.md"}).text == expected


def test_pictures_of_docs_are_found_from_every_page() -> None:
    text = "![an alignment](alignment.svg)"
    assert resolve_links(make_page(text), {}).text == "![an alignment](../alignment.svg)"
    assert resolve_links(make_page(text, path="pets.md"), {}).text == text
    assert list_links(text) == []
    for name in ("none.svg", "../pyproject.toml"):
        with pytest.raises(ValueError, match=f"the picture {name} does not exist in docs/"):
            resolve_links(make_page(f"![none]({name})"), {})


def test_a_link_to_no_file_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"docs/pets.md: the target of the link ../setup.py does not exist"
    ):
        resolve_links(make_page("[this](../setup.py)"), {"docs/pets.md": "pets.md"})


# --- tabs ---


def test_sections_between_comments_become_tabs() -> None:
    text = "a\n\n<!-- tabs -->\n\n### Use\n\n```sh\n### b\n```\n\n### Look\n\nc\n\n<!-- end tabs -->\n\nd\n"
    expected = 'a\n\n=== "Use"\n\n    ```sh\n    ### b\n    ```\n\n=== "Look"\n\n    c\n\nd\n'
    assert insert_tabs(text) == expected
    with pytest.raises(ValueError, match="tabs begin with 'a'"):
        insert_tabs("<!-- tabs -->\na\n<!-- end tabs -->\n")


# --- equations ---


def test_equations_become_render_mathml() -> None:
    tree = ElementTree.fromstring(render_mathml(r"\text{softmax}(\frac{Q K^T}{\sqrt{d_k}}) V"))
    assert "".join(tree.itertext()) == "softmax(QKTdk)V"
    fraction = next(tree.iter("mfrac"))
    assert ["".join(part.itertext()) for part in fraction] == ["QKT", "dk"]
    assert [mark.tag for mark in tree.iter() if mark.tag in ("msup", "msub", "msqrt")] == [
        "msup",
        "msqrt",
        "msub",
    ]


def test_a_letter_may_have_a_subscript_and_a_superscript() -> None:
    (both,) = ElementTree.fromstring(render_mathml(r"W_i^{2n}")).iter("msubsup")
    assert ["".join(part.itertext()) for part in both] == ["W", "i", "2n"]


@pytest.mark.parametrize(
    ("tex", "message"),
    [
        (r"\alpha", "unknown command .alpha"),
        ("a}", "unexpected closing bracket"),
        ("(a", "missing closing bracket"),
    ],
)
def test_invalid_equations_are_errors(tex: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render_mathml(tex)


# --- excerpts ---


def test_excerpts_are_lines_of_the_source() -> None:
    first, text = find_excerpt("qkv/spec/patterns.py", "Causal.__call__")
    assert text == "def __call__(self, i: PositionIds, j: PositionIds) -> Any:\n    return j <= i"
    assert first > 1
    file = "qkv/nn/feed_forward.py"
    _, text = find_excerpt(file, "FeedForward.forward", "y = … return")
    assert text.startswith("y = self.up(x)\n")
    _, text = find_excerpt(file, "FeedForward.forward", "return")
    assert text == "return self.down(self.dropout(y)), None"
    _, text = find_excerpt("qkv/families/transformer.py", "BASE")
    assert text.startswith("BASE = dict(")
    assert "width=512" in text


@pytest.mark.parametrize(
    ("name", "span", "message"),
    [
        ("FeedForward.backward", "", "excerpt of FeedForward.backward: .* no such definition"),
        ("FeedForward.forward", "z = ", "no line of FeedForward.forward"),
    ],
)
def test_missing_excerpts_are_errors(name: str, span: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_excerpt("qkv/nn/feed_forward.py", name, span)


def test_a_link_in_its_own_paragraph_becomes_an_excerpt() -> None:
    text = insert_excerpts(
        make_page(
            'See [this](../qkv/spec/patterns.py).\n\n[Causal.__call__](../qkv/spec/patterns.py "return")\n'
        )
    )
    assert text.startswith("See [this](../qkv/spec/patterns.py).\n\n```python title=")
    assert text.endswith('Causal.__call__"\nreturn j <= i\n```\n')


# --- pictures ---


def count_squares(svg: str, kind: str) -> int:
    match = re.search(rf'class="{kind}"[^>]* d="([^"]*)"', svg)
    assert match is not None
    return match[1].count("M")


@pytest.mark.parametrize("pattern", [full, causal, Banded(3), causal & ChunkEnds(4, 1)])
def test_a_picture_shows_the_pattern(pattern: Pattern) -> None:
    svg = render_picture(pattern, "Decoder", "attends < some")
    num_visible = sum(bool(pattern(i, j)) for i in range(GRID_SIZE) for j in range(GRID_SIZE))
    assert count_squares(svg, "visible") == num_visible
    assert count_squares(svg, "masked") == GRID_SIZE**2 - num_visible
    (title,) = ElementTree.fromstring(svg).iter("title")
    assert title.text == "Decoder: a token attends < some."


def test_large_patterns_are_scaled_down() -> None:
    svg = render_picture(Banded(1600), "Decoder", "attends to the last 1,600", has_memory=True)
    assert "attends to the last 1,600; drawn 200 times smaller" in svg
    # With the memory, all queries attend to as many keys.
    assert count_squares(svg, "visible") == GRID_SIZE * GRID_SIZE // 2
    assert (
        count_squares(svg, "masked")
        == GRID_SIZE * (GRID_SIZE + GRID_SIZE // 2) - GRID_SIZE * GRID_SIZE // 2
    )


def test_every_attention_of_a_model_has_a_view() -> None:
    spec = build_model_spec(get_family("t5"), get_family("t5").arguments("small"))
    assert [(view.stack, view.is_cross, view.layers) for view in list_views(spec)] == [
        ("encoder", False, ()),
        ("decoder", False, ()),
        ("decoder", True, ()),
    ]
    spec = build_model_spec(get_family("modernbert"), get_family("modernbert").arguments("base"))
    captions = [figure for view in list_views(spec) for figure in render_view(view, "base")]
    assert "<b>Encoder, layers 0, 3 … 21 ×8 of base</b>" in captions[0]
    heads = build_model_spec(get_family("sparse"), get_family("sparse").arguments(split="heads"))
    assert len([figure for view in list_views(heads) for figure in render_view(view, "base")]) == 2


# --- families and tasks ---


def test_descriptions_of_families_agree_with_their_files() -> None:
    descriptions = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))
    assert descriptions.keys() == {family.name for family in qkv.list_families()}
    for family in qkv.list_families():
        first = re.split(", | and ", descriptions[family.name]["authors"])[0]
        paper = get_family_facts(family)["paper"]
        assert re.split(" et al| and ", paper)[0] in first, family.name
        assert ("arXiv" in get_family_facts(family)["paper"]) != (
            "link" in descriptions[family.name]
        )
        assert not descriptions[family.name]["opens"] or family.model_types


def test_the_page_of_a_family_lists_its_tasks() -> None:
    assert supported_tasks("bert", "question-answering") == ["answer", "embed"]
    assert "match" in supported_tasks("clip", "both")
    assert supporting_families("detect") == {"electra": ["replaced-token-detection"]}
    assert all(supporting_families(task) for task in TASK_CLASSES)


# --- the reference ---


def test_the_reference_has_every_public_name_and_result() -> None:
    names, results, decoding, *_ = (list_headings(page.text) for page in reference_pages())
    assert {f"qkv.{name}" for name in qkv.__all__} <= {*names}
    result_names = """
        FillResult MaskPrediction TokenPrediction Classification NamedEntity AnswerResult GeneratedText
        Completion
    """.split()
    assert {*TASK_CLASSES, *result_names} <= {*results}
    assert "qkv.decode.GenerationConfig" in decoding
    text = reference_pages()[1].text
    assert "'Model'" not in text  # the docstring that `dataclass` generates
    for result_class in (FillResult, MaskPrediction):
        assert all(f"    {field.name}: {field.type}" in text for field in fields(result_class))


def test_signatures_are_those_of_the_source() -> None:
    def short(self: object, /, text: str = "a, (b") -> "list[str]":
        return [text]

    def long(
        first: int,
        *others: float,
        lr: float = 1_000.0,
        name: str = "of some length",
        **more: object,
    ) -> None: ...

    assert format_signature(short, "t.short") == 't.short(text: str = "a, (b") -> list[str]'
    assert format_signature(long, "long").split("\n    ") == [
        "long(",
        "first: int,",
        "*others: float,",
        "lr: float = 1_000.0,",
        'name: str = "of some length",',
        "**more: object,\n) -> None",
    ]
    assert (
        format_signature(qkv.list_families, "qkv.list_families")
        == "qkv.list_families() -> list[Family]"
    )
    assert format_signature(qkv.Inputs.create, "Inputs.create").endswith(") -> Inputs")
    assert (
        format_signature(qkv.Batch.to, "Batch.to")
        == "Batch.to(device: torch.device | str) -> Batch"
    )
    assert format_signature(Engine.__init__, "Engine").endswith(") -> Engine")


# --- settings ---


def all_settings() -> dict[str, list[Setting]]:
    """Every table of the settings pages by its name."""
    return {
        "recipe": recipe_settings(),
        **{name: table_settings(name) for name in TABLES},
        **{f"objective {name}": objective_settings(name) for name in OBJECTIVE_SPECS},
        "objective with hard attention": hard_attention_settings(),
        "GenerationConfig": generation_settings(),
        **{f"qkv {name}": command_settings(command) for name, command in list_commands()},
    }


def test_every_setting_and_flag_is_documented() -> None:
    undocumented = [
        f"{table}: {row.name}"
        for table, rows in all_settings().items()
        for row in rows
        if not row.meaning
    ]
    assert undocumented == []
    text = "".join(page.text for page in settings_pages())
    for rows in all_settings().values():
        assert all(f"| `{row.name}` |" in text for row in rows)


def test_every_field_has_a_row() -> None:
    assert [row.name for row in generation_settings()] == [
        field.name for field in fields(GenerationConfig)
    ]
    for name, config in TABLES.items():
        names = {field.name for field in fields(config)} - {"overrides", "settings"}
        assert {row.name for row in table_settings(name)} == names
    lr = next(row for row in table_settings("train") if row.name == "lr")
    assert lr == Setting("lr", "float", "3e-4", "peak learning rate")
    num_beams = next(
        row for row in command_settings(dict(list_commands())["eval"]) if row.name == "--num-beams"
    )
    assert (num_beams.type, num_beams.default) == ("int", "5")


def test_meanings_are_of_settings_that_exist() -> None:
    names = {name: {row.name for row in rows} for name, rows in all_settings().items()}
    names["objective"] |= {
        name for table, rows in names.items() if table.startswith("objective ") for name in rows
    }
    unknown = [
        f"{table}.{name}"
        for table, rows in MEANINGS.items()
        for name in rows
        if name not in names[table]
    ]
    assert unknown == []


PUBLIC_FUNCTIONS = {
    **{f"qkv.{name}": getattr(qkv, name) for name in qkv.__all__ if name.islower()},
    "Model.save": qkv.Model.save,
    "Model.generate": qkv.Model.generate,
    "Tokenizer.train": qkv.Tokenizer.train,
}


@pytest.mark.parametrize("name", PUBLIC_FUNCTIONS)
def test_every_argument_has_a_meaning(name: str) -> None:
    """Every function with arguments has a table of them in the reference."""
    parameters = inspect.signature(PUBLIC_FUNCTIONS[name]).parameters.keys() - {"self"}
    assert {*ARGUMENT_MEANINGS.get(name, {})} == parameters
    if parameters:
        assert all(row.meaning for row in argument_settings(name, PUBLIC_FUNCTIONS[name]))


def test_arguments_have_types_and_defaults() -> None:
    page = reference_pages()[0].text
    for name in ARGUMENT_MEANINGS:
        table = format_settings(argument_settings(name, PUBLIC_FUNCTIONS[name]))
        assert page.count(table) == 1, name
    rows = {row.name: row for row in argument_settings("qkv.fit", qkv.fit)}
    assert rows["batch_size"][:3] == ("batch_size", "int", "16")
    assert rows["model"].default == "required"
    assert rows["steps"].default == "None"
    assert rows["**train_settings"].default == ""
