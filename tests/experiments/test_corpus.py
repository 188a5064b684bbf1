"""TranslationCorpus: unseen sentences, rows of several pairs, batches."""

import lzma
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from qkv.data.batches.collate import Example
from qkv.experiments.corpus import (
    POOL_SIZE,
    SentencePair,
    TranslationCorpus,
    count_words,
    cut_batches,
    draw_test_rows,
    hold_out_pairs,
    load_corpus,
    read_pairs,
)


@pytest.fixture(scope="module")
def pairs_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs in which many sentences have several translations, on both sides."""
    nouns = "cat dog car house table".split()
    lines = [
        f"The {noun} number {i % 40} is {word}.\tNuméro {i % 50} : {noun[::-1]} {word} !\tlicense"
        for i in range(200)
        for noun, word in [(nouns[i % 5], "red" if i % 3 else "very old")]
    ]
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv.xz"
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    return path


@pytest.fixture(scope="module")
def corpus(pairs_path: Path) -> TranslationCorpus:
    return load_corpus(pairs_path, vocab_size=120, test_fraction=0.2)


def test_the_source_is_the_second_column(pairs_path: Path) -> None:
    pairs = read_pairs(pairs_path)
    assert len(pairs) == 200
    assert pairs[0] == SentencePair("Numéro 0 : tac very old !", "The cat number 0 is very old.")


def test_a_line_without_a_tab_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tVa !\nRun!\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: 1 column, expected English<tab>French"):
        read_pairs(path)


def test_no_sentence_of_a_test_pair_is_in_a_training_pair(pairs_path: Path) -> None:
    pairs = read_pairs(pairs_path)
    train, test = hold_out_pairs(pairs, 0.2)
    assert train
    assert test
    assert len(train) + len(test) < len(pairs), (
        "some training pairs share a source with a test pair"
    )
    for side in (0, 1):
        assert {pair[side] for pair in train}.isdisjoint(pair[side] for pair in test)


def test_a_corpus_without_test_pairs_is_an_error(pairs_path: Path) -> None:
    with pytest.raises(ValueError, match="200 training and 0 test pairs of 200"):
        load_corpus(pairs_path, vocab_size=120, test_fraction=0.0)


def test_rows_are_the_concatenated_pairs_with_one_end_token(corpus: TranslationCorpus) -> None:
    example = corpus.build_example(corpus.train[:3])
    for side, name in enumerate(("source", "target")):
        parts = [corpus.tokenizer.decode(pair[side]) for pair in corpus.train[:3]]
        ids = example[name]
        assert corpus.tokenizer.encode(" ".join(parts)) == ids.tolist()
        assert ids[-1] == corpus.eos_token_id
        assert (ids == corpus.eos_token_id).sum() == 1


def test_batches_are_limited_and_repeatable(corpus: TranslationCorpus) -> None:
    batches = [
        list(islice(corpus.iter_batches(max_pairs=3, batch_tokens=200, seed=seed), 20))
        for seed in (0, 0, 1)
    ]
    for batch in batches[0]:
        longest = max(len(example[side]) for example in batch for side in ("source", "target"))
        assert len(batch) == 1 or len(batch) * longest <= 200
    first, repeated, other = ([example["source"].tolist() for example in b[0]] for b in batches)
    assert first == repeated != other


def test_each_number_of_pairs_has_the_same_share_of_the_tokens(corpus: TranslationCorpus) -> None:
    pair = (np.zeros(9, np.int64), np.zeros(9, np.int64))
    uniform = replace(corpus, train=[pair])  # a row of n pairs has 9n tokens and the end token
    batches = uniform.iter_batches(max_pairs=3, batch_tokens=280, seed=0)
    num_pairs = dict.fromkeys((1, 2, 3), 0)
    num_rows = 0
    while num_rows < POOL_SIZE:
        batch = next(batches)
        num_rows += len(batch)
        for example in batch:
            number = len(example["source"]) // 9
            num_pairs[number] += number
    total = sum(num_pairs.values())
    assert all(abs(count / total - 1 / 3) < 0.02 for count in num_pairs.values())


def test_cut_batches_keep_every_example() -> None:
    lengths = [3, 50, 7, 7, 1, 20]
    examples: list[Example] = [{"source": np.zeros(n), "target": np.zeros(n)} for n in lengths]
    batches = cut_batches(examples, 21)
    sizes = [[len(example["source"]) for example in batch] for batch in batches]
    assert sizes == [[1, 3, 7], [7], [20], [50]]


def test_test_rows_have_the_lengths_of_their_range(corpus: TranslationCorpus) -> None:
    buckets = draw_test_rows(corpus.test, max_pairs=3, edges=[8, 20], rows=5)
    assert [len(rows) for rows in buckets.values()] == [5, 5]
    assert all(count_words(row.source) <= 8 for row in buckets[8])
    assert all(8 < count_words(row.source) <= 20 for row in buckets[20])
    assert buckets == draw_test_rows(corpus.test, max_pairs=3, edges=[8, 20], rows=5)


def test_a_range_with_few_different_rows_is_left_out(corpus: TranslationCorpus) -> None:
    long_pair = SentencePair("un deux trois quatre cinq six sept huit neuf", "one to nine")
    pairs = [*corpus.test, long_pair]
    buckets = draw_test_rows(pairs, max_pairs=1, edges=[8, 20], rows=5)
    assert [*buckets] == [8]
