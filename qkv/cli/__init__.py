"""The command line. Commands import torch only when they need it."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Token, UnknownOptionError

from qkv import __version__
from qkv.cli import (
    completion,
    draw,
    experiment,
    look,
    models,
    new,
    read,
    recipes,
    tokenizers,
    train,
    words,
    write,
)
from qkv.cli.console import print_error
from qkv.files import format_error
from qkv.hints import NAME_HINTS
from qkv.memory import is_memory_error

app = App(
    name="qkv", version=__version__, help="Every classic Transformer from one readable core.",
    suppress_keyboard_interrupt=False, result_action="return_none",
)  # fmt: skip
tokenizer_app = App(
    name="tokenizer",
    help="Train a tokenizer on texts, or show how a tokenizer splits a text.\n\n"
    'qkv tokenizer show gpt2 "Run, rabbit run."',
)
tokenizer_app.command(tokenizers.train)
tokenizer_app.command(tokenizers.show)
words_app = App(
    name="words",
    help="Train word vectors on texts, compare words by their vectors, evaluate vectors.\n\n"
    "qkv words near rabbit",
)
words_app.command(words.train)
words_app.command(words.near)
words_app.command(words.analogy)
words_app.command(words.evaluate_words, name="eval")
words_app.command(words.convert)

# (title, example) of a group -> its commands, in the order of the help page.
COMMAND_GROUPS: dict[tuple[str, str], dict[str, Any]] = {
    ("Use a model", 'qkv translate "Wo ist der Bahnhof?"'): dict(
        translate=write.translate, complete=write.complete, classify=read.classify,
        summarize=write.summarize, answer=read.answer, fill=read.fill, tag=read.tag,
        embed=read.embed, match=read.match, caption=write.caption, draw=draw.draw,
        score=read.score_text, detect=read.detect,
    ),
    ("Inspect", 'qkv look "Die Katze schläft."'): dict(
        look=look.look, show=models.show, families=models.families
    ),
    ("Train", "qkv train shakespeare --data.train input.txt"): dict(
        new=new.new, recipes=recipes.recipes, train=train.train, eval=train.eval,
        tokenizer=tokenizer_app, experiment=experiment.experiment,
    ),
    ("Word vectors", "qkv words near rabbit"): dict(words=words_app),
    ("Export", "qkv export Helsinki-NLP/opus-mt-de-en small --quantization int8"): dict(
        export=models.export, merge=models.merge
    ),
}  # fmt: skip
for group_index, ((title, example), commands) in enumerate(COMMAND_GROUPS.items()):
    group = Group(title, f"Example: {example}", sort_key=group_index)
    for command_index, (name, command) in enumerate(commands.items()):
        if isinstance(command, App):
            app.command(command)
        else:
            app.command(command, name=name)
        app[name].group = group
        app[name].sort_key = command_index
app.command(completion.make_completion_command(app), name="--install-completion")
program_group = Group("This program", sort_key=len(COMMAND_GROUPS))
for flag in ("--help", "--version", "--install-completion"):
    app[flag].group = program_group
TEXT_COMMAND_MODULES = [module.__name__ for module in (read, write, draw, look, tokenizers, words)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    0: success, 2: invalid input, 130: interrupted (Ctrl-C), 141: broken pipe."""
    sys.stdout = sys.stdout or io.StringIO()  # None if the caller closed it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for terminals that cannot encode a character
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print_error(f"warning: {message}")
            check_options(sys.argv[1:] if arguments is None else arguments)
            app(arguments, exit_on_error=False, print_error=False)
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return 141
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich replaces it
            return 141
        raise
    except KeyboardInterrupt:
        return 130
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        print_error(
            f"out of memory ({format_error(error)}); use smaller batches, or a smaller model"
        )
        return 2
    except (CycloptsError, ValueError, OSError) as error:
        message = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is None:
            message = f"the output is not complete: {error.strerror}"  # such as a full disk
        if isinstance(error, UnknownOptionError):
            message = suggest_option(error) or message
        if isinstance(error, MissingArgumentError) and "--model" in message:
            message = (
                message.removesuffix(".")
                + ": qkv has no built-in model for this task; expected a folder or a hub id"
            )
        print_error(message)
        return 2
    return 0


def discard_output() -> None:
    """Let the null device receive what Python writes to standard output at exit."""
    with open(os.devnull, "wb") as devnull:
        os.dup2(devnull.fileno(), sys.stdout.fileno())


def suggest_option(error: UnknownOptionError) -> str | None:
    """Return a message with the name of an option that other programs call otherwise, or None."""
    name = error.token.keyword or error.token.value
    hint = NAME_HINTS.get(name.strip("-").partition("=")[0].replace("-", "_"), "")
    flag = f"--{hint.replace('_', '-')}"
    collection = error.argument_collection
    known_flags = {flag for argument in collection or () for flag in argument.names}
    if flag in known_flags:
        return f"Unknown option: {name}. Did you mean {flag}?"
    return f"Unknown option: {name}; {hint}" if " " in hint else None


def check_options(arguments: Sequence[str]) -> None:
    """Raise an error for an unknown option before `--`, so that it is not treated as a text."""
    words = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if not options or "--help" in options:
        return
    *_, command = app.parse_commands(words)[1]
    if getattr(command.default_command, "__module__", None) not in TEXT_COMMAND_MODULES:
        return
    known_arguments = command.assemble_argument_collection()
    for option in options:
        try:
            known_arguments.match(option)
        except ValueError:
            if " " in option:
                raise ValueError(
                    f"{option}: unknown option; put -- before a text that begins with dashes"
                ) from None
            token = Token(value=option, source="cli")
            raise UnknownOptionError(
                token=token, argument_collection=known_arguments, verbose=False
            ) from None
