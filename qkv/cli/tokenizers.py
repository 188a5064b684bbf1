"""The commands of text: train a tokenizer, and show what one makes of a text. They need no torch."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.console import console, progress, say
from qkv.cli.folders import check_new
from qkv.cli.inputs import Whole
from qkv.formatting import human

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from qkv.data.read.corpus import Corpus
    from qkv.text import Encoding, Tokenizer

SAMPLE, LONGEST = 1000, 10_000  # texts that the compression is counted on, and the characters of each
COLOURS = ("#264653", "#7b2d26", "#3d5a1f", "#5a3d7a", "#1f5a5a", "#7a5a1f")  # white is read on all of them
MARKS = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍"})


Dashed = Annotated[str, Parameter(allow_leading_hyphen=True)]  # a lone - is standard input


def train(
    *files: Dashed,
    out: Path,
    kind: Literal["char", "word", "wordpiece", "bpe", "byte", "unigram"] = "byte",
    vocab: Whole = 8000,
    purpose: str = "gpt",
    lower: Annotated[bool, Parameter(negative="")] = False,
    sentinels: Whole = 0,
    codes: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
    form: str | None = None,
    columns: dict[str, str] | None = None,
) -> None:
    """Train a tokenizer on texts, and write it as Hugging Face's files.

    qkv tokenizer train corpus.txt more.txt.xz --kind bpe --vocab 8000 --out tok

    Parameters
    ----------
    files
        texts, or tables with a column of them: .txt .jsonl .csv .tsv ..., packed or not; - is standard input
    out
        a new folder
    kind
        how words are cut
    vocab
        tokens in all, special ones too
    purpose
        the special tokens: bert, roberta, gpt, llama, seq2seq, bos-eos, t5, xlnet or plain
    lower
        in small letters
    sentinels
        so many of T5's marks
    codes
        languages or controls, each a token that may stand in front of a text
    form
        of the files, where their names do not tell: txt, jsonl, csv ...
    columns
        where a column of text has another name: --columns.text review
    """
    from rich.table import Table

    from qkv.data.read.corpus import Corpus
    from qkv.text import Tokenizer

    wrong = [name for name in files if name.startswith("-") and name != "-"]
    if wrong or not files:
        found = f"unknown option {wrong[0]}" if wrong else "no file"
        raise ValueError(
            f"{found}; expected files to learn from, - for standard input, and options of --help"
        )
    if vocab < 1 or sentinels < 0:
        raise ValueError(f"--vocab {vocab} --sentinels {sentinels}, expected numbers of tokens")
    check_new(out)
    corpus = Corpus(files, form=form or ("txt" if "-" in files else None), columns=columns)
    seen, clock = Sample(), time.perf_counter()
    with reading(corpus) as advance:
        learned = Tokenizer.train(
            seen.of(texts(corpus), advance), kind=kind, vocab=vocab, purpose=purpose, lower=lower,
            sentinels=sentinels, codes=codes,
        )  # fmt: skip
    spent = time.perf_counter() - clock
    learned.save(out)
    tokens = sum(map(len, learned.encode_ids(seen.kept, special=False)))
    table = Table.grid(padding=(0, 2))
    table.add_row("read", f"{seen.texts:,} texts, {human(seen.characters)} characters")
    table.add_row("learned", f"{len(learned):,} pieces ({kind}) in {spent:.1f} s")
    rate = sum(map(len, seen.kept)) / max(tokens, 1)
    table.add_row("packs", f"{rate:.2f} characters a token, on {len(seen.kept):,} of the texts")
    table.add_row("wrote", str(out))
    say(table)


def texts(corpus: Corpus) -> Iterator[str]:
    """Every text with a line end, so that this is a known character too."""
    from qkv.data.read.record import TEXTS, listed

    for record in corpus:
        found = [f"{text}\n" for text in record.texts()]
        if not found:
            wanted = f"expected one of {listed(TEXTS)}; --columns.text names another"
            raise ValueError(f"{record.place}: no column of text among {listed(record)}; {wanted}")
        yield from found


class Sample:
    """What goes by is counted, and some of it kept: of all texts alike, the same ones each time."""

    def __init__(self) -> None:
        self.texts = self.characters = 0
        self.kept: list[str] = []
        self._random = random.Random(0)

    def of(self, stream: Iterable[str], advance: Callable[[int], None]) -> Iterator[str]:
        for text in stream:
            advance(len(text))
            self.texts, self.characters = self.texts + 1, self.characters + len(text)
            if len(self.kept) < SAMPLE:
                self.kept.append(text[:LONGEST])
            elif (place := self._random.randrange(self.texts)) < SAMPLE:
                self.kept[place] = text[:LONGEST]
            yield text


@contextmanager
def reading(corpus: Corpus) -> Iterator[Callable[[int], None]]:
    """Told the characters that were read; there is an end to them where no file is packed."""
    paths = corpus.files()
    plain = all(path.endswith(".txt") and os.path.isfile(path) for path in paths)
    total = sum(map(os.path.getsize, paths)) if plain else None
    with progress("reading") as tell:
        read = 0

        def advance(count: int) -> None:
            nonlocal read
            read += count
            tell(f"read {human(read)} characters, learning", read, total)

        yield advance


def show(
    folder: str,
    text: Dashed,
    /,
    *,
    pair: str | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Show what a tokenizer makes of a text: its pieces, their ids, and which characters each covers.

    qkv tokenizer show tok "Run, rabbit run."

    Parameters
    ----------
    folder
        a folder with tokenizer files of any kind, or a hub id
    text
        the text; - reads it from standard input
    pair
        a second text, as of a question and its passage
    as_json
        for machines
    """
    tokenizer = opened(folder)
    whole = sys.stdin.read().removesuffix("\n") if text == "-" else text
    encoding = tokenizer.encode(whole, pair)
    pieces = [tokenizer.token(number) for number in encoding.ids]
    if as_json:
        print(json.dumps({"pieces": pieces, **vars(encoding)}, ensure_ascii=False))
    else:
        say(coloured(pieces, encoding), listed(pieces, encoding, (whole, pair or "")))


def opened(folder: str) -> Tokenizer:
    from qkv.text import Tokenizer

    if not Path(folder).exists():
        from qkv.model.hub import find

        return Tokenizer.load(find(folder, None))
    return Tokenizer.load(folder)


def coloured(pieces: list[str], encoding: Encoding) -> Text:
    """The pieces in a row, each on a colour of its own; without colours, a bar stands between them."""
    from rich.text import Text

    screen = console()
    between = "" if screen.is_terminal and not screen.no_color else "|"
    styles = [
        "dim" if special else f"white on {COLOURS[place % len(COLOURS)]}"
        for place, special in enumerate(encoding.special)
    ]
    shown = [(visible(piece), style) for piece, style in zip(pieces, styles, strict=True)]
    return Text(between).join(Text(*each) for each in shown)


def listed(pieces: list[str], encoding: Encoding, both: tuple[str, str]) -> Table:
    """A row a piece: its id, and the characters of the text that it covers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("piece", "id", "from", "to", "text"):
        table.add_column(title, justify="left" if title in ("piece", "text") else "right", no_wrap=True)
    rows = zip(pieces, encoding.ids, encoding.offsets, encoding.special, encoding.sequence, strict=True)
    for place, (piece, number, (start, end), special, owner) in enumerate(rows):
        style = "dim" if special else f"white on {COLOURS[place % len(COLOURS)]}"
        covered = "" if owner is None else visible(both[owner][start:end])
        where = ("", "") if owner is None else (str(start), str(end))
        table.add_row(Text(visible(piece), style), str(number), *where, covered)
    return table


def visible(text: str) -> str:
    """A text in which line ends and tabs are seen."""
    return "".join(letter if letter.isprintable() else "�" for letter in text.translate(MARKS))
