"""The number of lines of code, as `make lines` counts it."""

import pytest

from tools import lines

SNIPPET = '''\
"""A module
docstring."""

import os  # a comment beside code

# a comment alone
class Some:
    """One line."""

    text = """a string,

    not a docstring"""


async def wait(
    a: int,

    b: int,
) -> str:
    """Two
    lines."""
    "a string after the docstring"
    return f"""{a}
    {b}"""


def bare():
    """A docstring and nothing else."""
'''


def test_only_code_is_counted() -> None:
    assert sorted(lines.code_lines(SNIPPET)) == [4, 7, 10, 11, 12, 15, 16, 18, 19, 22, 23, 24, 27]


@pytest.mark.parametrize("source", ["", "\n\n", "# only a comment\n", '"""Only a docstring."""\n'])
def test_a_file_without_code_has_no_lines(source: str) -> None:
    assert lines.code_lines(source) == set()


def test_every_part_of_the_core_has_code() -> None:
    parts = lines.list_core_files()
    assert all(parts.values())
    assert all(sum(map(lines.count_lines, files)) > 0 for files in parts.values())
    assert {file.name for file in parts["config and limits"]} == {"config.py", "limits.py"}
