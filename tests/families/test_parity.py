"""The numbers of the originals, class by class: outputs, all states, attention weights, every gradient.

Compared where a token stands. Where the original reads or counts pads, its rows go through it one by one.
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

# Until 5.22 the original counted an expert's capacity in another way.
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
    """A case's folder, written by the original and opened by us; once a session."""
    folder = cache(lambda case: oracle.save(case, tmp_path_factory.mktemp("case")))
    return cache(lambda case, dtype: qkv.load(folder(case), dtype=dtype, device=oracle.DEVICE))


def named(out: Row, seen: Row) -> Row:
    """Every output and attention weight under one name; what was kept of all layers, one by one."""
    layers = {name for name in out if name.endswith(("hiddens", "router"))}
    found = {name: value for name, value in out.items() if name not in layers} | seen
    return found | {f"{name}.{n}": value for name in layers for n, value in enumerate(out[name])}


def run(case: Case, model: qkv.Model, x: Inputs) -> Row:
    with qkv.look(model) as seen:
        out = model.run(**x, keep=case.keep)
    return {name: value.cpu() for name, value in named(out, seen).items()}


def apart(ours: Tensor, theirs: Tensor, atol: float, rtol: float) -> str | None:
    """How far, in words; None if close enough."""
    if ours.shape != theirs.shape:
        return f"shape {tuple(ours.shape)}, theirs {tuple(theirs.shape)}"
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if torch.allclose(ours, theirs, atol=atol, rtol=rtol):
        return None
    return f"{(ours - theirs).abs().max().item():.1e} apart (largest {theirs.abs().max().item():.1e})"


@pytest.mark.parametrize(("case", "padding", "dtype"), RUNS)
def test_numbers(case: Case, padding: str, dtype: torch.dtype, opened: Opened) -> None:
    close = 1e-6 if case.family in DROPS else 1e-9
    atol, rtol = (2e-5, 1e-4) if dtype == torch.float32 else (close, close)
    x = oracle.inputs(case, padding, dtype)
    model = opened(case, dtype)
    theirs, axes = oracle.expected(case, x, padding, dtype)
    found = run(case, model, x)
    missing = axes.keys() - found.keys()
    assert not missing, f"not there: {sorted(missing)}; there: {sorted(found)}"
    layers = {name for name in found if "." in name}
    if case.kind != "CLIPModel":  # which gives no states of its two towers
        assert layers <= axes.keys(), f"unknown to the original: {sorted(layers - axes.keys())}"
    picked: Outputs = {name: (found[name], axes[name]) for name in axes}
    ours = oracle.rows(picked, x)
    wrong = [
        f"row {n} {name}: {words}"
        for n, (mine, their) in enumerate(zip(ours, theirs, strict=True))
        for name in their
        if (words := apart(mine[name], their[name], atol, rtol))
    ]
    assert not wrong, "\n".join(wrong)

    oracle.loss(theirs).backward()
    oracle.loss(ours).backward()
    original = oracle.make(case, dtype)
    there, here = oracle.gradients(original), model.theirs(oracle.gradients(model.net))
    unknown = here.keys() - original.state_dict().keys()
    assert not unknown, f"no such tensor in the original: {sorted(unknown)}"
    names: dict[int, list[str]] = {}  # a tied tensor goes by several; a dead one may be no parameter of ours
    for name, tensor in original.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
    for name, gradient in there.items():
        mine = [here[n] for n in names[id(original.get_parameter(name))] if n in here]
        mine = mine or [torch.zeros_like(gradient)]
        wrong += [f"gradient of {name}: {words}" for g in mine if (words := apart(g, gradient, atol, rtol))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_looking_changes_nothing(case: Case, opened: Opened) -> None:
    x = oracle.inputs(case, case.paddings()[-1])
    model = opened(case, torch.float32)
    seen, unseen = run(case, model, x), named(model.run(**x, keep=case.keep), {})
    unseen = {name: value.cpu() for name, value in unseen.items()}
    different = [name for name in unseen if not torch.equal(seen[name], unseen[name])]
    assert not different


@pytest.mark.parametrize("case", [c for c in CASES if "left" in c.paddings()], ids=str)
def test_padded_row_equals_row_alone(case: Case, opened: Opened) -> None:
    model = opened(case, torch.float64)
    axes = oracle.expected(case, oracle.inputs(case, "right"), "right", torch.float32)[1]
    axes = {name: a for name, a in axes.items() if "n" in a and name != "memory"}
    for padding in ("left", "right"):
        x = oracle.inputs(case, padding, torch.float64)
        padded = run(case, model, x)
        together = oracle.rows({name: (padded[name], axes[name]) for name in axes}, x)
        for n, row in enumerate(together):
            part = oracle.single(x, n)
            single = run(case, model, part)
            alone = oracle.rows({name: (single[name], axes[name]) for name in axes}, part)[0]
            far = {name: apart(row[name], alone[name], 1e-9, 1e-9) for name in row}
            assert not any(far.values()), f"{padding}, row {n}: {far}"


def squared(side: list[Row], exact: list[Row]) -> float:
    """The squared error of all outputs; states and weights along the way left out."""
    pairs = [
        (row[name], right[name])
        for row, right in zip(side, exact, strict=True)
        for name in right
        if "." not in name
    ]
    return sum(float((a.detach().double() - b.detach()).square().sum()) for a, b in pairs)


@pytest.mark.skipif(oracle.DEVICE == "cpu", reason="bf16 is compared on a GPU: QKV_DEVICE=cuda names it")
def test_bf16_errs_no_more_than_the_original(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """Both in bf16 against the original in fp64: ours is at most 1.5 times as far off, family by family."""
    errors: dict[str, list[tuple[float, float]]] = {}
    for case in CASES:
        if "fp32" in case.words or case in OLDER:
            continue
        exact, axes = oracle.expected(case, oracle.inputs(case, "none", torch.float64), "none", torch.float64)
        x = oracle.inputs(case, "none", torch.bfloat16)
        with torch.no_grad():
            coarse, _ = oracle.expected(case, x, "none", torch.bfloat16)
            found = run(case, opened(case, torch.bfloat16), x)
        ours = oracle.rows({name: (found[name], axes[name]) for name in axes}, x)
        far = [squared(side, exact) for side in (ours, coarse)]
        errors.setdefault(case.family, []).append((far[0], far[1]))
    wrong = []
    for family, pairs in errors.items():
        ratio = (sum(mine for mine, _ in pairs) / sum(theirs for _, theirs in pairs)) ** 0.5
        with capsys.disabled():
            print(f"bf16 {family:<20} {ratio:.2f} of the original's error over {len(pairs)} cases")
        wrong += [f"{family}: {ratio:.2f}"] if ratio > 1.5 else []
    assert not wrong, wrong


def test_every_class_has_a_case() -> None:
    kinds = {case.kind for case in CASES}
    for family in SIZES:
        module = getattr(transformers.models, family)
        classes = [value for name in dir(module) if isinstance(value := getattr(module, name), type)]
        models = {c.__name__ for c in classes if issubclass(c, transformers.PreTrainedModel)}
        models = {name for name in models if "pretrained" not in name.lower()}
        assert models, family
        assert models <= kinds, f"{family}: no case for {sorted(models - kinds)}"
