"""Commands of the tasks that generate text. Torch is imported with the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkv.cli.alignment import NO_ALIGNMENT, AlignmentOptions, print_alignments
from qkv.cli.decoding import DEFAULT_GENERATION, GenerationOptions, drop_none
from qkv.cli.inputs import StrictInt, read_text_argument
from qkv.cli.output import format_score, print_json_lines, print_table, result_to_dict
from qkv.cli.read import (
    DEFAULT_BUILTIN_MODEL,
    BoolFlag,
    BuiltinModelOptions,
    ModelOptions,
    StringList,
)
from qkv.cli.tokenizers import TextArgument

LANGUAGE_FLAGS = {
    "src_lang": "--from",
    "tgt_lang": "--to",
}  # the only flags not named like their setting


def translate(
    *texts: TextArgument,
    options: BuiltinModelOptions = DEFAULT_BUILTIN_MODEL,
    generation: GenerationOptions = DEFAULT_GENERATION,
    src_lang: Annotated[str | None, Parameter(name="--from")] = None,
    tgt_lang: Annotated[str | None, Parameter(name="--to")] = None,
    unit: Literal["line", "sentence"] | None = None,
    alignment: AlignmentOptions = NO_ALIGNMENT,
) -> None:
    """Translate texts; line breaks are kept.

    qkv translate "Wo ist der Bahnhof?"

    Parameters
    ----------
    texts
        text, file, or - for standard input
    src_lang
        source language of a multilingual model; German and English are detected
    tgt_lang
        target language of a multilingual model
    unit
        translate line by line or sentence by sentence; default: the unit the model was trained on
    """
    if options.show_card:
        return options.print_card("translate")
    settings = drop_none(src_lang=src_lang, tgt_lang=tgt_lang, unit=unit)
    settings |= generation.settings | alignment.settings
    with name_language_flags():
        run_text_to_text(options, "translate", texts, alignment, **settings)


@contextmanager
def name_language_flags() -> Iterator[None]:
    """Replace src_lang and tgt_lang by their flags in error messages."""
    try:
        yield
    except ValueError as error:
        message = str(error)
        for setting, flag in LANGUAGE_FLAGS.items():
            message = message.replace(setting, flag)
        raise ValueError(message) from None


def summarize(
    *texts: TextArgument,
    options: ModelOptions,
    generation: GenerationOptions = DEFAULT_GENERATION,
    min_length: StrictInt | None = None,
    recursive: BoolFlag = False,
) -> None:
    """Summarize texts; each file is one text.

    qkv summarize article.txt --model facebook/bart-large-cnn

    Parameters
    ----------
    texts
        file, - for standard input, or the text itself
    min_length
        minimum number of generated tokens
    recursive
        with --overflow window: summarize the joined summaries until they fit into one window
    """
    if recursive and options.overflow != "window":
        raise ValueError("--recursive is for texts read in windows: expected --overflow window too")
    settings = drop_none(min_length=min_length) | generation.settings
    run_text_to_text(options, "summarize", texts, recursive=recursive, **settings)


def run_text_to_text(
    options: ModelOptions,
    task_name: str,
    texts: Sequence[str],
    alignment: AlignmentOptions = NO_ALIGNMENT,
    **settings: Any,
) -> None:
    """Run a text-to-text task; print the results and, if requested, their alignments."""
    input_texts = [read_text_argument(text) for text in texts or ["-"]]
    results = options.run_task(options.make_task(task_name, **settings), input_texts)
    if options.as_json:
        print_json_lines(
            {"source": text, **result_to_dict(result)}
            for text, result in zip(input_texts, results, strict=True)
        )
    else:
        for result in results:
            print_result(result)
            if alignment.alignment:
                print_alignments(result.alignments)
    title = " · ".join(filter(None, (task_name, options.model)))
    alignment.write_file(title, [part for result in results for part in result.alignments])


def print_result(result: Any) -> None:
    """Print one text, or several candidates with their scores."""
    if len(result.candidates) > 1:
        return print_table(
            "score text",
            [(format_score(candidate.score), candidate.text) for candidate in result.candidates],
        )
    print(result.text)


def complete(
    text: TextArgument | None = None,
    /,
    *,
    options: BuiltinModelOptions = DEFAULT_BUILTIN_MODEL,
    generation: GenerationOptions = DEFAULT_GENERATION,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: StrictInt | None = None,
    do_sample: bool | None = None,
    seed: StrictInt = 0,
    stop_strings: StringList = (),
    control_code: str | None = None,
    stream: BoolFlag = False,
) -> None:
    """Complete a text with a language model.

    qkv complete "Once upon a time" --temperature 0.8 --top-p 0.9 --stream

    Parameters
    ----------
    text
        text, file, or - for standard input
    temperature
        sampling temperature; implies --do-sample
    top_p
        nucleus sampling threshold; implies --do-sample
    top_k
        sample from the k most probable tokens; implies --do-sample
    do_sample
        sample instead of greedy or beam search; default: the model's generation_config.json
    seed
        random seed of sampling
    stop_strings
        end with the first of these strings
    control_code
        control code of CTRL, such as Links or Books
    stream
        print the text while it is generated
    """
    if options.show_card:
        return options.print_card("complete")
    if temperature == 0:
        raise ValueError("--temperature 0: expected above 0; use --no-do-sample for greedy search")
    prompt = read_text_argument("-" if text is None else text)
    settings = drop_none(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        do_sample=do_sample,
        control_code=control_code,
        stop_strings=stop_strings or None,
    )
    settings |= generation.settings
    task: Any = options.make_task("complete", seed=seed, **settings)
    if stream:
        if options.as_json:
            raise ValueError("--stream and --json cannot be combined: expected one of them")
        parts = task.stream(prompt)
        first_part = next(parts, "")  # raises errors before anything is printed
        print(prompt + first_part, end="", flush=True)
        for part in parts:
            print(part, end="", flush=True)
        return print()
    (result,) = options.run_task(task, [prompt])
    if options.as_json:
        return print_json_lines([{"prompt": prompt, **result_to_dict(result)}])
    print_result(result)
