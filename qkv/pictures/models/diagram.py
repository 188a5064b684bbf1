"""The architecture of a model as an SVG picture, drawn from its Spec, with colors for light and dark
pages. A diagram is read from the bottom to the top, as in Vaswani et al. 2017, figure 1.

          ┌────────────┐
       ┌──⊕            │      a layer of a pre-norm stack: a split, the norm, the sublayer, the sum
       │  attention    │
       │  norm         │
       └──┤            │
          └────────────┘
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from qkv.pictures.drawing.canvas import (
    DETAIL_SIZE,
    LINE_HEIGHT,
    PLUS_RADIUS,
    TITLE_SIZE,
    Canvas,
    Point,
)
from qkv.pictures.drawing.svg import (
    PAGE_MARGIN,
    SYSTEM_FONTS,
    SvgDrawing,
    escape_xml,
    estimate_text_width,
    format_svg_element,
)
from qkv.pictures.models.blocks import (
    Block,
    HeadBlock,
    LayerGroup,
    Sublayer,
    build_norm_block,
    group_layers,
    list_embedding_blocks,
    list_head_blocks,
    list_input_blocks,
)
from qkv.pictures.models.patterns import compute_visibility, format_index_ranges
from qkv.pictures.models.recurrent import list_recurrent_blocks
from qkv.spec import AnyStackSpec, DualSpec, Pattern, RecurrentStackSpec, Spec

COLUMN_WIDTH = 288  # pixels
LANE_WIDTH = 34  # at both sides of a column: residual connections and padding
FRAME_WIDTH = COLUMN_WIDTH + 2 * LANE_WIDTH
GUTTER_WIDTH = 56  # between two stacks
BOX_GAP = 8  # between boxes side by side
ARROW_LENGTH = 16
GRID_CELL = 4
GRID_CELLS = 8
MAX_GRIDS = 2  # of one block
MAX_GROUPS = 4  # of one stack; further kinds of layers are counted
MAX_HEAD_WIDTH = 190  # of several heads
LEGEND_TEXTS = (
    "⊕ is a sum; the line that goes around a sublayer is its residual connection.",
    "Grid: a row is a query, a column a key; a filled square is a key that the query attends to.",
)

DIAGRAM_STYLE = f"""
  .diagram {{ font: {DETAIL_SIZE}px {SYSTEM_FONTS} }}
  .diagram text {{ fill: #3d444d }} .diagram .page {{ fill: #ffffff }}
  .diagram .title {{ fill: #1f2328; font-size: 16px; font-weight: 600 }}
  .diagram .name {{ fill: #1f2328; font-size: {TITLE_SIZE}px; font-weight: 600 }}
  .diagram .layer {{ fill: #f6f8fa; stroke: #c8d0d8 }}
  .diagram .line {{ fill: none; stroke: #57606a; stroke-width: 1.5 }} .diagram .tip {{ fill: #57606a }}
  .diagram .plus {{ fill: #ffffff; stroke: #57606a; stroke-width: 1.5 }}
  .diagram .embedding {{ fill: #fbe3ea; stroke: #c0698a }}
  .diagram .attention {{ fill: #fde6cc; stroke: #c47a1d }}
  .diagram .feed-forward {{ fill: #d5eaf8; stroke: #3d86b8 }}
  .diagram .norm {{ fill: #f7f2c4; stroke: #a79a2b }}
  .diagram .head {{ fill: #dcefe0; stroke: #4c9563 }}
  .diagram .masked {{ fill: #c47a1d; fill-opacity: 0.16 }} .diagram .visible {{ fill: #8a4b00 }}
  @media (prefers-color-scheme: dark) {{
    .diagram text {{ fill: #c0c8d0 }} .diagram .page {{ fill: #0d1117 }}
    .diagram .title, .diagram .name {{ fill: #f0f4f8 }}
    .diagram .layer {{ fill: #151b23; stroke: #3a434e }}
    .diagram .line {{ stroke: #9aa4af }} .diagram .tip {{ fill: #9aa4af }}
    .diagram .plus {{ fill: #0d1117; stroke: #9aa4af }}
    .diagram .embedding {{ fill: #442432; stroke: #c0698a }}
    .diagram .attention {{ fill: #432c10; stroke: #c98b3c }}
    .diagram .feed-forward {{ fill: #142f44; stroke: #4a90c0 }}
    .diagram .norm {{ fill: #37340f; stroke: #a79a2b }}
    .diagram .head {{ fill: #16341f; stroke: #55a06d }}
    .diagram .masked {{ fill: #e0a458; fill-opacity: 0.18 }} .diagram .visible {{ fill: #f2bd76 }}
  }}
"""


def render_diagram_svg(title: str, spec: Spec | DualSpec) -> str:
    """Return the text of an SVG file: the stacks of a model, side by side, and its heads."""
    canvas = Canvas()
    if isinstance(spec, DualSpec):
        draw_towers(canvas, spec)
    else:
        draw_stacks(canvas, spec)
    top = canvas.bottom + 28
    legend_width = int((canvas.right - canvas.left) / estimate_text_width("x", DETAIL_SIZE))
    for line in (line for text in LEGEND_TEXTS for line in textwrap.wrap(text, legend_width)):
        canvas.draw_text(canvas.left, top, line, anchor="start")
        top += LINE_HEIGHT + 2
    canvas.cover(canvas.left, canvas.top - 44, canvas.left + estimate_text_width(title, 18), top)
    width = canvas.right - canvas.left + 2 * PAGE_MARGIN
    height = canvas.bottom - canvas.top + 2 * PAGE_MARGIN - 16
    shift = f"translate({PAGE_MARGIN - canvas.left:.1f} {PAGE_MARGIN - canvas.top:.1f})"
    heading = (
        f'<text class="title" x="{PAGE_MARGIN}" y="{PAGE_MARGIN + 14}">{escape_xml(title)}</text>'
    )
    page = f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="8"/>'
    content = "\n".join(canvas.parts)
    body = f'<style>{DIAGRAM_STYLE}</style>\n{page}\n{heading}\n<g transform="{shift}">\n{content}\n</g>'
    drawing = SvgDrawing(width, height, body, describe_stacks(spec))
    return format_svg_element(drawing, title, "diagram") + "\n"


def describe_stacks(spec: Spec | DualSpec) -> str:
    """Return the stacks and their blocks in words, from the bottom to the top."""
    stacks = (
        [("text", spec.text and spec.text.encoder), ("image", spec.image and spec.image.encoder)]
        if isinstance(spec, DualSpec)
        else [("encoder", spec.encoder), ("decoder", spec.decoder)]
    )
    descriptions = []
    for name, stack in stacks:
        if isinstance(stack, RecurrentStackSpec):
            titles = [block.title for block, _ in list_recurrent_blocks(stack)]
            descriptions.append(f"{name}: {', '.join(titles)}")
        elif stack:
            groups = [
                f"{format_depths(group)}: {', '.join(block.title for block in list_blocks(group))}"
                for group in group_layers(stack)
            ]
            descriptions.append(f"{name}, {'; '.join(groups)}")
    return ". ".join(descriptions)


def list_blocks(group: LayerGroup) -> Iterator[Block]:
    """Yield the blocks of a layer in the order in which they run."""
    for sublayer in group.sublayers:
        blocks = (sublayer.pre_norm, sublayer.block, sublayer.post_norm)
        yield from (block for block in blocks if block)


def format_depths(group: LayerGroup) -> str:
    shared = ", shared parameters" if group.is_shared else ""
    return format_index_ranges("layer", list(group.depths)) + shared


# --- models ---


def draw_stacks(canvas: Canvas, spec: Spec) -> None:
    """Draw the encoder on the left, the decoder on the right, and the heads above the last."""
    encoder_line: list[Point] = []
    if spec.encoder and spec.decoder:
        x = -(FRAME_WIDTH + GUTTER_WIDTH)
        top = draw_stack(canvas, x, spec.encoder, "Encoder", "input_ids")
        gutter = Point(-(FRAME_WIDTH + GUTTER_WIDTH) / 2, top.y - 2 * ARROW_LENGTH)
        canvas.draw_text(top.x + 12, gutter.y - 8, "encoder_last_hidden_state", anchor="start")
        encoder_line = [top, Point(top.x, gutter.y), gutter]
    if spec.decoder:
        inputs = "decoder_input_ids" if spec.encoder else "input_ids"
        is_shared = spec.encoder is not None and spec.share_embeddings
        top = draw_stack(canvas, 0, spec.decoder, "Decoder", inputs, is_shared, encoder_line)
    else:
        assert spec.encoder is not None
        top = draw_stack(canvas, 0, spec.encoder, "Encoder", name_inputs(spec.encoder))
    draw_heads(canvas, top, list_head_blocks(spec))


def draw_towers(canvas: Canvas, spec: DualSpec) -> None:
    """Draw the text encoder, the image encoder and the similarity of their embeddings."""
    towers = [
        (name, tower) for name, tower in (("Text", spec.text), ("Image", spec.image)) if tower
    ]
    ends = []
    for index, (name, tower) in enumerate(towers):
        assert tower.encoder is not None
        x = index * (FRAME_WIDTH + GUTTER_WIDTH)
        top = draw_stack(canvas, x, tower.encoder, f"{name} encoder", name_inputs(tower.encoder))
        ends.append(draw_heads(canvas, top, list_head_blocks(tower)))
    if spec.logit_scale is not None and len(ends) == 2:
        details = ("of every text and every image", "times a learned scale")
        block = Block("head", "Cosine similarity", details)
        center = Point((ends[0].x + ends[1].x) / 2, min(end.y for end in ends) - 2 * ARROW_LENGTH)
        box = draw_block(canvas, center, COLUMN_WIDTH, block)
        middle = (center.y + box.y) / 2
        for end, side in zip(ends, (-1, 1), strict=True):
            edge = Point(center.x + side * COLUMN_WIDTH / 2, middle)
            canvas.draw_line([end, Point(end.x, middle), edge])
        draw_output(canvas, box, ("logits",))


def name_inputs(stack: AnyStackSpec) -> str:
    return "pixel_values" if stack.embedding.patches else "input_ids"


# --- parts; each is drawn above a point and returns the point at its top ---


def draw_stack(
    canvas: Canvas, x: float, stack: AnyStackSpec, name: str, inputs: str,
    is_shared: bool = False, encoder_line: Sequence[Point] = (),
) -> Point:  # fmt: skip
    """Draw the embeddings, one block per kind of layer, and the final norm.

    `encoder_line` leads from the encoder to the left of the stack; cross-attention continues it."""
    layers = f"{stack.depth} layer{'s' * (stack.depth > 1)} of width {stack.width:,}"
    canvas.draw_text(x, 58, name, "name")
    canvas.draw_text(x, 58 + LINE_HEIGHT, layers)
    top = draw_embeddings(canvas, x, list_input_blocks(stack, is_shared), inputs)
    for block in list_embedding_blocks(stack):
        top = draw_block_above(canvas, top, block)
    if isinstance(stack, RecurrentStackSpec):
        return draw_recurrent_blocks(canvas, top, stack, encoder_line)
    side = -1 if name == "Encoder" else 1
    groups = group_layers(stack)
    for group in groups[:MAX_GROUPS]:
        top = draw_group(canvas, top, group, side, encoder_line)
    if groups[MAX_GROUPS:]:
        top = Point(top.x, top.y - LINE_HEIGHT)
        canvas.draw_text(x, top.y, f"… {len(groups) - MAX_GROUPS} more kinds of layers")
    if stack.final_norm:
        top = draw_block_above(canvas, top, build_norm_block(stack.final_norm))
    return top


def draw_recurrent_blocks(
    canvas: Canvas, bottom: Point, stack: RecurrentStackSpec, encoder_line: Sequence[Point]
) -> Point:
    """Draw the blocks of a recurrent stack, and the line from the encoder to those that read it."""
    top = bottom
    for block, reads_encoder in list_recurrent_blocks(stack):
        block_bottom = top.y - ARROW_LENGTH
        top = draw_block_above(canvas, top, block)
        if reads_encoder and encoder_line:
            draw_encoder_line(canvas, encoder_line, top, block_bottom)
    return top


def draw_encoder_line(
    canvas: Canvas, encoder_line: Sequence[Point], top: Point, block_bottom: float
) -> None:
    """Continue the line from the encoder to the left side of a block."""
    level = (block_bottom + top.y) / 2
    left = Point(top.x - COLUMN_WIDTH / 2, level)
    canvas.draw_line([*encoder_line, Point(encoder_line[-1].x, level), left])


def draw_embeddings(canvas: Canvas, x: float, blocks: Sequence[Block], inputs: str) -> Point:
    """Draw the embeddings side by side and their sum; the first reads the inputs."""
    width = (FRAME_WIDTH - BOX_GAP * (len(blocks) - 1)) / len(blocks)
    centers = [x + (width + BOX_GAP) * (i - (len(blocks) - 1) / 2) for i in range(len(blocks))]
    height = max(measure_block(block, width) for block in blocks)
    for center, block in zip(centers, blocks, strict=True):
        draw_block(canvas, Point(center, 0), width, block, height)
    canvas.draw_line([Point(centers[0], ARROW_LENGTH + 4), Point(centers[0], 0)])
    canvas.draw_text(centers[0], ARROW_LENGTH + 18, inputs)
    if len(blocks) == 1:
        return Point(x, -height)
    plus = Point(x, -height - ARROW_LENGTH - PLUS_RADIUS)
    for center in centers:
        if center == x:
            end = Point(x, plus.y + PLUS_RADIUS)
            canvas.draw_line([Point(x, -height), end])
        else:
            end = Point(x + (PLUS_RADIUS if center > x else -PLUS_RADIUS), plus.y)
            canvas.draw_line([Point(center, -height), Point(center, plus.y), end])
    canvas.draw_plus(plus)
    return Point(x, plus.y - PLUS_RADIUS)


def draw_group(
    canvas: Canvas, bottom: Point, group: LayerGroup, side: int, encoder_line: Sequence[Point]
) -> Point:
    """Draw one layer for all layers of a group, in a frame with their depths."""
    frame_index = len(canvas.parts)
    start = Point(bottom.x, bottom.y - ARROW_LENGTH)
    top = start
    canvas.draw_line([bottom, start], has_tip=False)
    for sublayer in group.sublayers:
        top = draw_sublayer(canvas, top, sublayer, side, encoder_line)
    end = Point(top.x, top.y - ARROW_LENGTH - LINE_HEIGHT)
    canvas.draw_line([top, end], has_tip=False)
    left = bottom.x - FRAME_WIDTH / 2
    canvas.draw_text(left + 12, end.y + 18, format_depths(group), anchor="start")
    above = canvas.parts[frame_index:]
    del canvas.parts[frame_index:]
    canvas.draw_rect("layer", left, end.y, FRAME_WIDTH, start.y - end.y)
    canvas.parts += above
    return end


def draw_sublayer(
    canvas: Canvas, bottom: Point, sublayer: Sublayer, side: int, encoder_line: Sequence[Point]
) -> Point:
    """Draw a sublayer with its norm, and the residual connection at one side."""
    split = Point(bottom.x, bottom.y - 14)
    top = split
    canvas.draw_line([bottom, split], has_tip=False)
    if sublayer.pre_norm:
        top = draw_block_above(canvas, top, sublayer.pre_norm)
    block_bottom = top.y - ARROW_LENGTH
    top = draw_block_above(canvas, top, sublayer.block)
    if sublayer.is_cross and encoder_line:
        draw_encoder_line(canvas, encoder_line, top, block_bottom)
    plus = Point(top.x, top.y - ARROW_LENGTH - PLUS_RADIUS)
    canvas.draw_line([top, Point(plus.x, plus.y + PLUS_RADIUS)])
    lane = split.x + side * (COLUMN_WIDTH / 2 + LANE_WIDTH / 2)
    corners = [split, Point(lane, split.y), Point(lane, plus.y)]
    canvas.draw_line([*corners, Point(plus.x + side * PLUS_RADIUS, plus.y)])
    canvas.draw_plus(plus)
    top = Point(plus.x, plus.y - PLUS_RADIUS)
    if sublayer.post_norm:
        top = draw_block_above(canvas, top, sublayer.post_norm)
    return top


def draw_heads(canvas: Canvas, bottom: Point, heads: Sequence[HeadBlock]) -> Point:
    """Draw the heads side by side, or above the head that they read; return the top of the last."""
    if not heads:
        return draw_output(canvas, bottom, ("last_hidden_state",))
    columns = [head for head in heads if head.source is None]
    width = COLUMN_WIDTH if len(columns) == 1 else MAX_HEAD_WIDTH
    tops: list[Point] = []
    sources = {head.source for head in heads}
    fork = Point(bottom.x, bottom.y - ARROW_LENGTH)
    for index, head in enumerate(heads):
        if head.source is None:
            offset = columns.index(head) - (len(columns) - 1) / 2
            center = Point(bottom.x + (width + BOX_GAP) * offset, fork.y - ARROW_LENGTH)
            canvas.draw_line([bottom, fork, Point(center.x, fork.y), center])
        else:
            source = tops[head.source]
            center = Point(source.x, source.y - ARROW_LENGTH)
            canvas.draw_line([source, center])
        tops.append(draw_block(canvas, center, width, head.block))
        if index not in sources:
            tops[-1] = draw_output(canvas, tops[-1], head.outputs)
    return tops[-1]


def draw_output(canvas: Canvas, bottom: Point, names: Iterable[str]) -> Point:
    """Draw an arrow to the names of outputs."""
    end = Point(bottom.x, bottom.y - ARROW_LENGTH - 4)
    canvas.draw_line([bottom, end])
    canvas.draw_text(end.x, end.y - 6, ", ".join(names))
    return Point(end.x, end.y - LINE_HEIGHT - 6)


# --- blocks ---


def draw_block_above(canvas: Canvas, bottom: Point, block: Block) -> Point:
    """Draw an arrow and a block of the width of a column."""
    center = Point(bottom.x, bottom.y - ARROW_LENGTH)
    canvas.draw_line([bottom, center])
    return draw_block(canvas, center, COLUMN_WIDTH, block)


def draw_block(
    canvas: Canvas, bottom: Point, width: float, block: Block, height: float | None = None
) -> Point:
    """Draw a box with its title, details and grids; a higher box than needed is centered."""
    needed = measure_block(block, width)
    height = height or needed
    top = Point(bottom.x, bottom.y - height)
    canvas.draw_rect(block.kind, top.x - width / 2, top.y, width, height)
    grids = block.patterns[:MAX_GRIDS]
    grids_width = measure_grids(block)
    center = top.x - grids_width / 2
    y = top.y + (height - needed) / 2 + LINE_HEIGHT + 2
    for css_class, line in wrap_block(block, width):
        canvas.draw_text(center, y, line, css_class)
        y += LINE_HEIGHT
    x = top.x + width / 2 - grids_width
    for pattern in grids:
        draw_pattern_grid(canvas, Point(x, top.y + (height - GRID_CELL * GRID_CELLS) / 2), pattern)
        x += GRID_CELL * GRID_CELLS + BOX_GAP
    return top


def measure_block(block: Block, width: float) -> float:
    """Return the height of a block."""
    return LINE_HEIGHT * len(wrap_block(block, width)) + 11


def wrap_block(block: Block, width: float) -> list[tuple[str, str]]:
    """Return the class and text of lines that fit beside the grids of a block."""
    space = width - measure_grids(block) - 4
    texts = [("name", TITLE_SIZE + 1, block.title)]  # bold letters are wider
    texts += [("", DETAIL_SIZE, detail) for detail in block.details]
    return [
        (css_class, line)
        for css_class, size, text in texts
        for line in textwrap.wrap(text, int(space / estimate_text_width("x", size)))
    ]


def measure_grids(block: Block) -> float:
    """Return the width of the grids of a block and the space to the right of each."""
    return (GRID_CELL * GRID_CELLS + BOX_GAP) * len(block.patterns[:MAX_GRIDS])


def draw_pattern_grid(canvas: Canvas, corner: Point, pattern: Pattern) -> None:
    """Draw which of the first keys each of the first queries attends to."""
    visibility, _ = compute_visibility(pattern, GRID_CELLS)
    for css_class, is_drawn in (("masked", False), ("visible", True)):
        cells = "".join(
            f"M{corner.x + GRID_CELL * j:.1f} {corner.y + GRID_CELL * i:.1f}h3v3h-3z"
            for i, row in enumerate(visibility)
            for j, is_visible in enumerate(row)
            if is_visible == is_drawn
        )
        if cells:
            canvas.parts.append(f'<path class="{css_class}" d="{cells}"/>')
