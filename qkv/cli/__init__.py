"""The command line: one sub-command a verb. Torch is imported by the commands that need it, not before."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from qkv import __version__
from qkv.cli import learn, models, read, text, write
from qkv.cli.models import about as about
from qkv.cli.models import size_in_bytes as size_in_bytes
from qkv.cli.screen import complain
from qkv.human import human as human

app = App(
    name="qkv", version=__version__, help="Every classic Transformer from one readable core.",
    suppress_keyboard_interrupt=False, result_action="return_none",
)  # fmt: skip
tokenizer = App(name="tokenizer", help="Train a tokenizer on texts, or look at what one makes of a text.")
app.command(models.families)
app.command(models.show)
app.command(models.convert)
app.command(models.merge)
app.command(tokenizer)
app.command(learn.train)
app.command(learn.eval)
for command in (read.classify, read.tag, read.fill, read.answer, read.embed, read.match, read.detect):
    app.command(command)
app.command(read.score_text, name="score")
app.command(write.translate)
app.command(write.complete)
app.command(write.summarise)
tokenizer.command(text.train)
tokenizer.command(text.show)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0, 2 where the input is at fault, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: complain(f"warning: {message}")
            app(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # where Python's last flush goes
        return 141
    except KeyboardInterrupt:
        return 130
    except (CycloptsError, ValueError, OSError) as error:
        complain(str(error) or type(error).__name__)
        return 2
    return 0
