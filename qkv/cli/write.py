"""Commands of the tasks that generate text. Torch is imported with the model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qkv.cli.alignment import NO_ALIGNMENT, AlignmentOptions, print_alignments
from qkv.cli.decoding import DEFAULT_TEXT_GENERATION, TextGenerationOptions
from qkv.cli.flags import BoolFlag, OutputPath, StrictInt, TextArgument, drop_none
from qkv.cli.folders import check_picture_file
from qkv.cli.inputs import DEFAULT_FILE, FileOptions
from qkv.cli.options import DEFAULT_BUILTIN_MODEL, BuiltinModelOptions, ModelOptions
from qkv.cli.output import (
    format_score,
    print_json_lines,
    print_table,
    print_text,
    result_to_dict,
)
from qkv.staging import write_file

ALIGNMENT_TARGET_NAMES = dict(
    translate="translation", summarize="summary"
)  # in pictures of alignments


def translate(
    *texts: TextArgument,
    options: BuiltinModelOptions = DEFAULT_BUILTIN_MODEL,
    file: FileOptions = DEFAULT_FILE,
    generation: TextGenerationOptions = DEFAULT_TEXT_GENERATION,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    unit: Literal["line", "sentence"] | None = None,
    alignment: AlignmentOptions = NO_ALIGNMENT,
) -> None:
    """Translate texts; line breaks are kept.

    qkv translate "Wo ist der Bahnhof?"

    Parameters
    ----------
    texts
        text, file, or - for standard input; in a file with columns, each record is one text
    src_lang
        source language of a multilingual model; German and English are detected
    tgt_lang
        target language of a multilingual model
    unit
        translate line by line or sentence by sentence; default: the training unit of the model
    """
    if options.show_card:
        return options.print_card("translate")
    settings = drop_none(src_lang=src_lang, tgt_lang=tgt_lang, unit=unit)
    settings |= generation.settings | alignment.get_settings(texts)
    run_text_to_text(options, "translate", file.read_documents(texts), alignment, **settings)


def summarize(
    *texts: TextArgument,
    options: ModelOptions,
    file: FileOptions = DEFAULT_FILE,
    generation: TextGenerationOptions = DEFAULT_TEXT_GENERATION,
    min_length: StrictInt | None = None,
    recursive: BoolFlag = False,
    alignment: AlignmentOptions = NO_ALIGNMENT,
) -> None:
    """Summarize texts; each file is one text.

    qkv summarize article.txt --model facebook/bart-large-cnn

    Parameters
    ----------
    texts
        file, - for standard input, or the text itself; in a file with columns, each record is one
        text
    min_length
        minimum number of generated tokens
    recursive
        with --overflow window: summarize the joined summaries until they fit into one window
    """
    if recursive and options.overflow != "window":
        raise ValueError(
            "--recursive is for texts that are read in windows: also set --overflow window"
        )
    settings = (
        drop_none(min_length=min_length) | generation.settings | alignment.get_settings(texts)
    )
    input_texts = file.read_documents(texts)
    run_text_to_text(options, "summarize", input_texts, alignment, recursive=recursive, **settings)


def run_text_to_text(
    options: ModelOptions,
    task_name: str,
    input_texts: Sequence[str],
    alignment: AlignmentOptions,
    **settings: Any,
) -> None:
    """Run a text-to-text task; print the results and, if requested, their alignments."""
    results = options.run_task(options.make_task(task_name, **settings), input_texts)
    if options.as_json:
        from qkv.tasks.write.seq2seq import GeneratedText

        print_json_lines(
            {"source": text, **result_to_dict(result, GeneratedText)}
            for text, result in zip(input_texts, results, strict=True)
        )
    else:
        for result in results:
            print_result(result)
            if alignment.alignment and result is not None:
                print_alignments(result.alignments)
    title = " · ".join(filter(None, ("Word alignment", task_name, options.model)))
    alignments = [part for result in filter(None, results) for part in result.alignments]
    alignment.write_file(title, alignments, ALIGNMENT_TARGET_NAMES[task_name])


def print_result(result: Any) -> None:
    """Print one text, or several candidates with their scores; a blank line for None."""
    if result is None:
        return print()
    if len(result.candidates) > 1:
        return print_table(
            "score text",
            [(format_score(candidate.score), candidate.text) for candidate in result.candidates],
        )
    print_text(result.text)


def caption(
    *images: Path,
    options: ModelOptions,
    generation: TextGenerationOptions = DEFAULT_TEXT_GENERATION,
    save: OutputPath | None = None,
) -> None:
    """Describe images in words.

    qkv caption picture.png --model runs/emoji-caption-soft/best

    Parameters
    ----------
    images
        image files
    save
        write the attention to the image for each word to this file: .svg; for one image
    """
    if not images:
        raise ValueError("no image; expected at least one image file")
    settings = generation.settings
    if save is not None:
        check_picture_file(save, (".svg",), [str(image) for image in images])
        if len(images) != 1:
            raise ValueError(f"--save {save} with {len(images)} images; expected one image")
        settings["return_attention"] = True
    task = options.make_task("caption", **settings)
    results = options.run_task(task, images)
    if save is not None:
        from qkv.pictures.caption import render_caption_svg
        from qkv.tasks.images import encode_processed_image, load_image_processor

        # What the model reads: browsers show neither TIFF nor PPM, and a name may be wrong.
        picture = encode_processed_image(load_image_processor(task.model), images[0])
        svg = render_caption_svg(picture, "image/png", results[0])
        with write_file(save) as temporary:
            temporary.write_text(svg, encoding="utf-8")
        print(f"wrote {save}", file=sys.stderr)
    if options.as_json:
        from qkv.tasks.write.caption import Caption

        return print_json_lines(
            {"image": str(image), **result_to_dict(result, Caption)}
            for image, result in zip(images, results, strict=True)
        )
    for result in results:
        print_result(result)


def complete(
    *texts: TextArgument,
    options: BuiltinModelOptions = DEFAULT_BUILTIN_MODEL,
    file: FileOptions = DEFAULT_FILE,
    generation: TextGenerationOptions = DEFAULT_TEXT_GENERATION,
    control_code: str | None = None,
    stream: BoolFlag = False,
) -> None:
    """Complete texts with a language model; each file is one text.

    qkv complete "Once upon a time" --temperature 0.8 --top-p 0.9 --stream

    Parameters
    ----------
    texts
        text, file, or - for standard input; in a file with columns, each record is one text
    control_code
        control code of CTRL, such as Links or Books
    stream
        print the text while it is generated; for one text
    """
    if options.show_card:
        return options.print_card("complete")
    prompts = file.read_documents(texts)
    settings = drop_none(control_code=control_code) | generation.settings
    task: Any = options.make_task("complete", **settings)
    if stream:
        if options.as_json:
            raise ValueError("--stream and --json cannot be combined: expected one of them")
        if len(prompts) != 1:
            raise ValueError(f"--stream with {len(prompts)} texts; expected one text")
        (prompt,) = prompts
        parts = task.stream(prompt)
        first_part = next(parts, "")  # raises errors before anything is printed
        print_text(prompt + first_part, end="")
        for part in parts:
            print_text(part, end="")
        return print()
    results = options.run_task(task, prompts)
    if options.as_json:
        from qkv.tasks.write.complete import Completion

        return print_json_lines(
            {"prompt": prompt, **result_to_dict(result, Completion)}
            for prompt, result in zip(prompts, results, strict=True)
        )
    for result in results:
        print_result(result)
