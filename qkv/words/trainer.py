"""Training of word vectors: threads take blocks of the corpus and update the same tables without locks
(Hogwild, Niu et al. 2011, arXiv:1106.5730).

The random numbers of a block depend only on the seed and its number. With one thread, the same corpus
and settings give the same vectors, also after a training was stopped and continued."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack, cast

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.read.corpus import Corpus
from qkv.formatting import format_count, format_duration
from qkv.hints import describe_unknown_name
from qkv.validate import check_number
from qkv.words.checkpoint import (
    lock_training_folder,
    prepare_folder,
    read_checkpoint_file,
    read_corpus,
    write_checkpoint_file,
)
from qkv.words.config import WordsConfig, WordsSettings
from qkv.words.encode import Progress, WordsCorpus, encode_corpus, open_words_corpus
from qkv.words.sampling import BlockSampler
from qkv.words.update import UPDATES, VectorTables, create_tables
from qkv.words.vectors import WordVectors
from qkv.words.vocabulary import WordVocabulary

BLOCK_SIZE = 2**16  # ids
SAVE_SECONDS = 60.0  # between checkpoints
MAX_SAVE_SHARE = 0.05  # of the time
REPORT_SECONDS = 0.2
MAX_THREADS = 256


@dataclass
class WordTrainer:
    """A training in progress: its tables, and the blocks that are done. An epoch is a pass over the
    blocks of the corpus, and blocks are numbered over all epochs."""

    config: WordsConfig
    vocabulary: WordVocabulary
    ids: NDArray[np.int32]
    tables: VectorTables
    next_block: int = 0
    num_words: int = 0  # of the corpus, with those that are not in the vocabulary
    num_threads: int = 1
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.sampler = BlockSampler.create(self.vocabulary, self.config)
        self.update = UPDATES[self.config.algorithm]
        self.blocks_per_epoch = -(-len(self.ids) // BLOCK_SIZE)
        self.num_blocks = self.blocks_per_epoch * self.config.epochs

    def compute_lr(self, done: float) -> float:
        """Return the learning rate after this fraction of the training: linear decay."""
        ratio = self.config.min_lr_ratio
        return self.config.lr * (1 - (1 - ratio) * min(done, 1.0))

    @torch.no_grad()
    def train_block(self, number: int) -> None:
        """Train one block."""
        start = number % self.blocks_per_epoch * BLOCK_SIZE
        ids = torch.from_numpy(self.ids[start : start + BLOCK_SIZE].astype(np.int64))
        seed = np.random.SeedSequence([self.config.seed, number]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed[0] >> np.uint64(1)))
        samples = self.sampler.draw(ids, generator)
        for step in range(len(samples)):
            self.update(
                self.tables,
                samples.inputs[step],
                samples.contexts[step],
                samples.noise[step],
                negative=self.config.negative,
                lr=self.compute_lr((number + step / len(samples)) / self.num_blocks),
            )

    def take_blocks(self) -> Iterator[int]:
        """Yield the numbers of blocks that no other thread has taken, until the trainer stops."""
        while True:
            with self._lock:
                if self._stop.is_set() or self.next_block >= self.num_blocks:
                    return
                number = self.next_block
                self.next_block += 1
            yield number

    def run(self, seconds: float, report: Progress) -> None:
        """Train for some seconds, or until all blocks are done. Every block that was taken is trained
        when this returns, also if it is interrupted."""

        def train_blocks() -> None:
            torch.set_num_threads(1)  # of each operation
            try:
                for number in self.take_blocks():
                    self.train_block(number)
            except BaseException:
                self._stop.set()
                raise

        self._stop.clear()
        end = time.monotonic() + seconds
        start = time.monotonic(), self.next_block
        with ThreadPoolExecutor(self.num_threads) as pool:
            try:
                futures = [pool.submit(train_blocks) for _ in range(self.num_threads)]
                while wait(futures, REPORT_SECONDS).not_done and time.monotonic() < end:
                    report(*self.describe_progress(*start))
            finally:
                self._stop.set()
        for future in futures:
            future.result()

    def describe_progress(self, start_time: float, start_block: int) -> tuple[str, int, int]:
        """Return a line, the number of blocks done and that of all blocks."""
        seconds = max(time.monotonic() - start_time, 1e-9)
        done = self.next_block
        speed = (done - start_block) / seconds  # blocks per second
        epoch = min(done // self.blocks_per_epoch + 1, self.config.epochs)
        words_per_second = format_count(speed * self.num_words / self.blocks_per_epoch)
        remaining = format_duration((self.num_blocks - done) / speed) if speed else "?"
        line = (
            f"epoch {epoch}/{self.config.epochs}, {done / self.num_blocks:.0%}, {words_per_second} "
            f"words/s, lr {self.compute_lr(done / self.num_blocks):.4f}, {remaining} left"
        )
        return line, done, self.num_blocks


@contextmanager
def keep_num_threads() -> Iterator[None]:
    """Restore the number of threads of torch's operations after the block."""
    num_threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return min(len(os.sched_getaffinity(0)), MAX_THREADS)


def train(
    corpus: WordsCorpus,
    *,
    config: WordsConfig | None = None,
    num_threads: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress = lambda text, done, total: None,
    **settings: Unpack[WordsSettings],
) -> WordVectors:
    """Train word vectors with skip-gram or CBOW and negative sampling (word2vec).

    `corpus` is a path, a Corpus, or an iterable of texts or of lists of words; a text or list is a
    sentence, beyond which no context reaches. `settings` are fields of WordsConfig, such as
    `vector_size=100, window=5, min_count=5, epochs=5`. `num_threads` defaults to the number of
    cores; with 1, the vectors are reproducible. `checkpoint` is a folder that keeps the encoded
    corpus and, once a minute and at the end, the state: a call with the same arguments continues from
    there, and the caller removes the folder when the vectors are saved. It needs a corpus in files."""
    if config is None:
        config = build_config(cast(Mapping[str, Any], settings))
    elif settings:
        raise ValueError(f"config and {', '.join(settings)}, expected only one of them")
    num_threads = count_cores() if num_threads is None else num_threads
    check_number("num_threads", num_threads, integer=True, at_least=1, at_most=MAX_THREADS)
    if isinstance(corpus, str | Path):
        corpus = open_words_corpus([corpus])
    if checkpoint is not None and not isinstance(corpus, Corpus):
        raise ValueError(
            f"checkpoint {os.fspath(checkpoint)!r}: expected a corpus in files, which can be read "
            "again; write the texts to a file, or leave checkpoint out"
        )
    fingerprint = corpus.fingerprint() if isinstance(corpus, Corpus) else ""
    with TemporaryDirectory(prefix="qkv-") as temporary, keep_num_threads():
        folder = Path(temporary, "training") if checkpoint is None else Path(checkpoint)
        prepare_folder(
            folder,
            config,
            fingerprint,
            lambda ids_path: encode_corpus(corpus, config, ids_path, progress),
        )
        with lock_training_folder(folder):
            return train_in_folder(
                folder, config, num_threads, progress, is_saved=checkpoint is not None
            )


def build_config(settings: Mapping[str, Any]) -> WordsConfig:
    """Return the settings; an unknown one is an error with the closest known name."""
    known_names = [item.name for item in fields(WordsConfig)]
    for name in settings:
        if name not in known_names:
            raise ValueError(describe_unknown_name(name, [*known_names, "num_threads"]))
    return WordsConfig(**settings)


def train_in_folder(
    folder: Path, config: WordsConfig, num_threads: int, progress: Progress, *, is_saved: bool
) -> WordVectors:
    """Train on the encoded corpus of a folder, from its checkpoint if it has one."""
    vocabulary, ids, num_words = read_corpus(folder)
    shape = len(vocabulary), config.vector_size
    tables, next_block = read_checkpoint_file(folder, shape) or (
        create_tables(*shape, config.seed),
        0,
    )
    trainer = WordTrainer(
        config=config,
        vocabulary=vocabulary,
        ids=ids,
        tables=tables,
        next_block=next_block,
        num_words=num_words,
        num_threads=num_threads,
    )
    interval = SAVE_SECONDS
    interruption: KeyboardInterrupt | None = None
    while trainer.next_block < trainer.num_blocks and interruption is None:
        try:
            trainer.run(interval, progress)
        except KeyboardInterrupt as error:
            interruption = error
        if is_saved and trainer.next_block < trainer.num_blocks:
            start_time = time.monotonic()
            write_checkpoint_file(folder, trainer.tables, trainer.next_block)
            save_seconds = time.monotonic() - start_time
            interval = max(SAVE_SECONDS, save_seconds / MAX_SAVE_SHARE)
    if interruption is not None:
        raise interruption
    if not trainer.tables.inputs.isfinite().all():
        raise ValueError(
            f"the training diverged: a vector is NaN or infinite; lower lr, which is {config.lr:g}"
        )
    if is_saved and next_block < trainer.num_blocks:
        with suppress(OSError):  # the vectors need less space, and may still be written
            write_checkpoint_file(folder, trainer.tables, trainer.num_blocks)
    return WordVectors(vocabulary.words, trainer.tables.inputs)
