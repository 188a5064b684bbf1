"""Methods against plain ones: all sequences tried, diverse beams and contrastive search in a few lines,
words that must be said, drafts that change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.decode.config import How
from qkv.decode.engine import Engine, generate
from qkv.decode.logits.forced_words import Progress
from qkv.nn.transformer import Transformer
from tests.decode.test_sampling import chi_square
from tests.support import tiny

WORDS, END = 8, 1


def net(family: str, seed: int, **changes: Any) -> Transformer:
    made = tiny.model(family, **(dict(vocab=WORDS) | changes))
    tiny.randomise(made.net, str(seed))
    assert isinstance(made.net, Transformer)
    return made.net.eval()


@torch.no_grad()
def logs(made: Transformer, source: list[int], ids: list[int]) -> Tensor:
    """(T, V) the log-probabilities of what follows each id, in one forward."""
    return outputs(made, source, ids)["logits"][0].float().log_softmax(-1)


def outputs(made: Transformer, source: list[int], ids: list[int]) -> dict[str, Tensor]:
    if made.encoder is None:
        return made(Batch(rows=Rows.of(torch.tensor([[*source, *ids]]))))
    return made(Batch(rows=Rows.of(torch.tensor([source])), target=Rows.of(torch.tensor([[0, *ids]]))))


def likeliest(
    made: Transformer, source: list[int], longest: int, holds: Callable[[list[int]], bool]
) -> list[int]:
    """The best of all sequences that end, or fill the length, by the mean of their log-probabilities."""
    best: list[int] = []
    score = -float("inf")
    for length in range(1, longest + 1):
        for body in itertools.product([2, 3, 4, 5], repeat=length - 1):
            for last in [END] if length < longest else [END, 2, 3, 4, 5]:
                ids = [*body, last]
                if not holds(ids):
                    continue
                found = logs(made, source, ids[:-1])
                total = sum(float(found[i, word]) for i, word in enumerate(ids)) / length
                if total > score:
                    best, score = ids, total
    return best


def said(ids: list[int], phrases: tuple[tuple[int, ...], ...]) -> bool:
    return any(tuple(ids[i : i + len(each)]) == each for each in phrases for i in range(len(ids)))


@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_the_best_of_all(seed: int) -> None:
    made, source = net("transformer", seed), [2, 5, 3, 1]
    how = How(beams=256, max_new=4, start=0, ends=(END,), suppress=(0, 6, 7))
    (found,) = generate(made, sources=[source], how=how)
    assert found[0].ids == likeliest(made, source, 4, lambda ids: True)


@pytest.mark.parametrize("words", [(((4, 2),),), (((5,),), ((3,),)), (((2, 2, 2), (4,)),)], ids=str)
def test_a_wide_beam_finds_the_best_that_says_the_words(words: Any) -> None:
    made, source = net("transformer", 5), [2, 5, 3, 1]
    how = How(beams=256, max_new=4, start=0, ends=(END,), suppress=(0, 6, 7), words=words)
    (found,) = generate(made, sources=[source], how=how)
    assert found[0].ids == likeliest(made, source, 4, lambda ids: all(said(ids, each) for each in words))


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_words_are_said_however_narrow_the_beam_and_short_the_room(family: str, beams: int) -> None:
    for seed in range(3):
        made = net(family, seed, vocab=40)
        draw = torch.Generator().manual_seed(seed)
        words = torch.randint(10, 40, (5,), generator=draw).tolist()
        asked = (((words[0], words[1]),), ((words[2],), (words[3], words[2])), ((words[0], words[4]),))
        for room in (5, 12):
            how = How(beams=beams, max_new=room, start=0, ends=(END,), words=asked)
            side: dict[str, Any] = {"prompts": [[3, 4]]} if family == "gpt2" else {"sources": [[3, 4]]}
            (found,) = generate(made, **side, how=how)
            assert found
            assert all(said(one.ids, each) for one in found for each in asked)


def test_words_need_room() -> None:
    how = How(beams=2, max_new=4, words=(((4, 5, 6),), ((7, 8), (9, 10, 11))))
    with pytest.raises(ValueError, match="words of 5 ids, and room for 4"):
        Engine(net("gpt2", 0, vocab=40)).admit([3], how=how)


def test_how_far_words_have_come() -> None:
    words = (((1, 2, 3),), ((4,), (1, 5)))
    seen = {(): (0, [1, 4]), (1,): (1, [2]), (1, 2): (2, [3]), (1, 9): (0, [4, 1]), (1, 2, 3, 1): (5, [5])}
    for ids, (bank, ways) in seen.items():
        state = Progress([*ids], words)
        assert (state.bank, sorted(state.ways_on()), state.whole) == (bank, sorted(ways), False)
    assert Progress([9, 4, 9, 1, 2, 3, 9], words).whole
    assert not Progress([1, 5, 1, 2, 9, 3], words).whole


@torch.no_grad()
def diverse(
    made: Transformer, source: list[int], beams: int, groups: int, penalty: float, steps: int
) -> list[list[int]]:
    """The beams of every group after so many steps, nothing ending: Vijayakumar et al. 2016, algorithm 1."""
    width = beams // groups
    held: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in range(groups)]
    for _ in range(steps):
        said = torch.zeros(WORDS)
        for g in range(groups):
            ahead = [
                (score + float(value), [*ids, word])
                for score, ids in held[g]
                for word, value in enumerate(logs(made, source, ids)[-1] - penalty * said)
            ]
            held[g] = sorted(ahead, key=lambda one: -one[0])[:width]
            for _, ids in held[g]:
                said[ids[-1]] += 1
    every = sorted([one for group in held for one in group], key=lambda one: -one[0])
    return [ids for _, ids in every]


@pytest.mark.parametrize(("beams", "groups"), [(2, 2), (6, 3), (4, 2)])
@pytest.mark.parametrize("family", ["gpt2", "transformer"])
def test_diverse_beams(family: str, beams: int, groups: int) -> None:
    for seed in range(2):
        made = net(family, seed)
        how = How(beams=beams, groups=groups, diversity=0.8, max_new=5, results=beams, start=0)
        side: dict[str, Any] = {"prompts": [[2, 5, 3]]} if family == "gpt2" else {"sources": [[2, 5, 3]]}
        (found,) = generate(made, **side, how=how)
        assert [one.ids for one in found] == diverse(made, [2, 5, 3], beams, groups, 0.8, 5)


@torch.no_grad()
def contrastive(made: Transformer, source: list[int], alpha: float, count: int, steps: int) -> list[int]:
    """Su et al. 2022, equation 5, with a whole forward for every candidate."""
    ids: list[int] = []
    for _ in range(steps):
        shares = logs(made, source, ids)[-1].exp().topk(count)
        scores = []
        for share, word in zip(shares.values, shares.indices.tolist(), strict=True):
            states = outputs(made, source, [*ids, word])["hidden"][0].float()
            alike = torch.cosine_similarity(states[-1:], states[:-1], dim=-1).max()
            scores.append(float((1 - alpha) * share - alpha * alike))
        ids.append(shares.indices.tolist()[max(range(count), key=lambda k: scores[k])])
    return ids


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_contrastive_search(family: str) -> None:
    for seed in range(2):
        made = net(family, seed, vocab=40)
        sources = [[2, 5, 3], [4, 7, 9, 11, 2]]
        how = How(contrast=0.6, top_k=4, max_new=7, start=0)
        side: dict[str, Any] = {"sources": sources} if family in tiny.PAIRS else {"prompts": sources}
        found = generate(made, **side, how=how)
        assert [row[0].ids for row in found] == [contrastive(made, each, 0.6, 4, 7) for each in sources]


DRAFTED = ["gpt2", "llama", "gpt3", "t5", "bart"]


def drafts(family: str) -> tuple[Transformer, Transformer, dict[str, Any]]:
    """A net, one that often agrees with it, and rows of several lengths."""
    made, draft = net(family, 1, vocab=40), net(family, 1, vocab=40)
    with torch.no_grad():
        for tensor in draft.parameters():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)))
    rows = [tiny.ids(n, seed=n).clamp(max=39).tolist() for n in (4, 1, 6)]
    return made, draft, {"sources": rows} if family in tiny.PAIRS else {"prompts": rows}


@pytest.mark.parametrize("family", DRAFTED)
def test_drafts_change_no_id(family: str) -> None:
    made, draft, side = drafts(family)
    for how in (
        How(max_new=20, start=0, drafts=4), How(max_new=15, start=0, ends=(9, 12, 20), drafts=3),
        How(max_new=20, start=0, repetition=1.3, no_repeat=2, stop=((14,), (7, 8)), drafts=1),
    ):  # fmt: skip
        plain, faster = generate(made, **side, how=how), generate(made, **side, how=how, draft=draft)
        for one, other in zip(plain, faster, strict=True):
            assert one[0].ids == other[0].ids
            assert one[0].scores == pytest.approx(other[0].scores, abs=1e-4)
            assert one[0].reason == other[0].reason


def test_drafts_save_steps() -> None:
    made, draft, side = drafts("gpt2")
    steps = {}
    for name, helper in {"alone": None, "like": draft, "same": made}.items():
        engine = Engine(made, draft=helper)
        engine.admit(side["prompts"][0], how=How(max_new=31, drafts=4))
        steps[name] = 0
        while engine.busy:
            engine.step()
            steps[name] += 1
    assert steps["same"] == 7  # the prompt's, then five ids a step
    assert steps["same"] < steps["like"] < steps["alone"] == 31


def test_drafts_up_to_the_last_position() -> None:
    made, draft, _ = drafts("gpt2")
    prompt = tiny.ids(55).clamp(max=39).tolist()
    how = How(max_new=20, drafts=6)
    assert generate(made, [prompt], how=how) != []
    assert (
        generate(made, [prompt], how=how, draft=draft)[0][0].ids
        == generate(made, [prompt], how=how)[0][0].ids
    )


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_drafts_keep_the_distribution(family: str) -> None:
    """The third id, of all draws: as likely as the net says, whatever the draft proposes."""
    made, draft = net(family, 1), net(family, 7)
    side: dict[str, Any] = {"sources": [[2, 5]]} if family == "t5" else {"prompts": [[2, 5]]}
    shares = torch.zeros(WORDS)
    for a, b in itertools.product(range(WORDS), repeat=2):
        found = logs(made, [2, 5], [a, b])[-3:].exp()
        shares += found[0, a] * found[1, b] * found[2]
    counts = torch.zeros(WORDS, dtype=torch.double)
    for seed in range(4):
        how = How(sample=True, max_new=4, start=0, drafts=3, results=1000)
        (rows,) = generate(made, **side, how=how, draft=draft, seed=seed)
        counts += torch.bincount(torch.tensor([one.ids[2] for one in rows]), minlength=WORDS)
    assert chi_square(counts, shares.double()) < 4


def test_drafted_draws_alone_as_in_company() -> None:
    made, draft, side = drafts("gpt2")
    how = How(sample=True, max_new=15, drafts=3, temperature=1.4, top_p=0.9, ends=(9, 12))
    together = generate(made, **side, how=how, draft=draft, seed=4)
    for i, prompt in enumerate(side["prompts"]):
        (alone,) = generate(made, [prompt], how=how, draft=draft, seed=4 + i)
        assert alone[0].ids == together[i][0].ids


def test_drafts_that_do_not_fit() -> None:
    made = net("gpt2", 1)
    with pytest.raises(ValueError, match="the draft has 40 words, expected the net's 8"):
        Engine(made, draft=net("gpt2", 1, vocab=40))
    with pytest.raises(ValueError, match="of another shape"):
        Engine(made, draft=net("bart", 1))
    with pytest.raises(ValueError, match="a draft serves rows that are greedy or drawn"):
        Engine(made, draft=made).admit([3], how=How(beams=2))
