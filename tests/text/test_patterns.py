"""Expressions and replacements of a tokenizer.json that would run for ever are refused."""

import json
from pathlib import Path

import pytest

from qkv.text import Tokenizer
from qkv.text.patterns import check_patterns
from tests.support.limits import get_error_message

PUBLISHED_EXPRESSIONS = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",  # Llama 3
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",  # GPT-4o
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
    r" {2,}",
)
RUNAWAY_EXPRESSIONS = (
    "(a+)+$",
    "(x+x+)+y",
    "(a|a)*b",
    r"(\w+\s?)*!",
    r"(\s*\s*)*\d",
    "(hello|hello)*!",
)


def split(expression: str) -> dict[str, object]:
    return {
        "type": "Split",
        "pattern": {"Regex": expression},
        "behavior": "Isolated",
        "invert": False,
    }


def replace(old: str, new: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The tokenizer.json of a small tokenizer."""
    Tokenizer.train(["a b c"], type="byte", vocab_size=300, template="gpt").save(tmp_path)
    return tmp_path / "tokenizer.json"


def change(path: Path, **parts: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


@pytest.mark.parametrize("expression", PUBLISHED_EXPRESSIONS)
def test_published_expressions_are_accepted(expression: str) -> None:
    check_patterns({"pre_tokenizer": {"pretokenizers": [split(expression)]}}, Path("x"))


@pytest.mark.parametrize("expression", RUNAWAY_EXPRESSIONS)
def test_a_runaway_expression_is_refused(
    path: Path, expression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for part in ("pre_tokenizer", "normalizer"):
        sequence = {"type": "Sequence", "pretokenizers": [split(expression)], "normalizers": []}
        change(path, **{part: sequence})
        message = get_error_message(lambda: Tokenizer.load(path.parent))
        assert "grows exponentially" in message
        assert f"of the {part}" in message
        change(path, **{part: None})
    assert capfd.readouterr().err == ""  # no panic of the library


@pytest.mark.parametrize(
    "replacements",
    [
        [replace("t", "tt")] * 40,
        [replace("a", "b" * 200), replace("b", "a" * 200)] * 3,
        [replace("a", "b" * 10**6)],
        [{"type": "Replace", "pattern": {"Regex": ""}, "content": "b" * 900}],
    ],
)
def test_replacements_that_make_a_text_very_long_are_refused(
    path: Path, replacements: list[dict[str, object]]
) -> None:
    change(path, normalizer={"type": "Sequence", "normalizers": replacements})
    assert "times longer" in get_error_message(lambda: Tokenizer.load(path.parent))


def test_usual_replacements_are_accepted(path: Path) -> None:
    replacements = [replace("``", '"'), replace("''", '"'), replace("\n", "<newline>")]
    replacements += [replace(" " * n, f"<{n}-spaces>") for n in range(9, 1, -1)]
    change(path, normalizer={"type": "Sequence", "normalizers": replacements})
    assert Tokenizer.load(path.parent).decode(Tokenizer.load(path.parent).encode("``a")) == '"a'


def test_a_key_with_two_values_is_an_error(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("{", '{"version": "2.0", ', 1))
    assert "'version' occurs twice" in get_error_message(lambda: Tokenizer.load(path.parent))
    path.write_text(text.replace("{", '{"version": "1.0", ', 1))
    Tokenizer.load(path.parent)
