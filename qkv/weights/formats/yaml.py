"""A reader of the YAML that Marian writes: mappings of scalars and of lists of scalars, on any line.

It reads plain and quoted scalars, `- item` lists, `[a, b]` lists and comments; anything else is an
error. Does not depend on a YAML library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TypeAlias

YamlScalar: TypeAlias = str | int | float | bool | None
YamlValue: TypeAlias = YamlScalar | list[YamlScalar]

DOUBLE_QUOTED = r'"(?:[^"\\]|\\.)*"'
SINGLE_QUOTED = r"'(?:[^']|'')*'"
KEY_PATTERN = re.compile(rf"({DOUBLE_QUOTED}|{SINGLE_QUOTED}|[^ \t'\"].*?)[ \t]*:(?:[ \t]+(.*))?$")
ITEM_PATTERN = re.compile(rf"{DOUBLE_QUOTED}|{SINGLE_QUOTED}|[^,\[\]\"']+")
INTEGER_PATTERN = re.compile(r"[-+]?[0-9]+")
FLOAT_PATTERN = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
CONSTANTS: dict[str, YamlScalar] = {
    "true": True, "false": False, "null": None, "~": None, "": None,
}  # fmt: skip
# Escapes of YAML that JSON lacks.
YAML_ESCAPES = {
    "0": "\0", "a": "\a", "v": "\v", "e": "\x1b", " ": " ", "N": "\x85", "_": "\xa0",
    "L": "\u2028", "P": "\u2029",
}  # fmt: skip


def parse_yaml_mapping(text: str) -> dict[str, YamlValue]:
    """Return the keys and values of a document; raise ValueError with the number of a wrong line."""
    values: dict[str, YamlValue] = {}
    last_key: str | None = None
    for number, line in _iterate_lines(text):
        content = line.strip(" \t")
        try:
            if content.startswith("- ") or content == "-":
                if last_key is None:
                    raise ValueError("an item without a key")
                items = values[last_key]
                if items is None:
                    items = values[last_key] = []
                if not isinstance(items, list):
                    raise ValueError("an item of a key that has a value")
                items.append(parse_yaml_scalar(content[1:].strip(" \t")))
                continue
            if line[0] in " \t":
                if last_key is None or values[last_key] is not None or content[0] != "[":
                    raise ValueError("a nested mapping")
                values[last_key] = _parse_value(content)
                continue
            if content.startswith(": ") and last_key is not None and values[last_key] is None:
                values[last_key] = _parse_value(content[2:].strip(" \t"))
                continue
            match = KEY_PATTERN.match(content)
            if content.startswith("? "):  # the value is on the next line
                last_key, value = _unquote(content[2:].strip(" \t")), ""
            elif match is None:
                raise ValueError("no `key: value`")
            else:
                last_key, value = _unquote(match[1]), match[2] or ""
            if last_key in values:
                raise ValueError(f"the key {last_key!r} occurs twice")
            values[last_key] = _parse_value(value)
        except ValueError as error:
            raise ValueError(
                f"line {number} is {line[:80]!r}: {error}; expected `key: value` or `- item`"
            ) from None
    return values


def _iterate_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, a comment or a mark of the document."""
    for number, raw_line in enumerate(text.split("\n"), 1):
        line = raw_line.rstrip("\r")
        content = line.strip(" \t")
        if content and content[0] != "#" and line not in ("---", "..."):
            yield number, line


def _parse_value(text: str) -> YamlValue:
    if text.startswith("[") and text.endswith("]"):
        return [
            parse_yaml_scalar(item.strip(" \t"))
            for item in ITEM_PATTERN.findall(text)
            if item.strip()
        ]
    if text[:1] in ("{", "[", "&", "*", "!", "|", ">"):
        raise ValueError(f"the value {text[:20]!r}")
    return parse_yaml_scalar(text)


def parse_yaml_scalar(text: str) -> YamlScalar:
    """Return a string, number, boolean or None."""
    if text[:1] in ('"', "'"):
        return _unquote(text)
    plain = text.split(" #")[0].rstrip()
    if plain.lower() in CONSTANTS:
        return CONSTANTS[plain.lower()]
    if INTEGER_PATTERN.fullmatch(plain):
        return int(plain)
    return float(plain) if FLOAT_PATTERN.fullmatch(plain) else plain


def _unquote(text: str) -> str:
    """Return the string of a plain or quoted scalar."""
    if re.fullmatch(SINGLE_QUOTED, text):
        return text[1:-1].replace("''", "'")
    if re.fullmatch(DOUBLE_QUOTED, text):
        return re.sub(
            r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", _unescape, text[1:-1]
        )
    if text[:1] in ('"', "'") and len(text) > 1:
        raise ValueError(f"an open quote in {text[:20]!r}")
    return text


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    if escape[0] in "xU" or (escape[0] == "u" and len(escape) > 1):
        return chr(int(escape[1:], 16))
    if escape in YAML_ESCAPES:
        return YAML_ESCAPES[escape]
    return str(json.loads(f'"\\{escape}"'))
