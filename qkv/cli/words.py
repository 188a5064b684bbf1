"""Commands for word vectors: train, near, analogy, eval, convert."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkv.cli.console import print_error, print_rich, show_progress_bar
from qkv.cli.flags import BoolFlag, JsonFlag, OutputPath, StrictInt, TextArgument
from qkv.cli.output import format_score, print_json_lines, print_table
from qkv.formatting import format_duration

if TYPE_CHECKING:
    from qkv.words import WordVectors
    from qkv.words.evaluate import AnalogyResult

DEFAULT_VECTORS = "vectors.bin"
TRAINING_SUFFIX = ".training"  # of the folder of an unfinished training
SYNTACTIC_PREFIX = "gram"  # of the syntactic sections of questions-words


def train(
    *files: TextArgument,
    out: OutputPath = Path(DEFAULT_VECTORS),
    algorithm: Literal["skip-gram", "cbow"] = "skip-gram",
    vector_size: StrictInt = 100,
    window: StrictInt = 5,
    negative: StrictInt = 5,
    sample: float = 1e-3,
    min_count: StrictInt = 5,
    epochs: StrictInt = 5,
    lr: float = 0.025,
    min_lr_ratio: float = 0.004,
    seed: StrictInt = 0,
    split: Literal["words", "whitespace"] = "words",
    lowercase: BoolFlag = False,
    num_threads: StrictInt | None = None,
    format: str | None = None,
) -> None:
    """Train word vectors on texts: skip-gram or CBOW with negative sampling (word2vec).

    qkv words train corpus.txt --lowercase --out vectors.bin

    A training that was stopped or killed continues when the same command runs again.

    Parameters
    ----------
    files
        text files, or tables with a text column (.jsonl .csv .tsv ...); a line or row is a sentence
    out
        new vector file: .bin is word2vec's binary format, else its text format; .gz compresses
    algorithm
        skip-gram or cbow
    vector_size
        number of dimensions
    window
        largest distance of context words; for each word, a distance up to it is drawn
    negative
        number of noise words of a pair of words
    sample
        threshold of subsampling: words with a larger share of the corpus are left out at random
    min_count
        words that occur less often have no vector
    epochs
        number of passes over the texts
    lr
        learning rate at the start; it decays linearly
    min_lr_ratio
        learning rate at the end, as a fraction of the first
    seed
        seed of the random numbers; with --num-threads 1, the vectors are reproducible
    split
        words: runs of letters and digits are words; whitespace: the texts are tokenized already
    lowercase
        lowercase the texts
    num_threads
        number of threads; default: the number of cores
    format
        file format, if the file names do not show it: txt, jsonl, csv ...
    """
    from rich.table import Table

    import qkv.words
    from qkv.words.checkpoint import remove_folder
    from qkv.words.encode import open_words_corpus
    from qkv.words.write import write_vectors

    config = qkv.words.WordsConfig(
        algorithm=algorithm, vector_size=vector_size, window=window, negative=negative,
        sample=sample, min_count=min_count, epochs=epochs, lr=lr, min_lr_ratio=min_lr_ratio,
        seed=seed, split=split, lowercase=lowercase,
    )  # fmt: skip
    if not files:
        raise ValueError("no file; expected texts to train on, such as corpus.txt")
    check_new_file(out)
    training_folder = out.with_name(out.name + TRAINING_SUFFIX)
    is_continued = training_folder.exists()
    start_time = time.perf_counter()
    with show_progress_bar("reading") as progress, report_stop(training_folder):
        vectors = qkv.words.train(
            open_words_corpus(files, format),
            config=config,
            num_threads=num_threads,
            checkpoint=training_folder,
            progress=progress,
        )
        write_vectors(out, vectors.words, vectors.vectors, exist_ok=False)
        remove_folder(training_folder)
    seconds = time.perf_counter() - start_time
    table = Table.grid(padding=(0, 2))
    continued = " (continued)" if is_continued else ""
    table.add_row(
        "trained", f"{algorithm}, {epochs} epochs in {format_duration(seconds)}{continued}"
    )
    table.add_row("vectors", f"{len(vectors):,} words, {vector_size} dimensions")
    table.add_row("wrote", str(out))
    print_rich(table)


def check_new_file(path: Path, format: str | None = None) -> None:
    """Raise ValueError unless a vector file can be written there, before the work begins."""
    from qkv.words.write import choose_vector_format

    if path.exists():
        raise ValueError(f"{path}: already exists; choose another --out, or move it away")
    choose_vector_format(path, format)


@contextmanager
def report_stop(training_folder: Path) -> Iterator[None]:
    """After Ctrl-C, say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        if training_folder.exists():
            print_error(f"stopped; the same command continues from {training_folder}")
        raise


def near(
    *words: TextArgument,
    vectors: str = DEFAULT_VECTORS,
    topn: StrictInt = 10,
    limit: StrictInt | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the words whose vectors are nearest to a word, by cosine similarity.

    qkv words near rabbit --vectors vectors.bin

    Parameters
    ----------
    words
        a word; the mean of several words is one query
    vectors
        vector file: word2vec text or binary, or GloVe
    topn
        number of words to show
    limit
        read only this many words of the file
    as_json
        print JSON
    """
    if not words:
        raise ValueError("no word; expected one, such as: qkv words near rabbit")
    print_words(open_vectors(vectors, limit).most_similar(words, topn=topn), as_json)


def analogy(
    a: TextArgument,
    b: TextArgument,
    c: TextArgument,
    /,
    *,
    vectors: str = DEFAULT_VECTORS,
    topn: StrictInt = 10,
    limit: StrictInt | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the words nearest to A - B + C: king - man + woman is near queen (3CosAdd).

    qkv words analogy king man woman --vectors vectors.bin

    Parameters
    ----------
    a
        word
    b
        word that is subtracted
    c
        word that is added
    vectors
        vector file: word2vec text or binary, or GloVe
    topn
        number of words to show
    limit
        read only this many words of the file
    as_json
        print JSON
    """
    print_words(open_vectors(vectors, limit).analogy(a, b, c, topn=topn), as_json)


def evaluate_words(
    *files: TextArgument,
    vectors: str = DEFAULT_VECTORS,
    limit: StrictInt | None = None,
    restrict_vocab: StrictInt = 300_000,
    as_json: JsonFlag = False,
) -> None:
    """Evaluate vectors on test files: WordSim-353, SimLex-999 (Spearman), analogies (accuracy).

    qkv words eval wordsim353.tsv SimLex-999.txt questions-words.txt --vectors vectors.bin

    Pairs and questions with a word that has no vector are left out, and counted.

    Parameters
    ----------
    files
        test files: lines of two words and a score, or of four words below titles such as
        ": family"; .xz and .gz are decompressed
    vectors
        vector file: word2vec text or binary, or GloVe
    limit
        read only this many words of the file of vectors
    restrict_vocab
        the answers of analogies are searched among this many words
    as_json
        print JSON, one object per result
    """
    from qkv.words.evaluate import (
        evaluate_analogies,
        evaluate_similarity,
        is_analogy_file,
        read_analogy_file,
        read_similarity_file,
    )

    if not files:
        raise ValueError("no test file; expected some, such as wordsim353.tsv questions-words.txt")
    rows: list[dict[str, Any]] = []
    tests = [
        (path, read_analogy_file(path) if is_analogy_file(path) else read_similarity_file(path))
        for path in map(Path, files)
    ]
    word_vectors = open_vectors(vectors, limit)
    for path, test in tests:
        if isinstance(test, dict):
            results = evaluate_analogies(word_vectors, test, restrict_vocab)
            rows += [make_analogy_row(path.name, [result], result.section) for result in results]
            syntactic = [x for x in results if x.section.startswith(SYNTACTIC_PREFIX)]
            semantic = [x for x in results if not x.section.startswith(SYNTACTIC_PREFIX)]
            if syntactic and semantic:
                rows.append(make_analogy_row(path.name, semantic, "all semantic"))
                rows.append(make_analogy_row(path.name, syntactic, "all syntactic"))
            if len(results) > 1:
                rows.append(make_analogy_row(path.name, results, "all"))
        else:
            similarity = evaluate_similarity(word_vectors, test)
            rows.append(
                dict(
                    file=path.name, section="similarity", metric="spearman",
                    score=similarity.spearman, used=similarity.num_pairs, all=similarity.num_all,
                )
            )  # fmt: skip
    if as_json:
        return print_json_lines(rows)
    print_table(
        "test section metric score used out-of-vocabulary",
        [
            (
                row["file"],
                row["section"],
                row["metric"],
                format_score(row["score"]),
                row["used"],
                row["all"] - row["used"],
            )
            for row in rows
        ],
    )


def make_analogy_row(file: str, results: Sequence[AnalogyResult], section: str) -> dict[str, Any]:
    """Return the sum of sections as a row of the table."""
    num_questions = sum(result.num_questions for result in results)
    num_unknown = sum(result.num_unknown for result in results)
    num_correct = sum(result.num_correct for result in results)
    return dict(
        file=file, section=section, metric="accuracy", score=num_correct / max(num_questions, 1),
        used=num_questions, all=num_questions + num_unknown,
    )  # fmt: skip


def convert(
    source: str,
    target: OutputPath,
    /,
    *,
    format: Literal["word2vec", "word2vec-binary", "glove"] | None = None,
    limit: StrictInt | None = None,
) -> None:
    """Read a vector file, and write it in another format.

    qkv words convert glove.6B.100d.txt glove.bin

    Parameters
    ----------
    source
        vector file: word2vec text or binary, or GloVe
    target
        new file: .bin is word2vec's binary format, else its text format; .gz compresses
    format
        format of the new file, if its name does not show it
    limit
        read only this many words
    """
    from qkv.words.write import write_vectors

    check_new_file(target, format)
    vectors = open_vectors(source, limit)
    write_vectors(target, vectors.words, vectors.vectors, format=format, exist_ok=False)
    print(f"wrote {target}: {len(vectors):,} words, {vectors.vector_size} dimensions")


def open_vectors(path: str, limit: int | None) -> WordVectors:
    """Read a vector file; if the default file is missing, say how to make it."""
    import qkv.words

    if path == DEFAULT_VECTORS and not Path(path).exists():
        raise ValueError(
            f"{path}: not found; train vectors with `qkv words train corpus.txt`, or set --vectors"
        )
    return qkv.words.load(path, limit=limit)


def print_words(words: Sequence[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        return print_json_lines({"word": word, "score": score} for word, score in words)
    print_table("word score", [(word, format_score(score)) for word, score in words])
