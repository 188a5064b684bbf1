"""The attention of a captioning model to an image, as an SVG picture: one panel per token."""

from __future__ import annotations

import math

import torch

from qkv.pictures.drawing.svg import escape_xml, format_pixels
from qkv.pictures.views.image_weights import (
    PANEL_GAP,
    PANEL_SIZE,
    PANEL_TITLE_HEIGHT,
    draw_image_panels,
)
from qkv.tasks.write.caption import Caption

MAX_CAPTION_SHADE = 0.85  # opacity over a place without weight


def render_caption_svg(image: bytes, mime_type: str, caption: Caption) -> str:
    """Return the image once per token of its caption, dark where the token does not attend.

    The image is cropped to its central square, as the model reads it."""
    panels = []
    for token, weights in zip(caption.tokens, caption.attention, strict=True):
        side = math.isqrt(len(weights))
        square = torch.tensor(weights).view(side, side)
        shades = MAX_CAPTION_SHADE * (1 - square / square.max().clamp(min=1e-9))
        panels.append((token, shades))
    drawing = draw_image_panels(image, mime_type, panels, num_columns=max(len(panels), 1))
    width = format_pixels(drawing.width + 2 * PANEL_GAP)
    height = PANEL_TITLE_HEIGHT + PANEL_SIZE + PANEL_GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#777">'
        f"<title>{escape_xml(caption.text)}</title>"
        f'<g transform="translate({PANEL_GAP} 0)">{drawing.body}</g></svg>\n'
    )
