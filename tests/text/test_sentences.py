"""Sentence splitting."""

import pytest

from qkv.text.sentences import SENTENCE_BOUNDARY, split_sentences

CASES = [
    ("", [""]),
    ("No stop", ["No stop"]),
    ("One. Two!  Three?\nFour…", ["One.", "Two!", "Three?", "Four…"]),
    ('He said: "Go." She went.', ['He said: "Go."', "She went."]),
    ("(So it is.) And so on.", ["(So it is.)", "And so on."]),
    ("3.5 of 7.0 is a half.", ["3.5 of 7.0 is a half."]),
    ("一。 二！ 三", ["一。", "二！", "三"]),
    ("End. ", ["End.", ""]),
    ("Mr. Smith met Dr. Braun. They talked.", ["Mr. Smith met Dr. Braun.", "They talked."]),
    ("I live in the U.S. now. So what?", ["I live in the U.S. now.", "So what?"]),
    ("Es gibt z. B. Tee. Gut.", ["Es gibt z. B. Tee.", "Gut."]),
    ("Am 3. Oktober habe ich frei. Am 4. auch.", ["Am 3. Oktober habe ich frei.", "Am 4. auch."]),
    ("It was 1990. He was 12. She left.", ["It was 1990.", "He was 12.", "She left."]),
    ("Es war... seltsam. Dann… ging er.", ["Es war... seltsam.", "Dann… ging er."]),
    ("So... Then it rained.", ["So...", "Then it rained."]),
    ('"Where are you going?" she asked. "Home."', ['"Where are you going?" she asked.', '"Home."']),
    ("„Komm!“ Er kam. »Ja.« Gut.", ["„Komm!“", "Er kam.", "»Ja.«", "Gut."]),
    ("i came. i saw.", ["i came.", "i saw."]),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_sentences_keep_what_closes_behind_their_stop(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected
    assert "".join(SENTENCE_BOUNDARY.split(text)) == text
