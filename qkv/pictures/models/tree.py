"""A model as a tree of modules, shapes, parameter counts and descriptions, with equal layers folded.

└── decoder                    12 layers of width 768         124,439,808
    └── layers 0-11 ×12        7,087,872 each                  85,054,464
        └── attention          12 heads of 64                   2,362,368
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rich.text import Text
from torch import nn

from qkv import spec
from qkv.model.parameters import build_meta_network
from qkv.nn.lora import LoraLinear
from qkv.nn.network import DualEncoder, Network
from qkv.nn.recurrent import RecurrentStack
from qkv.nn.transformer import Layer, Stack
from qkv.pictures.models import patterns
from qkv.pictures.models.descriptions import (
    describe_attention,
    describe_feed_forward,
    describe_head,
    describe_positions,
)
from qkv.pictures.models.recurrent import describe_recurrent_attention, describe_recurrent_stack
from qkv.spec import AnyStackSpec, DualSpec, RecurrentStackSpec, Spec, StackSpec

MODULE_ORDER = """
    pre_attention_norm attention post_attention_norm
    pre_cross_attention_norm cross_attention post_cross_attention_norm
    pre_feed_forward_norm feed_forward post_feed_forward_norm q k v o
""".split()  # the order in which the modules of a layer run
NORM_CLASSES = (nn.LayerNorm, nn.RMSNorm)
MIN_NOTE_WIDTH = 12  # characters
LEAF_CLASSES = (nn.Linear, LoraLinear, nn.Embedding, nn.Conv2d, *NORM_CLASSES)


@dataclass
class ModuleNote:
    """Descriptions of a module beyond its shape, and the drawing of its attention pattern."""

    descriptions: list[str] = field(default_factory=list)
    drawing: list[str] = field(default_factory=list)


@dataclass
class ModuleNode:
    """A module of the tree: its name, its note, its parameter count and its children."""

    name: str
    note: ModuleNote
    num_parameters: int
    children: list[ModuleNode] = field(default_factory=list)


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters; tied parameters are counted once."""
    return sum(p.numel() for p in module.parameters())


def count_layers(model_spec: Spec | DualSpec) -> int:
    """Return the number of layers; a mixture-of-experts layer is counted once per expert."""
    if isinstance(model_spec, DualSpec):
        towers = [tower for tower in (model_spec.text, model_spec.image) if tower]
        return sum(map(count_layers, towers))
    stacks = [stack for stack in (model_spec.encoder, model_spec.decoder) if stack]
    feed_forwards = [layer.feed_forward for stack in stacks for layer in stack.layers]
    num_recurrent = sum(stack.depth for stack in stacks if isinstance(stack, RecurrentStackSpec))
    return num_recurrent + sum(
        feed_forward.num_experts if isinstance(feed_forward, spec.MixtureOfExpertsSpec) else 1
        for feed_forward in feed_forwards
    )


def keep_two_equal_layers(model_spec: Spec | DualSpec) -> Spec | DualSpec:
    """Return the spec of a model with only two of several equal layers in each stack."""
    if isinstance(model_spec, DualSpec):
        towers: dict[str, Any] = {
            side: keep_two_equal_layers(tower)
            for side in ("text", "image")
            if (tower := getattr(model_spec, side))
        }
        return replace(model_spec, **towers)
    stacks: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        stack: AnyStackSpec | None = getattr(model_spec, side)
        if isinstance(stack, StackSpec):
            counts = Counter(stack.layers)
            layers = tuple(layer for layer, n in counts.items() for _ in range(min(n, 2)))
            stacks[side] = replace(stack, layers=layers, layer_order=None)
    return replace(model_spec, **stacks)


def count_spec_parameters(model_spec: Spec | DualSpec) -> int:
    """Return the number of parameters of a model.

    Only two of several equal layers are built: every further layer has as many parameters as the
    second."""
    if isinstance(model_spec, DualSpec):
        towers = [tower for tower in (model_spec.text, model_spec.image) if tower]
        return sum(map(count_spec_parameters, towers)) + (model_spec.logit_scale is not None)
    net = build_meta_network(keep_two_equal_layers(model_spec))
    total = count_parameters(net)
    for side in ("encoder", "decoder"):
        stack: AnyStackSpec | None = getattr(model_spec, side)
        if not isinstance(stack, StackSpec):
            continue
        layer_modules = net.get_submodule(f"{side}.layers").children()
        for count in Counter(stack.layers).values():
            first, *second = [next(layer_modules) for _ in range(min(count, 2))]
            shared = {id(p) for p in first.parameters()}
            unshared = sum(
                p.numel() for layer in second for p in layer.parameters() if id(p) not in shared
            )
            total += (count - 2) * unshared
    return total


# --- the tree ---


def build_module_tree(
    net: Network | DualEncoder, name: str, *, fold_layers: bool = True
) -> ModuleNode:
    """Build the tree of a network; with `fold_layers`, equal layers are one node."""
    notes = dict(annotate_modules(net))
    first_paths: dict[int, str] = {}
    for path, p in net.named_parameters(remove_duplicate=False):
        first_paths.setdefault(id(p), path.removesuffix(".weight"))
    counted: set[int] = set()

    def count_once(p: nn.Parameter) -> int:
        is_new = id(p) not in counted
        counted.add(id(p))
        return p.numel() if is_new else 0

    def describe_ties(parameters: Iterable[nn.Parameter]) -> list[str]:
        return [f"tied to {first_paths[id(p)]}" for p in parameters if id(p) in counted]

    def build_node(module: nn.Module, name: str) -> ModuleNode | None:
        if isinstance(module, LEAF_CLASSES):
            ties = describe_ties(module.parameters())
            note = ModuleNote([", ".join([describe_leaf(module), *ties])])
            return ModuleNode(name, note, sum(map(count_once, module.parameters())))
        children = []
        for child_name, p in module.named_parameters(recurse=False):
            note = ModuleNote([", ".join([format_shape(p.shape), *describe_ties([p])])])
            children.append(ModuleNode(child_name, note, count_once(p)))
        for child_name, child in order_children(module):
            if isinstance(child, nn.ModuleList):
                children += build_list_nodes(module, child, child_name)
            elif node := build_node(child, child_name):
                children.append(node)
        if not children:
            return None
        note = notes.get(id(module), ModuleNote())
        return ModuleNode(name, note, sum(child.num_parameters for child in children), children)

    def build_list_nodes(
        parent: nn.Module, module_list: Iterable[nn.Module], list_name: str
    ) -> Iterator[ModuleNode]:
        """Build the nodes of a ModuleList, equal modules folded into one."""
        modules = list(module_list)
        run_counts = Counter[int]()
        keys: list[object] = [repr(module) for module in modules]
        if isinstance(parent, Stack):  # equal specs differ if only one has an adapter
            keys = list(zip(parent.spec.layers, keys, strict=True))
            run_counts = Counter(parent.layer_order)
        groups: dict[object, list[int]] = {}
        for i, key in enumerate(keys):
            groups.setdefault(key if fold_layers else i, []).append(i)
        for group in groups.values():
            node_name = patterns.format_index_ranges(list_name.removesuffix("s"), group)
            node = build_node(modules[group[0]], node_name)
            assert node is not None
            first_count = node.num_parameters
            node.num_parameters += sum(
                count_once(p) for i in group[1:] for p in modules[i].parameters()
            )
            descriptions = [*node.note.descriptions]
            if group[1:] and node.num_parameters == first_count * len(group):
                descriptions.append(f"{first_count:,} each")
            if run_counts[group[0]] > 1:
                descriptions.append(f"run {run_counts[group[0]]} times")
            yield replace(node, note=replace(node.note, descriptions=descriptions))

    root = build_node(net, name)
    assert root is not None
    return root


def annotate_modules(net: nn.Module) -> Iterator[tuple[int, ModuleNote]]:
    """Yield the id of every described module with its description."""
    drawn_patterns: set[spec.Pattern] = set()
    for module in net.modules():
        if isinstance(module, Stack):
            yield id(module), ModuleNote(describe_tower(module))
            scale = module.spec.embedding.scale
            if scale != 1:
                yield id(module.embedding), ModuleNote([f"tokens times {scale:.4g}"])
            for layer_spec, layer in zip(module.spec.layers, module.layers, strict=True):
                assert isinstance(layer, Layer)
                pattern = layer_spec.attention.pattern
                drawing = [] if pattern in drawn_patterns else patterns.draw_pattern(pattern)
                reference = "" if drawing else ", as drawn above"
                description = patterns.describe_pattern(pattern) + reference
                attention = describe_attention(layer_spec.attention)
                yield id(layer.attention), ModuleNote([attention, description], drawing)
                drawn_patterns.add(pattern)
                feed_forward = describe_feed_forward(layer_spec.feed_forward)
                yield id(layer.feed_forward), ModuleNote([feed_forward])
                if layer_spec.cross_attention:
                    attention = describe_attention(layer_spec.cross_attention)
                    note = ModuleNote([attention, "attends to all of the source"])
                    yield id(layer.cross_attention), note
        elif isinstance(module, RecurrentStack):
            yield id(module), ModuleNote(describe_recurrent_stack(module.spec))
            if module.spec.source and module.spec.source.attention:
                descriptions = describe_recurrent_attention(module.spec.source.attention)
                yield id(module.cross_attention), ModuleNote(descriptions)
        elif isinstance(module, Network):
            for head in module.spec.heads:
                yield id(module.heads[head.name]), ModuleNote([describe_head(head)])


def order_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children; those of a layer in the order in which they run."""
    if isinstance(module, RecurrentStack):
        return list(module.named_children())
    positions = {name: position for position, name in enumerate(MODULE_ORDER)}
    return sorted(
        module.named_children(), key=lambda child: positions.get(child[0], len(MODULE_ORDER))
    )


def format_shape(sizes: Iterable[int]) -> str:
    return " × ".join(f"{n:,}" for n in sizes) or "a number"


def describe_leaf(leaf: nn.Module) -> str:
    match leaf:
        case nn.Linear():
            bias = "" if leaf.bias is None else ", bias"
            return f"{leaf.in_features:,} → {leaf.out_features:,}{bias}"
        case LoraLinear():
            bias = "" if leaf.bias is None else ", bias"
            out_features, in_features = leaf.weight.shape
            return f"{in_features:,} → {out_features:,}{bias}, an adapter of rank {leaf.r}"
        case nn.Conv2d():
            return f"{leaf.in_channels} × {format_shape(leaf.kernel_size)} → {leaf.out_channels:,}"
        case nn.LayerNorm() | nn.RMSNorm():
            norm_name = "RMS norm" if isinstance(leaf, nn.RMSNorm) else "layer norm"
            return f"{norm_name} of {format_shape(leaf.normalized_shape)}"
        case nn.GroupNorm():
            return f"group norm of {leaf.num_channels:,}, {leaf.num_groups} groups"
    return format_shape(next(leaf.parameters()).shape)


# --- descriptions ---


def describe_tower(tower: Stack) -> list[str]:
    """Return depth and width, position encoding, norm placement and segment memory of a stack."""
    stack = tower.spec
    depth = len(tower.layer_order)
    descriptions = [f"{depth} layer{'s' * (depth > 1)} of width {stack.width:,}"]
    descriptions.append("positions: " + describe_positions(stack))
    descriptions.append("norms: " + describe_norms(tower))
    if stack.recurrence and stack.recurrence.memory_length:
        length = stack.recurrence.memory_length
        descriptions.append(f"memory: the states of the last {length:,} tokens, in every layer")
    return descriptions


def describe_norms(tower: Stack) -> str:
    """Describe the norms of the layers; an Identity is not a norm."""
    names = ("pre_attention_norm", "pre_feed_forward_norm", "post_feed_forward_norm")
    layer_norms = [
        {name for name in names if isinstance(getattr(layer, name, None), NORM_CLASSES)}
        for layer in tower.layers
    ]
    sides = [
        side
        for side, name in (("before", "pre_feed_forward_norm"), ("after", "post_feed_forward_norm"))
        if layer_norms and name in layer_norms[-1]
    ]
    descriptions = [f"{' and '.join(sides)} attention and feed-forward"] if sides else []
    if isinstance(tower.final_norm, NORM_CLASSES):
        descriptions.append("at the end")
    without = [
        str(i)
        for i, norms in enumerate(layer_norms)
        if "pre_feed_forward_norm" in norms and "pre_attention_norm" not in norms
    ]
    if without:
        descriptions.append(f"none before the attention of layer {', '.join(without)}")
    if not descriptions:
        return "none"
    has_rms_norm = any(isinstance(module, nn.RMSNorm) for module in tower.modules())
    return f"{'RMS' if has_rms_norm else 'layer'} norm {', and '.join(descriptions)}"


# --- rendering ---


def render_tree(root: ModuleNode, width: int) -> Text:
    """Render the tree in three columns: names, descriptions, parameters.

    A description that does not fit continues on the next lines."""
    rows = list(walk_tree(root))
    name_width = max(len(guide) + len(node.name) for guide, _, node in rows)
    number_width = max(len(f"{node.num_parameters:,}") for _, _, node in rows)
    note_width = max(width - name_width - number_width - 4, MIN_NOTE_WIDTH)
    mark_styles = {patterns.VISIBLE_MARK: "green", patterns.MASKED_MARK: "dim"}
    text = Text(no_wrap=True, overflow="ignore")
    for guide, continuation, node in rows:
        lines = [
            line
            for description in node.note.descriptions
            for line in wrap_note(description, note_width)
        ]
        first, *more = lines or [""]
        text.append(guide, "dim")
        text.append(node.name.ljust(name_width - len(guide)), "bold" if node.children else "")
        text.append(f"  {first:<{note_width}}  ")
        text.append(f"{node.num_parameters:>{number_width},}\n", "cyan")
        for line in more:
            text.append(continuation.ljust(name_width), "dim").append(f"  {line}\n")
        for line in node.note.drawing:
            text.append(continuation.ljust(name_width + 2), "dim")
            for mark in f"{line}\n":
                text.append(mark, mark_styles.get(mark, ""))
    text.rstrip()
    return text


def wrap_note(note: str, width: int) -> list[str]:
    return textwrap.wrap(note, width, subsequent_indent="  ", break_on_hyphens=False)


def walk_tree(
    node: ModuleNode, guide: str = "", continuation: str = ""
) -> Iterator[tuple[str, str, ModuleNode]]:
    """Yield every node with the guide of its first line and of its further lines."""
    yield guide, continuation + ("│   " if node.children else "    "), node
    for child in node.children:
        is_last = child is node.children[-1]
        child_guide = continuation + ("└── " if is_last else "├── ")
        child_continuation = continuation + ("    " if is_last else "│   ")
        yield from walk_tree(child, child_guide, child_continuation)
