"""Attention patterns as SVG pictures, computed like the mask. Does not depend on families.

A row is a query, a column a key. Pictures use the text color, so that they fit light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from qkv.pictures.models import patterns
from qkv.spec import Causal, DualSpec, Full, Pattern, Spec, StackSpec

GRID_SIZE = 16  # queries
CELL_STEP, CELL_SIZE, MARGIN = (
    13,
    11,
    22,
)  # pixels: between cells, of a cell, of the margin with labels
LEGEND = "A row is a query, a column a key; a filled square is a key that the query attends to."


class AttentionView(NamedTuple):
    """One kind of attention of a stack: its pattern and its layers."""

    stack: str
    is_cross: bool
    pattern: Pattern
    has_memory: bool
    layers: tuple[int, ...]  # empty: all


def list_stacks(spec: Spec | DualSpec) -> Iterator[tuple[str, StackSpec]]:
    """Yield every stack of attention layers with its name."""
    if isinstance(spec, DualSpec):
        towers = (("text tower", spec.text), ("image tower", spec.image))
        yield from (
            (name, stack) for name, tower in towers if tower for _, stack in list_stacks(tower)
        )
    else:
        stacks = (("encoder", spec.encoder), ("decoder", spec.decoder))
        yield from ((name, stack) for name, stack in stacks if isinstance(stack, StackSpec))


def list_views(spec: Spec | DualSpec) -> Iterator[AttentionView]:
    """Yield every kind of attention of a model."""
    for name, stack in list_stacks(spec):
        layers = [stack.layers[index] for index in stack.layer_order or range(len(stack.layers))]
        for is_cross in (False, True):
            depths_by_pattern: dict[Pattern, list[int]] = {}
            for depth, layer in enumerate(layers):
                attention = layer.cross_attention if is_cross else layer.attention
                if attention:
                    depths_by_pattern.setdefault(attention.pattern, []).append(depth)
            has_memory = stack.recurrence is not None and not is_cross
            for pattern, depths in depths_by_pattern.items():
                shown_depths = tuple(depths) if len(depths_by_pattern) > 1 else ()
                yield AttentionView(name, is_cross, pattern, has_memory, shown_depths)


def render_pictures(specs: Iterable[tuple[str, Spec | DualSpec]]) -> str:
    """Return the pictures of every size of a family; sizes with the same patterns are drawn once."""
    groups: dict[tuple[tuple[object, ...], ...], tuple[list[str], list[AttentionView]]] = {}
    for size, spec in specs:
        views = list(list_views(spec))
        groups.setdefault(tuple(view[:-1] for view in views), ([], views))[0].append(size)
    parts = []
    for sizes, views in groups.values():
        if len(groups) > 1:
            parts.append(f"{' and '.join(f'`{size}`' for size in sizes)}:")
        figures = "\n".join(figure for view in views for figure in render_view(view, sizes[0]))
        parts.append(f'<div class="patterns">\n{figures}\n</div>')
    return "\n\n".join([*parts, LEGEND])


def render_view(view: AttentionView, size: str) -> Iterator[str]:
    """Yield one picture per pattern of the heads."""
    groups = patterns.group_heads_by_pattern(view.pattern)
    for pattern, heads in groups.items():
        name = f"{view.stack}, cross-attention" if view.is_cross else view.stack
        if view.layers:
            name += f", {patterns.format_index_ranges('layer', list(view.layers))} of {size}"
        if len(groups) > 1:
            name += f", {patterns.format_index_ranges('head', heads)}"
        caption = (
            "attends to all of the source" if view.is_cross else patterns.describe_pattern(pattern)
        )
        if view.has_memory and isinstance(pattern, Full | Causal):
            caption += ", and the memory"
        yield render_picture(
            pattern,
            name[0].upper() + name[1:],
            caption,
            has_memory=view.has_memory,
            is_cross=view.is_cross,
        )


def render_picture(
    pattern: Pattern, name: str, caption: str, *, has_memory: bool = False, is_cross: bool = False
) -> str:
    """Return a figure with a name and a caption; keys may include a memory or belong to a source."""
    memory_length = GRID_SIZE // 2 if has_memory else 0
    gap = CELL_STEP // 2 if has_memory else 0  # between the memory and the row
    visible, scale = patterns.compute_visibility(pattern, GRID_SIZE, memory_length)
    width = MARGIN + CELL_STEP * (GRID_SIZE + memory_length) + gap
    height = MARGIN + CELL_STEP * GRID_SIZE
    if scale > 1:
        caption += f"; drawn {scale:.0f} times smaller"

    def draw_cells(is_visible: bool) -> str:
        return "".join(
            f"M{MARGIN + CELL_STEP * j + (gap if j >= memory_length else 0)} {MARGIN + CELL_STEP * i}"
            f"h{CELL_SIZE}v{CELL_SIZE}h-{CELL_SIZE}z"
            for i, row in enumerate(visible)
            for j, cell in enumerate(row)
            if cell == is_visible
        )

    row_label, column_label = ("target", "source") if is_cross else ("queries", "keys")
    labels = [
        draw_row_label(row_label),
        draw_column_label(MARGIN + CELL_STEP * memory_length + gap, column_label),
    ]
    if has_memory:
        labels.append(draw_column_label(MARGIN, "memory"))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return (
        f'<figure><svg class="pattern" role="img" {size}>'
        f"<title>{escape(f'{name}: a token {caption}.')}</title>"
        f'<path class="masked" fill="currentColor" fill-opacity="0.12" d="{draw_cells(False)}"/>'
        f'<path class="visible" fill="currentColor" d="{draw_cells(True)}"/>{"".join(labels)}</svg>'
        f"<figcaption><b>{escape(name)}</b><br/>{escape(caption)}</figcaption></figure>"
    )


def draw_column_label(x: int, label: str) -> str:
    return f'<text x="{x}" y="{MARGIN - 8}" font-size="12" fill="currentColor">{label} →</text>'


def draw_row_label(label: str) -> str:
    transform = f"translate({MARGIN - 14} {MARGIN}) rotate(90)"
    return f'<text transform="{transform}" font-size="12" fill="currentColor">{label} →</text>'
