"""Several processes: the losses and weights of one process, with every parallelism.

`torchrun -m tests.train.test_distributed FOLDER` runs all cases on its processes; the tests compare
the results."""

from __future__ import annotations

import json
import os
import re
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
from qkv.data.batches.sampler import (
    BatchSampler,
    apply_no_noise,
    build_fixed_size_plan,
    build_recurrent_sampler,
)
from qkv.families import get_family
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora
from qkv.train.config import TrainConfig
from qkv.train.distributed import DistributedContext, init_distributed
from qkv.train.evaluate.evaluation_loop import Evaluation, evaluate_batches
from qkv.train.evaluate.evaluators import build_single_label_evaluator
from qkv.train.evaluate.generation import GenerationExamples
from qkv.train.loop.checkpoint import list_checkpoints
from qkv.train.loop.ema import average_checkpoints
from qkv.train.loop.muon import gather_full_tensor
from qkv.train.loop.trainer import Trainer
from qkv.train.objectives import VocabularyInfo, build_objective
from qkv.train.objectives.objective import wrap_loss_function
from qkv.train.objectives.wrappers import GeneratorDiscriminator
from qkv.train.sharding import Sharding, parallelize, summon_full_params
from tests.support import compare, tiny
from tests.support.recipes import CHARACTER_MODEL

ROOT = Path(__file__).resolve().parent.parent.parent
VOCAB_SIZE = 30
IMAGE_SIZE = 8
SIZES: dict[str, Any] = dict(vocab_size=VOCAB_SIZE, width=16, depth=2, heads=2, max_positions=16)
NO_DROPOUT = dict(dropout=0.0, attention_dropout=0.0)
VOCAB = VocabularyInfo(
    vocab_size=VOCAB_SIZE, mask_token_id=1, special_token_ids=(0, 1), num_image_tokens=5
)


class Stream:
    """One long text: an example may start at any token."""

    def __init__(self, size: int) -> None:
        self.tokens = np.random.default_rng(2).integers(2, VOCAB_SIZE, 400)
        self.size = size

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"tokens": self.tokens[i : i + self.size + 1]}


def make_examples(*fields: str) -> list[dict[str, Any]]:
    """Return texts of different lengths, or an image for the field `pixels`."""
    rng = np.random.default_rng(0)

    def value(name: str) -> Any:
        if name == "pixels":
            return rng.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        return np.append(rng.integers(2, VOCAB_SIZE - 1, rng.integers(3, 11)), VOCAB_SIZE - 1)

    return [{name: value(name) for name in fields} for _ in range(25)]


def build_net(name: str, **overrides: Any) -> nn.Module:
    torch.manual_seed(1)
    args = SIZES | NO_DROPOUT | overrides
    known_args = get_family(name).defaults
    return qkv.build(name, **{key: value for key, value in args.items() if key in known_args}).net


class GreedyGenerator(GeneratorDiscriminator):
    """A generator whose samples are a function of the logits alone."""

    def sample_tokens(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


def build_lora() -> nn.Module:
    net = build_net("gpt2", embedding_dropout=0.0)
    add_lora(net, r=2, target_modules=("attention.q,k,v", "down"))
    return net


def train_adapter(team: DistributedContext, folder: Path) -> None:
    """Train LoRA adapters and a norm, and write them."""
    run = make_trainer("lora", team, parallelism="fsdp")
    model = tiny.build("gpt2", **SIZES)
    model.net, model.adapter_parameters_to_save = run.net, ("decoder.final_norm.weight",)  # type: ignore[assignment]
    run.train()
    run.write_model(partial(write_adapter, model), folder)


def build_electra() -> nn.Module:
    nets = [
        build_net("electra", head=head, ffn_width=24, embedding_width=16)
        for head in ("masked-lm", "replaced-token-detection")
    ]
    return GreedyGenerator(*nets)  # type: ignore[arg-type]


def build_transformer_xl() -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = dict(
        width=16,
        embedding_width=16,
        depth=2,
        heads=2,
        head_dim=8,
        ffn_width=24,
        mem_len=8,
        cutoffs=[],
    )
    return qkv.build("transformer-xl", vocab_size=VOCAB_SIZE, dropout=0.0, **sizes).net


def build_sentence_encoder(**dropout: float) -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = SIZES | NO_DROPOUT | dropout
    return qkv.build("bert", **sizes, ffn_width=24, pooling="mean").net


def build_clip() -> nn.Module:
    torch.manual_seed(1)
    sizes: dict[str, Any] = dict(width=16, depth=2, heads=2, ffn_width=24)
    text = dict(vocab_size=VOCAB_SIZE, max_positions=16, eos_token_id=VOCAB_SIZE - 1) | sizes
    image = dict(image_size=IMAGE_SIZE, patch_size=4) | sizes
    return qkv.build("clip", projection_dim=8, text=text, image=image).net


def build_bert() -> nn.Module:
    return build_net("bert", ffn_width=24, head="masked-lm")


def build_albert() -> nn.Module:
    return build_net("albert", ffn_width=24, head="masked-lm", embedding_width=8, depth=3)


# fmt: off
NETS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "gpt2":    (lambda: build_net("gpt2", embedding_dropout=0.0), "causal-lm"),
    "noisy":   (lambda: build_net("gpt2", dropout=0.2), "causal-lm"),
    "bert":    (build_bert, "masked-lm"),
    "albert":  (build_albert, "masked-lm"),
    "electra": (build_electra, "replaced-token-detection"),
    "lora":    (build_lora, "causal-lm"),
    "xl":      (build_transformer_xl, "segment-recurrent-lm"),
    "llama":   (lambda: build_net("llama", heads=4, kv_heads=2, ffn_width=24), "causal-lm"),
    "t5":      (lambda: build_net("t5", ffn_width=24), "seq2seq"),
    "vectors": (build_sentence_encoder, "sentence-contrastive"),
    "dropped": (lambda: build_sentence_encoder(dropout=0.2), "sentence-contrastive"),
    "clip":    (build_clip, "image-text-contrastive"),
}
FIELDS = {
    "seq2seq": ("source", "target"),
    "sentence-contrastive": ("source", "target"),
    "image-text-contrastive": ("tokens", "pixels"),
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt2", "ddp", {"grad_accum": 2, "ema_decay": 0.9}), ("gpt2", "ddp", {"optimizer": "muon"}),
    ("gpt2", "ddp", {"optimizer": "adafactor"}),
    ("xl", "ddp", {}), ("electra", "ddp", {}),
    ("gpt2", "fsdp", {"grad_accum": 2, "ema_decay": 0.9}), ("gpt2", "fsdp", {"optimizer": "muon"}),
    ("bert", "fsdp", {}), ("albert", "fsdp", {}), ("electra", "fsdp", {}), ("lora", "fsdp", {}),
    ("xl", "fsdp", {}),
    ("gpt2", "tp", {"grad_accum": 2, "ema_decay": 0.9}), ("gpt2", "tp", {"optimizer": "muon"}),
    ("llama", "tp", {}), ("t5", "tp", {}), ("albert", "tp", {}),
    ("vectors", "ddp", {}), ("vectors", "fsdp", {"grad_accum": 2}), ("clip", "ddp", {"grad_accum": 2}),
    ("clip", "fsdp", {}), ("clip", "tp", {"grad_accum": 2}),
]
RESUMED = [  # resumed with another number of processes
    ("gpt2", "ddp"), ("gpt2", "fsdp"), ("gpt2", "tp"), ("xl", "ddp"), ("clip", "fsdp"),
]
UNSUPPORTED: dict[str, dict[str, Any]] = {
    "uneven": dict(name="llama", heads=3, kv_heads=1, width=24, ffn_width=25),
    "xl":     dict(name="xlnet", ffn_width=24, head_dim=8),
    "sparse": dict(name="sparse", split="heads", stride=4, num_summary=2),
}
MESSAGES = {
    "uneven": "3 heads, 1 key-value heads, a feed-forward width of 25 cannot be split over 2 processes",
    "xl":     "Transformer-XL's relative positions",
    "sparse": "heads with different patterns",
}
# fmt: on


def make_trainer(
    name: str, team: DistributedContext, folder: Path | None = None, **settings: Any
) -> Trainer:
    """Return a trainer of a tiny network; an epoch's last batch has one row, too few for two processes."""
    build, objective_name = NETS[name]
    torch.manual_seed(0)
    objective = build_objective(objective_name, VOCAB)
    if objective_name == "image-text-contrastive":
        # The images are already loaded.
        objective = replace(objective, noise=apply_no_noise, train_noise=None)
    if objective_name == "segment-recurrent-lm":
        sampler = build_recurrent_sampler(Stream(8), 8, 1, 3, seed=3)
    else:
        fields = FIELDS.get(objective_name, ("tokens",))
        sampler = BatchSampler(make_examples(*fields), build_fixed_size_plan(25, 8), seed=3)
    config = dict(steps=6, lr=1e-2, log_every=1, eval_every=3) | settings
    if config.get("optimizer") != "adafactor":
        config["eps"] = 1e-4
    return Trainer(
        net=build(),
        sampler=sampler,
        objective=objective,
        train_config=TrainConfig(**config),
        folder=folder,
        distributed=team,
        evaluate=partial(evaluate_batches, sampler=sampler, objective=objective, max_batches=2),
    )


def run_training(run: Trainer, stop: int = 0) -> tuple[list[float], dict[str, Tensor]]:
    """Return the reported losses, and the weights and last gradients, in the main process."""
    losses: list[float] = []

    def record(report: Any) -> None:
        losses.append(report.metrics["loss"])
        run.should_stop = run.should_stop or report.step == stop

    run.callbacks = (record,)
    run.train()
    gradients = {
        f"gradient {name}": gather_full_tensor(p.grad)
        for name, p in run.net.named_parameters()
        if p.grad is not None
    }
    with summon_full_params(run.net, run.distributed):
        return losses, gradients | {
            name: p.detach().clone() for name, p in run.net.named_parameters()
        }


def worker(folder: Path) -> None:
    """Run every case on all processes; the main process writes the results."""
    torch.set_num_threads(1)
    with init_distributed("cpu") as team:

        def save_result(name: str, losses: list[float], weights: dict[str, Tensor]) -> None:
            if team.is_main_process:
                save_file(
                    {k: v.contiguous() for k, v in weights.items()}, folder / f"{name}.safetensors"
                )
                (folder / f"{name}.json").write_text(json.dumps(losses))

        for number, (name, parallelism, settings) in enumerate(CASES):
            save_result(
                f"case-{number}",
                *run_training(make_trainer(name, team, parallelism=parallelism, **settings)),
            )
        for name, parallelism in RESUMED:
            first = make_trainer(
                name,
                team,
                folder / f"from-{name}-{parallelism}",
                parallelism=parallelism,
                ema_decay=0.9,
            )
            run_training(first, stop=3)
            assert first.state.step == 3
            second = make_trainer(
                name,
                team,
                folder / f"to-{name}-{parallelism}",
                parallelism=parallelism,
                ema_decay=0.9,
            )
            assert second.restore_checkpoint()
            save_result(f"to-{name}-{parallelism}", *run_training(second))
        train_adapter(team, folder / "adapter")
        check_stop(team)
        check_non_finite(team)
        check_resume(team, folder / "resume")
        check_average_last(team, folder / "average_last")
        check_evaluation(team)
        for name, overrides in UNSUPPORTED.items():
            with pytest.raises(ValueError, match=MESSAGES[name]):
                parallelize(build_net(**overrides), "tp", team)
        for name, parallelism in (("gpt2", "tp"), ("clip", "fsdp")):
            with pytest.raises(
                ValueError, match=rf"fp16.* '{parallelism}': .*expected bf16 or fp32"
            ):
                make_trainer(name, team, parallelism=parallelism, precision="fp16")
            with pytest.raises(ValueError, match="'adafactor' does not support sharded parameters"):
                make_trainer(name, team, parallelism=parallelism, optimizer="adafactor")


def check_stop(team: DistributedContext) -> None:
    """If one process is asked to stop, all stop after the same step."""
    run = make_trainer("gpt2", team)
    evaluate = run.evaluate
    assert evaluate is not None

    def evaluate_and_stop(net: nn.Module) -> Evaluation:
        run.should_stop = team.rank == team.world_size - 1
        return evaluate(net)

    run.evaluate = evaluate_and_stop
    assert run.train().step == 3


def check_non_finite(team: DistributedContext) -> None:
    """If the loss of one process is not finite, all skip the step."""
    run = make_trainer("gpt2", team)
    num_calls = 0

    def compute_loss(outputs: dict[str, Tensor]) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        factor = float("nan") if num_calls == 1 and not team.is_main_process else 1.0
        return build_objective("causal-lm", VOCAB)(outputs) * factor

    run.objective = wrap_loss_function(compute_loss, run.objective)
    run.train()
    assert run.nonfinite_monitor.num_skipped == 1
    assert all(p.isfinite().all() for p in run.net.parameters())


def check_resume(team: DistributedContext, folder: Path) -> None:
    """The same number of processes resumes exactly, dropout included."""
    for name, parallelism, precision, grad_accum in (
        ("noisy", "ddp", "fp32", 1), ("noisy", "fsdp", "bf16", 1), ("noisy", "fsdp", "fp16", 1),
        ("dropped", "ddp", "bf16", 2),
    ):  # fmt: skip
        settings: dict[str, Any] = dict(
            parallelism=parallelism, precision=precision, grad_accum=grad_accum
        )
        run_folder = folder / f"{name}-{parallelism}-{precision}"
        losses, weights = run_training(make_trainer(name, team, **settings))
        run_training(make_trainer(name, team, run_folder, **settings), stop=3)
        second = make_trainer(name, team, run_folder, **settings)
        assert second.restore_checkpoint()
        resumed_losses, resumed_weights = run_training(second)
        if team.is_main_process:
            assert resumed_losses == losses[4:], compare.RESUMED
            compare.assert_bitwise_equal(resumed_weights, weights, because=compare.RESUMED)


def check_average_last(team: DistributedContext, folder: Path) -> None:
    """The mean of the last checkpoints can be computed shard by shard."""
    run = make_trainer(
        "gpt2", team, folder, parallelism="fsdp", save_every=2, keep_checkpoints=3, average_last=3
    )
    run.train()
    expected = average_checkpoints(
        path / "net.safetensors" for path in list_checkpoints(folder / "checkpoints")
    )
    with run.use_final_weights(), summon_full_params(run.net, team):
        if team.is_main_process:
            compare.assert_bitwise_equal(
                dict(run.net.named_parameters()),
                expected,
                because="a mean has no sum across elements: shards do not change its order",
            )


class LargestIdGenerator:
    """Repeat the largest id of each source, as often as the source has tokens."""

    settings: dict[str, float] = {}  # noqa: RUF012

    def __call__(self, model: Any, sources: list[list[int]], /) -> list[list[int]]:
        return [[max(ids)] * len(ids) for ids in sources]


class NumberTokenizer:
    """A tokenizer that decodes ids to numbered words."""

    def batch_decode(self, rows: list[list[int]], *, skip_special_tokens: bool) -> list[str]:
        return [" ".join(f"w{number}" for number in ids) for ids in rows]


def check_evaluation(team: DistributedContext) -> None:
    """The processes share the batches, and the metrics equal those of one process."""
    rng = np.random.default_rng(0)
    records = [
        {"tokens": rng.integers(2, VOCAB_SIZE, 8), "label": rng.integers(0, 2, 1)}
        for _ in range(25)
    ]
    context: Any = SimpleNamespace(label_names=("no", "yes"))
    objective = build_objective("sequence-classification", VOCAB)
    evaluator = build_single_label_evaluator(context)
    sampler = BatchSampler(records, build_fixed_size_plan(25, 3, shuffle=False))
    num_batches = len(sampler.get_batches(0))
    done_counts = [0]

    def progress(message: str, done: int, total: int | None) -> None:
        done_counts.append(done)

    for parallelism in ("ddp", "fsdp", "tp"):
        model = build_net("bert", ffn_width=24, head="sequence-classification", num_labels=2)
        with torch.no_grad():
            expected = evaluate_batches(model, sampler, objective, evaluator)
            sharding = parallelize(model, parallelism, team)
            evaluation = evaluate_batches(
                model, sampler, objective, evaluator, sharding=sharding, progress=progress
            )
        assert evaluation.metrics == pytest.approx(expected.metrics, abs=1e-6)
        assert evaluation.class_report == expected.class_report
        assert done_counts[-1] == (num_batches if parallelism == "tp" else -(-num_batches // 2))
    examples = GenerationExamples(
        [[i, i + 1] for i in range(200)], [[f"w{i + 1} w{i}"] for i in range(200)]
    )
    model = SimpleNamespace(net=nn.Linear(1, 1), tokenizer=NumberTokenizer())  # type: ignore[assignment]
    sharding = Sharding("ddp", team, team.rank, team.world_size)
    texts = examples.generate(model, LargestIdGenerator(), sharding=sharding)  # type: ignore[arg-type]
    assert texts == [f"w{i + 1} w{i + 1}" for i in range(200)]


# A crash of the C library in a worker, which was seen once: "malloc(): unaligned tcache chunk detected".
NATIVE_CRASH = re.compile(r"^(malloc|free|double free|corrupted)|SIGABRT|SIGSEGV", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of two processes, which also resumed runs of one process."""
    folder = tmp_path_factory.mktemp("distributed")
    process = run_two_processes(folder)
    if process.returncode and NATIVE_CRASH.search(process.stderr):
        folder = tmp_path_factory.mktemp("distributed")
        process = run_two_processes(folder)
    assert process.returncode == 0, process.stderr
    return folder


def run_two_processes(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `worker` in two processes."""
    for name, parallelism in RESUMED:
        run_training(
            make_trainer(
                name, DistributedContext(), folder / f"to-{name}-{parallelism}", ema_decay=0.9
            ),
            stop=3,
        )
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    return subprocess.run(
        [*torchrun, "-m", "tests.train.test_distributed", str(folder)],
        cwd=ROOT,
        env=make_environment(),
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )


def make_environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}


def check_result(folder: Path, name: str, expected: tuple[list[float], dict[str, Tensor]]) -> None:
    losses, weights = expected
    assert json.loads((folder / f"{name}.json").read_text()) == pytest.approx(losses, abs=1e-5)
    compare.assert_close(load_file(folder / f"{name}.safetensors"), weights, 1e-5)


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=[f"{name}-{parallelism}" for name, parallelism, _ in CASES]
)
def test_two_processes_equal_one(number: int, folder: Path) -> None:
    name, parallelism, settings = CASES[number]
    check_result(
        folder,
        f"case-{number}",
        run_training(make_trainer(name, DistributedContext(), parallelism=parallelism, **settings)),
    )


def test_two_processes_write_the_adapter_of_one(folder: Path, tmp_path: Path) -> None:
    train_adapter(DistributedContext(), tmp_path)
    expected, actual = (
        load_file(path / "adapter_model.safetensors") for path in (tmp_path, folder / "adapter")
    )
    assert len(expected) == len(actual) == 2 * (2 + 2) + 2
    compare.assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize(("name", "parallelism"), RESUMED)
def test_resume_with_another_number_of_processes(name: str, parallelism: str, folder: Path) -> None:
    losses, weights = run_training(make_trainer(name, DistributedContext(), ema_decay=0.9))
    check_result(folder, f"to-{name}-{parallelism}", (losses[4:], weights))
    trainer = make_trainer(
        name, DistributedContext(), folder / f"from-{name}-{parallelism}", ema_decay=0.9
    )
    assert trainer.restore_checkpoint()
    resumed_losses, resumed_weights = run_training(trainer)
    assert resumed_losses == pytest.approx(losses[4:], abs=1e-5)
    compare.assert_close(resumed_weights, weights, 1e-5)


def test_all_processes_run_the_same_number_of_micro_batches() -> None:
    shardings = [Sharding("ddp", DistributedContext(rank, 3), rank, 3) for rank in range(3)]
    assert [sharding.assign_micro_batches("abcd") for sharding in shardings] == [
        [("a", True), ("d", True)], [("b", True), ("a", False)], [("c", True), ("a", False)],
    ]  # fmt: skip


RECIPE = f"""{CHARACTER_MODEL}[train]
steps = 100000
lr_schedule = "constant"
log_every = 2
save_every = 10
"""


class TwoProcesses:
    """Two processes of `qkv train`, with the environment that torchrun sets."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = str(server.getsockname()[1])
        variables = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        self.processes = [
            subprocess.Popen(
                [sys.executable, *"-m qkv train recipe.toml --run run --device cpu".split(), *flags],
                cwd=folder, env=make_environment(RANK=rank, LOCAL_RANK=rank, **variables), text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for rank in "01"
        ]  # fmt: skip

    def wait(self) -> list[tuple[int, str, str]]:
        """Return exit status, output and errors of each."""
        outputs = [process.communicate(timeout=40) for process in self.processes]
        return [(p.returncode, *output) for p, output in zip(self.processes, outputs, strict=True)]


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("nothing happened in 30 s")


def test_command_line_with_two_processes(tmp_path: Path) -> None:
    """One is stopped and both stop; one is killed and the other reports it; torchrun finishes the run."""
    (tmp_path / "text.txt").write_text("the cat sees the dog and the dog sees the cat. " * 40)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    metrics = tmp_path / "run" / "metrics.jsonl"
    processes = TwoProcesses(tmp_path)
    wait_until(lambda: metrics.exists())
    processes.processes[1].send_signal(signal.SIGTERM)
    (status, output, errors), other = processes.wait()
    assert (status, errors) == (0, "")
    assert "continue with --resume auto" in output
    assert "cpu, fp32, 2 processes" in output
    assert other == (0, "", "")
    old_metrics = metrics.read_text()
    resumed = TwoProcesses(tmp_path, "--resume", "auto")
    wait_until(lambda: metrics.read_text() != old_metrics)
    resumed.processes[1].kill()
    (status, _, errors), other = resumed.wait()
    assert (status, len(errors.splitlines())) == (2, 1)
    assert "another process of the run has ended" in errors
    assert other[0] == -signal.SIGKILL
    steps = json.loads(metrics.read_text().splitlines()[-1])["step"] + 4
    flags = (
        f"--run run --device cpu --train.parallelism fsdp --resume changed --train.steps {steps}"
    )
    process = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--",
         "qkv", "train", "recipe.toml", *flags.split()],  # without --, torchrun reads --run itself
        cwd=tmp_path, env=make_environment(), text=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert process.stdout.count(f"{steps:,} of {steps:,} steps") == 1
    assert qkv.load(tmp_path / "run" / "last").net is not None


def test_error_in_a_recipe_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (status, _, errors), other = TwoProcesses(tmp_path).wait()
    assert (status, other) == (2, (2, "", ""))
    assert "text.txt" in errors
    (status, _, errors), other = TwoProcesses(tmp_path, "--train.lr", "-1").wait()
    assert (status, other) == (2, (2, "", ""))
    assert "train.lr is -1.0" in errors


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # all results are written; remaining torch threads must not change the exit status
