"""Mutants: the table fits the core and its tests notice; and small properties that no other test holds."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv import Batch, Rows
from qkv.kernels.bias import Where
from qkv.kernels.block_sparse import Cut, cut, sparse_attention
from qkv.nn.feed_forward import balance_loss, z_loss
from qkv.spec import Banded, ByHead, Pattern, Strided, everyone
from tests.support import tiny
from tools import mutants
from tools.mutants import TABLE, Mutant

KNOWN = next(row for row in TABLE if row.name == "causal-less-one")
IDLE = Mutant("idle", "spec.py", "Knows no tensors.", "Knows no tensor.", KNOWN.tests)


def test_every_row_applies() -> None:
    assert mutants.problems(TABLE) == []
    assert len(TABLE) >= 40


def test_a_row_that_no_longer_applies_is_named() -> None:
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
    said = mutants.problems(rows)
    assert [words.split(":")[0] for words in said] == [row.name for row in rows if row is not IDLE] + ["idle"]


def python(*arguments: str) -> str:
    """What a Python of its own prints: processes that fork are not started from within a test's."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=mutants.ROOT, capture_output=True, text=True, timeout=200, check=True)
    return done.stdout


def test_a_known_mutant_is_caught() -> None:
    said = python("tools/mutants.py", "--only", KNOWN.name, "--jobs", "1")
    assert mutants.node(KNOWN.tests) in said
    assert "1 of 1 caught" in said


def test_what_changes_nothing_survives(tmp_path: Path) -> None:
    """A test that fails without a mutant too proves nothing."""
    mutants.copy(mutants.ROOT, tmp_path)
    (tmp_path / "tests" / "test_bad.py").write_text("def test_bad() -> None:\n    raise AssertionError\n")
    attempt = f"mutants.attempt(IDLE, Path({str(tmp_path)!r}), ['tests/test_bad.py'])"
    imports = "from pathlib import Path; from tests.nn.test_caught_mutants import IDLE, mutants"
    code = f"{imports}; print({attempt}[1:3])"
    assert python("-c", code).strip() == str(
        ("SURVIVED", "tests/test_bad.py::test_bad fails without a mutant too")
    )


@pytest.mark.parametrize(
    ("status", "output", "word"),
    [
        (1, "FAILED tests/families/test_xl.py::test_numbers[xl-base] - AssertionError: hidden", "caught"),
        (1, "FAILED tests/families/test_xl.py::test_numbers[xl-base]", "caught"),
        (1, "FAILED tests/families/test_xl.py::test_numbers[xl-base] - NameError: name 'w'", "NOT RUN"),
        (1, "ERROR tests/families/test_xl.py::test_numbers[xl-base] - AssertionError", "NOT RUN"),
        (1, "NOT RUN: ImportError: no such module", "NOT RUN"),
        (2, "ERROR tests/families/test_xl.py", "NOT RUN"),
        (4, "ERROR: not found", "NOT RUN"),
        (5, "no tests ran", "NOT RUN"),
        (0, "1 passed", "SURVIVED"),
        (124, "more than 120 s", "SURVIVED"),
    ],
)
def test_only_a_failing_test_counts(status: int, output: str, word: str) -> None:
    assert mutants.judge(status, output)[0] == word


def test_every_head_keeps_its_pattern() -> None:
    """Three heads of one rule among two of another: sorted by rule and put back."""
    rules = (Banded(3), Strided(4), Banded(3), Strided(4), Banded(3))
    q, k, v = torch.randn(3, 2, 5, 20, 6, dtype=torch.float64)

    def visible(rule: Pattern, i: Tensor, j: Tensor) -> Tensor:
        return rule(i[..., :, None], j[..., None, :])

    def cuts(rule: Pattern) -> Cut:
        return cut(rule, visible, torch.arange(20)[None])

    together = sparse_attention(q, k, v, ByHead(rules), cuts, scale=0.4)
    for h, rule in enumerate(rules):
        one, two, three = (x[:, h, None] for x in (q, k, v))
        alone = sparse_attention(one, two, three, rule, cuts, scale=0.4)
        tiny.close({"head": together[:, h, None]}, {"head": alone}, 1e-12)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_a_hole_in_a_row_is_no_distance(pattern: str) -> None:
    """Pads between the tokens of a long row, where the kernel for few keys would count columns."""
    made = tiny.model("sparse", pattern=pattern, stride=16, cells=3, length=400)
    ids, columns = tiny.ids(1, 330), torch.arange(330)
    mask = ((columns < 100) | (columns >= 137))[None]
    together = made.run(ids, mask=mask)["hidden"][mask]
    tiny.close({"hidden": together}, {"hidden": made.run(ids[mask][None])["hidden"][0]})


@pytest.mark.parametrize("kind", ["xl", "t5", "alibi", "rotary"])
def test_given_positions_may_lie_far_apart(kind: str) -> None:
    """Further than the row is long, and still told apart."""
    made, ids = tiny.model("gpt2", positions=kind), tiny.ids(1, 4)
    outs = [made.run(ids, positions=torch.tensor([[0, 1, 2, at]]))["hidden"] for at in (20, 30)]
    # Not to the bit: XL's table of distances is longer for 30 than for 20, another shape of matrix product.
    assert tiny.apart(outs[0][:, :3], outs[1][:, :3]) < 1e-12
    assert tiny.apart(outs[0][:, 3], outs[1][:, 3]) > 1e-6


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_distances_beyond_the_clamp_are_alike(family: str) -> None:
    made = tiny.model(family, clamp=4)
    side = "decoder" if family == "transformer-xl" else "encoder"
    relative = made.net.get_submodule(f"{side}.layers.0.attend.relative")
    q, keys = torch.randn(1, 4, 1, 6, dtype=torch.float64), torch.arange(10)[None]
    for even in (True, False):
        where = Where(pattern=everyone, q=torch.tensor([[9]]), k=keys, reach=9, even=even)
        scores = relative(q, where)[1][0, 0, 0].flip(0)  # by distance
        assert len({round(score, 6) for score in scores[:5].tolist()}) == 5
        tiny.close({"far": scores[5:]}, {"far": scores[4].expand(5)}, 1e-12)


@pytest.mark.parametrize("family", ["transformer-xl", "xlnet"])
def test_a_shift_is_what_a_gather_finds(family: str) -> None:
    made = tiny.model(family)
    side = "decoder" if family == "transformer-xl" else "encoder"
    relative = made.net.get_submodule(f"{side}.layers.0.attend.relative")
    q, at, keys = (
        torch.randn(2, 4, 3, 6, dtype=torch.float64),
        torch.arange(6, 9)[None],
        torch.arange(9)[None],
    )
    shifted, gathered = (
        relative(q, Where(pattern=everyone, q=at, k=keys, reach=8, even=even))[1] for even in (True, False)
    )
    seen = (keys <= at[0, :, None]) | (family == "xlnet")
    tiny.close({"scores": shifted[..., seen]}, {"scores": gathered[..., seen]}, 1e-12)


@pytest.mark.parametrize("family", ["gpt2", "llama", "ctrl"])
def test_given_positions_stay_as_they_are_beside_a_memory(family: str) -> None:
    made, ids, at = tiny.model(family), tiny.ids(2, 7), torch.arange(7).expand(2, -1)
    full, memory = made.run(ids)["logits"], tiny.memory(made, 2)
    for low, high in pairwise((0, 4, 5, 7)):
        rows = Rows.of(ids[:, low:high], positions=at[:, low:high])
        out = made.net(Batch(rows=rows), memory)
        tiny.close({"logits": out["logits"]}, {"logits": full[:, low:high]})


@pytest.mark.parametrize(("family", "both_ways"), [("gpt2", False), ("bert", True), ("modernbert", True)])
def test_buckets_of_a_writer_look_back_only(family: str, both_ways: bool) -> None:
    """All 32 are for what lies behind: distance 16 has one beyond the first half."""
    made = tiny.model(family, positions="t5", head="none", depth=1)
    made.run(tiny.ids(1, 30))["hidden"][:, 16].sum().backward()
    side = "decoder" if family == "gpt2" else "encoder"
    gradient = made.net.get_parameter(f"{side}.bias.table.weight").grad
    assert gradient is not None
    used = gradient.abs().sum(1) > 1e-12
    assert used[:3].all()
    assert [used[16].item(), used[17:].any().item()] == [not both_ways, both_ways]


def test_router_losses_are_the_papers() -> None:
    """Switch, eq. 4 to 6: N times the sum of f_i P_i, row by row; ST-MoE, eq. 5."""
    logits = torch.randn(2, 9, 4, dtype=torch.float64)
    rows = []
    for row in logits:
        shares = [token.exp() / token.exp().sum() for token in row]
        sent = [sum(int(share.argmax()) == i for share in shares) / 9 for i in range(4)]
        chance = [sum(share[i] for share in shares) / 9 for i in range(4)]
        rows.append(4 * sum(f * p for f, p in zip(sent, chance, strict=True)))
    tiny.close({"loss": balance_loss(logits)}, {"loss": torch.stack(rows).mean()}, 1e-12)
    squares = [token.exp().sum().log() ** 2 for token in logits.flatten(0, 1)]
    tiny.close({"loss": z_loss(logits)}, {"loss": torch.stack(squares).mean()}, 1e-12)


@pytest.mark.parametrize(
    ("family", "changes", "factor"),
    [("bart", {"scaled": True}, tiny.WIDTH**0.5), ("ctrl", {}, 1.0), ("gpt2", {}, 1.0)],
)
def test_given_vectors_are_scaled_where_the_original_does(
    family: str, changes: dict[str, Any], factor: float
) -> None:
    """BART's table scales what is looked up in it; CTRL scales all that comes in."""
    made, ids = tiny.model(family, **changes), tiny.ids(2, 6)
    side = "encoder" if family == "bart" else "decoder"
    table = made.net.get_parameter(f"{side}.embed.tokens.weight")
    target = tiny.ids(2, 5, seed=1) if family == "bart" else None
    one, two = made.run(ids, target=target), made.run(embeds=table[ids] * factor, target=target)
    tiny.close(two, one)


def test_types_left_out_are_the_first() -> None:
    made, ids = tiny.model("bert"), tiny.ids(2, 6)
    plain = made.run(ids)
    tiny.close(made.run(ids, types=torch.zeros_like(ids)), plain)
    assert tiny.apart(made.run(ids, types=torch.full_like(ids, 2))["hidden"], plain["hidden"]) > 1e-3


def test_a_pad_learns_nothing_from_being_looked_up() -> None:
    made, ids = tiny.model("bert", pad=5, head="none"), tiny.ids(1, 6)
    ids[0, 3] = 5
    made.run(ids)["hidden"].square().sum().backward()
    gradient = made.net.get_parameter("encoder.embed.tokens.weight").grad
    assert gradient is not None
    assert gradient[ids[0]].abs().sum(1).gt(0).tolist() == (ids[0] != 5).tolist()


def test_a_fixed_bias_is_never_trained() -> None:
    head = tiny.model("bart").net.get_submodule("heads.lm.out")
    assert isinstance(head, nn.Linear)
    assert head.bias is not None
    assert not head.bias.requires_grad
    assert head.weight.requires_grad


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_text_is_read_at_its_last_end(family: str) -> None:
    made, ids = tiny.model(family, head="label", end=7), tiny.ids(2, 8)
    ids[:, 3] = ids[:, 6] = 7
    out = made.run(ids)
    dense, project = (made.net.get_submodule(f"heads.label.{name}") for name in ("dense", "out"))
    tiny.close(out, {"logits": project(torch.tanh(dense(out["hidden"][:, 6])))})


def test_looks_only_where_asked() -> None:
    made, ids = tiny.model("gpt2", depth=12), tiny.ids(1, 4)
    asked: dict[str, tuple[Any, set[int]]] = {
        "path": ("decoder.layers.1.attend", {1}),
        "expression": (r"decoder\.layers\.1\d\.attend", {10, 11}),
        "test": (lambda path: "layers.3." in path, {3}),
        "all": (None, {*range(12)}),
    }
    for only, layers in asked.values():
        with qkv.look(made, only) as seen:
            made.run(ids)
        assert seen.keys() == {f"decoder.layers.{n}.attend" for n in layers}
    for only in ("decoder.layers.1", r"layers\.1\.attend", lambda path: False):
        with pytest.raises(ValueError, match="matches none"), qkv.look(made, only):
            pass
