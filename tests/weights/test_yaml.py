"""The YAML reader agrees with PyYAML on what Marian writes, and refuses the rest."""

from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped]

from qkv.weights.formats.yaml import parse_yaml_mapping
from tests.support.errors import assert_error

DOCUMENTS = {
    "decoder": "relative-paths: true\nmodels:\n  - a.npz\n  - 'b c.npz'\nbeam-size: 6\nnormalize: 1.5\n",
    "empty list": "# created\ntied:\n  []\nlist: [1, 'a, b', \"c\"]\nnone: ~\nempty:\n...\n",
    "numbers": "neg: -3\ne: 1.0e-3\nv: v1.9.0 ba94c5b9\n",
    "strings": "a: b c # comment\nurl: http://x/y\nq: 'it''s'\nd: \"a\\tb\\u00e9\\\"\\\\\"\n",
    "quoted keys": "\"a: b\": 1\n'#': 2\n\"\\\"\": 3\n'''': 4\n</s>: 0\n<unk>: 5\n",
    "long keys": '? "\\L"\n: 17\nx: 1\n',
    "windows": "---\r\na: 1\r\nb: two\r\n",
    "unindented": "vocabs:\n- a.yml\n- b.yml\nx: false\n",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_read_as_pyyaml_reads_them(name: str) -> None:
    assert parse_yaml_mapping(DOCUMENTS[name]) == yaml.safe_load(DOCUMENTS[name])


@pytest.mark.parametrize("allow_unicode", [True, False])
def test_any_vocabulary_that_pyyaml_writes_is_read(allow_unicode: bool) -> None:
    codes = (*range(32, 0x250), 0x2028, 0x2581, 0x4E00, 0xFEFF, 0x1F600)
    folded = (0x85, 0x2028) if allow_unicode else ()  # written on two lines
    characters = [chr(code) for code in codes if code not in folded]
    words = [*characters, *(f"▁{c}" for c in characters), *(f"{c}x" for c in characters)]
    words += ["null", "true", "12", "1.5", "- a", "a: b", ">>fra<<", "yes", "0x1F", "..."]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    text = yaml.safe_dump(vocabulary, allow_unicode=allow_unicode, width=10**6)
    assert parse_yaml_mapping(text) == vocabulary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2\n", "line 2 occurs twice"),
        ("- a\n", "line 1 an item without a key"),
        ("a: 1\n- b\n", "line 2 an item of a key that has a value"),
        ("a:\n  b: 1\n", "line 2 a nested mapping"),
        ("a: {b: 1}\n", "line 1 the value"),
        ("a: |\n", "line 1 the value"),
        ("a: &x 1\n", "line 1 the value"),
        ("a: !!python/object 1\n", "line 1 the value"),
        ("plain\n", "line 1 no `key: value`"),
        ('a: "open\n', "line 1 an open quote"),
    ],
)
def test_other_documents_are_errors(text: str, words: str) -> None:
    line, _, rest = words.partition(" ")
    assert_error(lambda: parse_yaml_mapping(text), line, rest[0], rest[2:], "expected `key: value`")
