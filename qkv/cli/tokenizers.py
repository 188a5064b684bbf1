"""Tokenizer commands: train a tokenizer, show how a tokenizer splits a text. Do not import torch."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from qkv.cli.console import make_console, print_rich, show_progress_bar
from qkv.cli.flags import (
    BoolFlag,
    JsonFlag,
    OutputPath,
    StrictInt,
    StringList,
    TextArgument,
    drop_none,
)
from qkv.formatting import format_count
from qkv.pictures.drawing.token_text import CONTROL_PICTURES
from qkv.staging import check_new_folder, write_folder
from qkv.validate import check_text_length

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from qkv.data.read.corpus import Corpus
    from qkv.text import Encoding, Tokenizer

MAX_SAMPLE_TEXTS = 1000  # number of texts for measuring the characters per token
MAX_SAMPLE_CHARACTERS = 10_000  # maximum number of characters of each of these texts
# Background colors on which white text is legible.
TOKEN_COLORS = ("#264653", "#7b2d26", "#3d5a1f", "#5a3d7a", "#1f5a5a", "#7a5a1f")


def train(
    *files: TextArgument,
    out: OutputPath,
    type: Literal[
        "char", "word", "wordpiece", "bpe", "byte", "unigram", "patches", "pixels"
    ] = "byte",
    vocab_size: StrictInt | None = None,
    template: str | None = None,
    lowercase: BoolFlag = False,
    num_sentinels: StrictInt = 0,
    extra_tokens: StringList = (),
    format: str | None = None,
    column: StringList = (),
    image_size: StrictInt | None = None,
    patch_size: StrictInt | None = None,
) -> None:
    """Train a tokenizer on texts, in Hugging Face format, or an image tokenizer on images.

    qkv tokenizer train corpus.txt more.txt.xz --type bpe --vocab-size 8000 --out tok

    Parameters
    ----------
    files
        text files, or tables with a text column (.jsonl .csv .tsv ...); - for standard input; a
        folder of images with captions, or an idx file, for an image tokenizer
    out
        new folder
    type
        tokenization algorithm; byte is byte-level BPE; patches (k-means) and pixels (gray levels)
        are image tokenizers
    vocab_size
        vocabulary size, with special tokens, or number of codes; default: 8000, or 512 of patches
    template
        special tokens; default: gpt; bert, roberta, gpt, llama, seq2seq, bos-eos, t5, xlnet or plain
    lowercase
        lowercase the texts
    num_sentinels
        number of T5 sentinel tokens
    extra_tokens
        language or control codes, each a token that can precede a text
    format
        file format, if the file names do not show it: txt, jsonl, csv ...
    column
        columns of the texts in a file with columns; default: text, and source and target of pairs
    image_size
        pixels per side of an image, for an image tokenizer; default: 32
    patch_size
        pixels per side of a patch, for the type patches; default: 2
    """
    from rich.table import Table

    from qkv.data.read.corpus import Corpus
    from qkv.text import Tokenizer

    unknown_options = [name for name in files if name.startswith("-") and name != "-"]
    if unknown_options or not files:
        problem = f"unknown option {unknown_options[0]}" if unknown_options else "no file"
        raise ValueError(
            f"{problem}; expected training files or - for standard input, and options of --help"
        )
    if type in ("patches", "pixels"):
        for flag, value in (
            ("--template", template), ("--lowercase", lowercase), ("--extra-tokens", extra_tokens),
            ("--num-sentinels", num_sentinels), ("--column", column),
        ):  # fmt: skip
            if value:
                raise ValueError(f"{flag} is for tokenizers of texts, not for {type}: remove it")
        sizes = {"image_size": image_size, "patch_size": patch_size, "vocab_size": vocab_size}
        return train_on_images(files, out, type, format, drop_none(**sizes))
    for flag, size in (("--image-size", image_size), ("--patch-size", patch_size)):
        if size is not None:
            raise ValueError(f"{flag} is for image tokenizers; expected --type patches or pixels")
    vocab_size = 8000 if vocab_size is None else vocab_size
    if vocab_size < 1 or num_sentinels < 0:
        raise ValueError(
            f"--vocab-size {vocab_size} --num-sentinels {num_sentinels}:"
            " expected at least 1 and at least 0"
        )
    check_new_folder(out)
    corpus = Corpus(files, format=format or ("txt" if "-" in files else None))
    sample = TextSample()
    start_time = time.perf_counter()
    with show_reading_progress(corpus) as advance:
        tokenizer = Tokenizer.train(
            sample.collect(read_corpus_texts(corpus, column), advance),
            type=type,
            vocab_size=vocab_size,
            template=template or "gpt",
            lowercase=lowercase,
            num_sentinels=num_sentinels,
            extra_tokens=extra_tokens,
        )
    seconds = time.perf_counter() - start_time
    with write_folder(out) as staged:
        tokenizer.save(staged)
    num_tokens = sum(map(len, tokenizer.encode_ids(sample.samples, add_special_tokens=False)))
    characters_per_token = sum(map(len, sample.samples)) / max(num_tokens, 1)
    table = Table.grid(padding=(0, 2))
    table.add_row(
        "read", f"{sample.num_texts:,} texts, {format_count(sample.num_characters)} characters"
    )
    table.add_row("trained", f"{len(tokenizer):,} tokens ({type}) in {seconds:.1f} s")
    table.add_row(
        "ratio",
        f"{characters_per_token:.2f} characters per token,"
        f" measured on {len(sample.samples):,} texts",
    )
    table.add_row("wrote", str(out))
    print_rich(table)


def train_on_images(
    files: Sequence[str], out: Path, type: str, format: str | None, sizes: dict[str, int]
) -> None:
    """Train an image tokenizer on the images of files, and print its error on them."""
    import numpy as np
    from rich.table import Table

    from qkv.data.encode import text_to_image
    from qkv.data.read.corpus import Corpus

    check_new_folder(out)
    corpus = Corpus(files, format=format)
    start_time = time.perf_counter()
    with show_progress_bar("reading images"):
        tokenizer = text_to_image.train_image_tokenizer(corpus, type=type, **sizes)
        images = text_to_image.read_images(
            corpus, tokenizer.image_size, tokenizer.num_channels, MAX_SAMPLE_TEXTS
        )
    seconds = time.perf_counter() - start_time
    with write_folder(out) as staged:
        tokenizer.save(staged)
    decoded = tokenizer.decode(tokenizer.encode(images))
    error = float(np.square(decoded.astype(np.float32) - images).mean())
    size = tokenizer.image_size
    table = Table.grid(padding=(0, 2))
    table.add_row("trained", f"{len(tokenizer):,} codes ({type}) in {seconds:.1f} s")
    table.add_row("image", f"{size} × {size} pixels, {tokenizer.num_codes:,} codes")
    table.add_row(
        "error", f"{error**0.5:.1f} of 255 levels (RMS), measured on {len(images):,} images"
    )
    table.add_row("wrote", str(out))
    print_rich(table)


def read_corpus_texts(corpus: Corpus, columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield every text of a corpus with a newline, so that newline is in the alphabet."""
    from qkv.data.read.record import TEXT_COLUMNS, quote_names

    for record in corpus:
        texts = [*map(record.get_text, columns)] if columns else [*record.iter_texts()]
        if not texts:
            raise ValueError(
                f"{record.location}: no text column in {quote_names(record)};"
                f" expected one of {quote_names(TEXT_COLUMNS)}; set --column"
            )
        yield from (f"{text}\n" for text in texts)


class TextSample:
    """Counts of a stream of texts, and a uniform sample (reservoir sampling, fixed seed)."""

    def __init__(self) -> None:
        self.num_texts = 0
        self.num_characters = 0
        self.samples: list[str] = []
        self._random = random.Random(0)

    def collect(self, texts: Iterable[str], advance: Callable[[int], None]) -> Iterator[str]:
        """Yield the texts unchanged; count and sample them."""
        for text in texts:
            advance(len(text))
            self.num_texts += 1
            self.num_characters += len(text)
            if len(self.samples) < MAX_SAMPLE_TEXTS:
                self.samples.append(text[:MAX_SAMPLE_CHARACTERS])
            elif (index := self._random.randrange(self.num_texts)) < MAX_SAMPLE_TEXTS:
                self.samples[index] = text[:MAX_SAMPLE_CHARACTERS]
            yield text


@contextmanager
def show_reading_progress(corpus: Corpus) -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with the number of characters read.

    The total is known only if all files are uncompressed text files."""
    paths = corpus.list_files()
    has_total = all(path.endswith(".txt") and os.path.isfile(path) for path in paths)
    total = sum(map(os.path.getsize, paths)) if has_total else None
    with show_progress_bar("reading") as report_progress:
        num_read = 0

        def advance(num_characters: int) -> None:
            nonlocal num_read
            num_read += num_characters
            report_progress(f"read {format_count(num_read)} characters, training", num_read, total)

        yield advance


def show(
    folder: str,
    text: TextArgument,
    /,
    *,
    text_pair: str | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Show how a tokenizer splits a text: tokens, ids and character offsets.

    qkv tokenizer show tok "Run, rabbit run."

    Parameters
    ----------
    folder
        folder with tokenizer files of any format, or hub id
    text
        text; - reads it from standard input
    text_pair
        second text of a pair, such as the context of a question
    as_json
        print JSON
    """
    tokenizer = open_tokenizer(folder)
    input_text = sys.stdin.read().removesuffix("\n") if text == "-" else text
    for value in (input_text, text_pair or ""):
        check_text_length("text", value)
    text_or_pair = input_text if text_pair is None else (input_text, text_pair)
    (encoding,) = tokenizer.encode_batch([text_or_pair])
    tokens = tokenizer.convert_ids_to_tokens(encoding.input_ids)
    if as_json:
        print(json.dumps({"tokens": tokens, **vars(encoding)}, ensure_ascii=False))
        return
    table = build_token_table(tokens, encoding, (input_text, text_pair or ""))
    print_rich(color_tokens(tokens, encoding), table)


def open_tokenizer(folder: str) -> Tokenizer:
    """Load the tokenizer of a folder or hub id."""
    from qkv.model.hub import find_model_folder, find_settings_folder
    from qkv.text import Tokenizer

    path = Path(folder)
    if not path.exists():
        path = find_model_folder(folder, None)
    return Tokenizer.load(find_settings_folder(path))


def color_tokens(tokens: list[str], encoding: Encoding) -> Text:
    """Return the tokens in one line, each with a background color, or separated by bars."""
    from rich.text import Text

    screen = make_console()
    separator = "" if screen.is_terminal and not screen.no_color else "|"
    styled = [
        Text(show_control_characters(token), get_token_style(index, bool(is_special)))
        for index, (token, is_special) in enumerate(
            zip(tokens, encoding.special_tokens_mask, strict=True)
        )
    ]
    return Text(separator).join(styled)


def get_token_style(index: int, is_special: bool) -> str:
    return "dim" if is_special else f"white on {TOKEN_COLORS[index % len(TOKEN_COLORS)]}"


def build_token_table(tokens: list[str], encoding: Encoding, texts: tuple[str, str]) -> Table:
    """Build a table with one row per token: id, offsets and the text it covers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("token", "id", "start", "end", "text"):
        table.add_column(
            title, justify="left" if title in ("token", "text") else "right", no_wrap=True
        )
    rows = zip(
        tokens,
        encoding.input_ids,
        encoding.offset_mapping,
        encoding.special_tokens_mask,
        encoding.sequence_ids,
        strict=True,
    )
    for index, (token, token_id, (start, end), is_special, sequence_id) in enumerate(rows):
        label = Text(show_control_characters(token), get_token_style(index, bool(is_special)))
        if sequence_id is None:
            table.add_row(label, str(token_id), "", "", "")
        else:
            covered_text = show_control_characters(texts[sequence_id][start:end])
            table.add_row(label, str(token_id), str(start), str(end), covered_text)
    return table


def show_control_characters(text: str) -> str:
    """Return a text with visible symbols for control characters."""
    return "".join(
        letter if letter.isprintable() else "�" for letter in text.translate(CONTROL_PICTURES)
    )
