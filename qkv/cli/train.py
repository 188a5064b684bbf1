"""The commands of learning: train as a recipe says, and evaluate what came of it."""

from __future__ import annotations

import json
import math
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from qkv.cli.console import console, progress, say
from qkv.cli.decoding import given
from qkv.cli.inputs import Whole
from qkv.formatting import human, lasting

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.model.model import Model
    from qkv.train.loop.trainer import Report, State
    from qkv.train.recipe import Recipe
    from qkv.train.report.console import Callback, Course
    from qkv.train.report.history import History
    from qkv.train.run import Prepared

Flags = Annotated[str, Parameter(allow_leading_hyphen=True)]


def train(
    recipe: Path, /, *settings: Flags, run: str | None = None, device: str | None = None,
    resume: Literal["auto", "changed"] | None = None,
) -> None:  # fmt: skip
    """Train a model as a recipe says: a TOML file, of which every setting is a flag too.

    qkv train recipes/shakespeare.toml --data.train input.txt --run runs/mine --learn.steps 500

    Parameters
    ----------
    recipe
        a TOML file with the tables model, text, data, objective, learn and, for adapters, lora
    settings
        any setting of the recipe in the place of what stands there: --learn.rate 3e-4
    run
        the folder that everything is written to; runs/ and the recipe's name, unless given
    device
        auto, cpu, cuda or mps
    resume
        go on with the run that the folder holds: auto, if the recipe is what it was; changed, if it is not
    """
    from qkv.train.recipe import read_recipe, written

    own = [f"--{name}={written(value)}" for name, value in given(run=run, device=device).items()]
    made = read_recipe(recipe, [*settings, *own])  # what is wrong in it is told before torch is imported
    learn(made, resume)


def learn(recipe: Recipe, resume: str | None) -> None:
    """A summary, then the panel until the end, then what came of it."""
    import torch

    from qkv.train.distributed import is_first
    from qkv.train.evaluate.validation import silent
    from qkv.train.report.console import shown
    from qkv.train.report.history import History
    from qkv.train.run import Interrupted, train

    screen, clock, interrupted = console(), time.monotonic(), False
    tell: list[Callback] = []
    with ExitStack() as stack:
        waiting = stack.enter_context(ExitStack())
        reading = progress(f"reading {told(recipe.data.train)}")
        far = waiting.enter_context(reading) if is_first() else silent

        def begun(made: Prepared, state: State) -> None:
            waiting.close()
            say(summary(recipe, made, state))
            tell.append(stack.enter_context(shown(course(recipe, made, state), screen)))

        try:
            state = train(
                recipe, resume=resume is not None, accept=resume == "changed",
                callbacks=[lambda report: tell[0](report)], begun=begun,
                writer=Beam(beams=recipe.learn.beams), tell=far,
            )  # fmt: skip
        except Interrupted as stop:
            (state,), interrupted = stop.args, True
        except (torch.OutOfMemoryError, MemoryError):
            less = "fewer data.rows or data.tokens, or more learn.accumulate, take less"
            raise ValueError(f"device {recipe.device}: not enough memory; {less}") from None
    if is_first():
        say(result(recipe, state, History.read(Path(recipe.run)), time.monotonic() - clock))
    if interrupted:
        raise KeyboardInterrupt


def told(path: str | list[str]) -> str:
    return path if isinstance(path, str) else ", ".join(path)


def sized(documents: int, tokens: int) -> str:
    return f"{documents:,} document{'s' * (documents != 1)}, {human(tokens)} tokens"


def course(recipe: Recipe, made: Prepared, state: State) -> Course:
    """What the panel shows of this run; the peak is measured when it is first asked for."""
    from qkv.train.distributed import processes
    from qkv.train.loop.trainer import DTYPES
    from qkv.train.report.console import Course
    from qkv.train.report.history import History
    from qkv.train.report.throughput import peak, work

    folder = Path(recipe.run)
    return Course(
        title=str(folder), learn=recipe.learn, work=work(made.model.net), step=state.step,
        measure_peak=lambda: processes() * peak(made.model.device, DTYPES[recipe.learn.precision]),
        history=History.read(folder),
    )  # fmt: skip


def summary(recipe: Recipe, made: Prepared, state: State) -> Table:
    """What is trained, on what, where and for how long."""
    from qkv.data.store.shards import Index
    from qkv.train.distributed import processes
    from qkv.train.evaluate.run_evaluation import count

    every = list(made.model.net.parameters())
    weights, learn = sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)
    few = f", {learn:,} of them learn" if learn < weights else ""
    index = Index.read(Path(recipe.run) / "data" / "train")
    held = f", {sized(index.documents, count(index))}" if index else ""
    many = f", {processes()} processes" if processes() > 1 else ""
    steps = f"{recipe.learn.steps:,}" + (f", going on after {state.step:,}" if state.step else "")
    return rows(
        model=f"{made.model.family.name}, {weights:,} parameters" + few,
        data=f"{told(recipe.data.train)}{held}",
        objective=recipe.objective.name,
        device=f"{made.model.device}, {recipe.learn.precision}{many}",
        steps=steps,
    )


def result(recipe: Recipe, state: State, history: History, seconds: float) -> Table:
    """How far it came, the best that was measured, and where the models are."""
    folder, learn = Path(recipe.run), recipe.learn
    best: Report | None = history.best(learn.watch, highest=learn.rising)
    done = f"{state.step:,} of {learn.steps:,} steps in {lasting(seconds)}"
    if state.step > learn.steps:
        done = f"{state.step:,} steps, no more than {learn.steps:,} were asked for"
    if state.step < learn.steps:
        early = 0 < learn.patience <= state.stale
        done += f", {learn.watch} no longer got better" if early else "; --resume auto goes on"
    found = {"done": done}
    if best is not None:
        found["best"] = (
            f"{folder / 'best'}, {learn.watch} {best.values[learn.watch]:.4g} at step {best.step:,}"
        )
    return rows(**found, last=str(folder / "last"), curve=str(folder / "loss.svg"))


def eval(
    run: Path,
    /,
    *settings: Flags,
    beams: Whole = 5,
    penalty: float = 1.0,
    longest: Whole = 200,
    lower: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Measure the best model of a run on texts that it has not seen.

    qkv eval runs/imdb --data.test test.jsonl

    Parameters
    ----------
    run
        the folder of a run
    settings
        settings of its recipe in the place of what stands there: --data.test test.jsonl
    beams
        of the search, where texts are written; 1 is greedy
    penalty
        a result is scored by the mean of its log-probabilities at 1, by their sum at 0
    longest
        tokens that a written text may have
    lower
        BLEU in small letters too
    as_json
        for machines: one object
    """
    from qkv.train.evaluate.run_evaluation import evaluate

    if not (run / "recipe.toml").exists():
        which = f", which is {run.parent}" if (run.parent / "recipe.toml").exists() else ""
        raise ValueError(f"{run}: no recipe.toml; expected the folder of a run{which}")
    if beams < 1 or longest < 1 or not math.isfinite(penalty):
        raise ValueError(
            f"--beams {beams} --longest {longest} --penalty {penalty}, expected 1 or more, and a number"
        )
    with progress(f"reading {run}") as tell:
        beam = Beam(beams=beams, penalty=penalty, longest=longest)
        found = evaluate(run, settings, beam, lower=lower, tell=tell)
    if as_json:
        print(json.dumps(asdict(found) | {"model": str(found.model)}))
        return
    values = {name.replace("_", " "): f"{value:.4g}" for name, value in found.values.items()}
    how = {"how": ", ".join(f"{name} {value}" for name, value in found.how.items())} if found.how else {}
    signatures = {f"{name.replace('_', ' ')} is": text for name, text in found.signatures.items()}
    data = f"{told(found.data)}, {sized(found.n, found.tokens)}"
    say(rows(model=str(found.model), data=data, **values, **how, **signatures))


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Writes what a model answers to sources, by a search of so many beams."""

    beams: int = 5
    penalty: float = 1.0
    longest: int = 200

    @property
    def how(self) -> dict[str, float]:
        return asdict(self)

    def __call__(self, model: Model, sources: list[list[int]], /) -> list[list[int]]:
        from qkv.decode import How, generate
        from qkv.nn.transformer import Transformer

        text = model.tokenizer
        assert text is not None
        assert isinstance(model.net, Transformer)
        start, end = model.args.get("start"), text.eos
        if start is None or end is None:
            raise ValueError(f"{model.family.name}: it has no token to start or end with; expected both")
        how = How(
            beams=self.beams, length_penalty=self.penalty, max_new=self.longest, start=start, ends=(end,)
        )
        given = [source or [text.pad or 0] for source in sources]
        found = generate(model.net, sources=given, how=how, batch=64)
        return [[number for number in best.ids if number != end] for best, *_ in found]


def rows(**facts: str) -> Table:
    from rich.table import Column, Table

    table = Table.grid("", Column(overflow="fold"), padding=(0, 2))  # a path or a signature is one long word
    for name, fact in facts.items():
        table.add_row(name, fact)
    return table
