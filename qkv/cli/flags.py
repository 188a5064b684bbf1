"""Types of command line arguments, and their parsers. Does not depend on commands."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token


def parse_int(_: object, tokens: Sequence[Token]) -> int:
    """Parse an integer; a fraction is an error instead of being rounded."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r}, expected a whole number") from None


def parse_output_path(_: object, tokens: Sequence[Token]) -> Path:
    """Parse the path of a file or folder to write; control characters are an error."""
    text = tokens[0].value
    if not text or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text):
        raise ValueError(f"{text!r}, expected a path without control characters")
    return Path(text)


OutputPath = Annotated[Path, Parameter(converter=parse_output_path)]
StrictInt = Annotated[int, Parameter(converter=parse_int)]
BoolFlag = Annotated[bool, Parameter(negative="")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="")]
StringList = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
PatternText = Annotated[str, Parameter(allow_leading_hyphen=True)]  # "-?[0-9]+"
TextArgument = Annotated[str, Parameter(allow_leading_hyphen=True)]  # a single - is standard input


def drop_none(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}
