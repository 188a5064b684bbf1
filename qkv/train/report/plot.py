"""Curve: the losses of a run as a picture, loss.svg, in the colours of a light page or a dark one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from html import escape
from pathlib import Path

from qkv.formatting import human
from qkv.train.loop.trainer import Report
from qkv.train.report.history import History, Points, points, thinned

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 138, 56, 52  # margins; on the right each line has its name
MOST = 600  # points of a line
APART = 32  # between the names of two lines

STYLE = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
  .page { fill: #ffffff } .grid { stroke: #e4e7eb } .axis { stroke: #9aa3ad }
  text { fill: #57606a } .title { fill: #1f2328; font-size: 16px; font-weight: 600 }
  .train { stroke: #8fb8de } .name.train { fill: #4a7fb0; stroke: none }
  .valid { stroke: #c2410c } .name.valid, .dot { fill: #c2410c; stroke: none } .name { font-weight: 600 }
  .ring { fill: none; stroke: #c2410c; stroke-width: 1.5 }
  polyline { fill: none; stroke-linejoin: round; stroke-linecap: round }
  polyline.train { stroke-width: 1.5 } polyline.valid { stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117 } .grid { stroke: #242a32 } .axis { stroke: #5b6570 }
    text { fill: #9aa4af } .title { fill: #e6edf3 }
    .train { stroke: #3f6f9e } .name.train { fill: #6fa8dc }
    .valid, .ring { stroke: #ff9f5a } .name.valid, .dot { fill: #ff9f5a }
  }
"""


def drawer(folder: Path) -> Callable[[Report], None]:
    """Draws anew whenever something was measured; what an earlier part of the run said is in the picture."""
    history = History.read(folder)

    def draw_measured(report: Report) -> None:
        history.add(report)
        if report.kind == "measure":
            draw(folder, history)

    return draw_measured


def draw(folder: Path, history: History | None = None) -> None:
    """Writes loss.svg of a run; whoever looks meanwhile sees the old one or the new one."""
    text = picture(folder.resolve().name, History.read(folder) if history is None else history)
    near = folder / ".loss.svg.tmp"
    near.write_text(text, encoding="utf-8")
    os.replace(near, folder / "loss.svg")


def picture(name: str, history: History) -> str:
    """The SVG: training light, validation strong, the best measurement ringed."""
    lines = {"train": thinned(points(history.train), MOST), "valid": thinned(points(history.measures), MOST)}
    lines = {kind: line for kind, line in lines.items() if line}
    every = [point for line in lines.values() for point in line] or [(0, 0.0), (1, 1.0)]
    last = max(step for step, _ in every) or 1
    across = [step for step in ticks(0, last, 6) if step <= last and step == round(step)]
    up = ticks(min(loss for _, loss in every), max(loss for _, loss in every), 5)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (up[-1] - loss) / (up[-1] - up[0])

    parts = [f'<text class="title" x="{LEFT}" y="30">{escape(name)}</text>', *axes(across, up, x, y, last)]
    for kind, line in lines.items():
        path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in line)
        parts.append(f'<polyline class="{kind}" points="{path}"/>')
    for step, loss in lines.get("valid", ()):
        if len(lines["valid"]) <= 40:
            parts.append(f'<circle class="dot" cx="{x(step):.1f}" cy="{y(loss):.1f}" r="3"/>')
    best = history.best("loss", highest=False)
    if best is not None and "valid" in lines:
        at = f'cx="{x(best.step):.1f}" cy="{y(best.values["loss"]):.1f}"'
        parts.append(f'<circle class="ring" {at} r="6.5"/>')
    parts += names(lines, y)
    if best is not None and "valid" in lines:
        said = f"best {best.values['loss']:.4g} at step {best.step:,}"
        parts.append(f'<text x="{WIDTH - RIGHT}" y="30" text-anchor="end">{said}</text>')
    body = "\n".join(f"  {part}" for part in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img">\n  <title>loss of {escape(name)}</title>\n'
        f'  <style>{STYLE}  </style>\n  <rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n'
        f"{body}\n</svg>\n"
    )


def axes(
    across: list[float], up: list[float], x: Callable[[float], float], y: Callable[[float], float], last: int
) -> list[str]:
    """Grid, ticks and what they count."""
    low, high = HEIGHT - BOTTOM, WIDTH - RIGHT
    digits = max(0, -math.floor(math.log10(up[1] - up[0]) + 1e-9))
    parts = []
    for loss in up:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{high}" y1="{y(loss):.1f}" y2="{y(loss):.1f}"/>')
        label = f"{loss:.{digits}f}"
        parts.append(f'<text x="{LEFT - 10}" y="{y(loss) + 4.5:.1f}" text-anchor="end">{label}</text>')
    for step in across:
        parts.append(f'<line class="axis" x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{low}" y2="{low + 5}"/>')
        label = f"{step:,.0f}" if last < 20_000 else human(step).replace(".0K", "K").replace(".00M", "M")
        parts.append(f'<text x="{x(step):.1f}" y="{low + 21}" text-anchor="middle">{label}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{high}" y1="{low}" y2="{low}"/>')
    parts.append(f'<text x="{(LEFT + high) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{LEFT - 10}" y="{TOP - 14}" text-anchor="end">loss</text>')
    return parts


def names(lines: dict[str, Points], y: Callable[[float], float]) -> list[str]:
    """What each line is and where it ended, beside its end; two that are close stand below each other."""
    said = {"train": "training", "valid": "validation"}
    ends = sorted((y(line[-1][1]), kind, line[-1][1]) for kind, line in lines.items())
    parts, free = [], 0.0
    for place, (height, kind, loss) in enumerate(ends):
        room = HEIGHT - BOTTOM - 18 - APART * (len(ends) - place - 1)
        free = max(min(height, room), free)
        at = f'class="name {kind}" x="{WIDTH - RIGHT + 12}"'
        parts.append(f'<text {at} y="{free:.1f}">{said[kind]}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{free + 15:.1f}">{loss:.4g}</text>')
        free += APART
    return parts


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers, about so many, that hold both ends between them."""
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        low, high = low - max(abs(low), 1) / 2, high + max(abs(high), 1) / 2
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [place * step for place in range(first, last + 1)]
