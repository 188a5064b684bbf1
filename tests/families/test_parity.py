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
from tests.support import compare
from tests.support.oracle.cases import CASES, FP32_PARTS, Case
from tests.support.oracle.classes import SIZES
from tests.support.oracle.inputs import Inputs, build_inputs, select_row
from tests.support.oracle.models import (
    DEVICE,
    build_reference,
    find_published_name,
    save_reference,
)
from tests.support.oracle.outputs import (
    Outputs,
    Row,
    collect_gradients,
    compute_expected,
    compute_loss,
    split_rows,
)

# Before 5.22 transformers counted an expert's capacity differently.
SKIPPED = [c for c in CASES if c.name.endswith("-overflow") and transformers.__version__ < "5.22"]
# SimMIM: mask tokens inside the embedding, and a decoder of pixels.
NOT_SUPPORTED = {"ViTForMaskedImageModeling"}
LoadCase = Callable[[Case, torch.dtype], qkv.Model]
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
RUNS = [
    pytest.param(case, padding, dtype, id=f"{case}-{padding}-{name}")
    for case in CASES
    if case not in SKIPPED
    for name, dtype in DTYPES.items()
    for padding in case.list_paddings()
    if name == "fp32" or "fp32" not in case.traits
]


@pytest.fixture(scope="session")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> LoadCase:
    """Return a function that loads a case's folder, written by transformers; cached."""
    folder = cache(lambda case: save_reference(case, tmp_path_factory.mktemp("case")))
    return cache(lambda case, dtype: qkv.load(folder(case), dtype=dtype, device=DEVICE))


def flatten_outputs(out: Row, weights: Row) -> Row:
    """Return outputs and attention weights by name, the states of each layer under its own name."""
    layers = {name for name in out if name.endswith(("hidden_states", "router_logits"))}
    outputs = {name: value for name, value in out.items() if name not in layers} | weights
    outputs |= {f"{name}.{n}": value for name in layers for n, value in enumerate(out[name])}
    return {name: value.cpu() for name, value in outputs.items()}


def run(case: Case, model: qkv.Model, inputs: Inputs) -> Row:
    with qkv.look(model) as weights:
        out = model(**inputs, extra_outputs=case.extra_outputs)
    return flatten_outputs(out, weights)


def run_rows(case: Case, model: qkv.Model, inputs: Inputs, axes: dict[str, str]) -> list[Row]:
    """Return the values of the outputs that have axes, at tokens, row by row."""
    outputs = run(case, model, inputs)
    return split_rows({name: (outputs[name], axes[name]) for name in axes}, inputs)


def describe_difference(actual: Tensor, expected: Tensor, atol: float, rtol: float) -> str | None:
    """Return what differs; None if the tensors are close."""
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    actual = actual.detach().double()
    expected = expected.detach().double()
    if torch.allclose(actual, expected, atol=atol, rtol=rtol):
        return None
    difference = (actual - expected).abs().max().item()
    return f"difference {difference:.1e} (largest value {expected.abs().max().item():.1e})"


@pytest.mark.parametrize(("case", "padding", "dtype"), RUNS)
def test_outputs_and_gradients_match_the_reference(
    case: Case, padding: str, dtype: torch.dtype, load_case: LoadCase
) -> None:
    fp64_tolerance = 1e-6 if case.family in FP32_PARTS else 1e-9
    atol, rtol = (2e-5, 1e-4) if dtype == torch.float32 else (fp64_tolerance, fp64_tolerance)
    inputs = build_inputs(case, padding, dtype)
    model = load_case(case, dtype)
    theirs, axes = compute_expected(case, inputs, padding, dtype)
    outputs = run(case, model, inputs)
    missing = axes.keys() - outputs.keys()
    assert not missing, f"missing: {sorted(missing)}; present: {sorted(outputs)}"
    layers = {name for name in outputs if "." in name}
    if case.class_name != "CLIPModel":  # which returns no hidden states
        assert layers <= axes.keys(), f"unknown to transformers: {sorted(layers - axes.keys())}"
    selected: Outputs = {name: (outputs[name], axes[name]) for name in axes}
    ours = split_rows(selected, inputs)
    wrong = [
        f"row {n} {name}: {difference}"
        for n, (actual, expected) in enumerate(zip(ours, theirs, strict=True))
        for name in expected
        if (difference := describe_difference(actual[name], expected[name], atol, rtol))
    ]
    assert not wrong, "\n".join(wrong)

    compute_loss(theirs).backward()
    compute_loss(ours).backward()
    reference = build_reference(case, dtype)
    expected_gradients = collect_gradients(reference)
    gradients = model.to_checkpoint_tensors(collect_gradients(model.net))
    published_names = {find_published_name(case, name) for name in reference.state_dict()}
    unknown = gradients.keys() - published_names
    assert not unknown, f"no such tensor in transformers: {sorted(unknown)}"
    # A tied tensor has several names; an unused one may be no parameter of ours.
    names: dict[int, list[str]] = {}
    for name, tensor in reference.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(find_published_name(case, name))
    for name, expected_gradient in expected_gradients.items():
        tied_names = names[id(reference.get_parameter(name))]
        tied = [gradients[tied_name] for tied_name in tied_names if tied_name in gradients]
        wrong += [
            f"gradient of {name}: {difference}"
            for gradient in tied or [torch.zeros_like(expected_gradient)]
            if (difference := describe_difference(gradient, expected_gradient, atol, rtol))
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_look_does_not_change_outputs(case: Case, load_case: LoadCase) -> None:
    inputs = build_inputs(case, case.list_paddings()[-1])
    model = load_case(case, torch.float32)
    recorded = run(case, model, inputs)
    plain = flatten_outputs(model(**inputs, extra_outputs=case.extra_outputs), {})
    compare.assert_bitwise_equal(
        {name: recorded[name] for name in plain}, plain, because=compare.SAME_KERNELS
    )


@pytest.mark.parametrize("case", [c for c in CASES if "left" in c.list_paddings()], ids=str)
def test_padded_row_equals_row_alone(case: Case, load_case: LoadCase) -> None:
    model = load_case(case, torch.float64)
    axes = compute_expected(case, build_inputs(case, "right"), "right", torch.float32)[1]
    axes = {name: letters for name, letters in axes.items() if "n" in letters and name != "mems"}
    for padding in ("left", "right"):
        inputs = build_inputs(case, padding, torch.float64)
        for n, padded in enumerate(run_rows(case, model, inputs, axes)):
            (alone,) = run_rows(case, model, select_row(inputs, n), axes)
            wrong = {
                name: describe_difference(padded[name], alone[name], 1e-9, 1e-9) for name in padded
            }
            assert not any(wrong.values()), f"{padding}, row {n}: {wrong}"


def squared_error(rows: list[Row], expected_rows: list[Row]) -> float:
    """Return the squared error of all outputs, without states and attention weights of layers."""
    pairs = [
        (row[name], expected[name])
        for row, expected in zip(rows, expected_rows, strict=True)
        for name in expected
        if "." not in name
    ]
    return sum(float((a.detach().double() - b.detach()).square().sum()) for a, b in pairs)


@pytest.mark.skipif(DEVICE == "cpu", reason="bf16 is compared on a GPU: set QKV_DEVICE=cuda")
def test_bf16_error_is_at_most_that_of_the_reference(
    load_case: LoadCase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against fp64, our bf16 error is at most 1.5 times that of transformers, for each family."""
    errors: dict[str, list[tuple[float, float]]] = {}
    for case in CASES:
        if "fp32" in case.traits or case in SKIPPED:
            continue
        fp64_inputs = build_inputs(case, "none", torch.float64)
        exact, axes = compute_expected(case, fp64_inputs, "none", torch.float64)
        inputs = build_inputs(case, "none", torch.bfloat16)
        with torch.no_grad():
            theirs, _ = compute_expected(case, inputs, "none", torch.bfloat16)
            ours = run_rows(case, load_case(case, torch.bfloat16), inputs, axes)
        pair = (squared_error(ours, exact), squared_error(theirs, exact))
        errors.setdefault(case.family, []).append(pair)
    wrong = []
    for family, pairs in errors.items():
        ratio = (sum(ours for ours, _ in pairs) / sum(theirs for _, theirs in pairs)) ** 0.5
        with capsys.disabled():
            print(f"bf16 {family:<20} {ratio:.2f} of transformers' error over {len(pairs)} cases")
        wrong += [f"{family}: {ratio:.2f}"] if ratio > 1.5 else []
    assert not wrong, wrong


def test_every_class_has_a_case() -> None:
    class_names = {case.class_name for case in CASES}
    for family in SIZES:
        module = getattr(transformers.models, family)
        classes = [
            value for name in dir(module) if isinstance(value := getattr(module, name), type)
        ]
        models = {c.__name__ for c in classes if issubclass(c, transformers.PreTrainedModel)}
        models = {name for name in models if "pretrained" not in name.lower()} - NOT_SUPPORTED
        assert models, family
        assert models <= class_names, f"{family}: no case for {sorted(models - class_names)}"
