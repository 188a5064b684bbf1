"""Who sees whom, as SVG: the rule that makes the mask makes the picture. Knows specs, and no families.

A row is a query, a column a key. Colours are the text's own, so that a picture reads on light and on dark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from qkv.spec import Causal, Everyone, Pattern, Spec, Stack, Two
from qkv.view import patterns

SIZE = 16  # queries
STEP, INNER, EDGE = 13, 11, 22  # from cell to cell, of a cell, of the margin with the words
KEY = "A row is a query, a column a key; a full square is a key that the query sees."


class View(NamedTuple):
    """One attention of a stack: by which rule, and in which layers."""

    stack: str
    cross: bool  # on the source
    pattern: Pattern
    memory: bool
    layers: tuple[int, ...]  # none: in all


def stacks(spec: Spec | Two) -> Iterator[tuple[str, Stack]]:
    """Every stack by its name."""
    if isinstance(spec, Two):
        halves = (("text tower", spec.text), ("image tower", spec.image))
        yield from ((name, stack) for name, half in halves if half for _, stack in stacks(half))
    else:
        both = (("encoder", spec.encoder), ("decoder", spec.decoder))
        yield from ((name, stack) for name, stack in both if stack)


def views(spec: Spec | Two) -> Iterator[View]:
    for name, stack in stacks(spec):
        layers = [stack.layers[stored] for stored in stack.order or range(len(stack.layers))]
        for cross in (False, True):
            found: dict[Pattern, list[int]] = {}
            for depth, layer in enumerate(layers):
                if attend := layer.cross if cross else layer.attend:
                    found.setdefault(attend.pattern, []).append(depth)
            memory = stack.recall is not None and not cross
            for pattern, depths in found.items():
                yield View(name, cross, pattern, memory, tuple(depths) if len(found) > 1 else ())


def pictures(specs: Iterable[tuple[str, Spec | Two]]) -> str:
    """The attention of every size of a family; sizes with the same rules are drawn once, by the first."""
    drawn: dict[tuple[tuple[object, ...], ...], tuple[list[str], list[View]]] = {}
    for size, spec in specs:
        found = list(views(spec))
        drawn.setdefault(tuple(view[:-1] for view in found), ([], found))[0].append(size)
    parts = []
    for names, found in drawn.values():
        parts += [f"{' and '.join(f'`{name}`' for name in names)}:"] if len(drawn) > 1 else []
        figures = "\n".join(each for view in found for each in drawings(view, names[0]))
        parts.append(f'<div class="patterns">\n{figures}\n</div>')
    return "\n\n".join([*parts, KEY])


def drawings(view: View, size: str) -> Iterator[str]:
    """A picture for each kind of head."""
    kinds = patterns.kinds(view.pattern)
    for rule, numbers in kinds.items():
        name = f"{view.stack}, on the source" if view.cross else view.stack
        name += f", {patterns.numbered('layer', list(view.layers))} of {size}" if view.layers else ""
        name += f", {patterns.numbered('head', numbers)}" if len(kinds) > 1 else ""
        said = "sees all of the source" if view.cross else patterns.words(rule)
        said += ", what is remembered too" if view.memory and isinstance(rule, Everyone | Causal) else ""
        yield picture(rule, name[0].upper() + name[1:], said, memory=view.memory, source=view.cross)


def picture(rule: Pattern, name: str, said: str, *, memory: bool = False, source: bool = False) -> str:
    """A figure: of what, and what a token sees; with keys that are remembered, or those of a source."""
    before = SIZE // 2 if memory else 0
    gap = STEP // 2 if memory else 0  # between what is remembered and the row
    seen, times = patterns.cells(rule, SIZE, before)
    width, height = EDGE + STEP * (SIZE + before) + gap, EDGE + STEP * SIZE
    said += f"; drawn {times:.0f} times smaller" if times > 1 else ""

    def squares(wanted: bool) -> str:
        return "".join(
            f"M{EDGE + STEP * j + (gap if j >= before else 0)} {EDGE + STEP * i}h{INNER}v{INNER}h-{INNER}z"
            for i, row in enumerate(seen)
            for j, sees in enumerate(row)
            if sees == wanted
        )

    rows, columns = ("target", "source") if source else ("queries", "keys")
    words = [down(rows), along(EDGE + STEP * before + gap, columns)]
    words += [along(EDGE, "memory")] if memory else []
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return (
        f'<figure><svg class="pattern" role="img" {size}>'
        f"<title>{escape(f'{name}: a token {said}.')}</title>"
        f'<path class="blind" fill="currentColor" fill-opacity="0.12" d="{squares(False)}"/>'
        f'<path class="sees" fill="currentColor" d="{squares(True)}"/>{"".join(words)}</svg>'
        f"<figcaption><b>{escape(name)}</b><br/>{escape(said)}</figcaption></figure>"
    )


def along(x: int, said: str) -> str:
    return f'<text x="{x}" y="{EDGE - 8}" font-size="12" fill="currentColor">{said} →</text>'


def down(said: str) -> str:
    place = f"translate({EDGE - 14} {EDGE}) rotate(90)"
    return f'<text transform="{place}" font-size="12" fill="currentColor">{said} →</text>'
