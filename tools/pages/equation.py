"""Conversion of equations from a subset of TeX to MathML. Does not depend on pages.

a_b  a^b  (a)  \\frac{a}{b}  \\sqrt{a}  \\text{name}  \\sin \\cos \\min \\max  \\cdot \\le ..."""

from __future__ import annotations

import re
from html import escape

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[a-zA-Z]|\d+(?:\.\d+)?|\S")
SYMBOLS = {"cdot": "·", "le": "≤", "to": "→", "dots": "…", "mid": "|", "quad": "\u2003"}
FUNCTIONS = ("sin", "cos", "min", "max")


def render_mathml(tex: str) -> str:
    """Return an equation as a MathML block; an unknown command is an error."""
    tokens = TOKEN.findall(tex)
    try:
        body = parse_row(tokens)
    except IndexError:
        raise ValueError(f"equation {tex!r}: missing closing bracket") from None
    if tokens:
        raise ValueError(f"equation {tex!r}: unexpected closing bracket")
    return f'<math display="block" alttext="{escape(tex.strip())}">{body}</math>'


def parse_row(tokens: list[str]) -> str:
    """Parse tokens up to the end or a closing bracket."""
    parts: list[str] = []
    while tokens and tokens[0] not in "})":
        part = parse_atom(tokens)
        scripts = {}
        while tokens and tokens[0] in "_^":
            mark = tokens.pop(0)
            scripts[mark] = parse_atom(tokens)
        match scripts:
            case {"_": low, "^": high}:
                part = f"<msubsup>{part}{low}{high}</msubsup>"
            case {"_": low}:
                part = f"<msub>{part}{low}</msub>"
            case {"^": high}:
                part = f"<msup>{part}{high}</msup>"
        parts.append(part)
    return f"<mrow>{''.join(parts)}</mrow>"


def parse_group(tokens: list[str]) -> str:
    """Parse a group in braces or parentheses; only parentheses are part of the output."""
    opening = tokens.pop(0)
    body = parse_row(tokens)
    tokens.pop(0)
    return body if opening == "{" else f"<mrow><mo>(</mo>{body}<mo>)</mo></mrow>"


def parse_atom(tokens: list[str]) -> str:
    """Parse a letter, a number, a symbol or a group."""
    token = tokens[0]
    if token in "{(":
        return parse_group(tokens)
    tokens.pop(0)
    if token.startswith("\\"):
        return parse_command(token[1:], tokens)
    tag = "mi" if token.isalpha() else "mn" if token[0].isdigit() else "mo"
    return f"<{tag}>{escape('−' if token == '-' else token)}</{tag}>"


def parse_command(name: str, tokens: list[str]) -> str:
    """Parse a command \\name with its arguments."""
    if name == "frac":
        return f"<mfrac>{parse_group(tokens)}{parse_group(tokens)}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{parse_group(tokens)}</msqrt>"
    if name == "text":
        return parse_text(tokens)
    if name in SYMBOLS:
        return f"<mo>{SYMBOLS[name]}</mo>"
    if name in FUNCTIONS:
        return f"<mi>{name}</mi>"
    raise ValueError(f"equation: unknown command \\{name}")


def parse_text(tokens: list[str]) -> str:
    """Parse an upright name of several letters."""
    tokens.pop(0)
    letters = ""
    while tokens[0] != "}":
        letters += tokens.pop(0)
    tokens.pop(0)
    return f"<mi>{escape(letters)}</mi>"
