"""WordAligner: the links of sentences whose translation is known."""

import numpy as np

from qkv.experiments.word_alignment import WordAligner, train_translation_table


def build_pairs(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Source words 0 to 9 become 10 to 19 in reverse order, and 20 follows, which has no source."""
    rng = np.random.default_rng(0)
    sources = [rng.choice(10, size=rng.integers(2, 6), replace=False) for _ in range(count)]
    return [(source, np.concatenate([source[::-1] + 10, [20]])) for source in sources]


def test_words_are_aligned_across_a_change_of_order() -> None:
    aligner = WordAligner(build_pairs(300), vocab_size=21)
    for source, target in build_pairs(20):
        links = aligner.align(source, target)
        assert links.tolist() == [*reversed(range(len(source))), -1]


def test_a_repeated_word_is_linked_to_the_nearest() -> None:
    aligner = WordAligner(build_pairs(300), vocab_size=21)
    assert aligner.align(np.array([3, 1, 2, 3]), np.array([13, 11, 12, 13])).tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_a_word_that_never_occurred_has_no_link() -> None:
    aligner = WordAligner(build_pairs(300), vocab_size=30)
    assert aligner.align(np.array([1, 25]), np.array([11, 26])).tolist() == [0, -1]


def test_the_probabilities_of_a_source_word_sum_to_one() -> None:
    table = train_translation_table(build_pairs(100), 21, iterations=20)
    sums = np.bincount(table.keys // 21, table.probs)
    np.testing.assert_allclose(sums, 1)
    probs = table.lookup(np.array([4]), np.array([14, 15]))
    assert probs[0, 0] > 0.8 > 0.1 > probs[1, 0]
