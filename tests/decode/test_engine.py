"""The engine: whatever the method and the family, a row in company says what it says alone; early or late,
streamed or whole, in shapes that stay or grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.batch import Batch, Rows
from qkv.decode import segment_runner
from qkv.decode.config import How
from qkv.decode.engine import Engine, generate, stream
from qkv.decode.request import Found
from qkv.decode.runner import Reader
from qkv.nn.transformer import Transformer
from tests.support import tiny

ENDS = (9, 17, 22, 30, 37, 41)
PLAIN = How(max_new=9, ends=ENDS, start=3, pad=0)
METHODS: dict[str, How] = {
    "greedy": PLAIN,
    "rules": replace(
        PLAIN, repetition=1.4, no_repeat=2, source_no_repeat=2, min_new=4, stop=((20, 21), (33,))
    ),
    "draw": replace(PLAIN, sample=True, temperature=1.5, top_k=30, top_p=0.95, results=2),
    "beams": replace(PLAIN, beams=3, results=2),
    "drawn beams": replace(PLAIN, beams=2, sample=True, temperature=1.3),
    "groups": replace(PLAIN, beams=4, groups=2, diversity=0.7, results=3),
    "words": replace(PLAIN, beams=3, words=(((11, 12),), ((13,), (14, 15)))),
    "contrast": replace(PLAIN, contrast=0.6, top_k=4),
}
RECURRENT = ("transformer-xl", "transformer-xl-same", "transformer-xl-none", "xlnet-uni")
NETS = ["gpt2", "llama", "sparse-fixed-heads", "transformer-xl", "xlnet-uni", "t5", "bart"]
NAMES = pytest.mark.parametrize("name", NETS)
# A recurrence takes no step back, as contrastive search does.
PAIRS = [(n, w) for n in NETS for w in METHODS if not (w == "contrast" and n in RECURRENT)]


def net(name: str, **changes: Any) -> Transformer:
    family, more = tiny.CAUSAL[name]
    made = tiny.model(family, **(more | changes)).net
    assert isinstance(made, Transformer)
    return made


def requests(name: str, count: int) -> list[dict[str, Any]]:
    """Prompts, or sources, of several lengths."""
    lengths = [5, 2, 7, 1, 4, 3][:count]
    rows = [tiny.ids(length, seed=50 + i).tolist() for i, length in enumerate(lengths)]
    pair = tiny.CAUSAL[name][0] in tiny.PAIRS
    return [{"source": row} if pair else {"prompt": row} for row in rows]


def alone(made: Transformer, how: How, request: dict[str, Any], seed: int) -> list[Found]:
    prompt, source = request.get("prompt"), request.get("source")
    (found,) = generate(made, prompt and [prompt], sources=source and [source], how=how, seed=seed)
    return found


def finish(engine: Engine) -> dict[int, list[Found]]:
    """The results of all requests, by their tickets."""
    found: dict[int, list[Found]] = {}
    while engine.busy:
        found |= {event.ticket: event.results for event in engine.step() if event.results is not None}
    return found


def same(ours: list[Found], theirs: list[Found]) -> None:
    assert [one.ids for one in ours] == [one.ids for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.reason == other.reason
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert one.scores == pytest.approx(other.scores, abs=1e-4)


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_in_company_as_alone(name: str, way: str) -> None:
    made, how, asked = net(name), METHODS[way], requests(name, 4)
    engine = Engine(made)
    tickets = [engine.admit(**each, how=how, seed=i) for i, each in enumerate(asked)]
    found = finish(engine)
    lengths = set()
    for i, each in enumerate(asked):
        same(found[tickets[i]], alone(made, how, each, i))
        lengths.add(len(found[tickets[i]][0].ids))
    assert not any(pool.entries for pool in engine.pools.values())
    if way == "draw":
        assert len(lengths) > 1  # some have left before others


@NAMES
def test_all_ways_at_once_and_one_after_another(name: str) -> None:
    """Every step a request of another method joins those that run."""
    made = net(name)
    ways = [way for way in METHODS if not (way == "contrast" and name in RECURRENT)]
    engine, found, tickets = Engine(made), dict[int, list[Found]](), {}
    for n, way in enumerate([*ways, *ways[::-1]]):
        request = requests(name, 6)[n % 6]
        tickets[engine.admit(**request, how=METHODS[way], seed=n)] = (way, request, n)
        found |= {event.ticket: event.results for event in engine.step() if event.results is not None}
    found |= finish(engine)
    for ticket, (way, request, seed) in tickets.items():
        same(found[ticket], alone(made, METHODS[way], request, seed))


@pytest.mark.parametrize(("name", "way"), [pair for pair in PAIRS if pair[0] in ("gpt2", "xlnet-uni", "t5")])
def test_streamed_as_whole(name: str, way: str) -> None:
    made, how, (request, *_) = net(name), METHODS[way], requests(name, 1)
    events = list(stream(made, **request, how=how, seed=3))
    whole = alone(made, how, request, 3)
    assert events[-1].results is not None
    same(events[-1].results, whole)
    assert all(event.results is None for event in events[:-1])
    for copy in range(how.copies):
        said = [id_ for event in events if event.copy == copy for id_ in event.ids]
        assert said == whole[copy].ids


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "marian", "gpt3"])
@pytest.mark.parametrize("way", ["greedy", "beams", "contrast"])
def test_static_shapes_change_nothing(name: str, way: str) -> None:
    made, asked = net(name), requests(name, 4)
    engine = Engine(made, static=True)
    tickets = [engine.admit(**each, how=METHODS[way]) for each in asked[:2]]
    engine.step()
    tickets += [engine.admit(**each, how=METHODS[way]) for each in asked[2:]]
    found = finish(engine)
    again = [engine.admit(**each, how=METHODS[way]) for each in asked[:3]]  # in the buffers that were left
    found |= finish(engine)
    tickets, asked = [*tickets, *again], [*asked, *asked[:3]]
    for ticket, each in zip(tickets, asked, strict=True):
        same(found[ticket], alone(made, METHODS[way], each, 0))


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("way", ["beams", "groups", "words", "drawn beams", "contrast"])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_as_a_gpu_is_asked(name: str, way: str, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows take over all that others are, and results are looked for at every step."""
    monkeypatch.setattr("qkv.decode.search.beam.known_empty", lambda flags: False)
    made, asked, how = net(name), requests(name, 6), replace(METHODS[way], max_new=20)
    engine, found = Engine(made, static=static), dict[int, list[Found]]()
    tickets = []
    for i, each in enumerate(asked):
        tickets.append(engine.admit(**each, how=how, seed=i))
        found |= {event.ticket: event.results for event in engine.step() if event.results is not None}
        for pool in engine.pools.values():
            assert isinstance(pool.reader, Reader)
            pool.reader.sparing = False
    found |= finish(engine)
    for i, each in enumerate(asked):
        same(found[tickets[i]], alone(made, how, each, i))


def test_rows_wait_for_room() -> None:
    made, asked = net("gpt2"), requests("gpt2", 5)
    engine, most, found = Engine(made, rows=4), 0, dict[int, list[Found]]()
    tickets = [engine.admit(**each, how=METHODS["draw"], seed=i) for i, each in enumerate(asked)]
    tickets.append(engine.admit([5], how=replace(METHODS["beams"], beams=6)))  # goes when it is alone
    while engine.busy:
        found |= {event.ticket: event.results for event in engine.step() if event.results is not None}
        most = max(most, sum(len(pool.entries) * pool.width for pool in engine.pools.values()))
    assert most == 6
    for i, each in enumerate(asked):
        same(found[tickets[i]], alone(made, METHODS["draw"], each, i))


def test_a_request_is_dropped() -> None:
    made, asked = net("gpt2"), requests("gpt2", 3)
    engine = Engine(made)
    tickets = [engine.admit(**each, how=replace(PLAIN, ends=())) for each in asked]
    engine.step()
    engine.drop(tickets[1])
    waits = engine.admit([5], how=PLAIN)
    engine.drop(waits)
    found = finish(engine)
    assert found.keys() == {tickets[0], tickets[2]}
    same(found[tickets[2]], alone(made, replace(PLAIN, ends=()), asked[2], 0))


def test_long_rows_outgrow_their_buffers() -> None:
    made = net("llama")
    how = How(max_new=150)
    together = generate(made, [[5, 6, 7], [8]], how=how)
    assert [len(row[0].ids) for row in together] == [150, 150]
    ids = torch.tensor([[8, *together[1][0].ids[:-1]]])
    assert made(Batch(rows=Rows.of(ids)))["logits"][0].argmax(-1).tolist() == together[1][0].ids


@torch.no_grad()
def test_beams_after_a_long_prompt() -> None:
    """Some end at once: there is room for a result as long as the prompt and one id."""
    made, prompt = net("gpt2"), tiny.ids(20, seed=9).tolist()
    how = replace(METHODS["beams"], max_new=40, ends=tuple(range(1, tiny.VOCAB, 2)))
    (found,) = generate(made, [prompt], how=how)
    assert len(found[0].ids) == 1
    for one in found:
        logs = said_after(made, {"prompt": prompt}, one.ids).float().log_softmax(-1)
        assert one.scores == pytest.approx([float(logs[i, id_]) for i, id_ in enumerate(one.ids)], abs=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
@torch.no_grad()
def test_scores_are_log_probabilities(name: str) -> None:
    made, (each, *_) = net(name), requests(name, 1)
    for way in ("greedy", "beams"):
        one = alone(made, METHODS[way], each, 0)[0]
        logs = said_after(made, each, one.ids).float().log_softmax(-1)
        expected = [float(logs[i, id_]) for i, id_ in enumerate(one.ids)]
        assert one.scores == pytest.approx(expected, abs=1e-4)
        assert one.score == pytest.approx(sum(expected) / len(expected), abs=1e-4)


def said_after(made: Transformer, request: dict[str, Any], ids: list[int]) -> Tensor:
    """The scores before each of these ids, in one forward."""
    if "source" in request:
        target = torch.tensor([[3, *ids[:-1]]])
        return made(Batch(rows=Rows.of(torch.tensor([request["source"]])), target=Rows.of(target)))["logits"][
            0
        ]
    rows = Rows.of(torch.tensor([[*request["prompt"], *ids[:-1]]]))
    return made(Batch(rows=rows))["logits"][0, -len(ids) :]


@pytest.mark.parametrize("way", ["greedy", "beams"])
def test_a_function_stops_a_row(way: str) -> None:
    made, how = net("gpt2"), replace(METHODS[way], ends=())
    free = generate(made, [[5, 6]], how=how)[0][0].ids
    (found,) = generate(made, [[5, 6]], how=how, stop=lambda ids: len(ids) == 5)
    assert all(one.reason == "stop" and len(one.ids) == 5 for one in found)
    if way == "greedy":
        assert found[0].ids == free[:5]


def test_an_encoder_decoder_goes_on_from_what_is_given() -> None:
    made, source = net("bart"), [8, 9, 10]
    how = replace(PLAIN, ends=())
    whole = generate(made, sources=[source], how=how)[0][0].ids
    rest = generate(made, [[3, *whole[:4]]], sources=[source], how=replace(how, max_new=5))[0][0].ids
    assert rest == whole[4:]
    assert rest == generate(made, [whole[:4]], sources=[source], how=replace(how, max_new=5))[0][0].ids


@torch.no_grad()
def test_a_decoder_reads_states_that_are_given() -> None:
    made = net("gpt2-cross")
    states = [torch.randn(n, tiny.WIDTH, dtype=torch.float64) for n in (4, 6)]
    engine = Engine(made)
    for each in states:
        engine.admit([5, 6], source=each, how=METHODS["beams"])
    found = finish(engine)
    for ticket, each in enumerate(states):
        one = Engine(made)
        one.admit([5, 6], source=each, how=METHODS["beams"])
        same(found[ticket], finish(one)[0])
        ids = torch.tensor([[5, 6, *found[ticket][0].ids[:-1]]])
        logs = made(Batch(rows=Rows.of(ids), source=Rows.of(embeds=each[None])))["logits"][0].log_softmax(-1)
        expected = [float(logs[1 + i, id_]) for i, id_ in enumerate(found[ticket][0].ids)]
        assert found[ticket][0].scores == pytest.approx(expected, abs=1e-4)


ERRORS: dict[str, dict[str, Any]] = {
    "prompt is empty, expected": dict(prompt=[]),
    "prompt holds 53, expected ids from 0 to 52": dict(prompt=[4, 53]),
    "prompt holds -1, expected": dict(prompt=[-1]),
    "prompt holds True, expected": dict(prompt=[True]),
    "a prompt of 70 ids leaves no room: the model has 64 positions": dict(prompt=[5] * 70),
    "a prompt of 4 ids leaves no room: max_length is 3": dict(prompt=[5] * 4, how=How(max_length=3)),
    "the settings name the ids [60, 99], expected less than 53": dict(
        prompt=[5], how=How(suppress=(60,), bad_words=((4, 99),))
    ),
    "top_k is 54 with contrast, expected no more than 53 words": dict(
        prompt=[5], how=How(contrast=0.5, top_k=54)
    ),
}


@pytest.mark.parametrize("words", ERRORS)
def test_what_is_wrong_with_a_request(words: str) -> None:
    with pytest.raises(ValueError, match=r"expected|room") as caught:
        Engine(net("gpt2")).admit(**ERRORS[words])
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_with_a_net() -> None:
    with pytest.raises(ValueError, match="source is empty"):
        Engine(net("bart")).admit([4])
    with pytest.raises(ValueError, match="a source of 70 ids, and the encoder has 64 positions"):
        Engine(net("bart")).admit(source=[4] * 70)
    with pytest.raises(ValueError, match="source holds 99, expected ids from 0 to 52"):
        Engine(net("bart")).admit(source=[99])
    with pytest.raises(ValueError, match="allowed gave 3 flags, expected one for each of 53 ids"):
        generate(net("gpt2"), [[4]], allowed=lambda ids: torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="set `start`"):
        Engine(net("t5")).admit(source=[4])
    with pytest.raises(ValueError, match="contrast takes steps back"):
        Engine(net("xlnet-uni")).admit([4], how=METHODS["contrast"])
    with pytest.raises(ValueError, match=r"call net\.eval"):
        Engine(net("gpt2").train())
    net("gpt2").eval()


def test_a_row_to_which_all_is_forbidden_is_done() -> None:
    made = net("gpt2")
    every = tuple(range(tiny.VOCAB))
    for how in (
        How(suppress=every),
        How(suppress=every, sample=True),
        How(contrast=0.5, top_k=3, suppress=every),
    ):
        assert generate(made, [[5]], how=how)[0] == [Found([], 0.0, [], "nothing")]
    assert generate(made, [[5]], how=How(suppress=every, beams=2)) == [[]]
    (found,) = generate(made, [[5]], how=How(), allowed=lambda ids: [7] if len(ids) < 3 else [])
    assert found[0].ids == [7, 7, 7]
    assert found[0].reason == "nothing"


def test_the_row_ends_where_positions_end() -> None:
    (found,) = generate(net("gpt2"), [[5] * 60], how=How(max_new=20))
    assert found[0].reason == "length"
    assert len(found[0].ids) == 4


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_a_long_prompt_is_read_in_segments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ids = net(name, **({"memory": None} if name == "xlnet-uni" else {})), tiny.ids(1, 11, seed=4)
    whole = generate(made, ids.tolist(), how=PLAIN)[0][0]
    monkeypatch.setattr(segment_runner, "MOST", 8)
    monkeypatch.setattr(segment_runner, "SEGMENT", 4)
    found = generate(made, ids.tolist(), how=PLAIN)[0][0]
    recall = made.tower.stack.recall
    assert recall is not None
    if not recall.length:  # all states are kept, or none, where all is read again
        assert found.ids == whole.ids
        assert found.scores == pytest.approx(whole.scores, rel=1e-4)
        return
    states = None
    for part in ids.split(4, dim=1):
        out = made(Batch(rows=Rows.of(part), memory=states))
        states = out["memory"]
    read = segment_runner.Recurrence(made).enter(ids.tolist(), [None])
    torch.testing.assert_close(read.logits, out["logits"][:, -1], rtol=1e-5, atol=1e-5)


def test_a_phrase_to_stop_after_is_of_new_ids() -> None:
    made, prompt = net("gpt2"), {"prompt": [5, 17, 9]}
    (said,) = alone(made, replace(PLAIN, ends=()), prompt, 0)
    for beams in (1, 3):
        how = replace(PLAIN, ends=(), beams=beams)
        stops = alone(made, replace(how, stop=((9, said.ids[0]),)), prompt, 0)
        assert [one.ids for one in stops] == [one.ids for one in alone(made, how, prompt, 0)]


def test_an_engine_with_rows_of_others_is_refused() -> None:
    engine = Engine(net("gpt2"))
    engine.admit([5, 6])
    with pytest.raises(ValueError, match=r"^the engine has rows of others, expected one that is idle"):
        generate(engine, [[1, 2]])


def test_a_prompt_that_a_draft_cannot_read() -> None:
    engine = Engine(net("gpt2"), draft=net("gpt2", length=8))
    with pytest.raises(ValueError, match=r"^a prompt of 9 ids, and the draft has 8 positions"):
        engine.admit([5] * 9)


def test_contrast_says_nothing_that_is_forbidden() -> None:
    made = net("gpt2")
    words = made.tower.stack.embed.vocab
    how = How(max_new=6, contrast=0.99, top_k=4, suppress=tuple(i for i in range(words) if i != 3))
    assert alone(made, how, {"prompt": [5, 6]}, 0)[0].ids == [3] * 6
