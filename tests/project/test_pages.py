"""What the pages of the site are made of: headings, links, equations, excerpts, pictures, the reference."""

import re
import tomllib
from dataclasses import fields
from xml.etree import ElementTree

import pytest

import qkv
from qkv.cli.models import about
from qkv.decode import Engine
from qkv.families import family
from qkv.model.build import make_spec
from qkv.spec import Banded, Pattern, Summary, causal, everyone
from qkv.tasks.read.fill import Filled, Gap
from qkv.tasks.registry import TASKS
from tools.pages.equation import mathml
from tools.pages.excerpt import excerpt, excerpted
from tools.pages.families import TOLD, fitting, tasks
from tools.pages.page import Page, anchor, headings, linked, links, sections
from tools.pages.picture import SIZE, drawings, picture, views
from tools.pages.reference import reference_pages, signature

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


def page(text: str, path: str = "pets/index.md", source: str = "docs/pets.md") -> Page:
    return Page(path=path, title="Pets", text=text, source=source)


# --- page ---


def test_a_text_is_cut_at_its_headings_and_not_inside_code() -> None:
    before, found = sections(TEXT, 2)
    assert before == "# Pets\n\nBefore.\n\n"
    assert list(found) == ["cat", "dog"]
    assert "## no heading" in found["cat"]
    assert found["dog"] == "\nWoof.\n"
    assert headings(TEXT) == ["Pets", "cat", "Its `tail`, and more", "dog"]


def test_anchors_are_the_generators() -> None:
    assert anchor("Its `tail`, and more") == "its-tail-and-more"
    assert anchor("qkv.decode.How") == "qkvdecodehow"
    assert anchor("[0.2.0] - 2026-11-16") == "020-2026-11-16"


def test_links_lead_to_pages() -> None:
    places = {
        "docs/pets.md": "pets/index.md",
        "docs/pets.md#dog": "pets/dog.md",
        "docs/training.md": "training.md",
    }
    text = linked(page(TEXT), places).text
    assert "[dog](dog.md), [training](../training.md#lora), [the web](https://example.org/a.md)" in text
    assert "[no](link.md)" in text
    assert links(text) == [("dog.md", ""), ("../training.md", "lora")]
    part = page("[cat](pets.md#cat) [here](#its-tail-and-more)", "pets/dog.md", "docs/pets.md#dog")
    assert linked(part, places).text == "[cat](index.md#cat) [here](index.md#its-tail-and-more)"


def test_other_files_are_named_and_not_linked() -> None:
    text = "[license](../LICENSE), [`make`](../Makefile), [README.md](../README.md#the-families)"
    said = "license (`LICENSE`), `make` (`Makefile`), [README.md](../index.md)"
    assert linked(page(text), {"docs/index.md": "index.md"}).text == said


def test_a_link_to_no_file_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"docs/pets.md: the link ../setup.py leads nowhere"):
        linked(page("[this](../setup.py)"), {"docs/pets.md": "pets.md"})


# --- equations ---


def test_equations_become_mathml() -> None:
    tree = ElementTree.fromstring(mathml(r"\text{softmax}(\frac{Q K^T}{\sqrt{d_k}}) V"))
    assert "".join(tree.itertext()) == "softmax(QKTdk)V"
    fraction = next(tree.iter("mfrac"))
    assert ["".join(part.itertext()) for part in fraction] == ["QKT", "dk"]
    assert [mark.tag for mark in tree.iter() if mark.tag in ("msup", "msub", "msqrt")] == [
        "msup",
        "msqrt",
        "msub",
    ]


def test_both_marks_stand_on_one_letter() -> None:
    (both,) = ElementTree.fromstring(mathml(r"W_i^{2n}")).iter("msubsup")
    assert ["".join(part.itertext()) for part in both] == ["W", "i", "2n"]


@pytest.mark.parametrize(
    ("tex", "said"), [(r"\alpha", "alpha is not known"), ("a}", "a bracket too many"), ("(a", "not closed")]
)
def test_equations_that_are_not_known_are_errors(tex: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        mathml(tex)


# --- excerpts ---


def test_excerpts_are_lines_of_the_source() -> None:
    first, text = excerpt("qkv/spec.py", "Causal.__call__")
    assert text == "def __call__(self, i: Position, j: Position) -> Any:\n    return j <= i"
    assert first > 1
    assert excerpt("qkv/nn/feed_forward.py", "Feed.forward", "y = … return")[1].startswith("y = self.act(")
    assert (
        excerpt("qkv/nn/feed_forward.py", "Feed.forward", "return")[1]
        == "return self.down(self.drop(y)), None"
    )
    assert excerpt("qkv/families/transformer.py", "BASE")[1].startswith("BASE = dict(width=512")


@pytest.mark.parametrize(
    ("name", "span", "said"),
    [("Feed.backward", "", "has no Feed.backward"), ("Feed.forward", "z = ", "no line of Feed.forward")],
)
def test_what_is_not_there_is_an_error(name: str, span: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        excerpt("qkv/nn/feed_forward.py", name, span)


def test_a_link_that_stands_alone_becomes_the_lines() -> None:
    text = excerpted(page('See [this](../qkv/spec.py).\n\n[Causal.__call__](../qkv/spec.py "return")\n'))
    assert text.startswith("See [this](../qkv/spec.py).\n\n```python title=")
    assert text.endswith('Causal.__call__"\nreturn j <= i\n```\n')


# --- pictures ---


def squares(svg: str, kind: str) -> int:
    found = re.search(rf'class="{kind}"[^>]* d="([^"]*)"', svg)
    assert found is not None
    return found[1].count("M")


@pytest.mark.parametrize("rule", [everyone, causal, Banded(3), causal & Summary(4, 1)])
def test_a_picture_shows_what_the_rule_says(rule: Pattern) -> None:
    svg = picture(rule, "Decoder", "sees < some")
    seen = sum(bool(rule(i, j)) for i in range(SIZE) for j in range(SIZE))
    assert squares(svg, "sees") == seen
    assert squares(svg, "blind") == SIZE**2 - seen
    (title,) = ElementTree.fromstring(svg).iter("title")
    assert title.text == "Decoder: a token sees < some."


def test_large_rules_are_drawn_smaller_and_say_so() -> None:
    svg = picture(Banded(1600), "Decoder", "sees the last 1,600", memory=True)
    assert "sees the last 1,600; drawn 200 times smaller" in svg
    assert squares(svg, "sees") == SIZE * SIZE // 2  # with what is remembered, all see as many
    assert squares(svg, "blind") == SIZE * (SIZE + SIZE // 2) - SIZE * SIZE // 2


def test_every_attention_of_a_model_is_seen() -> None:
    spec = make_spec(family("t5"), family("t5").arguments("small"))
    assert [(view.stack, view.cross, view.layers) for view in views(spec)] == [
        ("encoder", False, ()),
        ("decoder", False, ()),
        ("decoder", True, ()),
    ]
    spec = make_spec(family("modernbert"), family("modernbert").arguments("base"))
    captions = [each for view in views(spec) for each in drawings(view, "base")]
    assert "<b>Encoder, layers 0, 3 … 21 ×8 of base</b>" in captions[0]
    heads = make_spec(family("sparse"), family("sparse").arguments(split="heads"))
    assert len([each for view in views(heads) for each in drawings(view, "base")]) == 2


# --- families and tasks ---


def test_what_is_told_of_families_agrees_with_their_files() -> None:
    told = tomllib.loads(TOLD.read_text(encoding="utf-8"))
    assert told.keys() == {kin.name for kin in qkv.list_families()}
    for kin in qkv.list_families():
        first = re.split(", | and ", told[kin.name]["authors"])[0]
        assert about(kin)["paper"].split(" et al.")[0] in first, kin.name
        assert ("arXiv" in about(kin)["paper"]) != ("link" in told[kin.name])
        assert not told[kin.name]["opens"] or kin.model_types


def test_tasks_that_fit_are_those_that_tasks_take() -> None:
    assert tasks("bert", "span") == ["answer", "embed"]
    assert "match" in tasks("clip", "both")
    assert fitting("detect") == {"electra": ["replaced"]}
    assert all(fitting(task) for task in TASKS)


# --- the reference ---


def test_the_reference_has_every_public_name_and_result() -> None:
    names, results, ids = (headings(page.text) for page in reference_pages())
    assert {f"qkv.{name}" for name in qkv.__all__} <= {*names}
    assert {*TASKS, "Filled", "Gap", "Word", "Label", "Entity", "Answer", "Written", "Completion"} <= {
        *results
    }
    assert "qkv.decode.How" in ids
    text = reference_pages()[1].text
    assert "'Model'" not in text  # what dataclasses say of themselves
    for kind in (Filled, Gap):
        assert all(f"    {field.name}: {field.type}" in text for field in fields(kind))


def test_signatures_are_as_the_source_has_them() -> None:
    def short(self: object, /, text: str = "a, (b") -> "list[str]":
        return [text]

    def long(
        one: int, *others: float, rate: float = 1_000.0, name: str = "of some length", **more: object
    ) -> None: ...

    assert signature(short, "t.short") == 't.short(text: str = "a, (b") -> list[str]'
    assert signature(long, "long").split("\n    ") == [
        "long(",
        "one: int,",
        "*others: float,",
        "rate: float = 1_000.0,",
        'name: str = "of some length",',
        "**more: object,\n) -> None",
    ]
    assert signature(qkv.list_families, "qkv.list_families") == "qkv.list_families() -> list[Family]"
    assert signature(qkv.Rows.of, "Rows.of").endswith(") -> Rows")
    assert signature(qkv.Batch.to, "Batch.to") == "Batch.to(device: torch.device | str) -> Batch"
    assert signature(Engine.__init__, "Engine").endswith(") -> Engine")
