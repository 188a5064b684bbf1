"""The module tree: every parameter counted once, equal layers folded, no line wider than asked."""

from collections.abc import Iterator

import pytest
from rich.text import Text

import qkv
from qkv.families import FAMILY_NAMES, get_family
from qkv.model.build import build_model_spec
from qkv.model.parameters import build_meta_network
from qkv.pictures.models.tree import (
    ModuleNode,
    build_module_tree,
    count_layers,
    count_parameters,
    count_spec_parameters,
    render_tree,
)

# Published parameter counts.
PARAMETER_COUNTS = {
    "bert base": 109_482_240, "gpt2 small": 124_439_808, "gpt2 xl": 1_557_611_200, "t5 small": 60_506_624,
    "bart large": 406_341_721, "llama 7b": 6_738_415_616, "clip base-32": 151_277_313,
}  # fmt: skip


def walk(node: ModuleNode) -> Iterator[ModuleNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def find(node: ModuleNode, name: str) -> ModuleNode:
    return next(child for child in walk(node) if child.name == name)


def build_tree(
    name: str, size: str | None = None, fold_layers: bool = True, **changes: object
) -> ModuleNode:
    family = get_family(name)
    net = build_meta_network(build_model_spec(family, family.arguments(size, **changes)))
    return build_module_tree(net, name, fold_layers=fold_layers)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_parameter_is_counted_once(name: str) -> None:
    family = get_family(name)
    for size in family.sizes:
        spec = build_model_spec(family, family.arguments(size))
        net = build_meta_network(spec)
        assert (
            count_spec_parameters(spec)
            == count_parameters(net)
            == build_module_tree(net, name).num_parameters
        )
        assert count_spec_parameters(spec) == PARAMETER_COUNTS.get(
            f"{name} {size}", count_spec_parameters(spec)
        )
        assert all(
            node.num_parameters == sum(child.num_parameters for child in node.children)
            for node in walk(build_module_tree(net, name, fold_layers=False))
            if node.children
        )


def test_layers_are_counted_by_expert_and_tower() -> None:
    specs = [
        build_model_spec(get_family(name), get_family(name).arguments(size))
        for name, size in (("switch", "base-8"), ("clip", "base-32"))
    ]
    assert [count_layers(spec) for spec in specs] == [12 + 12 * 8, 12 + 12]


def test_shared_biases_are_counted_once() -> None:
    family = get_family("transformer-xl")
    spec = build_model_spec(family, family.arguments("enwik8", untie_r=False))
    assert (
        count_spec_parameters(spec)
        == count_parameters(build_meta_network(spec))
        == build_module_tree(build_meta_network(spec), "xl").num_parameters
    )


@pytest.mark.parametrize("name", FAMILY_NAMES)
@pytest.mark.parametrize("width", [64, 80, 100, 160])
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    text = render_tree(build_tree(name, next(iter(get_family(name).sizes))), width).plain
    assert max(map(len, text.splitlines())) <= width
    assert not any(line.endswith("│") for line in text.splitlines())


def test_equal_layers_are_folded() -> None:
    root = build_tree("gpt3", "small")
    names = [node.name for node in find(root, "decoder").children]
    assert names == ["embedding", "layers 0, 2 … 10 ×6", "layers 1, 3 … 11 ×6", "final_norm"]
    layers = find(root, "layers 0, 2 … 10 ×6")
    assert (
        layers.num_parameters
        == 6 * sum(child.num_parameters for child in layers.children)
        == 6 * 7_087_872
    )
    assert layers.note.descriptions == ["7,087,872 each"]
    assert (
        "attends to the last 256 tokens"
        in find(find(root, "layers 1, 3 … 11 ×6"), "attention").note.descriptions
    )
    assert [
        node.name
        for node in find(build_tree("gpt3", "small", fold_layers=False), "decoder").children[1:4]
    ] == [
        "layer 0",
        "layer 1",
        "layer 2",
    ]


def test_shared_layers_say_how_often_they_run() -> None:
    assert find(build_tree("albert", "base"), "layer 0").note.descriptions == ["run 12 times"]


def test_a_pattern_is_drawn_once() -> None:
    attentions = [
        node for node in walk(build_tree("modernbert", "base")) if node.name == "attention"
    ]
    assert [bool(node.note.drawing) for node in attentions] == [True, True, False]
    assert attentions[2].note.descriptions[1] == "attends to all tokens, as drawn above"


def test_modules_are_described_in_words() -> None:
    root = build_tree("transformer", "base")
    assert find(root, "encoder").note.descriptions == [
        "6 layers of width 512",
        "positions: sines and cosines",
        "norms: layer norm after attention and feed-forward",
    ]
    assert find(root, "embedding").note.descriptions == ["tokens times 22.63"]
    assert find(root, "cross_attention").note.descriptions == [
        "8 heads of 64",
        "attends to all of the source",
    ]
    assert find(root, "out").note.descriptions == ["512 → 37,000, tied to encoder.embedding.tokens"]
    assert [child.name for child in find(root, "attention").children] == ["q", "k", "v", "o"]
    assert (
        "norms: RMS norm before attention and feed-forward, and at the end"
        in find(build_tree("t5", "small"), "encoder").note.descriptions
    )
    buckets = "positions: 32 buckets of distance up to 128, added to the scores"
    assert buckets in find(build_tree("t5", "small"), "decoder").note.descriptions
    assert (
        "positions: learned, a table of 514, the first at 2"
        in find(build_tree("roberta", "base"), "encoder").note.descriptions
    )
    assert (
        "memory: the states of the last 1,600 tokens, in every layer"
        in find(build_tree("transformer-xl", "wt103"), "decoder").note.descriptions
    )
    assert find(build_tree("switch", "base-8"), "experts 0-7 ×8").num_parameters == 8 * 4_718_592
    grouped = find(build_tree("llama", "3.2-1b"), "attention").note.descriptions[0]
    assert grouped == "32 heads of 64 sharing 8 key-value heads, rotary with base 500,000"


@pytest.mark.parametrize(
    ("positions", "description"),
    [("alibi", "ALiBi"), ("rotary", "rotary"), ("xl", "XL"), ("none", "none")],
)
def test_replaced_position_embeddings_are_described(positions: str, description: str) -> None:
    model = qkv.build(
        "gpt2", vocab_size=11, width=16, depth=2, heads=2, position_embedding_type=positions
    )
    assert description in find(build_module_tree(model.net, "gpt2"), "decoder").note.descriptions[1]


def test_a_tree_has_colors() -> None:
    text = render_tree(build_tree("gpt2", "small"), 80)
    assert isinstance(text, Text)
    assert {"green", "dim", "bold", "cyan"} <= {str(span.style) for span in text.spans}
