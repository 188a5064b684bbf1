"""Attack on the engine: random requests of all search methods together, many of which fail.

In every round, requests join one engine, from several threads. Some fail on purpose: a function of the
user raises an error or returns nonsense, logits are NaN, the network raises an error or needs more
memory than there is, a request is aborted, a step is interrupted. Every request must end as it does
alone, with the same token ids or the same error, and the engine must be idle and usable at the end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from torch import Tensor, nn

import qkv
from qkv.batch import Batch, Inputs
from qkv.decode import Engine, GenerationConfig, Result
from qkv.decode.runner import ModelRunner
from qkv.decode.search.speculative import SpeculativeRunner
from qkv.nn.network import Network
from qkv.nn.transformer import LayerCache
from tools.attack.case import Case

VOCAB_SIZE = 53
NAN_TOKEN_ID = 50  # its embedding is NaN
POISON_TOKEN_ID = 51  # the network raises an error for it
SIZES: dict[str, Any] = dict(vocab_size=VOCAB_SIZE, width=24, depth=2, heads=4, ffn_width=40)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", SIZES | dict(max_positions=64)),
    "gpt2 with few positions": ("gpt2", SIZES | dict(max_positions=10)),
    "llama": ("llama", SIZES | dict(kv_heads=2)),
    "sparse": ("sparse", SIZES | dict(max_positions=64, pattern="fixed", stride=4, num_summary=1)),
    "transformer-xl": (
        "transformer-xl",
        SIZES | dict(head_dim=6, mem_len=5, cutoffs=(10, 20), embedding_width=16),
    ),
    "xlnet": ("xlnet", SIZES | dict(head_dim=6, mem_len=5, attn_type="uni")),
    "t5": ("t5", SIZES | dict(head_dim=6, decoder_depth=2)),
    "bart": ("bart", SIZES | dict(max_positions=64, decoder_depth=2, decoder_heads=3)),
    "switch": (
        "switch",
        SIZES
        | dict(
            head_dim=6,
            decoder_depth=2,
            num_experts=3,
            num_sparse_encoder_layers=1,
            num_sparse_decoder_layers=1,
        ),
    ),
}
DRAFT_NETWORKS = ("gpt2", "t5")  # those with speculative decoding in some rounds
GREEDY = GenerationConfig(
    max_new_tokens=9, eos_token_id=(9, 17, 22, 30), decoder_start_token_id=3, pad_token_id=0
)
METHODS = {
    "greedy": GREEDY,
    "processors": replace(GREEDY, repetition_penalty=1.4, no_repeat_ngram_size=2),
    "invalid values": replace(GREEDY, remove_invalid_values=True),
    "sampling": replace(GREEDY, do_sample=True, temperature=1.5, top_k=30),
    "samples": replace(GREEDY, do_sample=True, top_p=0.95, num_return_sequences=3),
    "beams": replace(GREEDY, num_beams=3, num_return_sequences=2),
    "beam sampling": replace(GREEDY, num_beams=2, do_sample=True, temperature=1.3),
    "beam groups": replace(GREEDY, num_beams=4, num_beam_groups=2, diversity_penalty=0.7),
    "forced words": replace(GREEDY, num_beams=3, force_words_ids=(((11, 12),), ((13,), (14, 15)))),
    "contrastive": replace(GREEDY, penalty_alpha=0.6, top_k=4),
}
# What goes wrong with a request, from a number of new tokens on.
FAULTS = ("allowed", "stop", "nonsense", "nan", "nan prompt", "poison", "poison prompt", "abort")
MAX_STEPS = 2000  # an engine that is not idle after these hangs

Outcome = tuple[str, Any]  # "results", "error" or "aborted", and what it consists of


class AttackError(AssertionError):
    """A request did not end as it does alone, or the engine is not idle."""


@dataclass
class Plan:
    """A request, and what goes wrong with it."""

    arguments: dict[str, Any]  # prompt or source
    config: GenerationConfig
    seed: int
    fault: str | None = None
    fault_length: int = 0  # number of new tokens from which on it fails
    has_functions: bool = False  # whether it has functions that do nothing
    victim: int | None = None  # index of another request that it aborts
    join_step: int = 0
    is_victim: bool = False
    ids: Queue[tuple[Engine, int]] = field(default_factory=Queue)  # set by `add_to`
    abort_victim: Callable[[], None] = field(default=lambda: None)

    def allow_tokens(self, new_token_ids: list[int]) -> list[int] | Tensor:
        """The prefix_allowed_tokens_fn of the request."""
        if len(new_token_ids) >= self.fault_length:
            match self.fault:
                case "allowed":
                    raise KeyError(f"after {len(new_token_ids)} tokens")
                case "nonsense":
                    return [VOCAB_SIZE + 7]
                case "nan":
                    return [NAN_TOKEN_ID]
                case "poison":
                    return [POISON_TOKEN_ID]
                case "abort":
                    engine, request_id = self.ids.get()  # waits for the thread that adds it
                    engine.abort_request(request_id)
                    self.ids.put((engine, request_id))
        return [*range(NAN_TOKEN_ID)]

    def is_stopped(self, new_token_ids: list[int]) -> bool:
        """The stopping_criteria of the request."""
        if len(new_token_ids) >= self.fault_length:
            if self.fault == "stop":
                raise ZeroDivisionError(f"after {len(new_token_ids)} tokens")
            self.abort_victim()
        new_token_ids.clear()  # the list belongs to the function
        return False

    def add_to(self, engine: Engine) -> int:
        """Add the request to an engine."""
        self.ids = Queue()
        has_functions = self.has_functions or self.fault is not None or self.victim is not None
        request_id = engine.add_request(
            **self.arguments,
            generation_config=self.config,
            seed=self.seed,
            prefix_allowed_tokens_fn=self.allow_tokens if has_functions else None,
            stopping_criteria=self.is_stopped if has_functions else None,
        )
        self.ids.put((engine, request_id))
        return request_id


class Faults:
    """Forward hooks of a network that make it fail; they are inactive outside of `activate`."""

    def __init__(self, net: Network) -> None:
        self.memory_size: int | None = None  # rows x columns of a forward pass
        self.interrupts: set[int] = set()  # numbers of forward passes
        self.num_passes = 0
        net.register_forward_pre_hook(self.before_forward)
        for stack in (net.encoder, net.decoder):
            if stack is not None:
                stack.embedding.register_forward_hook(add_nan)

    def before_forward(self, net: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.num_passes += 1
        if self.num_passes in self.interrupts:
            raise KeyboardInterrupt
        batch: Batch = inputs[0]
        caches: list[LayerCache] | None = inputs[1] if len(inputs) > 1 else None
        num_columns = 0
        if caches is not None:
            num_columns = len(caches[0].attention)
        elif batch.mems is not None:
            num_columns = batch.mems.shape[2]
        for side in (batch.encoder, batch.decoder):
            if side is None or side.input_ids is None:
                continue
            size = len(side.input_ids) * (num_columns + side.input_ids.shape[1])
            if self.memory_size is not None and size > self.memory_size:
                raise torch.OutOfMemoryError(f"more than {self.memory_size} values")
            if (side.input_ids == POISON_TOKEN_ID).any():
                raise RuntimeError("poison")

    @contextmanager
    def activate(self, memory_size: int | None, interrupts: set[int]) -> Iterator[None]:
        """Limit the memory, and interrupt some forward passes."""
        self.memory_size, self.interrupts, self.num_passes = memory_size, interrupts, 0
        try:
            yield
        finally:
            self.memory_size, self.interrupts = None, set()


def add_nan(embedding: nn.Module, inputs: tuple[Inputs], output: Tensor) -> Tensor:
    """Give one token a NaN embedding."""
    if inputs[0].input_ids is None:
        return output
    is_nan = inputs[0].input_ids == NAN_TOKEN_ID
    return output.masked_fill(is_nan[..., None], torch.nan)


@lru_cache
def build_network(name: str, device: str, depth: int = 2) -> tuple[Network, Faults]:
    """Return a network of random weights in float64, and its hooks."""
    family, sizes = NETWORKS[name]
    net = qkv.build(family, **(sizes | dict(depth=depth))).net
    assert isinstance(net, Network)
    generator = torch.Generator().manual_seed(depth)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise if parameter.dim() > 1 else 1 + 0.2 * noise)
    return net.to(device, torch.float64), Faults(net)


def build_plans(random_numbers: random.Random, net: Network, has_draft: bool) -> list[Plan]:
    """Return random requests that the network supports."""
    is_seq2seq = net.encoder is not None and net.decoder is not None
    methods = [*METHODS]
    if net.last_stack.spec.recurrence is not None:
        methods.remove("contrastive")
    if has_draft:
        methods = ["greedy", "processors", "invalid values", "sampling", "samples"]
    plans: list[Plan] = []
    for index in range(random_numbers.randint(3, 9)):
        prompt = [
            random_numbers.randrange(4, NAN_TOKEN_ID) for _ in range(random_numbers.randint(1, 7))
        ]
        plan = Plan(
            arguments={"source" if is_seq2seq else "prompt": prompt},
            config=replace(
                METHODS[random_numbers.choice(methods)],
                max_new_tokens=random_numbers.choice([5, 8, 14]),
                suppress_tokens=(NAN_TOKEN_ID, POISON_TOKEN_ID),
            ),
            seed=random_numbers.randrange(1000),
            has_functions=random_numbers.random() < 0.3,
            join_step=random_numbers.choice([0, 0, random_numbers.randrange(8)]),
            fault_length=random_numbers.randint(1, 6),
        )
        if random_numbers.random() < 0.5:
            plan.fault = random_numbers.choice(FAULTS)
            if plan.fault in ("nan", "poison"):
                plan.config = replace(plan.config, suppress_tokens=())
            elif plan.fault.endswith("prompt"):
                token_id = NAN_TOKEN_ID if plan.fault == "nan prompt" else POISON_TOKEN_ID
                prompt[random_numbers.randrange(len(prompt))] = token_id
        elif plans and random_numbers.random() < 0.2:
            plan.victim = random_numbers.randrange(index)
            plans[plan.victim].is_victim = True
        plans.append(plan)
    return plans


def describe_outcome(results: list[Result]) -> Outcome:
    """Return what must be equal alone and together."""
    if results and results[0].error is not None:
        error = results[0].error
        return "error", (type(error).__name__, str(error), results[0].token_ids)
    return "results", [(result.token_ids, result.finish_reason) for result in results]


class Run:
    """An engine that runs requests to the end, and what it gives."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outcomes: dict[int, Outcome] = {}  # by request id
        self.streams: dict[tuple[int, int], list[int]] = {}  # by request id and sample
        self.num_interrupts = 0

    def step(self) -> None:
        try:
            outputs = self.engine.step()
        except KeyboardInterrupt:
            self.num_interrupts += 1
            return
        for output in outputs:
            key = (output.request_id, output.sample_index)
            self.streams[key] = self.streams.get(key, []) + output.new_token_ids
            if output.results is not None:
                if output.request_id in self.outcomes:
                    raise AttackError(f"request {output.request_id} ended twice")
                self.outcomes[output.request_id] = describe_outcome(output.results)

    def run_to_end(self) -> None:
        for _ in range(MAX_STEPS):
            if not self.engine.has_unfinished_requests:
                return
            self.step()
        raise AttackError(f"the engine is not idle after {MAX_STEPS} steps")

    def check_idle(self) -> None:
        """Raise an error if something is left in the engine."""
        engine = self.engine
        rows = [len(batch.requests) for batch in engine.running_batches.values()]
        cached = [
            len(runner.cache_layout) + len(runner.source_layout)
            for batch in engine.running_batches.values()
            for runner in list_model_runners(batch.runner)
        ]
        left = [*rows, *cached, *engine.queue.requests, *engine.partial_results, *engine.outputs]
        if any(left) or engine.queue.row_limit is not None:
            raise AttackError(f"the idle engine has rows {rows}, cached rows {cached}")


def list_model_runners(runner: Any) -> list[ModelRunner]:
    """Return the runners with a KV cache."""
    if isinstance(runner, SpeculativeRunner):
        return [runner.target_runner, runner.draft_runner]
    return [runner] if isinstance(runner, ModelRunner) else []


def attack(seed: int, device: str = "cpu") -> Counter[str]:
    """Run one round; return the number of requests by outcome, or raise an AttackError."""
    random_numbers = random.Random(seed)
    name = random_numbers.choice([*NETWORKS])
    net, faults = build_network(name, device)
    has_draft = name in DRAFT_NETWORKS and random_numbers.random() < 0.4
    settings: dict[str, Any] = dict(
        assistant_model=build_network(name, device, depth=1)[0] if has_draft else None,
        static_shapes=random_numbers.random() < 0.3 and device == "cpu",  # hooks read tensors
    )
    max_batch_size = random_numbers.choice([None, None, 4, 8])
    plans = build_plans(random_numbers, net, has_draft)
    memory_size = random_numbers.choice([None, None, 20, 40, 80, 160])
    interrupts = {random_numbers.randint(1, 40) for _ in range(random_numbers.choice([0, 0, 2]))}
    expected = []
    with faults.activate(memory_size, set()):
        for plan in plans:
            alone = Run(Engine(net, **settings))
            plan.add_to(alone.engine)
            alone.run_to_end()
            alone.check_idle()
            expected.append(alone.outcomes.get(0, ("aborted", None)))
    run = Run(Engine(net, max_batch_size=max_batch_size, **settings))
    with faults.activate(memory_size, interrupts):
        request_ids = run_together(run, plans)
        run.check_idle()
    outcomes = [run.outcomes.get(request_id, ("aborted", None)) for request_id in request_ids]
    for index, plan in enumerate(plans):
        place = (
            f"seed {seed}, {name}, request {index} ({plan.fault}, {plan.config.num_beams} beams)"
        )
        if outcomes[index] != expected[index]:
            is_aborted = plan.is_victim and outcomes[index][0] == "aborted"
            if not is_aborted:
                raise AttackError(f"{place}: {outcomes[index]}, alone {expected[index]}")
        check_stream(place, plan, outcomes[index], run.streams.get((request_ids[index], 0), []))
    check_new_request(seed, run, net)
    counts = Counter(
        f"{'error' if kind == 'error' else kind} ({plan.fault or 'no fault'})"
        for plan, (kind, _) in zip(plans, outcomes, strict=True)
    )
    return counts + Counter({"interrupted steps": run.num_interrupts})


def run_together(run: Run, plans: list[Plan]) -> list[int]:
    """Add all requests to one engine, half of them from another thread, and run it to the end."""
    request_ids: dict[int, int] = {}

    def abort_victim(victim: int) -> None:
        if victim in request_ids:
            run.engine.abort_request(request_ids[victim])

    for plan in plans:
        if plan.victim is not None:
            plan.abort_victim = partial(abort_victim, plan.victim)
    late = [index for index, plan in enumerate(plans) if plan.join_step]

    def add_late_requests() -> None:
        for index in late[::2]:
            request_ids[index] = plans[index].add_to(run.engine)

    for index, plan in enumerate(plans):
        if not plan.join_step:
            request_ids[index] = plan.add_to(run.engine)
    thread = threading.Thread(target=add_late_requests)
    thread.start()
    for step in range(8):
        for index in late[1::2]:
            if plans[index].join_step == step:
                request_ids[index] = plans[index].add_to(run.engine)
        run.step()
    thread.join()
    run.run_to_end()
    return [request_ids[index] for index in range(len(plans))]


def check_stream(place: str, plan: Plan, outcome: Outcome, stream: list[int]) -> None:
    """Check that every token was output once, in order."""
    kind, value = outcome
    if kind == "aborted" or plan.config.num_samples > 1 or plan.config.num_beams > 1:
        return
    token_ids = value[2] if kind == "error" else value[0][0]
    if stream != token_ids:
        raise AttackError(f"{place}: streamed {stream}, expected {token_ids}")


def check_new_request(seed: int, run: Run, net: Network) -> None:
    """Check that the engine goes on with a new request."""
    is_seq2seq = net.encoder is not None and net.decoder is not None
    plan = Plan({"source" if is_seq2seq else "prompt": [5, 6, 7, 8]}, GREEDY, seed)
    request_id = plan.add_to(run.engine)
    run.run_to_end()
    alone = Run(Engine(net))
    plan.add_to(alone.engine)
    alone.run_to_end()
    if run.outcomes[request_id] != alone.outcomes[0]:
        raise AttackError(f"seed {seed}: a new request gives {run.outcomes[request_id]}")


def run_attack(
    seed: int, seconds: float, max_rounds: int | None = None, device: str = "cpu"
) -> Counter[str]:
    """Attack for a time, or a number of rounds; return the number of requests by outcome."""
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end and (max_rounds is None or counts["rounds"] < max_rounds):
        counts += attack(seed + counts["rounds"], device)
        counts["rounds"] += 1
    return counts


def attack_engine(folder: Path, rng: random.Random) -> Iterator[Case]:
    """Requests of all search methods in one engine, many of which fail."""
    torch.set_num_threads(1)
    for name in NETWORKS:
        build_network(name, "cpu")
    for name in DRAFT_NETWORKS:
        build_network(name, "cpu", depth=1)
    while True:
        seed = rng.getrandbits(32)
        yield Case(name=f"round {seed}", run=partial(run_case, seed))


def run_case(seed: int, folder: Path) -> None:
    """Run one round in the process of a case."""
    print(dict(attack(seed)))
