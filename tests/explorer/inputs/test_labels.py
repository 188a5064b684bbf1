"""Labels of tokens: their characters, bytes or names, and the words that they are parts of."""

from __future__ import annotations

from functools import cache

import pytest

import qkv
from qkv.explorer.inputs.labels import TokenLabeler, TokenSequence
from tests.support import saved_models

SIZES = {"byte": 300, "bpe": 90, "wordpiece": 90, "unigram": 90, "char": 90, "word": 90}
TEMPLATES = {"wordpiece": "bert", "unigram": "t5", "bpe": "seq2seq"}
# Texts with their words, for tokenizers of bytes.
WORDS = {
    "the cat's mat": ["the", "cat's", "mat"],
    "cats, mats... and trees!": ["cats", ",", "mats", ".", ".", ".", "and", "trees", "!"],
    "Zoë 👍🏽 naïve": ["Zoë", "👍🏽", "naïve"],
    "東京 the": ["東", "京", "the"],
    " \tthe\n\n cat ": ["the", "cat"],
    "</script><b>": ["<", "/", "script><b>"],
    "a\u202eb\x00c": ["a\u202eb\x00c"],
    "mat-tree 3.5": ["mat-tree", "3.5"],
}


@cache
def build_labeler(tokenizer_type: str) -> TokenLabeler:
    tokenizer = qkv.Tokenizer.train(
        saved_models.TEXTS,
        type=tokenizer_type,
        vocab_size=SIZES[tokenizer_type],
        template=TEMPLATES.get(tokenizer_type, "gpt"),
    )
    return TokenLabeler(tokenizer)


def label(tokenizer_type: str, text: str, pair: str | None = None) -> TokenSequence:
    labeler = build_labeler(tokenizer_type)
    (encoding,) = labeler.tokenizer.encode_batch([text if pair is None else (text, pair)])
    return labeler.label_encoding("text", encoding)


def test_tokens_to_choose_from_differ() -> None:
    labeler = build_labeler("byte")
    tokenizer = labeler.tokenizer
    (with_space,) = tokenizer.encode(" the")
    (without,) = tokenizer.encode("the")
    (other,) = tokenizer.encode(" cat")
    assert labeler.get_different_texts([with_space, other]) == ["the", "cat"]
    texts = labeler.get_different_texts([with_space, without, other, with_space])
    assert texts == ["␣the", "the", "cat", "␣the"]
    spaces = [tokenizer.encode(text)[0] for text in (" ", "\t")]
    assert labeler.get_different_texts(spaces) == [" ", "\t"]


@pytest.mark.parametrize("text", WORDS)
def test_words_of_several_tokens(text: str) -> None:
    """Every token but a space is part of a word, also one of a few bytes of a character."""
    sequence = label("byte", text)
    assert [*sequence.words] == WORDS[text]
    groups = [token.word for token in sequence.tokens if token.word is not None]
    assert groups == sorted(groups)
    assert {*groups} == {*range(len(sequence.words))}
    for token in sequence.tokens:
        assert (token.word is None) is (not token.text.strip())
        assert (token.special, token.segment) == (False, None)


@pytest.mark.parametrize("text", WORDS)
def test_tokens_without_their_encoding_have_the_same_labels(text: str) -> None:
    labeler = build_labeler("byte")
    sequence = labeler.label_token_ids("text", labeler.tokenizer.encode(text))
    assert sequence == label("byte", text)


def test_bytes_of_incomplete_characters() -> None:
    sequence = label("byte", "aë👍")
    texts = [token.text for token in sequence.tokens]
    assert texts == ["a", "C3", "AB", "F0", "9F", "91", "8D"]
    assert [token.word for token in sequence.tokens] == [0] * 7
    labeler = build_labeler("byte")
    cut = labeler.label_token_ids("text", labeler.tokenizer.encode("aë👍")[:4])  # of generation
    assert cut.words == ("aë\ufffd",)
    (lone,) = labeler.label_token_ids("text", labeler.tokenizer.encode("ë")[1:]).tokens
    assert (lone.text, lone.word) == ("AB", 0)


def test_spaces_are_tokens_without_a_word() -> None:
    sequence = label("bpe", "the  cat")
    assert [(token.text, token.word) for token in sequence.tokens] == [
        ("the", 0), (" ", None), ("cat", 1), ("</s>", None),
    ]  # fmt: skip
    newline = label("byte", "a\n").tokens[1]
    assert (newline.text, newline.word) == ("\n", None)


@pytest.mark.parametrize("tokenizer_type", SIZES)
def test_every_type_of_tokenizer(tokenizer_type: str) -> None:
    sequence = label(tokenizer_type, "the cat sat")
    labeler = build_labeler(tokenizer_type)
    assert sequence.words == ("the", "cat", "sat")
    texts = ["", "", ""]
    for token in sequence.tokens:
        if token.word is not None:
            texts[token.word] += token.text
    assert texts == ["the", "cat", "sat"]
    assert len(sequence) == len(labeler.tokenizer.encode("the cat sat"))


def test_special_tokens_have_names() -> None:
    sequence = label("wordpiece", "the cat")
    tokens = [(token.text, token.word, token.special) for token in sequence.tokens]
    special = [("[CLS]", None, True), ("[SEP]", None, True)]
    assert tokens == [special[0], ("the", 0, False), ("cat", 1, False), special[1]]
    labeler = build_labeler("wordpiece")
    ids = labeler.tokenizer.encode("the cat")
    assert labeler.label_token_ids("text", ids) == sequence
    unknown = label("wordpiece", "the 漢 cat").tokens[2]
    assert (unknown.text, unknown.word, unknown.special) == ("[UNK]", None, False)


def test_special_tokens_that_the_user_types_are_no_words() -> None:
    sequence = label("wordpiece", "the [SEP] cat")
    assert sequence.words == ("the", "cat")
    typed, added = sequence.tokens[2], sequence.tokens[-1]
    assert (typed.text, typed.special) == ("[SEP]", False)
    assert (added.text, added.special) == ("[SEP]", True)


def test_segments_of_a_pair() -> None:
    """Words do not go from one text to the other."""
    sequence = label("wordpiece", "the cat", "sat on the mat")
    assert [token.segment for token in sequence.tokens] == [None, 0, 0, None, 1, 1, 1, 1, None]
    assert sequence.words == ("the", "cat", "sat", "on", "the", "mat")
    assert [token.word for token in sequence.tokens] == [None, 0, 1, None, 2, 3, 4, 5, None]
    parted = label("unigram", "the c", "at the")
    assert parted.words == ("the", "c", "at", "the")


def test_ids_beyond_the_tokenizer_have_numbers() -> None:
    """The vocabulary of a network may be padded."""
    labeler = build_labeler("bpe")
    count = len(labeler.tokenizer)
    sequence = labeler.label_token_ids("target", [count, 24, count + 7])
    assert [token.text for token in sequence.tokens] == [
        f"[{count}]", labeler.get_text(24), f"[{count + 7}]",
    ]  # fmt: skip
    assert [token.special for token in sequence.tokens] == [True, False, True]


def test_language_codes_have_names() -> None:
    tokenizer = qkv.Tokenizer.train(
        saved_models.TEXTS, type="bpe", vocab_size=90, template="seq2seq", extra_tokens=["de", "en"]
    )
    labeler = TokenLabeler(tokenizer)
    (encoding,) = tokenizer.encode_batch(["the cat"], language="en")
    sequence = labeler.label_encoding("source", encoding)
    assert [(token.text, token.special) for token in sequence.tokens] == [
        ("en", True), ("the", False), ("cat", False), ("</s>", True),
    ]  # fmt: skip
    assert sequence.words == ("the", "cat")


def test_json_is_plain() -> None:
    description = label("wordpiece", "the cat").to_json()
    assert description["label"] == "text"
    assert description["tokens"][1] == {"text": "the", "word": 0, "segment": None, "special": False}
    assert (description["grid"], description["picture"]) == (None, None)
