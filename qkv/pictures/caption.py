"""The attention of a captioning model to an image, as an SVG picture: one panel per token."""

from __future__ import annotations

import base64
import math

from qkv.pictures.svg import escape_xml
from qkv.tasks.write.caption import Caption

PANEL_SIZE = 128  # pixels
GAP = 12
PANEL_TITLE_HEIGHT = 20


def render_caption_svg(image: bytes, mime_type: str, caption: Caption) -> str:
    """Return the image once per token of its caption, dark where the token does not attend.

    The image is cropped to its central square, as the model reads it."""
    data = base64.b64encode(image).decode()
    panels = []
    for index, (token, weights) in enumerate(zip(caption.tokens, caption.attention, strict=True)):
        left = GAP + index * (PANEL_SIZE + GAP)
        side = math.isqrt(len(weights))
        cell = PANEL_SIZE / side
        shades = [
            f'<rect x="{cell * (place % side):.2f}" y="{cell * (place // side):.2f}" '
            f'width="{cell:.2f}" height="{cell:.2f}" '
            f'fill-opacity="{0.85 * (1 - weight / max(*weights, 1e-9)):.2f}"/>'
            for place, weight in enumerate(weights)
        ]
        panels.append(
            f'<g transform="translate({left} {PANEL_TITLE_HEIGHT})">'
            f'<text x="{PANEL_SIZE / 2}" y="-6" text-anchor="middle">{escape_xml(token)}</text>'
            f'<image width="{PANEL_SIZE}" height="{PANEL_SIZE}" '
            f'preserveAspectRatio="xMidYMid slice" href="data:{mime_type};base64,{data}"/>'
            f'<g fill="#000">{"".join(shades)}</g></g>'
        )
    width = GAP + len(panels) * (PANEL_SIZE + GAP)
    height = PANEL_TITLE_HEIGHT + PANEL_SIZE + GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#777">'
        f"<title>{escape_xml(caption.text)}</title>{''.join(panels)}</svg>\n"
    )
