"""The tools that prepare the data of the built-in models."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from tools.citation_forms import (
    choose_articles,
    count_followers,
    list_citation_forms,
    list_numerals,
    mark_oblique,
)
from tools.language_detector import compute_odds
from tools.phrase_extraction import count_phrases, has_equal_negation, select_rows, split_corpus
from tools.phrase_pairs import is_plain, make_variants, read_json_pairs, read_po_pairs
from tools.pseudo_labels import balance_labels, sample_spans, select_sentences, split_sentences
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


def test_the_most_specific_translation_of_a_word() -> None:
    corpus = split_corpus([(f"Look, {a}!", f"Schau, {b}!") for a, b in PAIRS])
    rows = [*select_rows(count_phrases(corpus))]
    assert (">>de<<", "cat", "Katze") in rows
    assert (">>en<<", "Hund", "dog") in rows


def test_german_translations_are_in_the_nominative() -> None:
    counts = Counter({("the man", "den Mann"): 9, ("the man", "der Mann"): 4})
    assert [*select_rows(counts)] == [
        (">>en<<", "den Mann", "the man"), (">>en<<", "der Mann", "the man"),
        (">>de<<", "the man", "der Mann"),
    ]  # fmt: skip


def test_a_lost_negation_is_no_translation() -> None:
    assert has_equal_negation(("I don't know", "ich weiß nicht"))
    assert has_equal_negation(("a cat", "eine Katze"))
    assert not has_equal_negation(("I don't understand", "ich verstehe"))


def test_citation_forms() -> None:
    pairs = [
        ("I see the table.", "Ich sehe den Tisch."),
        ("I want a table.", "Ich will einen Tisch."),
        ("The table is green.", "Der Tisch ist grün."),
        ("A table is here.", "Ein Tisch ist hier."),
        ("It is time to eat.", "Es ist Zeit zu essen."),
        ("I begin to eat.", "Ich beginne zu essen."),
    ] * 4
    corpus = split_corpus(pairs)
    rows = [*list_citation_forms(corpus, count_phrases(corpus))]
    assert (">>de<<", "the table", "der Tisch") in rows
    assert (">>en<<", "ein Tisch", "a table") in rows
    assert (">>de<<", "to eat", "essen") in rows
    assert (">>en<<", "essen", "to eat") in rows


def test_the_gender_of_a_noun() -> None:
    sentences = [text.split() for text in ("in der Stadt", "in der Stadt", "die Stadt")]
    counts = count_followers(map(mark_oblique, sentences), {"der", "die", "oblique der"})
    assert choose_articles(counts, "Stadt") == ("die", "eine")
    assert choose_articles(Counter({("der", "Hund"): 1}), "Hund") == ("der", "ein")


def test_numerals() -> None:
    numerals = dict(list_numerals())
    assert numerals["zero"] == "null"
    assert numerals["forty-one"] == "einundvierzig"
    assert numerals["ninety"] == "neunzig"
    assert numerals["seven hundred"] == "siebenhundert"
    assert len(numerals) == 110


def test_variants() -> None:
    variants = [
        *make_variants([(">>de<<", "Good morning!", "Guten Morgen!")] * 40, random.Random(0))
    ]
    assert {source for _, source, _ in variants} == {
        "Good morning", "good morning", "good morning!", "GOOD MORNING!", "Guten Morgen!",
    }  # fmt: skip
    assert sum(source == "good morning" for _, source, _ in variants) == 40  # of every short text
    targets = {source: target for _, source, target in variants}
    assert targets["GOOD MORNING!"] == "GUTEN MORGEN!"
    assert targets["good morning"] == "Guten Morgen"
    assert targets["Guten Morgen!"] == "Guten Morgen!"  # a copy
    assert not [*make_variants([(">>de<<", "a " * 11, "b")], random.Random(0))]


def test_messages_of_a_catalog(tmp_path: Path) -> None:
    path = tmp_path / "de.po"
    path.write_text('msgid "Save"\nmsgstr "Speichern"\n\nmsgid ""\nmsgstr ""\n\n', encoding="utf-8")
    assert read_po_pairs(path) == [("Save", "Speichern")]
    english, german = tmp_path / "en.json", tmp_path / "de.json"
    english.write_text(
        '{"en": {"a": {"save": "Save", "terms": "x,y"}, "b": "B"}}', encoding="utf-8"
    )
    german.write_text('{"de": {"a": {"save": "Speichern", "terms": "z"}}}', encoding="utf-8")
    assert read_json_pairs(english, german) == [("Save", "Speichern")]
    assert is_plain("Opening hours")
    assert not is_plain("%(count)s items")
    assert not is_plain("car,vehicle")
    assert not is_plain("two\nlines")


def test_odds_of_languages() -> None:
    odds = compute_odds([("de", "der Hund")] * 30 + [("en", "the dog")] * 30)
    assert odds["=hund"] > 0 > odds["=dog"]


def test_sentiment_examples() -> None:
    assert join_tokens("it 's not bad , is n't it ? ") == "it's not bad, isn't it?"
    review = {"text": "A long story of a film with many words. Avoid it!", "label": 0}
    assert find_closing_sentence(review) == {"text": "Avoid it!", "label": 0}
    assert find_closing_sentence({"text": "One sentence only.", "label": 1}) is None


def test_pseudo_labels() -> None:
    assert split_sentences("Bad.<br /><br />Not  good! Why?") == ["Bad.", "Not good!", "Why?"]
    assert select_sentences(["Bad.", "Bad.", "...", "one two three"], max_words=2) == ["Bad."]
    spans = sample_spans("a b c d e f g h", 20, random.Random(0))
    assert len(spans) == 20
    assert all(span in "a b c d e f g h" and 2 <= len(span.split()) <= 6 for span in spans)
    assert sample_spans("too short", 3, random.Random(0)) == []
    kept = balance_labels({"a": 0, "b": 0, "c": 1}, random.Random(0))
    assert sorted(label for _, label in kept) == [0, 1]
