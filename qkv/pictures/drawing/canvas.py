"""Boxes, lines, sums and texts of a diagram as SVG elements. Does not depend on models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qkv.pictures.drawing.svg import escape_xml, estimate_text_width

LINE_HEIGHT = 15  # pixels
TITLE_SIZE = 13  # font sizes of the class "name" and of other texts
DETAIL_SIZE = 11
PLUS_RADIUS = 8
CORNER = 8  # radius of the corners of lines


class Point(NamedTuple):
    """Pixels to the right, and downwards: what is higher has a smaller y."""

    x: float
    y: float


class Canvas:
    """SVG elements and the rectangle that they cover."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.left = self.right = self.top = self.bottom = 0.0

    def cover(self, left: float, top: float, right: float, bottom: float) -> None:
        self.left = min(self.left, left)
        self.top = min(self.top, top)
        self.right = max(self.right, right)
        self.bottom = max(self.bottom, bottom)

    def draw_rect(
        self, css_class: str, left: float, top: float, width: float, height: float
    ) -> None:
        position = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect class="{css_class}" {position} rx="6"/>')
        self.cover(left, top, left + width, top + height)

    def draw_text(
        self, x: float, y: float, text: str, css_class: str = "", anchor: str = "middle"
    ) -> None:
        style = f' class="{css_class}"' if css_class else ""
        position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f"<text{style} {position}>{escape_xml(text)}</text>")
        width = estimate_text_width(text, TITLE_SIZE if css_class else DETAIL_SIZE)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        self.cover(left, y - LINE_HEIGHT, left + width, y + 4)

    def draw_line(self, points: Sequence[Point], has_tip: bool = True) -> None:
        """Draw a line with rounded corners and, at its end, a tip."""
        path = f"M{points[0].x:.1f} {points[0].y:.1f}"
        for before, corner, after in zip(points, points[1:], points[2:], strict=False):
            start = move_towards(corner, before, CORNER)
            end = move_towards(corner, after, CORNER)
            path += f"L{start.x:.1f} {start.y:.1f}Q{corner.x:.1f} {corner.y:.1f} {end.x:.1f} {end.y:.1f}"
        end = points[-1]
        back = move_towards(end, points[-2], 7) if has_tip else end
        self.parts.append(f'<path class="line" d="{path}L{back.x:.1f} {back.y:.1f}"/>')
        if has_tip:
            side = Point((end.y - back.y) * 0.57, (end.x - back.x) * 0.57)
            corners = (
                f"{end.x:.1f},{end.y:.1f} {back.x + side.x:.1f},{back.y + side.y:.1f} "
                f"{back.x - side.x:.1f},{back.y - side.y:.1f}"
            )
            self.parts.append(f'<polygon class="tip" points="{corners}"/>')
        for point in points:
            self.cover(point.x - 4, point.y, point.x + 4, point.y)

    def draw_plus(self, center: Point) -> None:
        x, y = center
        self.parts.append(f'<circle class="plus" cx="{x:.1f}" cy="{y:.1f}" r="{PLUS_RADIUS}"/>')
        self.parts.append(f'<path class="line" d="M{x - 4:.1f} {y:.1f}h8M{x:.1f} {y - 4:.1f}v8"/>')


def move_towards(start: Point, end: Point, distance: float) -> Point:
    """Return the point at this distance from the start, at most halfway to the end."""
    length = abs(end.x - start.x) + abs(end.y - start.y)  # lines are horizontal or vertical
    share = min(distance / length, 0.5) if length else 0.0
    return Point(start.x + (end.x - start.x) * share, start.y + (end.y - start.y) * share)
