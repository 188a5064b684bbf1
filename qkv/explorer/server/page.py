"""The page of the explorer: one HTML document with its style, its script and its data inside.

The modules of `page/` are joined into one script: their imports are dropped, so that their top-level
names are unique. A Content-Security-Policy allows this script and this style alone."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

IMPORT_LINE = re.compile(r'^import \{[^}]*\} from "(\.[^"]+)";\n', re.MULTILINE)
EXPORT_WORD = re.compile(r"^export ", re.MULTILINE)
MAIN_MODULE = "main.js"
STYLE_PLACEHOLDER = "/* style */"
SCRIPT_PLACEHOLDER = "/* script */"
CONFIG_PLACEHOLDER = '{"placeholder": "config"}'
POLICY_PLACEHOLDER = "<!-- policy -->"
# Characters that end a script element, begin a comment or end a line of JavaScript.
ESCAPED_CHARACTERS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


@dataclass(frozen=True)
class Page:
    """The text of an HTML document, and the policy that it is served with."""

    html: str
    content_security_policy: str


@cache
def read_page_file(name: str) -> str:
    """Return the text of a file of `page/`."""
    return (files("qkv.explorer") / "page" / name).read_text(encoding="utf-8")


@cache
def bundle_script() -> str:
    """Return the modules of the page as one script, each after those that it imports."""
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        text = read_page_file(name)
        for path in IMPORT_LINE.findall(text):
            imported = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            if imported not in ordered:
                add(imported)
        ordered[name] = EXPORT_WORD.sub("", IMPORT_LINE.sub("", text))

    add(MAIN_MODULE)
    return "\n".join(ordered.values())


def render_page(config: Mapping[str, Any], *, is_saved: bool = False) -> Page:
    """Return the page with its data; one that is saved to a file carries its own policy and asks no
    server."""
    style, script = f"\n{read_page_file('style.css')}", f"\n{bundle_script()}"
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{hash_source(script)}'",
            f"style-src '{hash_source(style)}'",
            "img-src data: blob:",
            "connect-src 'none'" if is_saved else "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if is_saved else ""
    parts = {
        POLICY_PLACEHOLDER: meta,
        STYLE_PLACEHOLDER: style,
        SCRIPT_PLACEHOLDER: script,
        CONFIG_PLACEHOLDER: json.dumps(config, allow_nan=False).translate(ESCAPED_CHARACTERS),
    }
    pattern = "|".join(map(re.escape, parts))
    html = re.sub(pattern, lambda match: parts[match[0]], read_page_file("index.html"))
    return Page(html, policy)


def hash_source(text: str) -> str:
    """Return the source expression that allows an inline script or style with this text."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
