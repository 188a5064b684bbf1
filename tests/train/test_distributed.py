"""Several processes: the losses and weights of one, whatever way the network lies on them.

`torchrun -m tests.train.test_distributed FOLDER` runs all cases on its processes; tests compare the results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qkv
from qkv.data.batches.sampler import Feed, by_rows, recurrent_feed, unchanged
from qkv.families import family
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora
from qkv.train.config import Learn
from qkv.train.distributed import Team, joined
from qkv.train.evaluate.evaluators import one_label
from qkv.train.evaluate.generation import Papers
from qkv.train.evaluate.validation import over
from qkv.train.loop.checkpoint import finished
from qkv.train.loop.ema import mean_of
from qkv.train.loop.muon import whole
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import Words, objective
from qkv.train.objectives.objective import written
from qkv.train.objectives.wrappers import Twin
from qkv.train.sharding import Spread, gathered, spread
from tests.support import tiny

ROOT = Path(__file__).resolve().parent.parent.parent
VOCAB, SIDE = 30, 8
SIZES: dict[str, Any] = dict(vocab=VOCAB, width=16, depth=2, heads=2, length=16)
STILL = dict(drop=0.0, attend_drop=0.0)
WORDS = Words(size=VOCAB, mask=1, special=(0, 1), cells=5)


class Stream:
    """One long text: an example starts anywhere."""

    def __init__(self, size: int) -> None:
        self.tokens, self.size = np.random.default_rng(2).integers(2, VOCAB, 400), size

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": self.tokens[i : i + self.size + 1]}


def examples(*fields: str) -> list[dict[str, Any]]:
    """Texts of different lengths; an image, where `pixels` are asked for."""
    rng = np.random.default_rng(0)

    def value(name: str) -> Any:
        if name == "pixels":
            return rng.normal(size=(3, SIDE, SIDE)).astype(np.float32)
        return np.append(rng.integers(2, VOCAB - 1, rng.integers(3, 11)), VOCAB - 1)

    return [{name: value(name) for name in fields} for _ in range(25)]


def net(name: str, **changes: Any) -> nn.Module:
    torch.manual_seed(1)
    given = SIZES | STILL | changes
    known = family(name).defaults
    return qkv.build(name, **{key: value for key, value in given.items() if key in known}).net


class Certain(Twin):
    """Its samples are a function of the logits alone."""

    def sampled(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


def adapted() -> nn.Module:
    made = net("gpt2", embed_drop=0.0)
    add_lora(made, rank=2, where=("attend.q,k,v", "down"))
    return made


def adapter(team: Team, folder: Path) -> None:
    """A run of adapters and of a norm beside them, which are written as they are now."""
    run = made("lora", team, parallel="shard")
    model = tiny.model("gpt2", **SIZES)
    model.net, model.beside = run.net, ("decoder.norm.weight",)  # type: ignore[assignment]
    run.run()
    run.write(partial(write_adapter, model), folder)


def electra() -> nn.Module:
    both = [net("electra", head=head, feed=24, embed_width=16) for head in ("masked-lm", "replaced")]
    return Certain(*both)  # type: ignore[arg-type]


def recurrent() -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = dict(
        width=16, embed_width=16, depth=2, heads=2, head_dim=8, feed=24, memory=8, cutoffs=[]
    )
    return qkv.build("transformer-xl", vocab=VOCAB, drop=0.0, **sizes).net


def vectors(**drop: float) -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = SIZES | STILL | drop
    return qkv.build("bert", **sizes, feed=24, vector="mean").net


def clip() -> nn.Module:
    torch.manual_seed(1)
    inside: dict[str, Any] = dict(width=16, depth=2, heads=2, feed=24)
    text = dict(vocab=VOCAB, length=16, end=VOCAB - 1) | inside
    return qkv.build("clip", project=8, text=text, image=dict(image=SIDE, patch=4) | inside).net


def bert() -> nn.Module:
    return net("bert", feed=24, head="masked-lm")


def albert() -> nn.Module:
    return net("albert", feed=24, head="masked-lm", embed_width=8, depth=3)


# fmt: off
NETS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gpt2":    (lambda: net("gpt2", embed_drop=0.0), "causal-lm"),
    "noisy":   (lambda: net("gpt2", drop=0.2), "causal-lm"),
    "bert":    (bert, "masked-lm"),
    "albert":  (albert, "masked-lm"),
    "electra": (electra, "replaced-token"),
    "lora":    (adapted, "causal-lm"),
    "xl":      (recurrent, "recurrence"),
    "llama":   (lambda: net("llama", heads=4, kv_heads=2, feed=24), "causal-lm"),
    "t5":      (lambda: net("t5", feed=24), "seq2seq"),
    "vectors": (vectors, "contrastive"),
    "dropped": (lambda: vectors(drop=0.2), "contrastive"),
    "clip":    (clip, "image-text"),
}
FIELDS = {
    "seq2seq": ("source", "target"), "contrastive": ("source", "target"), "image-text": ("tokens", "pixels"),
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "copy", {"accumulate": 2, "average": 0.9}), ("gpt2", "copy", {"optimiser": "muon"}),
    ("gpt2", "copy", {"optimiser": "adafactor"}),
    ("xl", "copy", {}), ("electra", "copy", {}),
    ("gpt2", "shard", {"accumulate": 2, "average": 0.9}), ("gpt2", "shard", {"optimiser": "muon"}),
    ("bert", "shard", {}), ("albert", "shard", {}), ("electra", "shard", {}), ("lora", "shard", {}),
    ("xl", "shard", {}),
    ("gpt2", "tensor", {"accumulate": 2, "average": 0.9}), ("gpt2", "tensor", {"optimiser": "muon"}),
    ("llama", "tensor", {}), ("t5", "tensor", {}), ("albert", "tensor", {}),
    ("vectors", "copy", {}), ("vectors", "shard", {"accumulate": 2}), ("clip", "copy", {"accumulate": 2}),
    ("clip", "shard", {}), ("clip", "tensor", {"accumulate": 2}),
]
MOVED = [  # to another number
    ("gpt2", "copy"), ("gpt2", "shard"), ("gpt2", "tensor"), ("xl", "copy"), ("clip", "shard"),
]
REFUSED: dict[str, dict[str, Any]] = {
    "uneven": dict(name="llama", heads=3, kv_heads=1, width=24, feed=25),
    "xl":     dict(name="xlnet", feed=24, head_dim=8),
    "sparse": dict(name="sparse", split="heads", stride=4, cells=2),
}
MESSAGES = {
    "uneven": "3 heads, 1 heads of keys, a feed of 25 cannot be shared out among 2 processes",
    "xl":     "Transformer-XL's distances",
    "sparse": "heads of different patterns",
}
# fmt: on


def made(name: str, team: Team, folder: Path | None = None, **settings: Any) -> Trainer:
    """A tiny net; the last batch of an epoch has one row, too few for two processes."""
    make, goal = NETS[name]
    torch.manual_seed(0)
    target = objective(goal, WORDS)
    if goal == "image-text":
        target = replace(target, noise=unchanged)  # the images are at hand
    if goal == "recurrence":
        feed = recurrent_feed(Stream(8), 8, 1, 3, seed=3)
    else:
        feed = Feed(examples(*FIELDS.get(goal, ("tokens",))), by_rows(25, 8), seed=3)
    given = dict(steps=6, rate=1e-2, eps=1e-4, log=1, measure=3) | settings
    return Trainer(
        net=make(), feed=feed, objective=target, learn=Learn(**given), folder=folder, team=team,
        evaluate=over(feed, target, most=2),
    )  # fmt: skip


def ran(run: Trainer, stop: int = 0) -> tuple[list[float], dict[str, Tensor]]:
    """The losses that were told, and the weights and last gradients, which the first process alone has."""
    losses: list[float] = []

    def tell(report: Any) -> None:
        losses.append(report.values["loss"])
        run.stop = run.stop or report.step == stop

    run.callbacks = (tell,)
    run.run()
    found = {
        f"gradient {name}": whole(p.grad) for name, p in run.net.named_parameters() if p.grad is not None
    }
    with gathered(run.net, run.team):
        return losses, found | {name: p.detach().clone() for name, p in run.net.named_parameters()}


def worker(folder: Path) -> None:
    """Every case on all processes; what came of it is written by the first."""
    torch.set_num_threads(1)
    with joined("cpu") as team:

        def keep(name: str, losses: list[float], weights: dict[str, Tensor]) -> None:
            if team.first:
                save_file({k: v.contiguous() for k, v in weights.items()}, folder / f"{name}.safetensors")
                (folder / f"{name}.json").write_text(json.dumps(losses))

        for number, (name, kind, settings) in enumerate(CASES):
            keep(f"case-{number}", *ran(made(name, team, parallel=kind, **settings)))
        for name, kind in MOVED:
            first = made(name, team, folder / f"from-{name}-{kind}", parallel=kind, average=0.9)
            ran(first, stop=3)
            assert first.state.step == 3
            second = made(name, team, folder / f"to-{name}-{kind}", parallel=kind, average=0.9)
            assert second.restore()
            keep(f"to-{name}-{kind}", *ran(second))
        adapter(team, folder / "adapter")
        stopped(team)
        lost(team)
        again(team, folder / "again")
        settled(team, folder / "settled")
        measured(team)
        for name, changes in REFUSED.items():
            with pytest.raises(ValueError, match=MESSAGES[name]):
                spread(net(**changes), "tensor", team)
        for name, kind in (("gpt2", "tensor"), ("clip", "shard")):
            with pytest.raises(ValueError, match=rf"fp16.* '{kind}': .*expected bf16 or fp32"):
                made(name, team, parallel=kind, precision="fp16")
            with pytest.raises(ValueError, match="'adafactor': tensors that are spread over processes"):
                made(name, team, parallel=kind, optimiser="adafactor")


def stopped(team: Team) -> None:
    """One process is asked to stop, all do after the same step."""
    run = made("gpt2", team)
    before = run.evaluate
    assert before is not None

    def ask(net: nn.Module) -> dict[str, float]:
        run.stop = team.rank == team.world - 1
        return before(net)

    run.evaluate = ask
    assert run.run().step == 3


def lost(team: Team) -> None:
    """The numbers of one process are not finite, no process makes the step."""
    run = made("gpt2", team)
    calls = [0]

    def odd(out: dict[str, Tensor]) -> Tensor:
        calls[0] += 1
        return objective("causal-lm", WORDS)(out) * (
            float("nan") if calls[0] == 1 and not team.first else 1.0
        )

    run.objective = written(odd, run.objective)
    run.run()
    assert run.watch.skipped == 1
    assert all(p.isfinite().all() for p in run.net.parameters())


def again(team: Team, folder: Path) -> None:
    """As many processes as before go on to the bit, dropout included."""
    for name, kind, precision, parts in (
        ("noisy", "copy", "fp32", 1), ("noisy", "shard", "bf16", 1), ("noisy", "shard", "fp16", 1),
        ("dropped", "copy", "bf16", 2),
    ):  # fmt: skip
        how: dict[str, Any] = dict(parallel=kind, precision=precision, accumulate=parts)
        home = folder / f"{name}-{kind}-{precision}"
        losses, weights = ran(made(name, team, **how))
        ran(made(name, team, home, **how), stop=3)
        second = made(name, team, home, **how)
        assert second.restore()
        rest, there = ran(second)
        if team.first:
            assert rest == losses[4:]
            assert all(torch.equal(there[name], x) for name, x in weights.items())


def settled(team: Team, folder: Path) -> None:
    """Slices of a mean are the mean of slices."""
    run = made("gpt2", team, folder, parallel="shard", save=2, keep=3, last=3)
    run.run()
    right = mean_of(path / "net.safetensors" for path in finished(folder / "checkpoints"))
    with run.settled(), gathered(run.net, team):
        assert not team.first or all(torch.equal(p, right[name]) for name, p in run.net.named_parameters())


class Greedy:
    """Writes the likeliest word of all to every source, as often as the source has words."""

    how: dict[str, float] = {}  # noqa: RUF012

    def __call__(self, model: Any, sources: list[list[int]], /) -> list[list[int]]:
        return [[max(ids)] * len(ids) for ids in sources]


class Plain:
    """A tokenizer of numbers."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{number}" for number in ids)


def measured(team: Team) -> None:
    """Batches are shared out, and the scores are those of all of them, as of one process."""
    rng = np.random.default_rng(0)
    held = [{"tokens": rng.integers(2, VOCAB, 8), "label": rng.integers(0, 2, 1)} for _ in range(25)]
    goal, judge = objective("label", WORDS), one_label(SimpleNamespace(labels=("no", "yes")))  # type: ignore[arg-type]
    feed = Feed(held, by_rows(25, 3, shuffled=False))
    batches, seen = len(feed.batches(0)), [0]

    def tell(words: str, done: int, of: int | None) -> None:
        seen.append(done)

    for kind in ("copy", "shard", "tensor"):
        model = net("bert", feed=24, head="label", labels=2)
        with torch.no_grad():
            alone = over(feed, goal, judge)(model)
            spread_out = spread(model, kind, team)
            found = over(feed, goal, judge, spread=spread_out, tell=tell)(model)
        assert found == pytest.approx(alone, abs=1e-6)
        assert seen[-1] == (batches if kind == "tensor" else -(-batches // 2))
    papers = Papers([[i, i + 1] for i in range(200)], [[f"w{i + 1} w{i}"] for i in range(200)], False)
    model = SimpleNamespace(net=nn.Linear(1, 1), tokenizer=Plain())  # type: ignore[assignment]
    copies = Spread("copy", team, team.rank, team.world)
    texts = papers.written(model, Greedy(), spread=copies)  # type: ignore[arg-type]
    assert texts == [f"w{i + 1} w{i + 1}" for i in range(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote, who went on where one had stopped."""
    home = tmp_path_factory.mktemp("parallel")
    for name, kind in MOVED:
        ran(made(name, Team(), home / f"to-{name}-{kind}", average=0.9), stop=3)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "tests.train.test_distributed", str(home)], cwd=ROOT, env=environment(), text=True,
        capture_output=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return home


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def check_like(folder: Path, name: str, alone: tuple[list[float], dict[str, Tensor]]) -> None:
    losses, weights = alone
    assert json.loads((folder / f"{name}.json").read_text()) == pytest.approx(losses, abs=1e-5)
    tiny.close(load_file(folder / f"{name}.safetensors"), weights, 1e-5)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name}-{kind}" for name, kind, _ in CASES])
def test_many_processes_learn_what_one_does(number: int, folder: Path) -> None:
    name, kind, settings = CASES[number]
    check_like(folder, f"case-{number}", ran(made(name, Team(), parallel=kind, **settings)))


def test_many_processes_write_the_adapter_that_one_does(folder: Path, tmp_path: Path) -> None:
    adapter(Team(), tmp_path)
    one, two = (load_file(each / "adapter_model.safetensors") for each in (tmp_path, folder / "adapter"))
    assert len(one) == len(two) == 2 * (2 + 2) + 2
    tiny.close(two, one, 1e-5)


@pytest.mark.parametrize(("name", "kind"), MOVED)
def test_a_run_goes_on_with_another_number_of_processes(name: str, kind: str, folder: Path) -> None:
    straight = ran(made(name, Team(), average=0.9))
    losses, weights = straight
    check_like(folder, f"to-{name}-{kind}", (losses[4:], weights))
    back = made(name, Team(), folder / f"from-{name}-{kind}", average=0.9)
    assert back.restore()
    again, there = ran(back)
    assert again == pytest.approx(losses[4:], abs=1e-5)
    tiny.close(there, weights, 1e-5)


def test_parts_are_dealt_out_and_all_run_as_many() -> None:
    teams = [Spread("copy", Team(rank, 3), rank, 3) for rank in range(3)]
    assert [each.deal("abcd") for each in teams] == [
        [("a", True), ("d", True)], [("b", True), ("a", False)], [("c", True), ("a", False)],
    ]  # fmt: skip


RECIPE = """
[model]
family = "gpt2"
depth = 1
width = 16
heads = 2
[text]
kind = "char"
vocab = 60
purpose = "plain"
[data]
train = "text.txt"
unit = "file"
valid = 0.2
length = 8
rows = 4
[objective]
name = "causal-lm"
[learn]
steps = 100000
schedule = "constant"
log = 2
save = 10
"""


class Pair:
    """Two processes that train by the command line, as torchrun would start them."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        self.both = [
            subprocess.Popen(
                [sys.executable, *"-m qkv train recipe.toml --run run --device cpu".split(), *flags],
                cwd=folder, env=environment(RANK=rank, LOCAL_RANK=rank, **shared), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for rank in "01"
        ]  # fmt: skip

    def ends(self) -> list[tuple[int, str, str]]:
        """Exit status, output and complaints of each."""
        found = [process.communicate(timeout=40) for process in self.both]
        return [(p.returncode, *texts) for p, texts in zip(self.both, found, strict=True)]


def until(found: Callable[[], bool]) -> None:
    for _ in range(600):
        if found():
            return
        time.sleep(0.05)
    raise AssertionError("nothing happened in 30 s")


def test_the_command_line_on_two_processes(tmp_path: Path) -> None:
    """One is asked to stop and both do; one is killed and the other says so; torchrun ends the run."""
    (tmp_path / "text.txt").write_text("the cat sees the dog and the dog sees the cat. " * 40)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    lines = tmp_path / "run" / "metrics.jsonl"
    pair = Pair(tmp_path)
    until(lambda: lines.exists())
    pair.both[1].send_signal(signal.SIGTERM)
    (status, said, wrong), other = pair.ends()
    assert (status, wrong) == (0, "")
    assert "--resume auto goes on" in said
    assert "cpu, fp32, 2 processes" in said
    assert other == (0, "", "")
    held = lines.read_text()
    again = Pair(tmp_path, "--resume", "auto")
    until(lambda: lines.read_text() != held)
    again.both[1].kill()
    (status, _, wrong), other = again.ends()
    assert (status, len(wrong.splitlines())) == (2, 1)
    assert "another process of the run has ended" in wrong
    assert other[0] == -signal.SIGKILL
    steps = json.loads(lines.read_text().splitlines()[-1])["step"] + 4
    flags = f"--run run --device cpu --learn.parallel shard --resume changed --learn.steps {steps}"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--",
         "qkv", "train", "recipe.toml", *flags.split()],  # without --, torchrun takes --run for its own
        cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{steps:,} of {steps:,} steps") == 1
    assert qkv.load(tmp_path / "run" / "last").net is not None


def test_a_recipe_that_is_wrong_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (status, _, wrong), other = Pair(tmp_path).ends()
    assert (status, other) == (2, (2, "", ""))
    assert "text.txt" in wrong


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # all is written; threads of torch that are still alive do not decide how it ends
