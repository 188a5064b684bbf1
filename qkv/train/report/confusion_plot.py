"""The confusion matrix as SVG, with colors for light and dark pages, and the picture of a report: the
loss curve above the matrix.

A row is a reference, a column a prediction; the color of a cell is its share of the row."""

from __future__ import annotations

from html import escape

from qkv.train.evaluate.class_report import ConfusionMatrix
from qkv.train.report.history import MetricsHistory
from qkv.train.report.plot import PLOT_WIDTH, render_loss_svg, render_svg_page
from qkv.train.report.tables import shorten_name

MAX_CELL_SIZE = 56
MIN_CELL_SIZE = 12
MIN_NUMBER_SIZE = 28  # smaller cells have no numbers
MATRIX_MARGIN = 24
TITLE_HEIGHT = 56
MATRIX_CHARACTER_WIDTH = 7.6  # pixels, an upper estimate
MATRIX_HEADING_SLANT = 0.71  # height of a heading at 45 degrees, as a fraction of its length

CONFUSION_STYLE = """
  .matrix { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .matrix .page { fill: #ffffff } .matrix text { fill: #57606a }
  .matrix .title { fill: #1f2328; font-size: 16px; font-weight: 600 }
  .matrix .empty { fill: #f1f3f5 } .matrix .correct { fill: #0b5394 } .matrix .wrong { fill: #c2410c }
  .matrix .count { fill: #1f2328 } .matrix .count.over { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    .matrix .page { fill: #0d1117 } .matrix text { fill: #9aa4af } .matrix .title { fill: #e6edf3 }
    .matrix .empty { fill: #181d24 } .matrix .correct { fill: #58a6e8 } .matrix .wrong { fill: #ff9f5a }
    .matrix .count { fill: #e6edf3 } .matrix .count.over { fill: #06121d }
  }
"""


class SvgPicture(str):
    """The text of an SVG file, which a notebook shows as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


def render_report_svg(
    title: str, history: MetricsHistory | None, matrix: ConfusionMatrix | None
) -> SvgPicture:
    """Return the loss curve, the confusion matrix, or the first above the second."""
    pictures = [] if history is None else [render_loss_svg(title, history)]
    pictures += [] if matrix is None else [render_confusion_svg(matrix)]
    if not pictures:
        raise ValueError("no picture: there are neither reports of training nor a confusion matrix")
    if len(pictures) == 1:
        return SvgPicture(pictures[0])
    sizes = [_read_size(picture) for picture in pictures]
    width = max(width for width, _ in sizes)
    body = ""
    top = 0
    for picture, (_, height) in zip(pictures, sizes, strict=True):
        body += picture.replace("<svg ", f'<svg y="{top}" ', 1)
        top += height
    return SvgPicture(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" '
        f'height="{top}" role="img">\n  <title>{escape(title)}</title>\n{body}</svg>\n'
    )


def _read_size(picture: str) -> tuple[int, int]:
    """Return the width and height in the `viewBox` of an SVG."""
    _, _, width, height = picture.partition('viewBox="')[2].partition('"')[0].split()
    return int(width), int(height)


def render_confusion_svg(matrix: ConfusionMatrix) -> str:
    """Return the SVG of a confusion matrix; a cell tells its count when the pointer is over it."""
    names = [shorten_name(name) for name in matrix.label_names]
    longest = max((MATRIX_CHARACTER_WIDTH * len(name) for name in names), default=0.0)
    left = MATRIX_MARGIN + 20 + longest + 10
    space = PLOT_WIDTH - left - MATRIX_MARGIN - longest * MATRIX_HEADING_SLANT
    cell = int(min(max(space / max(len(names), 1), MIN_CELL_SIZE), MAX_CELL_SIZE))
    top = TITLE_HEIGHT + 30 + longest * MATRIX_HEADING_SLANT
    size = cell * len(names)
    width = round(max(left + size + longest * MATRIX_HEADING_SLANT + MATRIX_MARGIN, PLOT_WIDTH))
    height = round(top + size + MATRIX_MARGIN)
    parts = [
        f'<text class="title" x="{MATRIX_MARGIN}" y="30">confusion matrix</text>',
        f'<text x="{left + size / 2:.0f}" y="{TITLE_HEIGHT}" text-anchor="middle">prediction</text>',
        f'<text transform="translate({MATRIX_MARGIN + 6} {top + size / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">reference</text>',
    ]
    for index, name in enumerate(names):
        center = cell * (index + 0.5)
        slanted = f"translate({left + center:.1f} {top - 8:.1f}) rotate(-45)"
        parts.append(f'<text transform="{slanted}">{escape(name)}</text>')
        position = f'x="{left - 10:.1f}" y="{top + center + 4.5:.1f}" text-anchor="end"'
        parts.append(f"<text {position}>{escape(name)}</text>")
    for row, counts in enumerate(matrix.counts):
        total = sum(counts)
        for column, count in enumerate(counts):
            hint = f"{matrix.label_names[row]}, predicted {matrix.label_names[column]}: {count:,}"
            drawing = _draw_cell(
                left + cell * column, top + cell * row, cell, count, total, row == column
            )
            parts.append(f"<g><title>{escape(hint)}</title>{drawing}</g>")
    return render_svg_page(
        "confusion matrix",
        parts,
        width=width,
        height=height,
        style=CONFUSION_STYLE,
        css_class="matrix",
    )


def _draw_cell(x: float, y: float, size: int, count: int, total: int, is_correct: bool) -> str:
    """Draw a square; its opacity is the share of the row, blue on the diagonal and orange elsewhere."""
    share = count / max(total, 1)
    box = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{size - 2}" height="{size - 2}" rx="3"'
    parts = [f'<rect class="empty" {box}/>']
    if count:
        kind = "correct" if is_correct else "wrong"
        parts.append(f'<rect class="{kind}" {box} fill-opacity="{max(share, 0.08):.2f}"/>')
    if size >= MIN_NUMBER_SIZE:
        over = " over" if share > 0.6 else ""
        center = f'x="{x + size / 2:.1f}" y="{y + size / 2 + 4.5:.1f}" text-anchor="middle"'
        parts.append(f'<text class="count{over}" {center}>{count:,}</text>')
    return "".join(parts)
