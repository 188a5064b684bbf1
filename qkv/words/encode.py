"""A corpus as word ids on disk: texts are split into words, counted and encoded in one pass.

    [ 3 17 0 2 -1  5 0 -1 ...]   int32, the ids of a sentence, then SENTENCE_END

A sentence is a line or a record of the corpus; context windows do not cross its end. Words that are not
in the vocabulary are left out."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkv.data.read.corpus import FORMAT_BY_SUFFIX, Corpus
from qkv.data.read.examples import read_examples
from qkv.data.read.lines import COMPRESSION_OPENERS, TextFile
from qkv.words.config import WordsConfig
from qkv.words.vocabulary import WordVocabulary

SENTENCE_END = -1
UNKNOWN_WORD = -2
WRITE_IDS = 2**20  # ids that are collected in memory
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")  # letters and digits, and apostrophes between them
# Paths, a Corpus, or what qkv.fit reads: texts, dicts, a DataFrame; also lists of words.
WordsCorpus = str | Path | Corpus | Iterable[str | Sequence[str]]
Progress = Callable[[str, int, int | None], None]  # text, words done, words in total


def split_words(text: str, split: str = "words", *, lowercase: bool = False) -> list[str]:
    """Return the words of a text: its runs of letters and digits, or what whitespace separates."""
    if lowercase:
        text = text.lower()
    return text.split() if split == "whitespace" else WORD.findall(text)


def iter_sentences(corpus: WordsCorpus, config: WordsConfig) -> Iterator[list[str]]:
    """Yield the words of each line or record; a list of words is a sentence as it is."""
    if not isinstance(corpus, str | Path | Corpus) and not hasattr(corpus, "itertuples"):
        for item in corpus:
            if isinstance(item, str):
                yield split_words(item, config.split, lowercase=config.lowercase)
            elif isinstance(item, list | tuple) and all(isinstance(word, str) for word in item):
                yield [word.lower() for word in item] if config.lowercase else list(item)
            else:
                raise ValueError(f"{type(item).__name__}, expected a text or a list of words")
        return
    if isinstance(corpus, str | Path):
        corpus = open_words_corpus([corpus])
    for text in iter_texts(corpus):
        yield split_words(text, config.split, lowercase=config.lowercase)


def open_words_corpus(paths: Sequence[str | Path], format: str | None = None) -> Corpus:
    """Return the corpus of files; those without a suffix, such as text8 and -, are text files."""
    if format is None and not any(Path(path).suffix or Path(path).is_dir() for path in paths):
        format = "txt"
    return Corpus(paths, format=format)


def iter_texts(corpus: WordsCorpus) -> Iterator[str]:
    """Yield the lines of text files, very long ones in parts, and the texts of other records."""
    if isinstance(corpus, Corpus) and is_text_corpus(corpus):
        for path in corpus.list_files():
            yield from TextFile(path, corpus.encoding).iter_line_parts()
        return
    for record in read_examples(corpus, column_names=["text"]):
        yield from [*record.iter_texts()] or [record.get_text("text")]


def is_text_corpus(corpus: Corpus) -> bool:
    """Return whether the files of a corpus are plain text, compressed or not."""
    if corpus.format is not None:
        return corpus.format == "txt"
    paths = [Path(path) for path in corpus.list_files()]
    names = [path.with_suffix("") if path.suffix in COMPRESSION_OPENERS else path for path in paths]
    return all(FORMAT_BY_SUFFIX.get(name.suffix.lower()) == "txt" for name in names)


def encode_corpus(
    corpus: WordsCorpus,
    config: WordsConfig,
    ids_path: Path,
    progress: Progress = lambda text, done, total: None,
) -> tuple[WordVocabulary, int]:
    """Write the ids of a corpus to a file; return the vocabulary and the number of all words."""
    index: defaultdict[str, int] = defaultdict()
    index.default_factory = index.__len__  # a new word has the next id
    counts = np.zeros(0, np.int64)
    num_words = 0
    first_ids = ids_path.with_suffix(".first")  # ids in the order of first occurrence
    buffer = array("i")

    def flush() -> NDArray[np.int64]:
        ids = np.frombuffer(buffer, np.int32)
        ids.tofile(file)
        grown = np.bincount(ids[ids >= 0], minlength=len(index))
        grown[: len(counts)] += counts
        return grown

    try:
        with first_ids.open("wb") as file:
            for sentence in iter_sentences(corpus, config):
                if not sentence:
                    continue
                buffer.extend(map(index.__getitem__, sentence))
                buffer.append(SENTENCE_END)
                num_words += len(sentence)
                if len(buffer) >= WRITE_IDS:
                    counts = flush()
                    buffer = array("i")
                    progress(f"read {num_words:,} words", num_words, None)
            counts = flush()
        vocabulary, new_ids = select_words(list(index), counts, config.min_count)
        _write_final_ids(first_ids, ids_path, new_ids)
    finally:
        first_ids.unlink(missing_ok=True)
    return vocabulary, num_words


def select_words(
    words: Sequence[str], counts: NDArray[np.int64], min_count: int
) -> tuple[WordVocabulary, NDArray[np.int32]]:
    """Return the vocabulary, sorted by count and then by first occurrence, and the ids in it of all
    words, followed by UNKNOWN_WORD and SENTENCE_END (as the indices -2 and -1)."""
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] >= min_count]
    if len(order) < 2:
        most_frequent = int(counts.max(initial=0))
        raise ValueError(
            f"the corpus has {len(order)} words that occur at least {min_count} times, expected 2 or "
            f"more; it has {len(words):,} different words, the most frequent {most_frequent} times: "
            "lower min_count, or is this the right file?"
        )
    new_ids = np.full(len(words) + 2, UNKNOWN_WORD, np.int32)
    new_ids[order] = np.arange(len(order), dtype=np.int32)
    new_ids[SENTENCE_END] = SENTENCE_END
    vocabulary = WordVocabulary([words[i] for i in order], counts[order].tolist())
    return vocabulary, new_ids


def _write_final_ids(first_ids: Path, ids_path: Path, new_ids: NDArray[np.int32]) -> None:
    """Replace the ids of first occurrence by those of the vocabulary, and drop other words."""
    with first_ids.open("rb") as source, ids_path.open("wb") as target:
        while len(ids := np.fromfile(source, np.int32, WRITE_IDS)):
            ids = new_ids[ids]
            ids[ids != UNKNOWN_WORD].tofile(target)
