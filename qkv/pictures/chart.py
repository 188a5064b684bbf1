"""Line charts with spread bands as SVG: panels in a grid, for light pages, dark pages and print.

A line has a color and a marker of its own, and its name stands at its end. Over names instead of
numbers, its points are not connected, and a bar is the spread of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from qkv.formatting import compute_ticks, format_count
from qkv.pictures.drawing.svg import (
    PAGE_MARGIN,
    SYSTEM_FONTS,
    SvgDrawing,
    escape_xml,
    estimate_text_width,
    format_svg_element,
)

CHART_WIDTH = 300  # of the area with the lines, in pixels
WIDE_CHART_WIDTH = 520  # of a single chart
CHART_HEIGHT = 220
LEFT = 58  # of the labels of the y axis
TOP = 44  # of the title of a panel
BOTTOM = 47  # with one row of labels
LABEL_GAP = 14  # between a line and its name
LABEL_HEIGHT = 16
LABEL_ROW_HEIGHT = 13  # of the labels of an x axis
MAX_LABEL_ROWS = 3
BAR_DISTANCE = 10  # between the bars of two lines at the same name
FONT_SIZE = 12
MAX_COLUMNS = 2
LOG_BASES = {"log2": 2.0, "log10": 10.0}
MAX_LOG_TICKS = 8

# Okabe and Ito's colors, which remain distinct with color blindness; lighter ones on dark pages.
LINE_COLORS = (
    "#0072b2 #d55e00 #009e73 #b0578d #a87400 #2f8fc4 #5b6570 #7a3fb0 #00707a #8c2d04".split()
)
DARK_LINE_COLORS = (
    "#56a9e8 #ff8a3d #2cc79a #e29ac3 #f0b83c #8ad0ff #b3bcc6 #bf95f0 #5fd0d8 #e0a080".split()
)
MARKERS = (  # paths around the point, so that lines differ without colors
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z",
    "M-3.2 -3.2h6.4v6.4h-6.4z",
    "M0 -4.2L4 3.2H-4z",
    "M0 -4.4L4.4 0L0 4.4L-4.4 0z",
    "M0 4.2L4 -3.2H-4z",
)


def build_chart_style() -> str:
    """Return the CSS: a class `sN` per line, with a color for light and one for dark pages."""
    light, dark = (
        " ".join(
            f".chart .s{i} {{ stroke: {color}; fill: {color} }}" for i, color in enumerate(colors)
        )
        for colors in (LINE_COLORS, DARK_LINE_COLORS)
    )
    return f"""
  .chart {{ font: {FONT_SIZE}px {SYSTEM_FONTS} }}
  .chart .page {{ fill: #ffffff }} .chart text {{ fill: #3d444d; stroke: none }}
  .chart .title {{ fill: #1f2328; font-size: 16px; font-weight: 600 }}
  .chart .panel {{ fill: #1f2328; font-size: 13px; font-weight: 600 }}
  .chart .grid {{ stroke: #e4e7eb }} .chart .axis {{ stroke: #9aa3ad }}
  .chart .mark {{ stroke: #57606a; stroke-dasharray: 4 3 }}
  .chart .leader {{ opacity: 0.5; stroke-dasharray: 1 3 }}
  {light}
  @media (prefers-color-scheme: dark) {{
    .chart .page {{ fill: #0d1117 }} .chart text {{ fill: #b3bcc6 }}
    .chart .title, .chart .panel {{ fill: #e6edf3 }}
    .chart .grid {{ stroke: #242a32 }} .chart .axis {{ stroke: #5b6570 }} .chart .mark {{ stroke: #9aa4af }}
    {dark}
  }}
  .chart .line {{ fill: none; stroke-width: 2; stroke-linejoin: round }} .chart .bar {{ stroke-width: 2 }}
  .chart .band {{ stroke: none; fill-opacity: 0.16 }} .chart .dot {{ stroke: none }}
  @media print {{ .chart .page {{ fill: #ffffff }} .chart text {{ fill: #000000 }} }}
"""


class ChartPoint(NamedTuple):
    """The mean of the values at one place, and the lowest and the highest of them."""

    x: float
    low: float
    mean: float
    high: float


class ChartLine(NamedTuple):
    name: str
    points: Sequence[ChartPoint]


class Chart(NamedTuple):
    """A panel: lines over common axes. `x_names` are the labels of the x values 0, 1, ..., if these
    are no numbers."""

    title: str
    lines: Sequence[ChartLine]
    x_label: str
    y_label: str
    x_scale: str = "linear"
    y_scale: str = "linear"
    x_names: Sequence[str] = ()
    y_min: float | None = None
    y_max: float | None = None
    mark_x: float | None = None
    mark_label: str = ""


class Axis(NamedTuple):
    """A scale from values to pixels, and its ticks."""

    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]
    is_log: bool
    start: float  # pixels
    end: float

    def place(self, value: float) -> float:
        """Return the pixel of a value, inside of the plot."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def render_charts_svg(title: str, subtitle: str, charts: Sequence[Chart]) -> str:
    """Return the text of an SVG file: a title, a subtitle and the panels in a grid."""
    series = list(dict.fromkeys(line.name for chart in charts for line in chart.lines))
    plot_width = CHART_WIDTH if len(charts) > 1 else WIDE_CHART_WIDTH
    label_width = max((estimate_text_width(name, FONT_SIZE) for name in series), default=0)
    column_width = LEFT + plot_width + LABEL_GAP + 14 + label_width + PAGE_MARGIN
    x_axes = [place_x_axis(chart, plot_width) for chart in charts]
    num_label_rows = max(map(count_label_rows, x_axes), default=1)
    row_height = TOP + CHART_HEIGHT + BOTTOM + LABEL_ROW_HEIGHT * max(num_label_rows - 1, 1)
    parts = [
        f'<text class="title" x="{PAGE_MARGIN}" y="{PAGE_MARGIN + 12}">{escape_xml(title)}</text>',
        f'<text x="{PAGE_MARGIN}" y="{PAGE_MARGIN + 34}">{escape_xml(subtitle)}</text>',
    ]
    top = PAGE_MARGIN + 50
    for index, (chart, x_axis) in enumerate(zip(charts, x_axes, strict=True)):
        row, column = divmod(index, MAX_COLUMNS)
        place = f"{PAGE_MARGIN + column * column_width:.0f} {top + row * row_height:.0f}"
        body = "\n".join(draw_chart(chart, x_axis, series))
        parts.append(f'<g transform="translate({place})">\n{body}\n</g>')
    num_columns = min(len(charts), MAX_COLUMNS)
    texts_width = max(estimate_text_width(title, 16), estimate_text_width(subtitle, FONT_SIZE))
    width = max(num_columns * column_width, texts_width) + 2 * PAGE_MARGIN
    height = top + math.ceil(len(charts) / MAX_COLUMNS) * row_height
    page = f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="8"/>'
    body = "\n".join([f"<style>{build_chart_style()}</style>", page, *parts])
    description = "; ".join(describe_chart(chart) for chart in charts)
    return format_svg_element(SvgDrawing(width, height, body, description), title, "chart") + "\n"


def draw_chart(chart: Chart, x_axis: Axis, series: Sequence[str]) -> list[str]:
    """Draw the title, the axes and the lines of one panel, and the names of the lines."""
    points = [point for line in chart.lines for point in line.points]
    values = [value for point in points for value in (point.low, point.high)]
    y_axis = build_axis(
        values, chart.y_scale, TOP + CHART_HEIGHT, TOP, low=chart.y_min, high=chart.y_max
    )
    parts = [
        f'<text class="panel" x="0" y="14">{escape_xml(chart.title)}</text>',
        f'<text x="0" y="{TOP - 12}">{escape_xml(chart.y_label)}</text>',
        *draw_chart_axes(x_axis, y_axis, chart.x_label),
    ]
    if chart.mark_x is not None:
        x = x_axis.place(chart.mark_x)
        parts.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + CHART_HEIGHT}"/>'
            f'<text x="{x + 5:.1f}" y="{TOP + 16}">{escape_xml(chart.mark_label)}</text>'
        )
    ends: list[tuple[float, float, int, str]] = []
    for line in chart.lines:
        if not line.points:
            continue
        index = series.index(line.name)
        if chart.x_names:
            place = (len(ends) - (len(chart.lines) - 1) / 2) * BAR_DISTANCE
            parts += draw_bars(
                line,
                index,
                x_axis._replace(start=x_axis.start + place, end=x_axis.end + place),
                y_axis,
            )
        else:
            parts += draw_spread(line, index, x_axis, y_axis)
            parts += draw_markers(line, index, x_axis, y_axis)
        last = line.points[-1]
        ends.append((y_axis.place(last.mean), x_axis.place(last.x), index, line.name))
    return parts + draw_line_names(ends, x_axis.end + LABEL_GAP)


def place_x_axis(chart: Chart, plot_width: float) -> Axis:
    values = [point.x for line in chart.lines for point in line.points]
    return build_x_axis(chart, values, LEFT, LEFT + plot_width)


def draw_chart_axes(x_axis: Axis, y_axis: Axis, x_label: str) -> list[str]:
    """Draw the grid, the ticks and their labels, and the name of the x axis."""
    bottom, left, right = y_axis.start, x_axis.start, x_axis.end
    parts = []
    for value, label in zip(y_axis.ticks, y_axis.labels, strict=True):
        y = y_axis.place(value)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape_xml(label)}</text>'
        )
    num_rows = count_label_rows(x_axis)
    for number, (value, label) in enumerate(zip(x_axis.ticks, x_axis.labels, strict=True)):
        x = x_axis.place(value)
        y = bottom + 18 + LABEL_ROW_HEIGHT * (number % num_rows)
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape_xml(label)}</text>'
        )
    center = (left + right) / 2
    y = bottom + 37 + LABEL_ROW_HEIGHT * (num_rows - 1)
    parts.append(
        f'<line class="axis" x1="{left}" x2="{right:.0f}" y1="{bottom}" y2="{bottom}"/>'
        f'<text x="{center:.0f}" y="{y}" text-anchor="middle">'
        f"{escape_xml(x_label)}</text>"
    )
    return parts


def count_label_rows(axis: Axis) -> int:
    """Return the number of rows, at most three, in which no two labels of an x axis overlap."""
    widths = [estimate_text_width(label, FONT_SIZE) for label in axis.labels]
    places = [axis.place(value) for value in axis.ticks]
    starts = [place - width / 2 for place, width in zip(places, widths, strict=True)]
    ends = [place + width / 2 for place, width in zip(places, widths, strict=True)]
    for num_rows in range(1, MAX_LABEL_ROWS):
        if all(end <= start for end, start in zip(ends, starts[num_rows:], strict=False)):
            return num_rows
    return MAX_LABEL_ROWS


def draw_spread(line: ChartLine, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    """Draw the band from the lowest to the highest value, and the line of the means."""
    css_class = f"s{index % len(LINE_COLORS)}"
    places = [(x_axis.place(point.x), point) for point in line.points]
    upper = [f"{x:.1f},{y_axis.place(point.high):.1f}" for x, point in places]
    lower = [f"{x:.1f},{y_axis.place(point.low):.1f}" for x, point in reversed(places)]
    means = [f"{x:.1f},{y_axis.place(point.mean):.1f}" for x, point in places]
    return [
        f'<polygon class="band {css_class}" points="{" ".join(upper + lower)}"/>',
        f'<polyline class="line {css_class}" points="{" ".join(means)}"/>',
    ]


def draw_bars(line: ChartLine, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    """Draw a bar from the lowest to the highest value of every point, and its marker."""
    css_class = f"s{index % len(LINE_COLORS)}"
    bars = [
        f'<path class="bar {css_class}" d="M{x_axis.place(point.x):.1f} {y_axis.place(point.low):.1f}'
        f'V{y_axis.place(point.high):.1f}"/>'
        for point in line.points
    ]
    return bars + draw_markers(line, index, x_axis, y_axis)


def draw_markers(line: ChartLine, index: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    """Draw a marker at the mean of every point, with its values as a tooltip."""
    parts = []
    for point in line.points:
        place = f"{x_axis.place(point.x):.1f} {y_axis.place(point.mean):.1f}"
        title = f"{line.name}: {point.mean:.4g} ({point.low:.4g} to {point.high:.4g})"
        parts.append(
            f'<path class="dot s{index % len(LINE_COLORS)}" transform="translate({place})" '
            f'd="{MARKERS[index % len(MARKERS)]}"><title>{escape_xml(title)}</title></path>'
        )
    return parts


def draw_line_names(ends: Sequence[tuple[float, float, int, str]], left: float) -> list[str]:
    """Draw the marker and the name of each line next to its end, without overlap."""
    heights = spread_heights([end[0] for end in ends], LABEL_HEIGHT, TOP, TOP + CHART_HEIGHT)
    parts = []
    for (y, x, index, name), height in zip(ends, heights, strict=True):
        css_class = f"s{index % len(LINE_COLORS)}"
        marker = MARKERS[index % len(MARKERS)]
        parts.append(
            f'<path class="leader {css_class}" d="M{x + 5:.1f} {y:.1f}L{left - 2:.1f} {height:.1f}"/>'
            f'<path class="dot {css_class}" transform="translate({left + 4:.1f} {height:.1f})" '
            f'd="{marker}"/>'
            f'<text x="{left + 14:.1f}" y="{height + 4:.1f}">{escape_xml(name)}</text>'
        )
    return parts


def spread_heights(
    heights: Sequence[float], spacing: float, top: float, bottom: float
) -> list[float]:
    """Return heights that are at least `spacing` apart, in the same order, near the given ones."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = [heights[index] for index in order]
    for index in range(1, len(placed)):
        placed[index] = max(placed[index], placed[index - 1] + spacing)
    if placed and placed[-1] > bottom:
        placed[-1] = bottom
        for index in range(len(placed) - 2, -1, -1):
            placed[index] = min(placed[index], placed[index + 1] - spacing)
    result = [0.0] * len(heights)
    for index, height in zip(order, placed, strict=True):
        result[index] = height
    return result


def build_x_axis(chart: Chart, values: Sequence[float], start: float, end: float) -> Axis:
    """Return the x axis: of names, or of numbers without a margin at the ends."""
    if chart.x_names:
        places = [float(place) for place in range(len(chart.x_names))]
        high = max(len(places) - 0.6, 0.6)
        return Axis(-0.4, high, places, chart.x_names, False, start, end)
    if chart.x_scale in LOG_BASES:
        axis = build_axis(values, chart.x_scale, start, end, low=min(values), high=max(values))
        numbers = sorted(set(values))
        labeled = axis._replace(ticks=numbers, labels=[format_tick(value) for value in numbers])
        return labeled if count_label_rows(labeled) == 1 else axis
    low, high = min(values), max(values)
    ticks = [tick for tick in compute_ticks(low, high, 6) if low <= tick <= high]
    if low == high:
        low, high, ticks = low - 0.5, high + 0.5, [low]
    return Axis(low, high, ticks, format_ticks(ticks), False, start, end)


def build_axis(
    values: Sequence[float],
    scale: str,
    start: float,
    end: float,
    *,
    low: float | None = None,
    high: float | None = None,
) -> Axis:
    """Return an axis that includes all values, or reaches from `low` to `high`."""
    if scale in LOG_BASES:
        return build_log_axis(values, LOG_BASES[scale], start, end, low, high)
    first = min(values) if low is None else low
    last = max(values) if high is None else high
    ticks = compute_ticks(first, last, 5)
    return Axis(ticks[0], ticks[-1], ticks, format_ticks(ticks), False, start, end)


def build_log_axis(
    values: Sequence[float],
    base: float,
    start: float,
    end: float,
    low: float | None,
    high: float | None,
) -> Axis:
    """Return a logarithmic axis with ticks at powers of the base; zeros are at its lower end."""
    positive = [value for value in values if value > 0] or [1.0]
    first = math.floor(math.log(min(positive), base) + 1e-9)
    last = math.ceil(math.log(max(positive), base) - 1e-9)
    last = max(last, first + 1)
    step = math.ceil((last - first) / MAX_LOG_TICKS)
    bottom = base**first if low is None else low
    top = base**last if high is None else high
    if bottom == top:
        bottom, top = bottom / base, top * base
    powers = [base**power for power in range(first, last + 1, step)]
    ticks = [tick for tick in powers if bottom * 0.999 <= tick <= top * 1.001]
    return Axis(bottom, top, ticks, [format_tick(tick) for tick in ticks], True, start, end)


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Return the labels of evenly spaced ticks, with the same number of decimal places."""
    if max(map(abs, ticks), default=0) >= 20_000:
        return [format_tick(tick) for tick in ticks]
    steps = [after - before for before, after in pairwise(ticks)]
    digits = max(0, -math.floor(math.log10(min(steps)) + 1e-9)) if steps else 0
    return [f"{tick:,.{digits}f}" for tick in ticks]


def format_tick(value: float) -> str:
    """Return the label of a tick of any size."""
    if value >= 20_000:
        return format_count(value).replace(".0K", "K").replace(".00M", "M")
    if value >= 1:
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-")


def describe_chart(chart: Chart) -> str:
    """Return the lines of a panel in words: the first and the last value of each."""
    lines = [
        f"{line.name} from {line.points[0].mean:.3g} to {line.points[-1].mean:.3g}"
        for line in chart.lines
        if line.points
    ]
    return f"{chart.title}: {chart.y_label} against {chart.x_label}: {', '.join(lines)}"
