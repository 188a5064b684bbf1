"""The page: one document with all of its modules, data that cannot leave its element, and a policy that
allows its own script and style alone."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from qkv.explorer.server import page as page_module
from qkv.explorer.server.page import Page, bundle_script, hash_source, render_page
from tests.conftest import ROOT

FOLDER = ROOT / "qkv" / "explorer" / "page"
MODULES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.js"))
TOP_LEVEL_NAME = re.compile(
    r"^(?:async )?(?:function\*?|const|let|class) +(\w+|\{[^}]*\}|\[[^\]]*\])", re.MULTILINE
)
HOSTILE: dict[str, Any] = {
    "end": "</script><script>alert(1)</script>",
    "comment": "<!-- <script>",
    "lines": "a\u2028b\u2029c",
    "entities": "&lt;&amp;<&>",
    "quotes": "\"'`${1}\\",
    "controls": "\x00\x1b\u202e\ufeff",
    "placeholders": "/* style */ /* script */ <!-- policy -->",
    "config": '{"placeholder": "config"}',
    "groups": r"\g<0>\1",
    "text": "Zoë 👍🏽 東京",
    "<key>&": [1, -2.5, None, True, {"a": []}],
}


class Document(HTMLParser):
    """The elements of a page: tags with their attributes and the text inside."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.is_open = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

        self.is_open = True

    def handle_endtag(self, tag: str) -> None:
        self.is_open = False

    def handle_data(self, data: str) -> None:
        if self.is_open:
            self.elements[-1][2].append(data)

    def get_texts(self, tag: str, **attributes: str) -> list[str]:
        return [
            "".join(texts)
            for name, attrs, texts in self.elements
            if name == tag and attributes.items() <= attrs.items()
        ]

    def get_config(self) -> Any:
        (text,) = self.get_texts("script", id="config")
        return json.loads(text)


def compute_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def parse_policy(policy: str) -> dict[str, str]:
    return dict(part.split(" ", 1) for part in policy.split("; "))


def render(is_saved: bool = False, **config: Any) -> tuple[Page, Document]:
    page = render_page(config, is_saved=is_saved)
    return page, Document(page.html)


def resolve(name: str, path: str) -> str:
    """Return the module that a module imports by a relative path."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


# --- modules ---


def test_every_module_is_in_the_script() -> None:
    script = bundle_script()
    assert len(MODULES) > 20
    for name in MODULES:
        lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
        first = next(line for line in lines if line and not line.startswith("import "))
        assert script.count(first) == 1, name
    parts = [len((FOLDER / name).read_text(encoding="utf-8")) for name in MODULES]
    assert len(script) > 0.9 * sum(parts)


def test_modules_come_after_those_that_they_import() -> None:
    script = bundle_script()
    start = {
        name: script.index((FOLDER / name).read_text(encoding="utf-8").splitlines()[0])
        for name in MODULES
    }
    for name in MODULES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for path in re.findall(r'from "([^"]+)"', text):
            imported = resolve(name, path)
            assert imported in MODULES
            assert start[imported] < start[name], f"{name} imports {imported}"
    assert max(start, key=start.__getitem__) == "main.js"


def test_imports_and_exports_are_gone() -> None:
    script = bundle_script()
    for word in ("import", "export"):
        assert not re.findall(rf"^\s*{word}\b.*", script, re.MULTILINE)
    assert "import(" not in script
    assert "eval(" not in script
    assert "Function(" not in script


def test_imported_names_are_exported() -> None:
    for name in MODULES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        for names, path in re.findall(r'^import \{([^}]*)\} from "([^"]+)";', text, re.MULTILINE):
            imported = resolve(name, path)
            source = (FOLDER / imported).read_text(encoding="utf-8")
            exported = re.findall(
                r"^export (?:async )?(?:function\*?|const|let|class) +(\w+)", source, re.MULTILINE
            )
            for imported_name in filter(None, map(str.strip, names.split(","))):
                assert imported_name in exported, f"{name}: {imported_name} of {imported}"


def test_top_level_names_are_unique() -> None:
    """The modules share one scope."""
    names = [
        name
        for group in TOP_LEVEL_NAME.findall(bundle_script())
        for name in re.findall(r"\w+", group)
    ]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_modules_are_joined_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "main.js": 'import { a } from "./a.js";\nimport { b } from "./b/b.js";\n\nrun(a, b);\n',
        "a.js": "export const a = 1;\n",
        "b/b.js": 'import { a } from "../a.js";\nexport function b() { return "export it" + a; }\n',
    }
    monkeypatch.setattr(page_module, "read_page_file", files.__getitem__)
    assert bundle_script.__wrapped__() == (
        'const a = 1;\n\nfunction b() { return "export it" + a; }\n\n\nrun(a, b);\n'
    )


# --- data ---


def test_data_are_the_same_after_parsing() -> None:
    for is_saved in (False, True):
        _, document = render(is_saved, **HOSTILE)
        assert document.get_config() == HOSTILE


def test_data_do_not_leave_their_element() -> None:
    page, document = render(**HOSTILE)
    plain, plain_document = render()
    assert [(tag, attrs) for tag, attrs, _ in document.elements] == [
        (tag, attrs) for tag, attrs, _ in plain_document.elements
    ]
    config = page.html[page.html.index('id="config"') :]
    config = config[config.index(">") + 1 : config.index("</script>")]
    assert not {*config} & {"<", ">", "&", "\u2028", "\u2029"}
    assert page.content_security_policy == plain.content_security_policy
    assert "/* style */" not in plain.html
    assert "/* script */" not in plain.html
    assert "<!-- policy -->" not in plain.html
    assert '"placeholder"' not in plain.html


def test_numbers_that_json_does_not_have() -> None:
    """A page with NaN would not start."""
    with pytest.raises(ValueError, match="JSON"):
        render(value=float("nan"))


# --- policy ---


def test_the_policy_allows_the_script_and_the_style_of_the_page() -> None:
    for is_saved in (False, True):
        page, document = render(is_saved, text="a")
        policy = parse_policy(page.content_security_policy)
        (script,) = document.get_texts("script", type="module")
        (style,) = document.get_texts("style")
        assert policy.pop("script-src") == compute_hash(script)
        assert policy.pop("style-src") == compute_hash(style)
        assert policy == {
            "default-src": "'none'",
            "img-src": "data: blob:",
            "connect-src": "'none'" if is_saved else "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
        }
        assert bundle_script() in script
    assert hash_source("") == compute_hash("")[1:-1]


def test_a_saved_page_has_its_policy_inside() -> None:
    page, document = render(is_saved=True)
    contents = [
        attrs["content"]
        for tag, attrs, _ in document.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert contents == [page.content_security_policy]
    places = [tag for tag, _, _ in document.elements]
    policy_place = [attrs.get("http-equiv") for _, attrs, _ in document.elements].index(
        "Content-Security-Policy"
    )
    assert policy_place < min(places.index("style"), places.index("script"))
    _, served = render(is_saved=False)
    assert not [attrs for tag, attrs, _ in served.elements if "http-equiv" in attrs]


def test_the_page_loads_nothing_else() -> None:
    _, document = render()
    for tag, attrs, _ in document.elements:
        assert not attrs.keys() & {"src", "srcset", "action", "style"}, tag
        assert not [name for name in attrs if name.startswith("on")], tag
        href = attrs.get("href") or ""
        assert href.startswith(("#", "data:")) or not href, tag
    style = (FOLDER / "style.css").read_text(encoding="utf-8")
    assert "@import" not in style
    assert not re.findall(r"url\((?!['\"]?data:)", style)


def test_the_files_of_the_page_are_part_of_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'packages = ["qkv"]' in text
    suffixes = {path.suffix for path in FOLDER.rglob("*") if path.is_file()}
    assert suffixes == {".js", ".css", ".html"}
