"""Flags: where each exists, one meaning in all commands, and hints for the names of other programs."""

from __future__ import annotations

from collections import defaultdict

import pytest

from qkv.cli import COMMAND_GROUPS, app, main
from qkv.decode import GenerationConfig
from qkv.hints import NAME_HINTS

READ = "classify tag fill embed detect"
WRITE = "translate summarize complete"
IMAGES = "caption draw"
FLAGS = {  # flag: commands in which a user expects it
    "--num-beams --max-new-tokens": f"{WRITE} {IMAGES} answer eval look",
    "--length-penalty": f"{WRITE} {IMAGES} answer eval",
    "--do-sample --temperature --top-p --seed": f"{WRITE} {IMAGES} answer eval",
    "--num-return-sequences": f"{WRITE} {IMAGES} answer",
    "--stop-strings": f"{WRITE} caption answer",
    "--top-k": f"{WRITE} {IMAGES} answer eval classify fill match",
    "--batch-tokens --overflow": f"{READ} {WRITE} {IMAGES} answer match score",
    "--adapter": f"{READ} {WRITE} {IMAGES} answer match score look",
    "--device": f"{READ} {WRITE} {IMAGES} answer match score experiment look",
    "--model": f"{READ} {WRITE} {IMAGES} answer match score new look",
    "--columns": "new",
    "--json": f"{READ} {WRITE} {IMAGES} answer match score families recipes eval experiment",
    "--column": f"{READ} {WRITE} draw answer match score",
    "--src-lang --tgt-lang": "translate look",
    "--unit": "translate",
    "--alignment --alignment-layer": "translate summarize",
    "--save": f"translate summarize {IMAGES} look",
    "--context --max-answer-tokens --allow-no-answer": "answer",
    "--stride": "tag answer score",
    "--aggregation": "tag",
    "--pooling --normalize": "embed",
    "--multi-label": "classify",
    "--threshold": "detect",
}
SEVERAL_MEANINGS = {  # flags whose help names the things of their command
    "--top-k",  # number of results, or of candidate tokens in sampling
    "--model", "--adapter", "--device", "--overflow", "--json", "--stride", "--hypothesis-template",
    "--size", "--head", "--lowercase", "--out", "--save", "--data", "--num-return-sequences",
}  # fmt: skip
COMMANDS = [
    name
    for commands in COMMAND_GROUPS.values()
    for name in commands
    if name not in ("tokenizer", "words")
]


def list_flags(command: str) -> dict[str, str]:
    """Return the flags of a command with their help."""
    arguments = app[command].assemble_argument_collection(parse_docstring=True)
    return {
        argument.names[0]: argument.parameter.help or ""
        for argument in arguments
        if argument.names and argument.names[0].startswith("--")
    }


def test_flags_exist_where_they_are_expected() -> None:
    commands_by_flag = defaultdict(set)
    for command in COMMANDS:
        for flag in list_flags(command):
            commands_by_flag[flag].add(command)
    for flags, commands in FLAGS.items():
        for flag in flags.split():
            assert {*commands.split()} == commands_by_flag[flag] - {
                "show",
                "export",
                "train",
                "merge",
            }


def test_a_flag_means_the_same_in_every_command() -> None:
    help_by_flag = defaultdict(set)
    for command in COMMANDS:
        for flag, help_text in list_flags(command).items():
            help_by_flag[flag].add(help_text)
    assert {flag for flag, texts in help_by_flag.items() if len(texts) > 1} <= SEVERAL_MEANINGS


def test_generation_flags_are_settings_of_the_library() -> None:
    fields = {*GenerationConfig.__dataclass_fields__} - {"top_k"}
    flags = {flag.removeprefix("--").replace("-", "_") for flag in list_flags("translate")}
    expected = "num_beams length_penalty max_new_tokens do_sample temperature top_p stop_strings"
    assert fields & flags == {*expected.split(), "num_return_sequences", "context_overflow"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "x", "--to", "de"], "--to. Did you mean --tgt-lang?"),
        (["translate", "x", "--from=de"], "--from. Did you mean --src-lang?"),
        (["complete", "x", "--max-length", "5"], "--max-length. Did you mean --max-new-tokens?"),
        (["complete", "x", "--stop", "."], "--stop. Did you mean --stop-strings?"),
        (["classify", "x", "--batch-size", "8"], "--batch-size. Did you mean --batch-tokens?"),
        (["answer", "x", "--context", "y", "--max-answer-len", "3"], "--max-answer-tokens?"),
        (["tag", "x", "--aggregation-strategy", "max"], "Did you mean --aggregation?"),
        (["complete", "x", "--output-attentions"], "recorded by qkv.look(model)"),
        (["translate", "x", "--foo"], "Unknown option: --foo."),
    ],
)
def test_names_of_other_programs_get_a_hint(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_hints_name_something_else() -> None:
    assert not {name for name, hint in NAME_HINTS.items() if name == hint}
