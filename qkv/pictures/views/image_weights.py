"""Attention to the patches of an image: the image once per panel, dark where the weight is small."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from qkv.pictures.drawing.shapes import check_tensor_shape, to_float_cpu
from qkv.pictures.drawing.svg import (
    RELATIVE_CHARACTER_WIDTH,
    TEXT_SIZE,
    StyleRules,
    SvgDrawing,
    draw_svg_text,
    escape_xml,
    format_pixels,
    join_descriptions,
    measure_label,
    render_page_svg,
)
from qkv.pictures.drawing.token_text import fit_token, format_token, format_weight, make_visible

PANEL_SIZE = 128  # of the side of a square, in pixels
PANEL_GAP = 12
PANEL_TITLE_HEIGHT = 20
IMAGE_TITLE_HEIGHT = 24  # of one of several images
MAX_PANEL_COLUMNS = 6
MAX_SHADE = 0.88  # opacity over a patch without weight
IMAGE_RULES: StyleRules = {
    ".patch": ("fill: none; stroke: #ffb000; stroke-width: 2", ""),
}
IMAGE_NOTE = "The brightest patch of a panel has its largest weight."


@dataclass(frozen=True, kw_only=True)
class ImageWeights:
    """An image, and weights (rows, columns) over its patches, each with a name.

    `image` is cropped to the shape of the weights, as the model reads it. `patches`: the row and the
    column of a patch to outline in each panel, such as the query's own. `title`: of one of several."""

    image: bytes
    mime_type: str
    panels: Sequence[tuple[str, Tensor]]
    patches: Sequence[tuple[int, int] | None] = ()
    title: str = ""


def render_image_weights_svg(title: str, subtitle: str, images: Sequence[ImageWeights]) -> str:
    """Return the text of an SVG file with a panel for every name and weights, one image below the
    other."""
    parts: list[str] = []
    descriptions: list[str] = []
    width = y = 0.0
    for image in images:
        drawing = draw_image_weights(image)
        if image.title:
            parts.append(draw_svg_text(0, y + 12, make_visible(image.title), "strong"))
            width = max(width, measure_label(make_visible(image.title)))
            y += IMAGE_TITLE_HEIGHT
        parts.append(f'<g transform="translate(0 {format_pixels(y)})">{drawing.body}</g>')
        descriptions.append(drawing.description)
        width = max(width, drawing.width)
        y += drawing.height + PANEL_GAP
    if not parts:
        raise ValueError("no images; expected at least one")
    y += 14 - PANEL_GAP
    parts.append(draw_svg_text(0, y, IMAGE_NOTE, "small"))
    drawing = SvgDrawing(width, y, "\n".join(parts), join_descriptions(descriptions))
    return render_page_svg(title, subtitle, drawing, "image-weights", IMAGE_RULES)


def draw_image_weights(image: ImageWeights) -> SvgDrawing:
    """Draw the panels of one image."""
    panels, patches = image.panels, image.patches
    if not panels:
        raise ValueError("no panels; expected at least one")
    if patches and len(patches) != len(panels):
        raise ValueError(f"{len(patches)} patches, expected one for each of {len(panels)} panels")
    for name, weights in panels:
        check_tensor_shape(f"weights of {name}", weights, (None, None), ("rows", "columns"))
    tensors = [(name, to_float_cpu(weights).nan_to_num(0)) for name, weights in panels]
    shades = [(name, compute_shades(weights)) for name, weights in tensors]
    drawing = draw_image_panels(image.image, image.mime_type, shades, MAX_PANEL_COLUMNS, patches)
    description = join_descriptions([describe_panel(*panel) for panel in tensors])
    return SvgDrawing(drawing.width, drawing.height, drawing.body, description)


def compute_shades(weights: Tensor) -> Tensor:
    """Return the opacity of the shade over each patch: none over the largest weight. The square root
    shows small weights."""
    return MAX_SHADE * (1 - (weights / weights.max().clamp(min=1e-6)).clamp(0, 1).sqrt())


def draw_image_panels(
    image: bytes,
    mime_type: str,
    panels: Sequence[tuple[str, Tensor]],
    num_columns: int,
    patches: Sequence[tuple[int, int] | None] = (),
) -> SvgDrawing:
    """Draw panels in rows: a name, the image, and shades with opacities (rows, columns) over it."""
    if not mime_type.startswith("image/"):
        raise ValueError(f"type {mime_type!r}, expected that of an image, such as image/png")
    name = f"image-{zlib.crc32(image):08x}"
    sizes = [measure_panel(*shades.shape) for _, shades in panels]
    parts = [define_image(name, image, mime_type, *size) for size in dict.fromkeys(sizes)]
    row_height = PANEL_TITLE_HEIGHT + max((height for _, height in sizes), default=0) + PANEL_GAP
    step = max((width for width, _ in sizes), default=0) + PANEL_GAP
    for index, ((label, shades), (width, height)) in enumerate(zip(panels, sizes, strict=True)):
        row, column = divmod(index, num_columns)
        title = fit_token(label, (width - 4) / (RELATIVE_CHARACTER_WIDTH * TEXT_SIZE))
        x = column * step
        y = row * row_height + PANEL_TITLE_HEIGHT
        body = [
            f"<title>{escape_xml(format_token(label, 200))}</title>",
            draw_svg_text(width / 2, -6, title, "", "middle"),
            f'<use href="#{get_image_name(name, width, height)}"/>',
            draw_shades(shades, width, height),
        ]
        if patches and (patch := patches[index]) is not None:
            body.append(draw_patch_outline(patch, shades, width, height))
        place = f"{format_pixels(x)} {format_pixels(y)}"
        parts.append(f'<g transform="translate({place})">{"".join(body)}</g>')
    num_rows = -(-len(panels) // num_columns)
    width = min(len(panels), num_columns) * step - PANEL_GAP
    return SvgDrawing(width, num_rows * row_height - PANEL_GAP, "\n".join(parts), "")


def measure_panel(rows: int, columns: int) -> tuple[float, float]:
    """Return the width and the height of a panel whose patches are squares; all panels have one area."""
    ratio = (columns / rows) ** 0.5
    return PANEL_SIZE * ratio, PANEL_SIZE / ratio


def get_image_name(name: str, width: float, height: float) -> str:
    """Return the id of the image in one size."""
    return f"{name}-{format_pixels(width)}-{format_pixels(height)}"


def define_image(name: str, image: bytes, mime_type: str, width: float, height: float) -> str:
    """Return the definition of the image, which all panels of this size use."""
    data = base64.b64encode(image).decode()
    return (
        f'<defs><image id="{get_image_name(name, width, height)}" '
        f'width="{format_pixels(width)}" height="{format_pixels(height)}" '
        f'preserveAspectRatio="xMidYMid slice" '
        f'href="data:{escape_xml(mime_type)};base64,{data}"/></defs>'
    )


def draw_shades(shades: Tensor, width: float, height: float) -> str:
    """Draw a dark rectangle over each patch."""
    rows, columns = shades.shape
    cell_width, cell_height = width / columns, height / rows
    size = f'width="{cell_width:.2f}" height="{cell_height:.2f}"'
    cells = [
        f'<rect x="{column * cell_width:.2f}" y="{row * cell_height:.2f}" {size} '
        f'fill-opacity="{shade:.3f}"/>'
        for row, row_shades in enumerate(shades.tolist())
        for column, shade in enumerate(row_shades)
    ]
    return f'<g fill="#000" shape-rendering="crispEdges">{"".join(cells)}</g>'


def draw_patch_outline(patch: tuple[int, int], shades: Tensor, width: float, height: float) -> str:
    """Draw the outline of one patch."""
    rows, columns = shades.shape
    row, column = patch
    if not (0 <= row < rows and 0 <= column < columns):
        raise ValueError(f"patch {patch}, expected a row below {rows} and a column below {columns}")
    x, y = column * width / columns, row * height / rows
    size = f'width="{width / columns:.2f}" height="{height / rows:.2f}"'
    return f'<rect class="patch" x="{x:.2f}" y="{y:.2f}" {size}/>'


def describe_panel(name: str, weights: Tensor) -> str:
    """Return the largest weight of a panel and its place."""
    row, column = divmod(int(weights.argmax()), weights.shape[1])
    largest = format_weight(float(weights[row, column]))
    return f"{format_token(name)}: largest weight {largest}, row {row}, column {column}"
