"""The command line: one sub-command a verb. Torch is imported by the commands that need it, not before."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Token, UnknownOptionError

from qkv import __version__
from qkv.cli import completion, models, read, tokenizers, train, write
from qkv.cli.console import complain
from qkv.cli.models import about as about
from qkv.cli.models import size_in_bytes as size_in_bytes
from qkv.formatting import human as human

app = App(
    name="qkv", version=__version__, help="Every classic Transformer from one readable core.",
    suppress_keyboard_interrupt=False, result_action="return_none",
)  # fmt: skip
tokenizer = App(
    name="tokenizer",
    help="Train a tokenizer on texts, or look at what one makes of a text.\n\n"
    'qkv tokenizer show gpt2 "Run, rabbit run."',
)
tokenizer.command(tokenizers.train)
tokenizer.command(tokenizers.show)

# What the commands are for, with an example; in the order of the help page.
GROUPS: dict[tuple[str, str], dict[str, Any]] = {
    ("Use a model", 'qkv translate "Wo ist der Bahnhof?"'): dict(
        translate=write.translate, complete=write.complete, classify=read.classify, summarise=write.summarise,
        answer=read.answer, fill=read.fill, tag=read.tag, embed=read.embed, match=read.match,
        score=read.score_text, detect=read.detect,
    ),
    ("Look inside", "qkv show gpt2"): dict(families=models.families, show=models.show),
    ("Train", "qkv train recipes/shakespeare.toml --data.train input.txt"): dict(
        train=train.train, eval=train.eval, tokenizer=tokenizer
    ),
    ("Open and convert", "qkv convert Helsinki-NLP/opus-mt-de-en small --weights int8"): dict(
        convert=models.convert, merge=models.merge
    ),
}  # fmt: skip
for place, ((title, example), commands) in enumerate(GROUPS.items()):
    group = Group(title, f"Example: {example}", sort_key=place)
    for rank, (name, command) in enumerate(commands.items()):
        app.command(command) if isinstance(command, App) else app.command(command, name=name)
        app[name].group, app[name].sort_key = group, rank
app.command(completion.installs(app), name="--install-completion")
itself = Group("This program", sort_key=len(GROUPS))
for flag in ("--help", "--version", "--install-completion"):
    app[flag].group = itself
TEXTS = [each.__name__ for each in (read, write, tokenizers)]  # whose commands take texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, 2 where the input is at fault, 130 after Ctrl-C."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by who called
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: complain(f"warning: {message}")
            check_options(sys.argv[1:] if arguments is None else arguments)
            app(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # where Python's last flush goes
        return 141
    except KeyboardInterrupt:
        return 130
    except (CycloptsError, ValueError, OSError) as error:
        missing = isinstance(error, MissingArgumentError) and "--model" in str(error)
        more = ": no model comes with qkv for it; expected a folder or a hub id" if missing else ""
        complain((str(error) or type(error).__name__).removesuffix("." if more else "") + more)
        return 2
    return 0


def check_options(arguments: Sequence[str]) -> None:
    """Before `--` whatever begins with two dashes is an option: no unknown one is taken for a text."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if not options or "--help" in options:
        return
    *_, command = app.parse_commands(words)[1]
    if getattr(command.default_command, "__module__", None) not in TEXTS:
        return
    known = command.assemble_argument_collection()
    for name in options:
        try:
            known.match(name)
        except ValueError:
            if " " in name:
                raise ValueError(f"{name}: no option; a text that begins so goes behind a lone --") from None
            token = Token(value=name, source="cli")
            raise UnknownOptionError(token=token, argument_collection=known, verbose=False) from None
