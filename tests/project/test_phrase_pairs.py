"""The tools that prepare the data of the built-in models."""

from __future__ import annotations

import random
from pathlib import Path

from tools.language_detector import compute_odds
from tools.phrase_pairs import extract_phrase_rows, is_plain, make_variants, read_po_pairs
from tools.sentiment import find_closing_sentence, join_tokens
from tools.word_alignment import align_corpus, extract_phrases

PAIRS = [
    ("the cat sleeps", "die Katze schläft"),
    ("the dog sleeps", "der Hund schläft"),
    ("the cat eats", "die Katze frisst"),
    ("the dog eats", "der Hund frisst"),
] * 4


def test_words_are_aligned() -> None:
    links = align_corpus([a.split() for a, _ in PAIRS], [b.split() for _, b in PAIRS])
    for (english, german), pairs in zip(PAIRS, links, strict=True):
        words = {(english.split()[i], german.split()[j]) for i, j in pairs}
        assert words <= {
            ("the", "die"), ("the", "der"), ("cat", "Katze"), ("dog", "Hund"),
            ("sleeps", "schläft"), ("eats", "frisst"),
        }  # fmt: skip
        assert (english.split()[2], german.split()[2]) in words


def test_phrases_are_consistent_with_the_links() -> None:
    phrases = {*extract_phrases({(0, 0), (1, 2), (2, 1)}, max_length=3)}
    assert ((0, 1), (0, 1)) in phrases
    assert ((1, 3), (1, 3)) in phrases
    assert not any(source == (0, 2) for source, _ in phrases)  # its span has a link from outside
    assert {*extract_phrases({(0, 0), (1, 2), (2, 1)}, max_length=1)} == {
        ((0, 1), (0, 1)), ((1, 2), (2, 3)), ((2, 3), (1, 2)),
    }  # fmt: skip


def test_the_most_frequent_translation_of_a_word() -> None:
    rows = extract_phrase_rows([(f"Look, {a}!", f"Schau, {b}!") for a, b in PAIRS])
    assert (">>de<<", "cat", "Katze") in rows
    assert (">>en<<", "Hund", "dog") in rows


def test_variants() -> None:
    variants = [
        *make_variants([(">>de<<", "Good morning!", "Guten Morgen!")] * 40, random.Random(0))
    ]
    assert {source for _, source, _ in variants} == {
        "Good morning", "good morning", "good morning!", "GOOD MORNING!", "Guten Morgen!",
    }  # fmt: skip
    targets = {source: target for _, source, target in variants}
    assert targets["GOOD MORNING!"] == "GUTEN MORGEN!"
    assert targets["good morning"] == "Guten Morgen"
    assert targets["Guten Morgen!"] == "Guten Morgen!"  # a copy
    assert not [*make_variants([(">>de<<", "a " * 11, "b")], random.Random(0))]


def test_messages_of_a_catalog(tmp_path: Path) -> None:
    path = tmp_path / "de.po"
    path.write_text('msgid "Save"\nmsgstr "Speichern"\n\nmsgid ""\nmsgstr ""\n\n', encoding="utf-8")
    assert read_po_pairs(path) == [("Save", "Speichern")]
    assert is_plain("Opening hours")
    assert not is_plain("%(count)s items")


def test_odds_of_languages() -> None:
    odds = compute_odds([("de", "der Hund")] * 30 + [("en", "the dog")] * 30)
    assert odds["=hund"] > 0 > odds["=dog"]


def test_sentiment_examples() -> None:
    assert join_tokens("it 's not bad , is n't it ? ") == "it's not bad, isn't it?"
    review = {"text": "A long story of a film with many words. Avoid it!", "label": 0}
    assert find_closing_sentence(review) == {"text": "Avoid it!", "label": 0}
    assert find_closing_sentence({"text": "One sentence only.", "label": 1}) is None
