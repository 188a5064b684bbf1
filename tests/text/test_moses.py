"""Moses tokenization of texts and back; the expected tokens were compared with sacremoses."""

from __future__ import annotations

import pytest

from qkv.text.moses import (
    detokenize_moses,
    locate_moses_tokens,
    tokenize_moses,
    unescape_moses,
)

CASES = [
    ("en", "Hello, world!", "Hello , world !"),
    ("en", "It's Mr. Smith's well-known dog.", "It &apos;s Mr. Smith &apos;s well @-@ known dog ."),
    ("en", "He said \"no\" in 5,300 B.C. or so...", "He said &quot; no &quot; in 5,300 B.C. or so ..."),
    ("en", "The Jones' house (No. 5) & co.", "The Jones &apos; house ( No. 5 ) &amp; co ."),
    ("en", "don't [sic] a|b <c> 10%", "don &apos;t &#91; sic &#93; a &#124; b &lt; c &gt; 10 %"),
    ("en", "in the 1990's, km² e.g. this", "in the 1990 &apos;s , km ² e.g. this"),
    ("de", "Am 3. Oktober z.B. kam Dr. Weiß.", "Am 3. Oktober z.B. kam Dr. Weiß ."),
    ("de", "Das war's, Ludwig XIV. lebt", "Das war &apos; s , Ludwig XIV. lebt"),
    ("fr", "L'homme qu'il a vu M. Dupont.", "L&apos; homme qu&apos; il a vu M. Dupont ."),
]  # fmt: skip


@pytest.mark.parametrize(("language", "text", "expected"), CASES)
def test_tokens(language: str, text: str, expected: str) -> None:
    tokens = tokenize_moses(text, language)
    assert tokens == expected.split()
    for (start, end), token in zip(locate_moses_tokens(text, tokens), tokens, strict=True):
        assert text[start:end] == unescape_moses(token)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Hello, world!"),
        ("en", "It's Mr. Smith's well-known dog."),
        ("en", 'He said "no" to the Jones\' dog (twice): $5 & more...'),
        ("de", "Er sagte: „Das ist E-Mail-Verkehr“."),
        ("fr", "L'homme qu'il a vu, c'est lui."),
    ],
)
def test_detokenization_restores_a_text(language: str, text: str) -> None:
    expected = text.replace("…", "...")
    assert detokenize_moses(tokenize_moses(text, language), language) == expected


def test_whitespace_and_control_characters_are_removed() -> None:
    assert tokenize_moses("  a \t b\x07c  ") == ["a", "bc"]
    assert tokenize_moses("") == []
    assert detokenize_moses([]) == ""
    assert detokenize_moses(["Comment", "?"], "fr") == "Comment ?"
