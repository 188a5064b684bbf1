"""A model as a tree: its parts, shapes and parameters, equal layers as one, and what the spec says of them.

└── decoder                    12 layers of width 768         124,439,808
    └── layers 0-11 ×12        7,087,872 each                  85,054,464
        └── attend             12 heads of 64                   2,362,368
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
from qkv.model.parameters import skeleton
from qkv.nn.lora import Lora
from qkv.nn.transformer import Block, Pair, Tower, Transformer
from qkv.spec import Spec, Stack, Two
from qkv.view import patterns

STEPS = """
    before_attend attend after_attend before_cross cross after_cross before_feed feed after_feed q k v o
""".split()  # of a block and of its attention, as one reads them
NORMS = (nn.LayerNorm, nn.RMSNorm)
NARROW = 12  # characters of words in a line, at least
LEAVES = (nn.Linear, Lora, nn.Embedding, nn.Conv2d, *NORMS)
TAKES = dict(
    all="every state", first="the first state", last="the last state", mean="the mean state",
    rest="every state but the first", choice="the state asked for", end="the state at the end token",
)  # fmt: skip


@dataclass
class Note:
    """What is said of a part beside its shape."""

    words: list[str] = field(default_factory=list)
    drawing: list[str] = field(default_factory=list)


@dataclass
class Node:
    """One part: its line in the tree, what stands under it, and its own parts."""

    name: str
    note: Note
    count: int
    parts: list[Node] = field(default_factory=list)


def size(module: nn.Module) -> int:
    """How many parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters())


def pieces(whole: Spec | Two) -> int:
    """How many layers, a layer of experts counted by its experts."""
    if isinstance(whole, Two):
        return sum(pieces(part) for part in (whole.text, whole.image) if part)
    stacks = [stack for stack in (whole.encoder, whole.decoder) if stack]
    feeds = [layer.feed for stack in stacks for layer in stack.layers]
    return sum(feed.count if isinstance(feed, spec.Experts) else 1 for feed in feeds)


def parameters(whole: Spec | Two) -> int:
    """The size of a model. Of equal layers only two are made: any further one is as large as the second."""
    if isinstance(whole, Two):
        towers = [part for part in (whole.text, whole.image) if part]
        return sum(map(parameters, towers)) + (whole.temperature is not None)
    stacks = {side: stack for side in ("encoder", "decoder") if (stack := getattr(whole, side))}
    times = {side: Counter(stack.layers) for side, stack in stacks.items()}
    few: dict[str, Any] = {}
    for side, stack in stacks.items():
        layers = tuple(layer for layer, n in times[side].items() for _ in range(min(n, 2)))
        few[side] = replace(stack, layers=layers, order=None)
    net = skeleton(replace(whole, **few))
    total = size(net)
    for side in stacks:
        blocks = net.get_submodule(f"{side}.layers").children()
        for n in times[side].values():
            first, *second = [next(blocks) for _ in range(min(n, 2))]
            shared = {id(p) for p in first.parameters()}
            total += (n - 2) * sum(p.numel() for b in second for p in b.parameters() if id(p) not in shared)
    return total


# --- the tree ---


def tree(net: Transformer | Pair, name: str, *, fold: bool = True) -> Node:
    """The parts of a network; equal layers are one part unless `fold` is false."""
    notes = dict(annotate(net))
    homes: dict[int, str] = {}
    for path, p in net.named_parameters(remove_duplicate=False):
        homes.setdefault(id(p), path.removesuffix(".weight"))
    seen: set[int] = set()

    def fresh(p: nn.Parameter) -> int:
        new = id(p) not in seen
        seen.add(id(p))
        return p.numel() if new else 0

    def part(module: nn.Module, name: str) -> Node | None:
        if isinstance(module, LEAVES):
            tied = [f"tied to {homes[id(p)]}" for p in module.parameters() if id(p) in seen]
            words = [", ".join([shape(module), *tied])]
            return Node(name, Note(words), sum(map(fresh, module.parameters())))
        parts = []
        for label, p in module.named_parameters(recurse=False):
            tied = [f"tied to {homes[id(p)]}"] if id(p) in seen else []
            parts.append(Node(label, Note([", ".join([by(p.shape), *tied])]), fresh(p)))
        for label, child in ordered(module):
            if isinstance(child, nn.ModuleList):
                parts += members(module, child, label)
            elif node := part(child, label):
                parts.append(node)
        note = notes.get(id(module), Note())
        return Node(name, note, sum(each.count for each in parts), parts) if parts else None

    def members(owner: nn.Module, many: Iterable[nn.Module], label: str) -> Iterator[Node]:
        """The parts of a list, equal ones folded."""
        every, runs = list(many), Counter[int]()
        keys: list[object] = [repr(module) for module in every]
        if isinstance(owner, Tower):
            keys = list(zip(owner.stack.layers, keys, strict=True))  # those with and without adapters differ
            runs = Counter(owner.order)
        groups: dict[object, list[int]] = {}
        for i, key in enumerate(keys):
            groups.setdefault(key if fold else i, []).append(i)
        for group in groups.values():
            node = part(every[group[0]], patterns.numbered(label.removesuffix("s"), group))
            assert node is not None
            each = node.count
            node.count += sum(fresh(p) for i in group[1:] for p in every[i].parameters())
            words = [f"{each:,} each"] if group[1:] and node.count == each * len(group) else []
            words += [f"run {runs[group[0]]} times"] if runs[group[0]] > 1 else []
            yield replace(node, note=replace(node.note, words=[*node.note.words, *words]))

    root = part(net, name)
    assert root is not None
    return root


def annotate(net: nn.Module) -> Iterator[tuple[int, Note]]:
    """What the spec says of the parts that were made from it."""
    drawn: set[spec.Pattern] = set()
    for module in net.modules():
        if isinstance(module, Tower):
            yield id(module), Note(tower_words(module))
            if module.stack.embed.scale != 1:
                yield id(module.embed), Note([f"tokens times {module.stack.embed.scale:.4g}"])
            for layer, block in zip(module.stack.layers, module.layers, strict=True):
                assert isinstance(block, Block)
                pattern = layer.attend.pattern
                lines = [] if pattern in drawn else patterns.drawing(pattern)
                said = patterns.words(pattern) + ("" if lines else ", as drawn above")
                yield id(block.attend), Note([heads_words(layer.attend), said], lines)
                drawn.add(pattern)
                yield id(block.feed), Note([feed_words(layer.feed)])
                if layer.cross:
                    yield id(block.cross), Note([heads_words(layer.cross), "sees all of the source"])
        elif isinstance(module, Transformer):
            for head in module.spec.heads:
                yield id(module.heads[head.name]), Note([head_words(head)])


def ordered(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children, the steps of a block in the order in which they run."""
    places = {name: place for place, name in enumerate(STEPS)}
    return sorted(module.named_children(), key=lambda child: places.get(child[0], len(STEPS)))


def by(sizes: Iterable[int]) -> str:
    return " × ".join(f"{n:,}" for n in sizes) or "a number"


def shape(leaf: nn.Module) -> str:
    match leaf:
        case nn.Linear():
            bias = "" if leaf.bias is None else ", bias"
            return f"{leaf.in_features:,} → {leaf.out_features:,}{bias}"
        case Lora():
            bias, (outer, inner) = "" if leaf.bias is None else ", bias", leaf.weight.shape
            return f"{inner:,} → {outer:,}{bias}, an adapter of rank {leaf.rank}"
        case nn.Conv2d():
            return f"{leaf.in_channels} × {by(leaf.kernel_size)} → {leaf.out_channels:,}"
        case nn.LayerNorm() | nn.RMSNorm():
            kind = "RMS norm" if isinstance(leaf, nn.RMSNorm) else "layer norm"
            return f"{kind} of {by(leaf.normalized_shape)}"
    return by(next(leaf.parameters()).shape)


# --- the words ---


def tower_words(tower: Tower) -> list[str]:
    """How deep and wide it is, how it tells positions apart, where its norms stand, what it remembers."""
    stack, depth = tower.stack, len(tower.order)
    words = [f"{depth} layer{'s' * (depth > 1)} of width {stack.width:,}"]
    words.append("positions: " + positions_words(stack))
    words.append("norms: " + norms_words(tower))
    if stack.recall and stack.recall.length:
        words.append(f"memory: the states of the last {stack.recall.length:,} tokens, in every layer")
    return words


def positions_words(stack: Stack) -> str:
    place, relate, distance = stack.embed.positions, stack.layers[0].attend.relate, stack.distance
    said = []
    match place:
        case spec.Learned():
            begin = f", the first at {place.offset}" if place.offset else ""
            said.append(f"learned, a table of {place.count:,}{begin}")
        case spec.Sinusoid():
            said.append("sines and cosines" + (f", counted from {place.offset}" if place.offset else ""))
    match relate:
        case spec.XL():
            said.append("learned distances, added to the scores of every layer (XL)")
        case spec.Rotary():
            said.append("rotary, in every layer")
    match distance:
        case spec.Buckets():
            said.append(f"{distance.count} buckets of distance up to {distance.reach}, added to the scores")
        case spec.Alibi():
            said.append("scores fall with distance (ALiBi)")
    return "; ".join(said) or "none"


def norms_words(tower: Tower) -> str:
    """As the blocks have them, an Identity being none."""
    names = ("before_attend", "before_feed", "after_feed")
    found = [{name: getattr(block, name, None) for name in names} for block in tower.layers]
    norms = [{name for name, module in each.items() if isinstance(module, NORMS)} for each in found]
    sides = [side for side in ("before", "after") if f"{side}_feed" in norms[-1]]
    said = [f"{' and '.join(sides)} attention and feed"] if sides else []
    said += ["at the end"] if isinstance(tower.norm, NORMS) else []
    bare = [str(i) for i, each in enumerate(norms) if "before_feed" in each and "before_attend" not in each]
    said += [f"none before the attention of layer {', '.join(bare)}"] if bare else []
    rms = any(isinstance(module, nn.RMSNorm) for module in tower.modules())
    return f"{'RMS' if rms else 'layer'} norm {', and '.join(said)}" if said else "none"


def heads_words(attend: spec.Attend) -> str:
    keys = attend.kv_heads
    shared = f" sharing {keys} of keys" if keys and keys != attend.heads else ""
    turned = f", rotary with base {attend.relate.base:,.0f}" if isinstance(attend.relate, spec.Rotary) else ""
    return f"{attend.heads} head{'s' * (attend.heads > 1)} of {attend.head_dim}{shared}{turned}"


def feed_words(feed: spec.Dense | spec.Experts) -> str:
    if isinstance(feed, spec.Experts):
        room = f"at most {feed.capacity} tokens of a row for each"
        return f"{feed.count} experts, one a token, {room}; {feed_words(feed.each)}"
    return f"gated by {feed.act}" if feed.gated else feed.act


def head_words(head: spec.Head | spec.AdaptiveHead | spec.BeamSpan) -> str:
    match head:
        case spec.AdaptiveHead():
            return "log-probabilities: of frequent words, then of each band of rarer ones"
        case spec.BeamSpan():
            return f"start, the end for each of the best {head.starts}, and whether there is an answer"
    return f"{', '.join(head.out)} from {TAKES.get(head.take, head.take)}"


# --- on the screen ---


def render(root: Node, width: int) -> Text:
    """Three columns: names, words, parameters. Words that do not fit go on below, inside the guides."""
    rows = list(layout(root))
    names = max(len(guide) + len(node.name) for guide, _, node in rows)
    numbers = max(len(f"{node.count:,}") for _, _, node in rows)
    room = max(width - names - numbers - 4, NARROW)
    text = Text(no_wrap=True, overflow="ignore")
    for guide, below, node in rows:
        first, *more = [line for said in node.note.words for line in wrap(said, room)] or [""]
        text.append(guide, "dim").append(node.name.ljust(names - len(guide)), "bold" if node.parts else "")
        text.append(f"  {first:<{room}}  ").append(f"{node.count:>{numbers},}\n", "cyan")
        for line in more:
            text.append(below.ljust(names), "dim").append(f"  {line}\n")
        for line in node.note.drawing:
            text.append(below.ljust(names + 2), "dim")
            for mark in f"{line}\n":
                text.append(mark, {patterns.SEES: "green", patterns.BLIND: "dim"}.get(mark, ""))
    text.rstrip()
    return text


def wrap(said: str, room: int) -> list[str]:
    return textwrap.wrap(said, room, subsequent_indent="  ", break_on_hyphens=False)


def layout(node: Node, guide: str = "", below: str = "") -> Iterator[tuple[str, str, Node]]:
    """Every part with the guide before its name and the guide of the lines under it."""
    yield guide, below + ("│   " if node.parts else "    "), node
    for part in node.parts:
        last = part is node.parts[-1]
        yield from layout(part, below + ("└── " if last else "├── "), below + ("    " if last else "│   "))
