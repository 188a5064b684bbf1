"""Printed texts: a terminal receives no escape sequences, a file or pipe the text as it is."""

from __future__ import annotations

import json
import sys

import pytest

from qkv.cli.output import print_json_lines, print_table, print_text, remove_escape_sequences

SEQUENCES = {
    "color": "\x1b[31;1m",
    "clear screen": "\x1b[2J",
    "cursor position": "\x1b[?25l",
    "8-bit control sequence": "\x9b2J",
    "title": "\x1b]0;title\x07",
    "link": "\x1b]8;;https://example.org\x1b\\",
    "device control string": "\x1bPq#0\x1b\\",
    "8-bit string": "\x9d52;c;YQ==\x9c",
    "reset": "\x1bc",
    "character set": "\x1b(0",
    "escape alone": "\x1b",
    "carriage return": "\r",
    "backspace": "\b\x7f",
    "bell": "\a",
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_escape_sequences_are_removed(name: str) -> None:
    sequence = SEQUENCES[name]
    assert remove_escape_sequences(f"a{sequence}\tb\n") == "a\tb\n"
    assert remove_escape_sequences(f"東京{sequence}{sequence}ä") == "東京ä"


def test_text_after_an_incomplete_sequence_is_kept() -> None:
    assert remove_escape_sequences("one \x1b]two three") == "one two three"
    assert remove_escape_sequences("a\x1b[3") == "a3"  # without its end, as at the end of a part


def test_output_on_a_terminal_and_into_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "red \x1b[31mtext\x1b[0m"
    print_text(text)
    assert capsys.readouterr().out == text + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_text(text, end="")
    assert capsys.readouterr().out == "red text"


def test_json_and_tables_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(SEQUENCES.values())
    print_json_lines([{"text": text}])
    output = capsys.readouterr().out
    assert json.loads(output) == {"text": text}
    assert remove_escape_sequences(output) == output
    print_table("score text", [(1, text)])
    output = capsys.readouterr().out
    assert remove_escape_sequences(output) == output
