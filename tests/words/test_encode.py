"""Words of texts, and the encoded corpus."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from qkv.data.read.corpus import Corpus
from qkv.words import encode
from qkv.words.config import WordsConfig
from qkv.words.encode import SENTENCE_END, WordsCorpus, encode_corpus, iter_sentences, split_words
from tests.support.errors import assert_error

LINES = ["a b a c", "", "c a x", "b a"]


def test_words_of_a_text() -> None:
    text = "Don't stop -- the 3 naïve_cats’ (can’t)\tRUN."
    words = ["Don't", "stop", "the", "3", "naïve", "cats", "can’t", "RUN"]
    assert split_words(text) == words
    assert split_words(text, lowercase=True) == [word.lower() for word in words]
    assert split_words(" a-b,  C ", "whitespace") == ["a-b,", "C"]


def read_ids(path: Path) -> list[int]:
    return np.fromfile(path, np.int32).tolist()


@pytest.mark.parametrize("block_size", [1, 3, 1000])
def test_ids_are_by_frequency(
    block_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "WRITE_IDS", block_size)
    path = tmp_path / "ids"
    vocabulary, num_words = encode_corpus(LINES, WordsConfig(min_count=2), path)
    assert list(vocabulary.words) == ["a", "b", "c"]
    assert list(vocabulary.counts) == [4, 2, 2]
    assert num_words == 9
    end = SENTENCE_END
    assert read_ids(path) == [0, 1, 0, 2, end, 2, 0, end, 1, 0, end]
    assert [file.name for file in tmp_path.iterdir()] == ["ids"]


def test_corpora_of_all_kinds_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "x.csv").write_text("text\n" + "\n".join(filter(None, LINES)), encoding="utf-8")
    corpora: list[WordsCorpus] = [
        str(tmp_path / "x.txt"),
        tmp_path / "x.csv",
        Corpus(tmp_path / "x.txt"),
        LINES,
        [line.split() for line in LINES],
        (line.split() for line in LINES),
    ]
    expected = [line.split() for line in LINES if line]
    for corpus in corpora:
        assert [words for words in iter_sentences(corpus, WordsConfig()) if words] == expected


def test_a_file_of_one_long_line(tmp_path: Path) -> None:
    """text8 is one line of 100 MB, in a file without a suffix."""
    words = [f"w{i}é" for i in range(40_000)]
    (tmp_path / "text8").write_text(" " + " ".join(words), encoding="utf-8")
    sentences = list(iter_sentences(str(tmp_path / "text8"), WordsConfig()))
    assert len(sentences) > 4
    assert [word for sentence in sentences for word in sentence] == words
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"a b\r\nc\n\nd"))
    parts = list(iter_sentences(str(tmp_path / "x.txt.gz"), WordsConfig(split="whitespace")))
    assert parts == [["a", "b"], ["c"], [], ["d"]]
    (tmp_path / "x.txt").write_text("a" * 2**21)
    assert_error(
        lambda: list(iter_sentences(str(tmp_path / "x.txt"), WordsConfig())),
        "x.txt",
        "a word of more",
    )
    (tmp_path / "x.txt").write_bytes(b"text\n\0\n")
    assert_error(lambda: list(iter_sentences(str(tmp_path / "x.txt"), WordsConfig())), "NUL")


def test_unusable_corpora(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    config = WordsConfig(min_count=9)
    message = assert_error(
        lambda: encode_corpus(LINES, config, path), "at least 9 times", "4 times", "min_count"
    )
    assert "4 different words" in message
    assert_error(lambda: encode_corpus([], config, path), "0 different words")
    assert_error(lambda: encode_corpus([3], config, path), "int")  # type: ignore[list-item]
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert_error(lambda: encode_corpus(str(empty), config, path), "empty")
    assert_error(lambda: encode_corpus(str(tmp_path / "no.txt"), config, path), "no files found")
    assert list(tmp_path.iterdir()) == [empty]
