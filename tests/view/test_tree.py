"""The tree of a model: every parameter once, equal layers folded, nothing wider than the screen."""

from collections.abc import Iterator

import pytest
from rich.text import Text

import qkv
from qkv.families import NAMES, family
from qkv.model.build import make_spec
from qkv.model.parameters import skeleton
from qkv.view.tree import Node, parameters, pieces, render, size, tree

# Published figures, to the last parameter.
KNOWN = {
    "bert base": 109_482_240, "gpt2 small": 124_439_808, "gpt2 xl": 1_557_611_200, "t5 small": 60_506_624,
    "bart large": 406_341_721, "llama 7b": 6_738_415_616, "clip base-32": 151_277_313,
}  # fmt: skip


def every(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from every(part)


def find(node: Node, name: str) -> Node:
    return next(each for each in every(node) if each.name == name)


def drawn(name: str, size: str | None = None, fold: bool = True, **changes: object) -> Node:
    kin = family(name)
    return tree(skeleton(make_spec(kin, kin.arguments(size, **changes))), name, fold=fold)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_counts_once(name: str) -> None:
    kin = family(name)
    for each in kin.sizes:
        spec = make_spec(kin, kin.arguments(each))
        net = skeleton(spec)
        assert parameters(spec) == size(net) == tree(net, name).count
        assert parameters(spec) == KNOWN.get(f"{name} {each}", parameters(spec))
        assert all(
            node.count == sum(part.count for part in node.parts)
            for node in every(tree(net, name, fold=False))
            if node.parts
        )


def test_pieces() -> None:
    specs = [
        make_spec(family(name), family(name).arguments(size))
        for name, size in (("switch", "base-8"), ("clip", "base-32"))
    ]
    assert [pieces(spec) for spec in specs] == [12 + 12 * 8, 12 + 12]


def test_shared_biases_count_once() -> None:
    kin = family("transformer-xl")
    spec = make_spec(kin, kin.arguments("enwik8", own_biases=False))
    assert parameters(spec) == size(skeleton(spec)) == tree(skeleton(spec), "xl").count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [64, 80, 100, 160])
def test_fits_the_screen(name: str, width: int) -> None:
    text = render(drawn(name, next(iter(family(name).sizes))), width).plain
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith("│") for line in text.splitlines())


def test_equal_layers_are_one() -> None:
    root = drawn("gpt3", "small")
    names = [node.name for node in find(root, "decoder").parts]
    assert names == ["embed", "layers 0, 2 … 10 ×6", "layers 1, 3 … 11 ×6", "norm"]
    layers = find(root, "layers 0, 2 … 10 ×6")
    assert layers.count == 6 * sum(part.count for part in layers.parts) == 6 * 7_087_872
    assert layers.note.words == ["7,087,872 each"]
    assert "sees the last 256" in find(find(root, "layers 1, 3 … 11 ×6"), "attend").note.words
    assert [node.name for node in find(drawn("gpt3", "small", fold=False), "decoder").parts[1:4]] == [
        "layer 0",
        "layer 1",
        "layer 2",
    ]


def test_shared_layers_say_how_often_they_run() -> None:
    assert find(drawn("albert", "base"), "layer 0").note.words == ["run 12 times"]


def test_a_pattern_is_drawn_once() -> None:
    attends = [node for node in every(drawn("modernbert", "base")) if node.name == "attend"]
    assert [bool(node.note.drawing) for node in attends] == [True, True, False]
    assert attends[2].note.words[1] == "sees all, as drawn above"


def test_words() -> None:
    root = drawn("transformer", "base")
    assert find(root, "encoder").note.words == [
        "6 layers of width 512",
        "positions: sines and cosines",
        "norms: layer norm after attention and feed",
    ]
    assert find(root, "embed").note.words == ["tokens times 22.63"]
    assert find(root, "cross").note.words == ["8 heads of 64", "sees all of the source"]
    assert find(root, "out").note.words == ["512 → 37,000, tied to encoder.embed.tokens"]
    assert [part.name for part in find(root, "attend").parts] == ["q", "k", "v", "o"]
    assert (
        "norms: RMS norm before attention and feed, and at the end"
        in find(drawn("t5", "small"), "encoder").note.words
    )
    buckets = "positions: 32 buckets of distance up to 128, added to the scores"
    assert buckets in find(drawn("t5", "small"), "decoder").note.words
    assert (
        "positions: learned, a table of 514, the first at 2"
        in find(drawn("roberta", "base"), "encoder").note.words
    )
    assert (
        "memory: the states of the last 1,600 tokens, in every layer"
        in find(drawn("transformer-xl", "wt103"), "decoder").note.words
    )
    assert find(drawn("switch", "base-8"), "experts 0-7 ×8").count == 8 * 4_718_592
    grouped = find(drawn("llama", "3.2-1b"), "attend").note.words[0]
    assert grouped == "32 heads of 64 sharing 8 of keys, rotary with base 500,000"


@pytest.mark.parametrize(
    ("positions", "said"), [("alibi", "ALiBi"), ("rotary", "rotary"), ("xl", "XL"), ("none", "none")]
)
def test_swapped_positions(positions: str, said: str) -> None:
    model = qkv.build("gpt2", vocab=11, width=16, depth=2, heads=2, positions=positions)
    assert said in find(tree(model.net, "gpt2"), "decoder").note.words[1]


def test_colours() -> None:
    text = render(drawn("gpt2", "small"), 80)
    assert isinstance(text, Text)
    assert {"green", "dim", "bold", "cyan"} <= {str(span.style) for span in text.spans}
