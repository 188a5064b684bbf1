"""Compare the training of word vectors with gensim's: words per second, and scores on test files.

    python tools/wiki_text.py enwik8 wiki.txt
    python bench/words.py wiki.txt --tests wordsim353.tsv simlex999.txt questions-words.txt \\
        [--algorithm skip-gram cbow] [--epochs 5] [--threads 2] [--seeds 3] [--gensim-python PATH]

Both sides read the same file of lowercase words, with the same settings (vector_size 100, window 5,
negative 5, sample 1e-3, min_count 5, lr 0.025), and run in turn, each in a process of its own. Words per
second are those of the corpus, per second of training, without the reading of the vocabulary; the
column "all" includes it. Words per second of CPU time depend less on what else the machine runs.
`--gensim-python` is the Python of an environment that has gensim; without gensim, its rows are left
out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

GENSIM_CODE = """
import json, sys, time
from gensim import __version__
from gensim.models import Word2Vec
from gensim.models.word2vec import LineSentence
corpus, out, algorithm, epochs, threads, seed = sys.argv[1:]
begin = time.perf_counter(), time.process_time()
model = Word2Vec(
    vector_size=100, window=5, negative=5, sample=1e-3, min_count=5, alpha=0.025, min_alpha=0.0001,
    sg=int(algorithm == "skip-gram"), workers=int(threads), seed=int(seed), epochs=int(epochs),
)
sentences = LineSentence(corpus)
model.build_vocab(corpus_iterable=sentences)
start = time.perf_counter(), time.process_time()
model.train(
    corpus_iterable=sentences, total_examples=model.corpus_count, total_words=model.corpus_total_words,
    epochs=int(epochs),
)
end = time.perf_counter(), time.process_time()
model.wv.save_word2vec_format(out, binary=True)
print(json.dumps(dict(
    version=__version__, all_seconds=end[0] - begin[0], seconds=end[0] - start[0],
    cpu_seconds=end[1] - start[1],
)))
"""


def write_words(source: Path, target: Path) -> int:
    """Write the lowercase words of a text, one line each as in the text; return their number."""
    from qkv.words.encode import split_words

    num_words = 0
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as out:
        for line in lines:
            if words := split_words(line, lowercase=True):
                out.write(" ".join(words) + "\n")
                num_words += len(words)
    return num_words


def train_with_qkv(
    corpus: str, out: str, algorithm: str, epochs: str, threads: str, seed: str
) -> None:
    """Train in this process, and print the times as JSON."""
    import qkv
    from qkv.words.checkpoint import prepare_folder
    from qkv.words.encode import encode_corpus
    from qkv.words.trainer import train_in_folder

    config = qkv.words.WordsConfig(
        algorithm=algorithm, epochs=int(epochs), seed=int(seed), split="whitespace"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "training")
        begin = time.perf_counter()
        prepare_folder(folder, config, "", lambda path: encode_corpus(corpus, config, path))
        start = time.perf_counter(), time.process_time()
        vectors = train_in_folder(folder, config, int(threads), lambda *_: None, is_saved=False)
        end = time.perf_counter(), time.process_time()
    vectors.save(out)
    times = dict(
        version=qkv.__version__,
        all_seconds=end[0] - begin,
        seconds=end[0] - start[0],
        cpu_seconds=end[1] - start[1],
    )
    print(json.dumps(times))


def score(vectors_path: str, tests: list[Path]) -> dict[str, float]:
    """Return the Spearman correlation or the accuracy on each test file."""
    import qkv
    from qkv.words import evaluate

    vectors = qkv.words.load(vectors_path)
    scores = {}
    for path in tests:
        if evaluate.is_analogy_file(path):
            results = evaluate.evaluate_analogies(vectors, evaluate.read_analogy_file(path))
            num_correct = sum(result.num_correct for result in results)
            scores[path.name] = num_correct / sum(result.num_questions for result in results)
        else:
            pairs = evaluate.read_similarity_file(path)
            scores[path.name] = evaluate.evaluate_similarity(vectors, pairs).spearman
    return scores


def find_cpu_name() -> str:
    """Return the name of the CPU, as Linux has it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def has_gensim(python: str) -> bool:
    return subprocess.run([python, "-c", "import gensim"], capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--tests", type=Path, nargs="*", default=[])
    parser.add_argument("--algorithm", nargs="+", default=["skip-gram", "cbow"])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gensim-python", default=sys.executable)
    arguments = parser.parse_args()
    commands = {"qkv": [sys.executable, __file__, "--child"]}
    if has_gensim(arguments.gensim_python):
        commands["gensim"] = [arguments.gensim_python, "-c", GENSIM_CODE]
    else:
        print(f"gensim is not installed in {arguments.gensim_python}: its rows are left out")
    print(f"{find_cpu_name()}; {arguments.threads} threads, {arguments.epochs} epochs")
    test_names = "  ".join(f"{path.name[:14]:>14}" for path in arguments.tests)
    print(f"{'':8}{'':10}  seed  words/s      all  words/CPU-s  load  {test_names}")
    rows: dict[tuple[str, str], list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        corpus = str(Path(temporary, "words.txt"))
        num_words = write_words(arguments.corpus, Path(corpus)) * arguments.epochs
        for seed in range(1, arguments.seeds + 1):
            for algorithm in arguments.algorithm:
                for side, command in commands.items():
                    out = str(Path(temporary, "vectors.bin"))
                    settings = [algorithm, arguments.epochs, arguments.threads, seed]
                    result = subprocess.run(
                        [*command, corpus, out, *map(str, settings)],
                        check=True,
                        capture_output=True,
                        text=True,
                        env={**os.environ, "OMP_NUM_THREADS": "1"},
                    )
                    times = json.loads(result.stdout.splitlines()[-1])
                    scores = score(out, arguments.tests)
                    names = ("seconds", "all_seconds", "cpu_seconds")
                    speeds = [num_words / times[name] for name in names]
                    rows.setdefault((side, algorithm), []).append([*speeds, *scores.values()])
                    print_row(side, algorithm, str(seed), [*speeds, *scores.values()])
    for (side, algorithm), values in rows.items():
        means = [statistics.mean(column) for column in zip(*values, strict=True)]
        print_row(side, algorithm, "mean", means)


def print_row(side: str, algorithm: str, seed: str, values: list[float]) -> None:
    speed, all_speed, cpu_speed, *scores = values
    print(
        f"{side:8}{algorithm:10}  {seed:>4}  {speed:7,.0f}  {all_speed:7,.0f}  {cpu_speed:11,.0f}  "
        f"{os.getloadavg()[0]:4.1f}  " + "  ".join(f"{score:14.4f}" for score in scores),
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        train_with_qkv(*sys.argv[2:])
    else:
        main()
