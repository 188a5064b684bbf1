"""Where sentences end."""

import pytest

from qkv.text.sentences import SENTENCE, sentences

CASES = [
    ("", [""]),
    ("No stop", ["No stop"]),
    ("One. Two!  Three?\nFour…", ["One.", "Two!", "Three?", "Four…"]),
    ('He said: "Go." She went.', ['He said: "Go."', "She went."]),
    ("(So it is.) And so on.", ["(So it is.)", "And so on."]),
    ("3.5 of 7.0 is a half.", ["3.5 of 7.0 is a half."]),
    ("一。 二！ 三", ["一。", "二！", "三"]),
    ("End. ", ["End.", ""]),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_sentences_keep_what_closes_behind_their_stop(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
    assert "".join(SENTENCE.split(text)) == text
