"""The commands of tasks that write: translate, complete, summarise. Torch comes with the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from qkv.cli.alignment import UNASKED, Aligned, show
from qkv.cli.decoding import USUAL, Search, given
from qkv.cli.flags import in_flags
from qkv.cli.inputs import Whole, read_whole
from qkv.cli.output import as_json, plain, score, table
from qkv.cli.read import BUILT, Built, Flag, On, Words
from qkv.cli.tokenizers import Dashed


def translate(
    *texts: Dashed, on: Built = BUILT, search: Search = USUAL,
    source: Annotated[str | None, Parameter(name="--from")] = None,
    target: Annotated[str | None, Parameter(name="--to")] = None,
    by: Literal["line", "sentence"] | None = None, aligned: Aligned = UNASKED,
) -> None:  # fmt: skip
    """Translate texts; what is in lines stays in lines.

    qkv translate "Wo ist der Bahnhof?"

    Parameters
    ----------
    texts
        a text, a file, or - for standard input
    source
        the language of the texts, where the model has several; German and English are told apart
    target
        the language to translate into, where the model has several
    by
        what is read at once: a line, or a sentence of one; unless given, what the model has learnt from
    """
    if on.about:
        return on.tell_about("translate")
    settings = given(source=source, target=target, by=by) | search.settings | aligned.settings
    rewritten(on, "translate", texts, aligned, **settings)


def summarise(
    *texts: Dashed, on: On, search: Search = USUAL, min_length: Whole | None = None, again: Flag = False
) -> None:
    """Summarise texts, each a file as a whole.

    qkv summarise article.txt --model facebook/bart-large-cnn

    Parameters
    ----------
    texts
        a file, - for standard input, or the text itself
    min_length
        words that are written at least, in pieces
    again
        with --long window: summarise what comes of the parts, until it is one part
    """
    if again and on.long != "window":
        raise ValueError("--again is for texts that are read in parts: expected --long window too")
    settings = given(min_length=min_length) | search.settings
    rewritten(on, "summarise", texts, again=again, **settings)


def rewritten(on: On, name: str, texts: Sequence[str], aligned: Aligned = UNASKED, **settings: Any) -> None:
    """Tells the new texts, and what they were made of, where that was asked for."""
    read = [read_whole(text) for text in texts or ["-"]]
    found = on.many(on.task(name, **settings), read)
    if on.as_json:
        as_json({"source": text, **plain(one)} for text, one in zip(read, found, strict=True))
    for one in found if not on.as_json else ():
        tell(one)
        if aligned.alignment:
            show(one.alignments)
    aligned.write(
        " · ".join(filter(None, (name, on.model))), [each for one in found for each in one.alignments]
    )


def tell(found: Any) -> None:
    """A text alone, or several with their scores."""
    if len(found.best) > 1:
        return table("score text", [(score(each.score), each.text) for each in found.best])
    print(found.text)


def complete(
    text: Dashed | None = None, /, *, on: Built = BUILT, search: Search = USUAL,
    temperature: float | None = None, top_p: float | None = None, top_k: Whole | None = None,
    sample: bool | None = None, seed: Whole = 0, stop: Words = (), code: str | None = None,
    stream: Flag = False,
) -> None:  # fmt: skip
    """Go on with a text.

    qkv complete "Once upon a time" --temperature 0.8 --top-p 0.9 --stream

    Parameters
    ----------
    text
        the text, a file, or - for standard input
    temperature
        draw, from scores over this: below 1 likelier words, above 1 stranger ones
    top_p
        draw, from the likeliest words that have this share together
    top_k
        draw, from so many of the likeliest words
    sample
        draw or not; without it, as the model's folder says
    seed
        of what is drawn
    stop
        texts before which it ends
    code
        a control code, such as CTRL's Links or Books
    stream
        print words as they come
    """
    if on.about:
        return on.tell_about("complete")
    if temperature == 0:
        raise ValueError("--temperature 0: expected above 0; --no-sample takes the likeliest word each time")
    prompt = read_whole("-" if text is None else text)
    settings = given(temperature=temperature, top_p=top_p, top_k=top_k, sample=sample, code=code)
    settings |= search.settings
    task: Any = on.task("complete", stop=stop, seed=seed, **settings)
    if stream:
        if on.as_json:
            raise ValueError("--stream prints words and --json an object at the end: take one of them")
        parts = task.stream(prompt)
        with in_flags():
            first = next(parts, "")  # what is wrong is said before anything is printed
        print(prompt + first, end="", flush=True)
        for part in parts:
            print(part, end="", flush=True)
        return print()
    (found,) = on.many(task, [prompt])
    if on.as_json:
        return as_json([{"prompt": prompt, **plain(found)}])
    tell(found)
