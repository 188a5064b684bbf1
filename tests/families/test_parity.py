"""Parity with transformers for every class: outputs, hidden states, attention weights, gradients.

Values are compared at tokens. Where transformers reads or counts padding, it runs rows one by one.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
import transformers
from torch import Tensor

import qkv
from tests.support import oracle
from tests.support.oracle import CASES, DROPS, SIZES, Case, Inputs, Outputs, Row

# Before 5.22 transformers counted an expert's capacity differently.
OLDER = [c for c in CASES if c.name.endswith("-overflow") and transformers.__version__ < "5.22"]
Opened = Callable[[Case, torch.dtype], qkv.Model]
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
RUNS = [
    pytest.param(case, padding, dtype, id=f"{case}-{padding}-{name}")
    for case in CASES
    if case not in OLDER
    for name, dtype in DTYPES.items()
    for padding in case.paddings()
    if name == "fp32" or "fp32" not in case.words
]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return a function that loads a case's folder, written by transformers; cached."""
    folder = cache(lambda case: oracle.save(case, tmp_path_factory.mktemp("case")))
    return cache(lambda case, dtype: qkv.load(folder(case), dtype=dtype, device=oracle.DEVICE))


def flatten_outputs(out: Row, weights: Row) -> Row:
    """Return outputs and attention weights by name, the states of each layer under its own name."""
    layers = {name for name in out if name.endswith(("hidden_states", "router_logits"))}
    outputs = {name: value for name, value in out.items() if name not in layers} | weights
    return outputs | {f"{name}.{n}": value for name in layers for n, value in enumerate(out[name])}


def run(case: Case, model: qkv.Model, x: Inputs) -> Row:
    with qkv.look(model) as weights:
        out = model(**x, extra_outputs=case.keep)
    return {name: value.cpu() for name, value in flatten_outputs(out, weights).items()}


def describe_difference(ours: Tensor, theirs: Tensor, atol: float, rtol: float) -> str | None:
    """Return what differs; None if the tensors are close."""
    if ours.shape != theirs.shape:
        return f"shape {tuple(ours.shape)}, theirs {tuple(theirs.shape)}"
    ours = ours.detach().double()
    theirs = theirs.detach().double()
    if torch.allclose(ours, theirs, atol=atol, rtol=rtol):
        return None
    difference = (ours - theirs).abs().max().item()
    return f"difference {difference:.1e} (largest value {theirs.abs().max().item():.1e})"


@pytest.mark.parametrize(("case", "padding", "dtype"), RUNS)
def test_numbers(case: Case, padding: str, dtype: torch.dtype, opened: Opened) -> None:
    fp64_tolerance = 1e-6 if case.family in DROPS else 1e-9
    atol, rtol = (2e-5, 1e-4) if dtype == torch.float32 else (fp64_tolerance, fp64_tolerance)
    x = oracle.inputs(case, padding, dtype)
    model = opened(case, dtype)
    theirs, axes = oracle.expected(case, x, padding, dtype)
    outputs = run(case, model, x)
    missing = axes.keys() - outputs.keys()
    assert not missing, f"missing: {sorted(missing)}; present: {sorted(outputs)}"
    layers = {name for name in outputs if "." in name}
    if case.kind != "CLIPModel":  # which returns no hidden states
        assert layers <= axes.keys(), f"unknown to transformers: {sorted(layers - axes.keys())}"
    selected: Outputs = {name: (outputs[name], axes[name]) for name in axes}
    ours = oracle.rows(selected, x)
    wrong = [
        f"row {n} {name}: {difference}"
        for n, (actual, expected) in enumerate(zip(ours, theirs, strict=True))
        for name in expected
        if (difference := describe_difference(actual[name], expected[name], atol, rtol))
    ]
    assert not wrong, "\n".join(wrong)

    oracle.loss(theirs).backward()
    oracle.loss(ours).backward()
    original = oracle.make(case, dtype)
    there = oracle.gradients(original)
    here = model.to_checkpoint_tensors(oracle.gradients(model.net))
    unknown = here.keys() - original.state_dict().keys()
    assert not unknown, f"no such tensor in transformers: {sorted(unknown)}"
    names: dict[
        int, list[str]
    ] = {}  # tied tensors have several; an unused one may be no parameter of ours
    for name, tensor in original.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    for name, gradient in there.items():
        mine = [here[n] for n in names[id(original.get_parameter(name))] if n in here]
        mine = mine or [torch.zeros_like(gradient)]
        wrong += [
            f"gradient of {name}: {difference}"
            for g in mine
            if (difference := describe_difference(g, gradient, atol, rtol))
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_looking_changes_nothing(case: Case, opened: Opened) -> None:
    x = oracle.inputs(case, case.paddings()[-1])
    model = opened(case, torch.float32)
    seen = run(case, model, x)
    unseen = flatten_outputs(model(**x, extra_outputs=case.keep), {})
    unseen = {name: value.cpu() for name, value in unseen.items()}
    different = [name for name in unseen if not torch.equal(seen[name], unseen[name])]
    assert not different


@pytest.mark.parametrize("case", [c for c in CASES if "left" in c.paddings()], ids=str)
def test_padded_row_equals_row_alone(case: Case, opened: Opened) -> None:
    model = opened(case, torch.float64)
    axes = oracle.expected(case, oracle.inputs(case, "right"), "right", torch.float32)[1]
    axes = {name: a for name, a in axes.items() if "n" in a and name != "mems"}
    for padding in ("left", "right"):
        x = oracle.inputs(case, padding, torch.float64)
        padded = run(case, model, x)
        together = oracle.rows({name: (padded[name], axes[name]) for name in axes}, x)
        for n, row in enumerate(together):
            part = oracle.single(x, n)
            single = run(case, model, part)
            alone = oracle.rows({name: (single[name], axes[name]) for name in axes}, part)[0]
            far = {name: describe_difference(row[name], alone[name], 1e-9, 1e-9) for name in row}
            assert not any(far.values()), f"{padding}, row {n}: {far}"


def squared(side: list[Row], exact: list[Row]) -> float:
    """Return the squared error of all outputs, without states and attention weights of layers."""
    pairs = [
        (row[name], right[name])
        for row, right in zip(side, exact, strict=True)
        for name in right
        if "." not in name
    ]
    return sum(float((a.detach().double() - b.detach()).square().sum()) for a, b in pairs)


@pytest.mark.skipif(oracle.DEVICE == "cpu", reason="bf16 is compared on a GPU: set QKV_DEVICE=cuda")
def test_bf16_errs_no_more_than_the_original(
    opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against fp64, our bf16 error is at most 1.5 times that of transformers, for each family."""
    errors: dict[str, list[tuple[float, float]]] = {}
    for case in CASES:
        if "fp32" in case.words or case in OLDER:
            continue
        exact, axes = oracle.expected(
            case, oracle.inputs(case, "none", torch.float64), "none", torch.float64
        )
        x = oracle.inputs(case, "none", torch.bfloat16)
        with torch.no_grad():
            coarse, _ = oracle.expected(case, x, "none", torch.bfloat16)
            outputs = run(case, opened(case, torch.bfloat16), x)
        ours = oracle.rows({name: (outputs[name], axes[name]) for name in axes}, x)
        far = [squared(side, exact) for side in (ours, coarse)]
        errors.setdefault(case.family, []).append((far[0], far[1]))
    wrong = []
    for family, pairs in errors.items():
        ratio = (sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs)) ** 0.5
        with capsys.disabled():
            print(f"bf16 {family:<20} {ratio:.2f} of transformers' error over {len(pairs)} cases")
        wrong += [f"{family}: {ratio:.2f}"] if ratio > 1.5 else []
    assert not wrong, wrong


def test_every_class_has_a_case() -> None:
    kinds = {case.kind for case in CASES}
    for family in SIZES:
        module = getattr(transformers.models, family)
        classes = [
            value for name in dir(module) if isinstance(value := getattr(module, name), type)
        ]
        models = {c.__name__ for c in classes if issubclass(c, transformers.PreTrainedModel)}
        models = {name for name in models if "pretrained" not in name.lower()}
        assert models, family
        assert models <= kinds, f"{family}: no case for {sorted(models - kinds)}"
