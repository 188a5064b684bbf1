"""Mutation tests: the table of mutants fits the code; and properties that mutants revealed."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Inputs
from qkv.kernels.bias import AttentionBias
from qkv.kernels.block_sparse import BlockLayout, block_sparse_attention, build_block_layout
from qkv.nn.feed_forward import load_balancing_loss, router_z_loss
from qkv.spec import Banded, Pattern, PerHead, Strided, full
from tests.support import compare, tiny
from tools import mutants
from tools.mutants import TABLE, Mutant

KNOWN = next(row for row in TABLE if row.name == "causal-excludes-self")
IDLE = Mutant("idle", "spec.py", "Knows no tensors.", "Knows no tensor.", KNOWN.tests)


def test_every_mutant_applies() -> None:
    assert mutants.find_table_errors(TABLE) == []
    assert len(TABLE) >= 150


def test_a_mutant_that_no_longer_applies_is_named() -> None:
    rows = [
        IDLE._replace(name="gone", old="no such text"),
        IDLE._replace(name="often", old="def "),
        IDLE._replace(name="nowhere", file="no.py"),
        IDLE._replace(name="the same", new=IDLE.old),
        IDLE._replace(name="no code", new='"""'),
        IDLE._replace(name="untested", tests="patterns:nothing"),
        IDLE,
        IDLE,
    ]
    errors = mutants.find_table_errors(rows)
    names = [row.name for row in rows if row is not IDLE]
    assert [error.split(":")[0] for error in errors] == [*names, "idle"]


def python(*arguments: str) -> str:
    """Return the output of a new Python process; a test process must not fork."""
    command = [sys.executable, *arguments]
    result = subprocess.run(
        command, cwd=mutants.ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    return result.stdout


def test_a_known_mutant_is_caught() -> None:
    output = python("tools/mutants.py", "--only", KNOWN.name, "--jobs", "1")
    assert mutants.expand_test_id(KNOWN.tests) in output
    assert "1 of 1 caught" in output


def test_a_mutant_without_effect_survives(tmp_path: Path) -> None:
    """A test that fails without the mutant too does not count."""
    mutants.copy_repository(mutants.ROOT, tmp_path)
    (tmp_path / "tests" / "test_bad.py").write_text(
        "def test_bad() -> None:\n    raise AssertionError\n"
    )
    attempt = f"mutants.run_mutant(IDLE, Path({str(tmp_path)!r}), ['tests/test_bad.py'])"
    imports = "from pathlib import Path; from tests.nn.test_caught_mutants import IDLE, mutants"
    code = f"{imports}; print({attempt}[1:3])"
    assert python("-c", code).strip() == str(
        ("SURVIVED", "tests/test_bad.py::test_bad fails without a mutant too")
    )


@pytest.mark.parametrize(
    ("status", "output", "word"),
    [
        (
            1,
            "FAILED tests/families/test_xl.py::test_outputs_and_gradients_match_the_reference[xl-base] - AssertionError: hidden",
            "caught",
        ),
        (
            1,
            "FAILED tests/families/test_xl.py::test_outputs_and_gradients_match_the_reference[xl-base]",
            "caught",
        ),
        (
            1,
            "FAILED tests/families/test_xl.py::test_outputs_and_gradients_match_the_reference[xl-base] - NameError: name 'w'",
            "NOT RUN",
        ),
        (
            1,
            "ERROR tests/families/test_xl.py::test_outputs_and_gradients_match_the_reference[xl-base] - AssertionError",
            "NOT RUN",
        ),
        (1, "NOT RUN: ImportError: no such module", "NOT RUN"),
        (2, "ERROR tests/families/test_xl.py", "NOT RUN"),
        (4, "ERROR: not found", "NOT RUN"),
        (5, "no tests ran", "NOT RUN"),
        (0, "1 passed", "SURVIVED"),
        (124, "more than 120 s", "SURVIVED"),
    ],
)
def test_only_a_failing_test_catches_a_mutant(status: int, output: str, word: str) -> None:
    assert mutants.classify_run(status, output)[0] == word


def test_every_head_keeps_its_pattern() -> None:
    """Heads are grouped by pattern for the kernel and put back in order."""
    patterns = (Banded(3), Strided(4), Banded(3), Strided(4), Banded(3))
    q, k, v = torch.randn(3, 2, 5, 20, 6, dtype=torch.float64)

    def visible(pattern: Pattern, i: Tensor, j: Tensor) -> Tensor:
        return pattern(i[..., :, None], j[..., None, :])

    def layout(pattern: Pattern) -> BlockLayout:
        return build_block_layout(pattern, visible, torch.arange(20)[None])

    together = block_sparse_attention(q, k, v, PerHead(patterns), layout, scale=0.4)
    for h, pattern in enumerate(patterns):
        q_head, k_head, v_head = (x[:, h, None] for x in (q, k, v))
        alone = block_sparse_attention(q_head, k_head, v_head, pattern, layout, scale=0.4)
        compare.assert_close({"head": together[:, h, None]}, {"head": alone}, 1e-12)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_padding_inside_a_row_is_no_distance(pattern: str) -> None:
    """Padding between the tokens of a long row, where the sparse kernel would count columns."""
    model = tiny.build("sparse", pattern=pattern, stride=16, num_summary=3, max_positions=400)
    ids = tiny.random_ids(1, 330)
    columns = torch.arange(330)
    mask = ((columns < 100) | (columns >= 137))[None]
    together = model(ids, attention_mask=mask)["last_hidden_state"][mask]
    alone = model(ids[mask][None])["last_hidden_state"][0]
    compare.assert_close({"hidden": together}, {"hidden": alone})


@pytest.mark.parametrize("positions", ["xl", "t5", "alibi", "rotary"])
def test_given_positions_may_be_far_apart(positions: str) -> None:
    """Distances larger than the row is long are distinguished."""
    model = tiny.build("gpt2", positions=positions)
    ids = tiny.random_ids(1, 4)
    outs = [
        model(ids, position_ids=torch.tensor([[0, 1, 2, at]]))["last_hidden_state"]
        for at in (20, 30)
    ]
    # Not bitwise: XL's table of distances is longer for 30, so matrix products have another shape.
    assert compare.max_difference(outs[0][:, :3], outs[1][:, :3]) < 1e-12
    assert compare.max_difference(outs[0][:, 3], outs[1][:, 3]) > 1e-6


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_distances_beyond_clamp_len_are_alike(family: str) -> None:
    model = tiny.build(family, clamp_len=4)
    side = "decoder" if family == "transformer-xl" else "encoder"
    relative = model.net.get_submodule(f"{side}.layers.0.attention.relative")
    q = torch.randn(1, 4, 1, 6, dtype=torch.float64)
    keys = torch.arange(10)[None]
    for contiguous in (True, False):
        bias = AttentionBias(
            pattern=full,
            q_positions=torch.tensor([[9]]),
            k_positions=keys,
            max_distance=9,
            contiguous=contiguous,
        )
        scores = relative(q, bias)[1][0, 0, 0].flip(0)  # by distance
        assert len({round(score, 6) for score in scores[:5].tolist()}) == 5
        compare.assert_close({"far": scores[5:]}, {"far": scores[4].expand(5)}, 1e-12)


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_shifted_scores_equal_gathered_scores(family: str) -> None:
    model = tiny.build(family)
    side = "decoder" if family == "transformer-xl" else "encoder"
    relative = model.net.get_submodule(f"{side}.layers.0.attention.relative")
    q = torch.randn(2, 4, 3, 6, dtype=torch.float64)
    queries = torch.arange(6, 9)[None]
    keys = torch.arange(9)[None]
    shifted, gathered = (
        relative(
            q,
            AttentionBias(
                pattern=full,
                q_positions=queries,
                k_positions=keys,
                max_distance=8,
                contiguous=contiguous,
            ),
        )[1]
        for contiguous in (True, False)
    )
    is_visible = (keys <= queries[0, :, None]) | (family == "xlnet")
    actual = {"scores": shifted[..., is_visible]}
    compare.assert_close(actual, {"scores": gathered[..., is_visible]}, 1e-12)


@pytest.mark.parametrize("family", ["gpt2", "llama", "ctrl"])
def test_given_positions_are_not_shifted_by_a_cache(family: str) -> None:
    model = tiny.build(family)
    ids = tiny.random_ids(2, 7)
    position_ids = torch.arange(7).expand(2, -1)
    full = model(ids)["logits"]
    caches = tiny.empty_caches(model, 2)
    for low, high in pairwise((0, 4, 5, 7)):
        inputs = Inputs.create(ids[:, low:high], position_ids=position_ids[:, low:high])
        out = model.net(Batch(encoder=inputs), caches)
        compare.assert_close({"logits": out["logits"]}, {"logits": full[:, low:high]})


@pytest.mark.parametrize(
    ("family", "is_bidirectional"), [("gpt2", False), ("bert", True), ("modernbert", True)]
)
def test_buckets_of_a_decoder_are_for_earlier_positions(
    family: str, is_bidirectional: bool
) -> None:
    """All 32 buckets are for earlier positions: distance 16 has one beyond the first half."""
    model = tiny.build(family, positions="t5", head="none", depth=1)
    model(tiny.random_ids(1, 30))["last_hidden_state"][:, 16].sum().backward()
    side = "decoder" if family == "gpt2" else "encoder"
    gradient = model.net.get_parameter(f"{side}.position_bias.table.weight").grad
    assert gradient is not None
    used = gradient.abs().sum(1) > 1e-12
    assert used[:3].all()
    assert [used[16].item(), used[17:].any().item()] == [not is_bidirectional, is_bidirectional]


def test_router_losses_are_the_papers() -> None:
    """Switch, eq. 4 to 6: N times the sum of f_i P_i for each row; ST-MoE, eq. 5."""
    logits = torch.randn(2, 9, 4, dtype=torch.float64)
    rows = []
    for row in logits:
        probs = [token.exp() / token.exp().sum() for token in row]
        fractions = [sum(int(p.argmax()) == i for p in probs) / 9 for i in range(4)]
        mean_probs = [sum(p[i] for p in probs) / 9 for i in range(4)]
        rows.append(4 * sum(f * p for f, p in zip(fractions, mean_probs, strict=True)))
    compare.assert_close(
        {"loss": load_balancing_loss(logits)}, {"loss": torch.stack(rows).mean()}, 1e-12
    )
    squares = [token.exp().sum().log() ** 2 for token in logits.flatten(0, 1)]
    compare.assert_close(
        {"loss": router_z_loss(logits)}, {"loss": torch.stack(squares).mean()}, 1e-12
    )


@pytest.mark.parametrize(
    ("family", "changes", "factor"),
    [("bart", {"scale_embedding": True}, tiny.WIDTH**0.5), ("ctrl", {}, 1.0), ("gpt2", {}, 1.0)],
)
def test_inputs_embeds_are_scaled_as_in_the_original(
    family: str, changes: dict[str, Any], factor: float
) -> None:
    """BART scales looked-up embeddings only; CTRL scales `inputs_embeds` too."""
    model = tiny.build(family, **changes)
    ids = tiny.random_ids(2, 6)
    side = "encoder" if family == "bart" else "decoder"
    table = model.net.get_parameter(f"{side}.embedding.tokens.weight")
    target = tiny.random_ids(2, 5, seed=1) if family == "bart" else None
    expected = model(ids, decoder_input_ids=target)
    actual = model(inputs_embeds=table[ids] * factor, decoder_input_ids=target)
    compare.assert_close(actual, expected)


def test_token_types_default_to_zero() -> None:
    model = tiny.build("bert")
    ids = tiny.random_ids(2, 6)
    default = model(ids)
    compare.assert_close(model(ids, token_type_ids=torch.zeros_like(ids)), default)
    other = model(ids, token_type_ids=torch.full_like(ids, 2))
    assert compare.max_difference(other["last_hidden_state"], default["last_hidden_state"]) > 1e-3


def test_the_pad_embedding_has_no_gradient() -> None:
    model = tiny.build("bert", pad_token_id=5, head="none")
    ids = tiny.random_ids(1, 6)
    ids[0, 3] = 5
    model(ids)["last_hidden_state"].square().sum().backward()
    gradient = model.net.get_parameter("encoder.embedding.tokens.weight").grad
    assert gradient is not None
    assert gradient[ids[0]].abs().sum(1).gt(0).tolist() == (ids[0] != 5).tolist()


def test_a_fixed_bias_is_never_trained() -> None:
    head = tiny.build("bart").net.get_submodule("heads.lm.out")
    assert isinstance(head, nn.Linear)
    assert head.bias is not None
    assert not head.bias.requires_grad
    assert head.weight.requires_grad


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_classification_reads_the_last_end_token(family: str) -> None:
    model = tiny.build(family, head="sequence-classification", eos_token_id=7)
    ids = tiny.random_ids(2, 8)
    ids[:, 3] = ids[:, 6] = 7
    out = model(ids)
    dense = model.net.get_submodule("heads.sequence_classification.dense")
    project = model.net.get_submodule("heads.sequence_classification.out")
    compare.assert_close(
        out, {"logits": project(torch.tanh(dense(out["last_hidden_state"][:, 6])))}
    )


def test_look_records_only_matching_paths() -> None:
    model = tiny.build("gpt2", depth=12)
    ids = tiny.random_ids(1, 4)
    cases: dict[str, tuple[Any, set[int]]] = {
        "path": ("decoder.layers.1.attention", {1}),
        "expression": (r"decoder\.layers\.1\d\.attention", {10, 11}),
        "test": (lambda path: "layers.3." in path, {3}),
        "all": (None, {*range(12)}),
    }
    for paths, layers in cases.values():
        with qkv.look(model, paths) as weights:
            model(ids)
        assert weights.keys() == {f"decoder.layers.{n}.attention" for n in layers}
    for paths in ("decoder.layers.1", r"layers\.1\.attention", lambda path: False):
        with pytest.raises(ValueError, match="matches none"), qkv.look(model, paths):
            pass


def test_causal_loss_shifts_labels() -> None:
    model = tiny.build("gpt2")
    input_ids = tiny.random_ids(2, 6)
    labels = input_ids.clone()
    labels[0, 2] = -100
    outputs = model(input_ids, labels=labels)
    log_probs = outputs["logits"].log_softmax(-1)
    targets = [(row, t) for row in range(2) for t in range(1, 6) if labels[row, t] != -100]
    losses = [-log_probs[row, t - 1, input_ids[row, t]] for row, t in targets]
    compare.assert_close(
        {"loss": outputs["loss"].double()}, {"loss": torch.stack(losses).mean()}, 1e-5
    )


@pytest.mark.parametrize("family", ["bart", "mbart"])
def test_seq2seq_loss_matches_decoder_inputs(family: str) -> None:
    """BART's decoder starts with its start token, mBART's with the last token of the labels."""
    model = tiny.build(family, pad_token_id=1, decoder_start_token_id=2)
    input_ids = tiny.random_ids(2, 6)
    labels = torch.tensor([[11, 12, 13, 14, 15], [21, 22, 23, 24, -100]])
    first = [15, 24] if family == "mbart" else [2, 2]
    decoder_input_ids = torch.tensor([[first[0], 11, 12, 13, 14], [first[1], 21, 22, 23, 24]])
    expected = model(input_ids, decoder_input_ids=decoder_input_ids)["logits"]
    outputs = model(input_ids, labels=labels)
    compare.assert_close({"logits": outputs["logits"]}, {"logits": expected})
    log_probs = expected.log_softmax(-1)
    targets = [(row, t) for row in range(2) for t in range(5) if labels[row, t] != -100]
    losses = [-log_probs[row, t, labels[row, t]] for row, t in targets]
    compare.assert_close(
        {"loss": outputs["loss"].double()}, {"loss": torch.stack(losses).mean()}, 1e-5
    )


def test_classification_loss_follows_labels() -> None:
    """One label: regression; integer labels: single-label; float labels: multi-label."""
    input_ids = tiny.random_ids(2, 6)
    float_labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    cases = ((1, torch.tensor([[0.5], [2.0]])), (3, torch.tensor([2, 0])), (3, float_labels))
    for num_labels, labels in cases:
        model = tiny.build("bert", head="sequence-classification", num_labels=num_labels)
        outputs = model(input_ids, labels=labels)
        logits = outputs["logits"]
        if num_labels == 1:
            expected = (logits - labels).square().mean()
        elif labels.is_floating_point():
            probs = logits.sigmoid()
            expected = -(labels * probs.log() + (1 - labels) * (1 - probs).log()).mean()
        else:
            expected = -logits.log_softmax(-1)[torch.arange(2), labels].mean()
        compare.assert_close({"loss": outputs["loss"].double()}, {"loss": expected}, 1e-5)
