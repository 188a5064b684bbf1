"""The command `draw`: images from texts, in a file or in the terminal. Torch is imported with the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from qkv.cli.console import print_rich
from qkv.cli.decoding import TopKOption
from qkv.cli.flags import OutputPath, StrictInt, TextArgument
from qkv.cli.inputs import DEFAULT_FILE, FileOptions
from qkv.cli.options import ModelOptions
from qkv.cli.output import print_json_lines, print_text
from qkv.staging import write_file
from qkv.validate import check_number

if TYPE_CHECKING:
    from rich.text import Text

    from qkv.tasks.write.draw import Drawing

IMAGE_SAVE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
MAX_SCALE = 64


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DrawOptions(TopKOption):
    """Sampling of the codes; defaults come from the model's generation_config.json.

    Parameters
    ----------
    num_return_sequences
        number of images for each text, most probable first
    guidance_scale
        classifier-free guidance: above 1, images follow the text more closely
    """

    num_return_sequences: StrictInt | None = None
    guidance_scale: float | None = None


DEFAULT_DRAW = DrawOptions()


def draw(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    generation: DrawOptions = DEFAULT_DRAW,
    save: OutputPath | None = None,
    scale: StrictInt = 1,
) -> None:
    """Draw images of texts, by a model trained with the objective text-to-image.

    qkv draw "red heart" --model runs/emoji-draw/best --save heart.png

    Parameters
    ----------
    texts
        text, file with one text per line, or - for standard input
    save
        image file (.png .jpg .webp .gif .bmp): a row of images for each text; default: print them
        in the terminal
    scale
        enlarge a pixel to this many pixels per side
    """
    check_number("--scale", scale, integer=True, at_least=1, at_most=MAX_SCALE)
    if save is not None and save.suffix.lower() not in IMAGE_SAVE_SUFFIXES:
        raise ValueError(f"--save {save}: expected one of {', '.join(IMAGE_SAVE_SUFFIXES)}")
    input_texts = [text for text in file.read_texts(texts) if text.strip()]
    if not input_texts:
        raise ValueError("no text to draw; expected at least one text that is not blank")
    task = options.make_task("draw", **generation.settings)
    drawings = options.run_task(task, input_texts)
    if save is not None:
        with write_file(save) as temporary:
            build_sheet(drawings, scale).save(temporary)
    if options.as_json:
        return print_json_lines(
            {
                "text": drawing.text,
                "candidates": [
                    {"score": candidate.score, "codes": candidate.codes}
                    for candidate in drawing.candidates
                ],
            }
            for drawing in drawings
        )
    if save is not None:
        return print_text(f"wrote {save}")
    for drawing in drawings:
        print_text(drawing.text)
        print_rich(render_image(join_candidates(drawing)))


def join_candidates(drawing: Drawing) -> Any:
    """Return the pixels (H, W, C) of all samples of a text, side by side."""
    import numpy as np

    return np.concatenate([candidate.pixels for candidate in drawing.candidates], 1)


def build_sheet(drawings: list[Drawing], scale: int) -> Any:
    """Return a Pillow image with a row of samples for each text."""
    import numpy as np

    from qkv.data.encode.images import build_image

    return build_image(np.concatenate([*map(join_candidates, drawings)], 0), scale)


def render_image(pixels: Any) -> Text:
    """Return an image as text: a half block has the colors of two pixels, one above the other."""
    import numpy as np
    from rich.text import Text

    height, width, num_channels = pixels.shape
    pixels = np.broadcast_to(pixels, (height, width, 3)) if num_channels == 1 else pixels
    text = Text(no_wrap=True)
    for top, bottom in zip(
        pixels[::2], [*pixels[1::2], *pixels[-1:]][: len(pixels[::2])], strict=True
    ):
        for upper, lower in zip(top.tolist(), bottom.tolist(), strict=True):
            text.append(
                "▀", f"rgb({','.join(map(str, upper))}) on rgb({','.join(map(str, lower))})"
            )
        text.append("\n")
    return text
