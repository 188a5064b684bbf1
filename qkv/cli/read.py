"""The commands of tasks that read: what a model says of texts, and of images. Torch comes with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from qkv.builtin import builtin
from qkv.cli.card import tell_card
from qkv.cli.console import progress
from qkv.cli.decoding import USUAL, Search, given
from qkv.cli.flags import in_flags
from qkv.cli.inputs import Whole, is_file, read_texts, read_whole
from qkv.cli.output import as_json, plain, score, table, told
from qkv.cli.tokenizers import Dashed
from qkv.validate import number

if TYPE_CHECKING:
    from qkv.tasks.base import Task

Flag = Annotated[bool, Parameter(negative="")]
Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class On:
    """Which model, where, and how.

    Parameters
    ----------
    model
        the folder of a model, or a hub id
    adapter
        the folder of an adapter to put on it
    device
        auto, cpu, cuda or mps
    batch
        tokens that are read at once
    long
        what becomes of a text that is longer than the model reads: refuse, cut or window
    as_json
        for machines: an object a line for each text
    """

    model: str | None
    adapter: str | None = None
    device: str = "auto"
    batch: Whole = 4096
    long: Literal["refuse", "cut", "window"] | None = None
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False

    def task(self, name: str, **settings: Any) -> Task[Any, Any]:
        from qkv.tasks.registry import task

        given = settings | ({} if self.long is None else {"long": self.long})
        with in_flags():
            number("batch", self.batch, whole=True, at_least=1)
            return task(name, self.model, adapter=self.adapter, device=self.device, **given)

    def many(self, task: Task[Any, Any], given: Sequence[Any]) -> Any:
        """The results for all; how far it is goes beside them."""
        with in_flags(), progress(task.name) as tell:
            return task.many(given, batch_tokens=self.batch, progress=tell)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Built(On):
    """The same, where a model comes with the package.

    Parameters
    ----------
    model
        the folder of a model, or a hub id; without it, the one that comes with qkv
    about
        tell what the model is: its data, licence, scores and limits
    """

    model: str | None = None
    about: Flag = False

    def tell_about(self, name: str) -> None:
        """The card of the model that the task of this name would take."""
        tell_card(builtin(name) if self.model is None else self.model, self.as_json)


BUILT = Built()


def classify(
    *texts: Dashed, on: Built = BUILT, top: Whole = 5, labels: Words = (),
    template: str | None = None, several: Flag = False,
) -> None:  # fmt: skip
    """Tell the labels of texts, or, by a model of entailment, which of your own labels fit.

    qkv classify "A fine film."

    Parameters
    ----------
    texts
        a text, a file with one a line, or - for standard input
    top
        so many labels
    labels
        labels of your own: --labels sports politics "food and drink"
    template
        the sentence that a label of your own is put into; without it: This example is {}.
    several
        each of your own labels for itself: several may fit
    """
    if on.about:
        return on.tell_about("classify")
    for flag, used in (("--several", several), ("--template", template is not None)):
        if used and not labels:
            raise ValueError(f"{flag} is for labels of your own: expected --labels too")
    read = read_texts(texts)
    task = on.task("classify", top=top, labels=labels, several=several, **given(template=template))
    found = on.many(task, read)
    if on.as_json:
        return as_json({"text": text, **plain(one)} for text, one in zip(read, found, strict=True))
    if len(read) == 1:
        return table("label score", [(one.label, score(one.score)) for one in found[0].best])
    table(
        "label score text",
        [(one.label, score(one.score), text) for text, one in zip(read, found, strict=True)],
    )


def tag(
    *texts: Dashed, on: On, join: Literal["none", "simple", "first", "average", "max"] = "first",
    stride: Whole | None = None,
) -> None:  # fmt: skip
    """Tell the entities of texts, and at which characters they stand.

    qkv tag "Clara lives in Zurich." --model dslim/bert-base-NER

    Parameters
    ----------
    texts
        a text, a file with one a line, or - for standard input
    join
        none: tokens; simple: entities; first, average, max: entities of whole words
    stride
        tokens that the windows of a long text share
    """
    given = read_texts(texts)
    found = on.many(on.task("tag", join=join, stride=stride), given)
    told(on.as_json, given, found, "entities", "label score from to entity", lambda one: (
        one.label, score(one.score), one.start, one.end, one.text,
    ))  # fmt: skip


def fill(*texts: Dashed, on: On, top: Whole = 5, targets: Words = ()) -> None:
    """Fill the masks of texts with words; of several in a text, each by itself, then all with their best.

    qkv fill "Paris is the [MASK] of France." --model bert-base-uncased

    Parameters
    ----------
    texts
        a text, a file with one a line, or - for standard input
    top
        so many words for each mask
    targets
        only these words
    """
    given = read_texts(texts)
    found = on.many(on.task("fill", top=top, targets=targets), given)
    if on.as_json:
        return as_json(
            asdict(one) | {"text": text, "filled": one.text} for text, one in zip(given, found, strict=True)
        )
    gaps = [(number, gap) for one in found for number, gap in enumerate(one.gaps, 1)]
    rows = [(number, score(word.score), word.word, word.text) for number, gap in gaps for word in gap.best]
    alone = all(len(one.gaps) == 1 for one in found)
    table("score word text" if alone else "gap score word text", [row[alone:] for row in rows])
    for one in found if not alone else ():
        print(one.text)


def answer(
    question: str, /, *, inside: Annotated[Dashed, Parameter(name="--in")], on: On,
    search: Search = USUAL, generative: bool | None = None, template: str | None = None,
    top: Whole | None = None, longest: Whole | None = None, none: Flag = False, stride: Whole | None = None,
) -> None:  # fmt: skip
    """Answer a question with a part of a text, or, by an encoder-decoder, in words about it.

    qkv answer "Who wrote it?" --in article.txt --model distilbert-base-cased-distilled-squad

    Parameters
    ----------
    question
        the question
    inside
        the file of the text, - for standard input, or the text itself
    generative
        write the answer, or find it; without it, as the model can
    template
        what is read where it is written: a text with {question} and {context}
    top
        so many answers
    longest
        tokens that an answer may have
    none
        that there is no answer may be the answer
    stride
        tokens that the windows of a long text share
    """
    text = read_whole(inside)
    settings = given(top=top, longest=longest, template=template) | search.settings
    task = on.task("answer", generative=generative, none=none, stride=stride, **settings)
    (found,) = on.many(task, [(question, text)])
    if on.as_json:
        return as_json([{"question": question, **plain(found)}])
    places = [["" if at is None else at for at in (one.start, one.end)] for one in found.best]
    shown = zip(found.best, places, strict=True)
    table(
        "score from to answer",
        [(score(one.score), *place, one.text or "(no answer)") for one, place in shown],
    )


def embed(
    *texts: Dashed, on: On, out: Path | None = None,
    pool: Literal["mean", "first", "last", "pooled"] | None = None, unit: bool | None = None,
) -> None:  # fmt: skip
    """Make a vector of each text, and write them as a numpy array.

    qkv embed sentences.txt --model sentence-transformers/all-MiniLM-L6-v2 --out vectors.npy

    Parameters
    ----------
    texts
        a text, a file with one a line, or - for standard input
    out
        the file to write, (texts, width)
    pool
        what the vector is of; without it, as the model's folder says
    unit
        of length one or not; without it, as the model's folder says
    """
    if (out is None) != on.as_json:
        raise ValueError("expected --out and a file to write, or --json")
    if out is not None and (out.exists() or out.suffix != ".npy" or not out.parent.is_dir()):
        wrong = "there is something already" if out.exists() else "expected a name that ends in .npy"
        wrong = wrong if out.parent.is_dir() else f"no folder {out.parent}, expected one that is there"
        raise ValueError(f"--out {out}: {wrong}")
    given = read_texts(texts)
    found = on.many(on.task("embed", pool=pool, unit=unit), given)
    if out is None:
        return as_json({"text": text, "vector": row.tolist()} for text, row in zip(given, found, strict=True))
    import numpy as np

    with out.open("xb") as file:
        np.save(file, found)
    print(f"wrote {out}: {found.shape[0]:,} × {found.shape[1]:,}")


def match(image: Path, labels: Path, /, *, on: On, template: str = "{}", top: Whole = 5) -> None:
    """Tell which texts fit an image.

    qkv match image.png labels.txt --model openai/clip-vit-base-patch32 --template "a photo of a {}"

    Parameters
    ----------
    image
        the file of an image
    labels
        a file with a text a line
    template
        a text that each of them is put into
    top
        so many of them
    """
    if not is_file(str(labels)):
        raise ValueError(f"{labels}: no such file; expected one with a text in each line")
    texts = read_texts([str(labels)])
    task: Any = on.task("match", labels=texts, template=template, top=top)
    (found,) = on.many(task, [image])
    if on.as_json:
        return as_json([{"image": str(image), **plain(found)}])
    table("label score", [(one.label, score(one.score)) for one in found.best])


def detect(*texts: Dashed, on: On, above: float = 0.5) -> None:
    """Tell which tokens of texts were replaced, by a discriminator of ELECTRA.

    qkv detect "The chef ate the meal." --model google/electra-small-discriminator

    Parameters
    ----------
    texts
        a text, a file with one a line, or - for standard input
    above
        the score from which on a token counts as replaced
    """
    given = read_texts(texts)
    found = on.many(on.task("detect", above=above), given)
    if not on.as_json:
        found = [[token for token in tokens if token.replaced] for tokens in found]
    told(on.as_json, given, found, "tokens", "score from to replaced", lambda one: (
        score(one.score), one.start, one.end, one.text,
    ))  # fmt: skip


def score_text(
    text: Dashed | None = None, /, *, on: On, stride: Whole | None = None, tokens: Flag = False
) -> None:
    """Tell how likely a text is: its perplexity and its log-probability.

    qkv score text.txt --model gpt2

    Parameters
    ----------
    text
        a file, - for standard input, or the text itself
    stride
        tokens that the windows of a long text share
    tokens
        each token too
    """
    given = read_whole("-" if text is None else text)
    (found,) = on.many(on.task("score", stride=stride), [given])
    if on.as_json:
        return as_json([asdict(found)])
    table(
        "perplexity log-probability tokens",
        [(f"{found.perplexity:.4g}", f"{found.score:.4f}", len(found.tokens))],
    )
    if tokens:
        rows = [("" if t.score is None else f"{t.score:.4f}", t.start, t.end, t.text) for t in found.tokens]
        table("log-probability from to token", rows)
