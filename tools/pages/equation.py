"""Equations: the little TeX that the pages use, as MathML. Knows no page.

a_b  a^b  (a)  \\frac{a}{b}  \\sqrt{a}  \\text{name}  \\sin \\cos \\min \\max  \\cdot \\le ..."""

from __future__ import annotations

import re
from html import escape

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[a-zA-Z]|\d+(?:\.\d+)?|\S")
SIGNS = {"cdot": "·", "le": "≤", "to": "→", "dots": "…", "mid": "|", "quad": "\u2003"}
NAMES = ("sin", "cos", "min", "max")


def mathml(tex: str) -> str:
    """The equation as a block; what is not known is an error that names it."""
    tokens = TOKEN.findall(tex)
    try:
        body = row(tokens)
    except IndexError:
        raise ValueError(f"equation {tex!r}: a bracket is not closed") from None
    if tokens:
        raise ValueError(f"equation {tex!r}: a bracket too many")
    return f'<math display="block" alttext="{escape(tex.strip())}">{body}</math>'


def row(tokens: list[str]) -> str:
    """What stands up to the end, or to a closing bracket."""
    parts: list[str] = []
    while tokens and tokens[0] not in "})":
        part = atom(tokens)
        marks = {}
        while tokens and tokens[0] in "_^":
            mark = tokens.pop(0)
            marks[mark] = atom(tokens)
        match marks:
            case {"_": low, "^": high}:
                part = f"<msubsup>{part}{low}{high}</msubsup>"
            case {"_": low}:
                part = f"<msub>{part}{low}</msub>"
            case {"^": high}:
                part = f"<msup>{part}{high}</msup>"
        parts.append(part)
    return f"<mrow>{''.join(parts)}</mrow>"


def group(tokens: list[str]) -> str:
    """What stands in {brackets}, or in (those that are seen), which grow with it."""
    pair = tokens.pop(0), row(tokens), tokens.pop(0)
    return pair[1] if pair[0] == "{" else f"<mrow><mo>(</mo>{pair[1]}<mo>)</mo></mrow>"


def atom(tokens: list[str]) -> str:
    """One thing: a letter, a number, a sign, or a group."""
    token = tokens[0]
    if token in "{(":
        return group(tokens)
    tokens.pop(0)
    if token.startswith("\\"):
        return command(token[1:], tokens)
    kind = "mi" if token.isalpha() else "mn" if token[0].isdigit() else "mo"
    return f"<{kind}>{escape('−' if token == '-' else token)}</{kind}>"


def command(name: str, tokens: list[str]) -> str:
    """What a \\name makes of the groups behind it."""
    if name == "frac":
        return f"<mfrac>{group(tokens)}{group(tokens)}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{group(tokens)}</msqrt>"
    if name == "text":
        return word(tokens)
    if name in SIGNS:
        return f"<mo>{SIGNS[name]}</mo>"
    if name in NAMES:
        return f"<mi>{name}</mi>"
    raise ValueError(f"equation: \\{name} is not known")


def word(tokens: list[str]) -> str:
    """Upright letters: a name of more than one."""
    tokens.pop(0)
    letters = ""
    while tokens[0] != "}":
        letters += tokens.pop(0)
    tokens.pop(0)
    return f"<mi>{escape(letters)}</mi>"
