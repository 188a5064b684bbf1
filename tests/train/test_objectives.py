"""Objectives: what each reads, asks for and counts; its loss, against transformers' or the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor

import qkv
from qkv.batch import Batch
from qkv.data.batches.collate import NONE, Example
from qkv.data.batches.dataset import Documents, Packed, Segmented
from qkv.data.batches.sampler import rows_feed
from qkv.data.encode import labels
from qkv.data.encode.special_tokens import Frame
from qkv.data.noise.span_corruption import lengths
from qkv.data.read.record import Record
from qkv.data.store.prepare import prepare
from qkv.data.store.shards import Shards
from qkv.model.build import build
from qkv.nn.transformer import Pair, Transformer
from qkv.spec import Shift
from qkv.train.objectives import OBJECTIVES, Words, objective
from qkv.train.objectives.objective import Objective
from qkv.train.objectives.registry import KINDS
from qkv.train.objectives.wrappers import Taught, Twin, bounded, inherit

# A vocabulary of 60: pad, unknown, cls, sep, mask, then words.
PAD, UNK, CLS, SEP, MASK, FIRST, SIZE = 0, 1, 2, 3, 4, 5, 60
ONE = Frame(((CLS,), (SEP,)), ((0,), (0,)), (0,))
TWO = Frame(((CLS,), (SEP,), (SEP,)), ((0,), (0,), (1,)), (0, 1))
WORDS = Words(
    size=SIZE, pad=PAD, mask=MASK, special=(PAD, UNK, CLS, SEP, MASK), frame=ONE, pair=TWO, end=SEP,
    start=SEP,
    stops=(FIRST,), sentinels=tuple(range(SIZE - 1, SIZE - 11, -1)), labels=3, length=32,
)  # fmt: skip
SMALL = dict(
    vocab_size=SIZE, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=64, pad_token_id=PAD,
)  # fmt: skip


def rng(seed: int | tuple[int, int] = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def text(length: int, seed: int = 0) -> Any:
    return rng(seed).integers(FIRST, SIZE - 10, length)


def row(length: int, seed: int = 0) -> Example:
    return {"tokens": ONE.tokens(text(length, seed))}


def made(goal: Objective, examples: Sequence[Example], seed: int = 0) -> Batch:
    return goal.collate([goal.noise(one, rng((seed, i))) for i, one in enumerate(examples)])


def ids_of(rows: Any) -> Tensor:
    assert rows is not None
    assert rows.ids is not None
    return rows.ids


def seats(rows: Any) -> Tensor:
    return torch.ones_like(ids_of(rows)) if rows.seat is None else rows.seat.long()


def spread(batch: Batch) -> Tensor:
    """Labels (N,) of the tokens that are read, laid out as (B, T)."""
    assert batch.read is not None
    flat = torch.full((ids_of(batch.rows).numel(),), NONE)
    asked = batch.labels["labels"] != NONE
    flat[batch.read[asked]] = batch.labels["labels"][asked]
    return flat.view(ids_of(batch.rows).shape)


def both(theirs: Any, folder: Path) -> tuple[Any, Any]:
    """A tiny model of transformers with random weights everywhere, and the same one here."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + parameter * 0.1)
    theirs.eval().save_pretrained(folder)
    return theirs, qkv.load(folder).net.eval()


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_every_objective_has_a_kind() -> None:
    assert OBJECTIVES.keys() == KINDS.keys()


# Masked words.


def test_masked_words_are_a_share_of_the_others_and_never_special() -> None:
    goal = objective("masked-lm", WORDS)
    for seed in range(20):
        example = row(40, seed)
        noised = goal.noise(example, rng(seed))
        asked = noised["labels"] != NONE
        assert asked.sum() == round(0.15 * 40)
        assert not np.isin(example["tokens"][asked], WORDS.special).any()
        assert (noised["labels"][asked] == example["tokens"][asked]).all()
        assert (noised["tokens"][~asked] == example["tokens"][~asked]).all()


def test_of_masked_words_eight_in_ten_are_hidden_one_is_another_and_one_stays() -> None:
    goal = objective("masked-lm", WORDS)
    hidden = other = same = 0
    for seed in range(200):
        example = row(100, seed)
        noised = goal.noise(example, rng(seed))
        read, true = (x[noised["labels"] != NONE] for x in (noised["tokens"], example["tokens"]))
        hidden += int((read == MASK).sum())
        same += int((read == true).sum())
        other += int(((read != MASK) & (read != true)).sum())
    whole = hidden + other + same
    assert hidden / whole == pytest.approx(0.8, abs=0.02)
    assert other / whole == pytest.approx(0.1 * (1 - 1 / 55), abs=0.02)
    assert same / whole == pytest.approx(0.1 * (1 + 1 / 55), abs=0.02)


def test_a_head_reads_the_masked_words_alone_with_room_for_as_many_in_each_batch() -> None:
    goal = objective("masked-lm", WORDS)
    batches = [made(goal, [row(n, i) for i, n in enumerate(sizes)]) for sizes in ([40, 12, 30], [40, 40, 40])]
    for batch in batches:
        assert batch.read is not None
        assert len(batch.read) == len(batch.labels["labels"]) == 3 * round(0.15 * 42)
        assert goal.counts(batch) == {"loss": int((batch.labels["labels"] != NONE).sum())}
    assert goal.counts(batches[0])["loss"] == 6 + 2 + 4  # round(0.15 n), n without special tokens


def test_whole_words_are_chosen_whole_and_runs_are_of_three_words_at_most() -> None:
    starts = np.tile([1, 0, 1, 0, 0, 1], 20)
    word = np.cumsum(starts)
    goal = objective("masked-lm", WORDS, whole=True)
    runs = objective("masked-lm", WORDS, whole=True, longest=3)
    example = {"tokens": ONE.tokens(text(120)), "starts": ONE.along(starts, 1)}
    longest = 0
    for seed in range(30):
        asked = (goal.noise(example, rng(seed))["labels"] != NONE)[1:-1]
        assert all(asked[word == w].all() or not asked[word == w].any() for w in range(1, word.max() + 1))
        chosen = (runs.noise(example, rng(seed))["labels"] != NONE)[1:-1]
        taken = np.array([chosen[word == w].all() for w in range(1, word.max() + 1)])
        longest = max(longest, max(map(len, "".join("01"[int(t)] for t in taken).split("0"))))
    assert longest >= 3


def test_static_masks_are_the_same_in_every_epoch_and_dynamic_ones_are_not() -> None:
    goal, rows = objective("masked-lm", WORDS), [row(40, i) for i in range(4)]

    def drawn(static: bool, epoch: int) -> Any:
        feed = rows_feed(rows, rows=2, static=static)
        return np.stack([one["tokens"] for one in feed.draw(np.arange(4), epoch, goal.noise)])

    assert (drawn(True, 0) == drawn(True, 1)).all()
    assert (drawn(False, 0) != drawn(False, 1)).any()


def test_masked_words_have_berts_loss(tmp_path: Path) -> None:
    theirs, net = both(hf.BertForMaskedLM(hf.BertConfig(**SMALL)), tmp_path)
    goal = objective("masked-lm", WORDS)
    batch = made(goal, [row(20), row(9, 1)])
    expected = theirs(ids_of(batch.rows), attention_mask=seats(batch.rows), labels=spread(batch)).loss
    close(goal(net(batch)), expected)


def test_packed_documents_have_the_loss_that_they_have_alone(tmp_path: Path) -> None:
    _, net = both(hf.BertForMaskedLM(hf.BertConfig(**SMALL)), tmp_path)
    goal = objective("masked-lm", WORDS)
    alone = [row(n, n) for n in (10, 14, 5)]
    lengths = np.array([len(one["tokens"]) for one in alone])
    noised = goal.noise(Packed(alone, lengths, 40)[0], rng())
    cuts = np.cumsum(np.bincount(noised["document"]))[:-1]
    parts = [
        {"tokens": a, "labels": b}
        for a, b in zip(np.split(noised["tokens"], cuts), np.split(noised["labels"], cuts), strict=True)
    ]
    close(goal(net(goal.collate([noised]))), goal(net(goal.collate(parts))))


# Two texts.


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Forty documents of six sentences; sentence s of document d is made of token FIRST + d, s + 2 times."""
    rows = [
        {
            "tokens": [FIRST + d for s in range(6) for _ in range(s + 2)],
            "sentences": [s + 2 for s in range(6)],
        }
        for d in range(40)
    ]
    fields = {"tokens": SIZE, "sentences": 2**31}
    home = tmp_path_factory.mktemp("documents")
    return prepare(rows, list, home, fields=fields, made_from={})


def test_half_of_the_second_texts_come_after_the_first(documents: Shards) -> None:
    goal = objective("segments", WORDS, order="next", short=0.0, share=0.01)
    examples = Segmented(Documents(documents), 29)
    apart = 0
    for i in range(len(examples)):
        for seed in range(5):
            noised = goal.noise(examples[i], rng((i, seed)))
            tokens = np.where(noised["labels"] == NONE, noised["tokens"], noised["labels"])
            assert len(tokens) <= WORDS.length
            assert tokens[0] == CLS
            words = ~np.isin(tokens, WORDS.special)
            first, second = (tokens[words & (noised["types"] == t)] for t in (0, 1))
            assert len({*first}) == len({*second}) == 1
            assert (first[0] != second[0]) == noised["apart"]
            apart += noised["apart"]
    assert apart / (5 * len(examples)) == pytest.approx(0.5, abs=0.08)


def test_half_of_the_texts_in_order_are_swapped(documents: Shards) -> None:
    goal = objective("segments", WORDS, order="order", short=0.0)
    examples = Segmented(Documents(documents), 29)
    swapped = [goal.noise(examples[i], rng((i, s)))["apart"] for i in range(len(examples)) for s in range(5)]
    assert np.mean(swapped) == pytest.approx(0.5, abs=0.08)


def test_examples_of_a_document_are_of_its_parts_in_turn() -> None:
    goal = objective("segments", WORDS, order="order", short=0.0, share=0.01)
    ids = np.arange(FIRST, FIRST + 50)
    documents = [np.split(ids, 5)]
    for turn, part in enumerate((ids[:30], ids[30:])):  # sentences of ten, rows of 29 at most
        noised = goal.noise({"documents": documents, "number": 0, "turn": turn}, rng())
        true = np.where(noised["labels"] == NONE, noised["tokens"], noised["labels"])
        assert {*true} - {CLS, SEP} <= {*part}


def test_words_of_pairs_are_chosen_whole(documents: Shards) -> None:
    goal = objective("segments", WORDS, order="order", whole=True, short=0.0)
    ids = np.arange(FIRST, FIRST + 20)
    marked = [2 * ids + (np.arange(20) % 2 == 0)]  # words of two tokens
    noised = goal.noise({"documents": [marked], "number": 0, "turn": 0}, rng())
    asked = noised["labels"][noised["labels"] != NONE]
    pairs = [*zip(asked[::2], asked[1::2], strict=False)]
    true = np.where(noised["labels"] == NONE, noised["tokens"], noised["labels"])
    assert {*true} - {CLS, SEP} == {*ids}
    assert pairs or len(asked) == 1


def test_two_texts_have_berts_and_alberts_loss(tmp_path: Path, documents: Shards) -> None:
    examples = Segmented(Documents(documents), 29)
    drawn = [examples[i] for i in range(6)]
    bert = both(hf.BertForPreTraining(hf.BertConfig(**SMALL)), tmp_path / "bert")
    albert = both(hf.AlbertForPreTraining(hf.AlbertConfig(**SMALL, embedding_size=8)), tmp_path / "albert")
    for (theirs, net), order, name in (
        (bert, "next", "next_sentence_label"),
        (albert, "order", "sentence_order_label"),
    ):
        goal = objective("segments", WORDS, order=order)
        batch = made(goal, drawn)
        given = dict(token_type_ids=batch.rows.types, attention_mask=seats(batch.rows), labels=spread(batch))  # type: ignore[union-attr]
        expected = theirs(ids_of(batch.rows), **given, **{name: batch.labels["apart"]}).loss
        close(goal(net(batch)), expected)
        assert goal.counts(batch)["pair"] == 6


# Replaced tokens.


@pytest.fixture
def twin() -> Twin:
    sizes: dict[str, Any] = dict(vocab=SIZE, depth=2, heads=2, feed=32, length=64, embed_width=16, std=0.2)
    nets = [
        build("electra", width=w, head=head, **sizes).net for w, head in ((8, "masked-lm"), (16, "replaced"))
    ]
    generator, discriminator = nets
    assert isinstance(generator, Transformer)
    assert isinstance(discriminator, Transformer)
    return Twin(generator, discriminator).eval()


def test_a_discriminator_reads_what_a_generator_wrote(twin: Twin) -> None:
    goal = objective("replaced-token", WORDS)
    examples = [row(30), row(12, 1)]
    batch = made(goal, examples)
    seen: list[Batch] = []
    twin.discriminator.register_forward_pre_hook(lambda net, given: seen.append(given[0]))
    out = twin(batch)
    asked, corrupted = spread(batch) != NONE, ids_of(seen[0].rows)
    true = torch.zeros_like(corrupted)
    for i, one in enumerate(examples):
        true[i, : len(one["tokens"])] = torch.from_numpy(one["tokens"])
    assert (corrupted == true)[~asked].all()
    assert torch.equal(out["wrong"], corrupted != true)
    assert 0 < out["wrong"].sum() <= asked.sum()
    assert goal.counts(batch) == {"lm": int(asked.sum()), "replaced": 32 + 14}


def test_a_generator_reads_masks_and_true_words_alone() -> None:
    goal = objective("replaced-token", WORDS)
    hidden = whole = 0
    for seed in range(100):
        example = row(100, seed)
        noised = goal.noise(example, rng(seed))
        asked = noised["labels"] != NONE
        read = noised["tokens"][asked]
        assert ((read == MASK) | (read == example["tokens"][asked])).all()
        hidden, whole = hidden + int((read == MASK).sum()), whole + len(read)
    assert hidden / whole == pytest.approx(0.85, abs=0.03)


def test_replaced_tokens_have_electras_losses(tmp_path: Path, twin: Twin) -> None:
    config = dict(SMALL, embedding_size=16)
    small = hf.ElectraForMaskedLM(hf.ElectraConfig(**dict(config, hidden_size=8)))
    large = hf.ElectraForPreTraining(hf.ElectraConfig(**config))
    for name in ("word", "position", "token_type"):
        table = getattr(large.electra.embeddings, f"{name}_embeddings")
        setattr(small.electra.embeddings, f"{name}_embeddings", table)
    small.tie_weights()
    _, discriminator = both(large, tmp_path / "large")
    _, generator = both(small, tmp_path / "small")
    large.save_pretrained(tmp_path / "large")
    discriminator = qkv.load(tmp_path / "large").net
    twin = Twin(generator, discriminator).eval()  # type: ignore[arg-type]
    goal = objective("replaced-token", WORDS)
    batch = made(goal, [row(30), row(12, 1)])
    seen: list[Batch] = []
    discriminator.register_forward_pre_hook(lambda net, given: seen.append(given[0]))
    parts = goal.parts(twin(batch))
    mask = seats(batch.rows)
    labels = spread(batch)
    close(parts["lm"], small(ids_of(batch.rows), attention_mask=mask, labels=labels).loss)
    wrong = (ids_of(seen[0].rows) != torch.where(labels == NONE, ids_of(batch.rows), labels)).long()
    told = large(ids_of(seen[0].rows), attention_mask=mask, labels=wrong).loss
    close(parts["replaced"], 50 * told)


def test_twins_share_tables_and_no_gradient_goes_through_the_sample(twin: Twin) -> None:
    mine, theirs = twin.generator, twin.discriminator
    assert mine.encoder is not None
    assert theirs.encoder is not None
    assert mine.encoder.embed.tokens is theirs.encoder.embed.tokens
    lm: Any = mine.heads["lm"]
    assert lm.out.weight is theirs.encoder.embed.tokens.weight
    goal = objective("replaced-token", WORDS)
    batch = made(goal, [row(30)])
    goal.parts(twin(batch))["replaced"].backward()
    assert all(p.grad is None for p in mine.encoder.layers.parameters())
    assert theirs.encoder.embed.tokens.weight.grad is not None


def test_samples_are_drawn_by_their_probability(twin: Twin) -> None:
    share = torch.tensor([0.5, 0.3, 0.2])
    twin.train()
    torch.manual_seed(0)
    drawn = twin.sampled(share.log().expand(20000, 3))
    close_to = torch.bincount(drawn, minlength=3) / 20000
    torch.testing.assert_close(close_to, share, atol=0.02, rtol=0)
    twin.eval()
    assert torch.equal(twin.sampled(share.log().expand(50, 3)), twin.sampled(share.log().expand(50, 3)))


# Distillation.


def test_a_student_has_distilberts_losses_and_half_of_the_teachers_layers() -> None:
    sizes: dict[str, Any] = dict(vocab=SIZE, width=16, heads=2, feed=32, length=64, std=0.2, head="masked-lm")
    teacher, student = build("bert", depth=12, **sizes), build("distilbert", depth=6, **sizes)
    assert inherit(student, teacher) == [0, 2, 4, 7, 9, 11]
    ours, theirs = (dict(model.net.named_parameters()) for model in (student, teacher))
    assert torch.equal(ours["encoder.layers.3.feed.up.weight"], theirs["encoder.layers.7.feed.up.weight"])
    assert torch.equal(ours["heads.lm.dense.weight"], theirs["heads.lm.dense.weight"])
    assert isinstance(student.net, Transformer)
    assert isinstance(teacher.net, Transformer)
    net = Taught(student.net, teacher.net).eval()
    assert len([*net.parameters()]) == len([*student.net.parameters()])
    goal = objective("distillation", WORDS)
    batch = made(goal, [row(20), row(9, 1)])
    out, mask = net(batch), seats(batch.rows).bool()
    with torch.no_grad():
        told = teacher.net(replace(batch, labels={}))
    # as in the authors' script, distiller.py
    a, b = out["logits"][mask] / 2, told["logits"][mask] / 2
    soft = torch.nn.KLDivLoss(reduction="batchmean")(F.log_softmax(a, -1), F.softmax(b, -1)) * 4
    lm = F.cross_entropy(out["logits"].flatten(0, 1), batch.labels["labels"].flatten(), ignore_index=NONE)
    states = out["hidden"][mask], told["hidden"][mask]
    cosine = torch.nn.CosineEmbeddingLoss()(*states, torch.ones(len(states[0])))
    parts = goal.parts(out)
    for part, expected in (("soft", 5 * soft), ("lm", 2 * lm), ("cosine", cosine)):
        close(parts[part], expected)
    assert goal.counts(batch) == {"soft": 33, "lm": int((batch.labels["labels"] != NONE).sum()), "cosine": 33}


def test_a_student_that_fits_no_teacher_is_refused() -> None:
    teacher = build("bert", "tiny", vocab=SIZE, head="masked-lm")
    student = build("distilbert", vocab=SIZE, width=64, depth=1, heads=2, head="masked-lm")
    with pytest.raises(ValueError, match="no like in the teacher"):
        inherit(student, teacher)


# Running text.


def test_the_next_token_is_asked_for_within_a_document() -> None:
    goal = objective("causal-lm", WORDS)
    noised = goal.noise({"tokens": np.array([7, 8, 9, 10]), "document": np.array([0, 0, 1, 1])}, rng())
    assert noised["tokens"].tolist() == [7, 8, 9]
    assert noised["labels"].tolist() == [8, NONE, 10]


def test_a_code_stands_in_front_and_is_not_asked_for(tmp_path: Path) -> None:
    goal, code, tokens = objective("control-codes", WORDS), 50, text(12)
    examples: list[Example] = [
        {"tokens": tokens, "code": np.array([code])},
        {"tokens": text(7, 1), "code": np.array([51])},
    ]
    batch = made(goal, examples)
    assert ids_of(batch.rows)[0].tolist() == [code, *tokens[:-1].tolist()]
    assert batch.labels["labels"][0].tolist() == tokens.tolist()
    config = hf.CTRLConfig(vocab_size=SIZE, n_positions=64, n_embd=16, dff=32, n_layer=2, n_head=2)
    theirs, net = both(hf.CTRLLMHeadModel(config), tmp_path)
    whole = torch.cat([ids_of(batch.rows), ids_of(batch.rows)[:, -1:]], 1)
    labels = torch.cat([torch.full((2, 1), NONE), batch.labels["labels"]], 1)  # theirs are shifted inside
    close(goal(net(batch)), theirs(whole, labels=labels).loss)


def test_a_segment_remembers_the_one_before() -> None:
    net = build(
        "transformer-xl", vocab=SIZE, width=16, embed_width=16, depth=2, heads=2, head_dim=8, feed=32,
        memory=8,
        cutoffs=(20,), drop=0.0, std=0.3, project_std=0.3,
    ).net.eval()  # fmt: skip
    goal = objective("recurrence", WORDS)
    assert goal.recurrent
    first, second = (made(goal, [{"tokens": text(9, s)}]) for s in (0, 1))
    out = net(replace(second, memory=net(first)["memory"]))
    expected = -out["logits"].gather(-1, second.labels["labels"][..., None]).mean()  # log-probabilities
    close(goal(out), expected)
    close(out["logits"].exp().sum(-1), torch.ones(1, 8))
    assert not torch.allclose(goal(net(second)), expected)


@pytest.mark.parametrize("left", [False, True])
def test_permuted_words_have_xlnets_loss(tmp_path: Path, left: bool) -> None:
    config = hf.XLNetConfig(vocab_size=SIZE, d_model=16, n_layer=2, n_head=2, d_inner=32, pad_token_id=PAD)
    theirs, net = both(hf.XLNetLMHeadModel(config), tmp_path)
    goal = objective("permutation-lm", WORDS._replace(left=left))
    examples = [row(24), row(24, 1)] if left else [row(24)]
    noised = [goal.noise(one, rng(i)) for i, one in enumerate(examples)]
    batch = goal.collate(noised)
    permute = torch.stack([torch.from_numpy(one["permute"]) for one in noised]).float()
    one_hot = F.one_hot(torch.stack([torch.from_numpy(one["targets"]) for one in noised]), 26).float()
    given = dict(perm_mask=permute, target_mapping=one_hot, labels=batch.labels["labels"])
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)
    assert goal.counts(batch)["loss"] == len(examples) * round(26 / 6)


def test_a_target_does_not_see_itself_nor_what_is_guessed_after_it() -> None:
    sizes: dict[str, Any] = dict(vocab=SIZE, width=16, depth=2, heads=2, head_dim=8, feed=32, std=0.3)
    net = build("xlnet", **sizes).net.eval()
    goal = objective("permutation-lm", WORDS)
    noised = goal.noise(row(30), rng())
    batch = goal.collate([noised])
    before = net(batch)["logits"][0]
    hidden = torch.from_numpy(noised["permute"])[noised["targets"]][:, noised["targets"]]  # (P, P)
    changed = 0
    for place, target in enumerate(noised["targets"]):
        tokens = {**noised, "tokens": noised["tokens"].copy()}
        tokens["tokens"][target] = FIRST
        moved = (net(goal.collate([tokens]))["logits"][0] - before).abs().amax(-1) > 1e-6
        assert not moved[hidden[:, place]].any()
        changed += int(moved.sum())
    assert changed > 0


def test_rows_of_different_lengths_are_permuted_apart() -> None:
    sizes: dict[str, Any] = dict(vocab=SIZE, width=16, depth=2, heads=2, head_dim=8, feed=32, std=0.3)
    net = build("xlnet", **sizes).net.eval()
    for left in (False, True):
        goal = objective("permutation-lm", WORDS._replace(left=left))
        noised = [goal.noise(row(n, n), rng(n)) for n in (24, 11)]
        alone = [goal.collate([one]) for one in noised]
        whole = sum(goal(net(one)).item() * goal.counts(one)["loss"] for one in alone)
        count = sum(goal.counts(one)["loss"] for one in alone)
        together = goal.collate(noised)
        assert goal.counts(together)["loss"] == count
        assert goal(net(together)).item() == pytest.approx(whole / count, abs=1e-5)


# Writing.


def test_a_decoder_reads_its_labels_one_to_the_right() -> None:
    goal = objective("seq2seq", WORDS, smoothing=0.1)
    pairs = [{"source": text(6), "target": text(5, 1)}, {"source": text(3, 2), "target": text(8, 3)}]
    batch = made(goal, pairs)
    assert ids_of(batch.target)[1].tolist() == [SEP, *pairs[1]["target"][:-1]]
    assert batch.labels["labels"][1].tolist() == pairs[1]["target"].tolist()
    assert batch.labels["labels"][0].tolist() == [*pairs[0]["target"], *[NONE] * 3]
    logits = torch.randn(2, 8, SIZE)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.labels["labels"].flatten(), label_smoothing=0.1)
    close(goal({"logits": logits, **batch.labels}), expected)


def test_two_readings_of_a_row_shall_agree() -> None:
    goal = objective("seq2seq", WORDS, smoothing=0.1, agree=2.5)
    pairs = [{"source": text(6), "target": text(5, 1)}, {"source": text(3, 2), "target": text(8, 3)}]
    once, batch = made(objective("seq2seq", WORDS), pairs), made(goal, pairs)
    assert torch.equal(ids_of(batch.rows), torch.cat([ids_of(once.rows)] * 2))
    assert torch.equal(batch.labels["labels"], torch.cat([once.labels["labels"]] * 2))
    assert goal.counts(batch) == {"loss": 2 * 13, "agree": 2 * 13}
    logits = torch.randn(4, 8, SIZE)
    asks = once.labels["labels"] != NONE
    a, b = (half[asks].log_softmax(-1) for half in logits.chunk(2))
    both = [F.kl_div(one, other, log_target=True, reduction="batchmean") for one, other in ((a, b), (b, a))]
    parts = goal.parts({"logits": logits, **batch.labels})
    close(parts["agree"], 2.5 * (both[0] + both[1]) / 2)
    flat = batch.labels["labels"].flatten()
    close(parts["loss"], F.cross_entropy(logits.flatten(0, 1), flat, label_smoothing=0.1))
    same = goal.parts({"logits": logits[:2].repeat(2, 1, 1), **batch.labels})
    assert same["agree"].item() == 0


BART: dict[str, Any] = dict(
    vocab_size=SIZE, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
    pad_token_id=PAD, bos_token_id=CLS, eos_token_id=SEP, decoder_start_token_id=SEP, forced_eos_token_id=SEP,
)  # fmt: skip


def test_a_damaged_text_is_written_whole_with_barts_loss(tmp_path: Path) -> None:
    goal = objective("denoising", WORDS)
    tokens = text(20)
    batch = made(goal, [{"tokens": tokens}, {"tokens": text(12, 1)}])
    labels = batch.labels["labels"]
    assert labels[0].tolist() == [CLS, *tokens, SEP]
    assert ids_of(batch.target)[0].tolist() == [SEP, CLS, *tokens]
    source = ids_of(batch.rows)[0][seats(batch.rows)[0].bool()]
    assert source[0] == CLS
    assert source[-1] == SEP
    kept = source[(source != MASK)][1:-1]
    assert len(kept) == 20 - 6  # 0.3 of them are gone
    assert {*kept.tolist()} <= {*tokens.tolist()}
    theirs, net = both(hf.BartForConditionalGeneration(hf.BartConfig(**BART)), tmp_path)
    given = dict(attention_mask=seats(batch.rows), labels=labels)
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)


@pytest.mark.parametrize("name", ["denoising", "multilingual-denoising"])
def test_tokens_go_without_a_trace_and_a_text_begins_in_its_middle(name: str) -> None:
    tokens, code = np.arange(20, 40), {"code": np.array([50])} if "multi" in name else {}

    def read(**settings: Any) -> list[int]:
        goal = objective(name, WORDS, share=0.0, shuffled=False, **settings)
        ids = ids_of(made(goal, [{"tokens": tokens, **code}]).rows)[0].tolist()
        return [each for each in ids if 20 <= each < 40]

    assert read() == tokens.tolist()
    left = read(deleted=0.25)
    assert (len(left), left) == (15, sorted(left))
    turned = read(rotated=True)
    at = turned.index(20)
    assert turned[at:] + turned[:at] == tokens.tolist() != turned
    assert len(read(deleted=0.25, rotated=True)) == 15


def test_a_text_ends_with_its_language_and_the_decoder_starts_with_it(tmp_path: Path) -> None:
    goal = objective("multilingual-denoising", WORDS)
    examples: list[Example] = [{"tokens": text(20, n), "code": np.array([50 + n])} for n in range(2)]
    batch = made(goal, examples)
    for n in range(2):
        assert ids_of(batch.rows)[n][seats(batch.rows)[n].bool()][-2:].tolist() == [SEP, 50 + n]
        assert batch.labels["labels"][n].tolist() == [*examples[n]["tokens"], SEP, 50 + n]
        assert ids_of(batch.target)[n].tolist() == [50 + n, *examples[n]["tokens"], SEP]
    theirs, net = both(hf.MBartForConditionalGeneration(hf.MBartConfig(**BART)), tmp_path)
    given = dict(attention_mask=seats(batch.rows), labels=batch.labels["labels"])
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)


def test_a_target_that_ends_with_its_language_starts_mbarts_decoder(tmp_path: Path) -> None:
    goal = objective("seq2seq", WORDS._replace(shift=Shift(0, "wrap")))
    pairs: list[Example] = [{"source": text(9, n), "target": np.array([6, 7, SEP, 50 + n])} for n in range(2)]
    batch = made(goal, pairs)
    assert ids_of(batch.target).tolist() == [[50, 6, 7, SEP], [51, 6, 7, SEP]]
    theirs, net = both(hf.MBartForConditionalGeneration(hf.MBartConfig(**BART)), tmp_path)
    given = dict(attention_mask=seats(batch.rows), labels=batch.labels["labels"])
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)


T5: dict[str, Any] = dict(
    vocab_size=SIZE, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=PAD,
    pad_token_id=PAD, eos_token_id=SEP,
)  # fmt: skip


def test_taken_spans_are_written_with_t5s_loss(tmp_path: Path) -> None:
    words = WORDS._replace(start=PAD)
    goal = objective("span-corruption", words)
    size, target = lengths(32)
    batch = made(goal, [{"tokens": text(size, n)} for n in range(3)])
    assert ids_of(batch.rows).shape == (3, 32)
    assert batch.labels["labels"].shape == (3, target)
    assert ids_of(batch.target)[0].tolist() == [PAD, *batch.labels["labels"][0][:-1].tolist()]
    for source, label in zip(ids_of(batch.rows), batch.labels["labels"], strict=True):
        marks = [t for t in source.tolist() if t in words.sentinels]
        assert (
            marks == [t for t in label.tolist() if t in words.sentinels] == [*words.sentinels[: len(marks)]]
        )
        assert source[-1] == label[-1] == SEP
    theirs, net = both(hf.T5ForConditionalGeneration(hf.T5Config(**T5)), tmp_path)
    close(goal(net(batch)), theirs(ids_of(batch.rows), labels=batch.labels["labels"]).loss)


def test_experts_are_asked_to_share_the_tokens() -> None:
    net = build(
        "switch", vocab=SIZE, width=16, depth=2, decoder_depth=2, heads=2, head_dim=8, feed=32, experts=4,
        sparse=1, decoder_sparse=1, jitter=0.0, drop=0.0,
    ).net.eval()  # fmt: skip
    goal = objective("span-corruption", WORDS, balance=0.01, z=0.001)
    batch = made(goal, [{"tokens": text(lengths(32)[0], n)} for n in range(3)])
    out = net(batch)
    parts = goal.parts(out)
    balance = z = 0.0
    for route in (out["encoded_router"][0], out["router"][0]):
        z += torch.logsumexp(route, -1).square().mean().item()
        for tokens in route.softmax(-1):  # eq. 4 of Switch, a row at a time
            f = torch.bincount(tokens.argmax(-1), minlength=4) / len(tokens)
            balance += 4 * (f * tokens.mean(0)).sum().item() / 3
    assert parts["balance"].item() == pytest.approx(0.01 * balance, rel=1e-5)
    assert parts["z"].item() == pytest.approx(0.001 * z, rel=1e-5)
    dense = build("t5", vocab=SIZE, width=16, depth=1, heads=2, head_dim=8, feed=32).net
    with pytest.raises(ValueError, match="experts"):
        goal.parts(dense(batch))


# Matching.


def test_pairs_of_texts_look_for_each_other() -> None:
    goal = objective("contrastive", WORDS, temperature=0.1)
    net = build("bert", vocab=SIZE, width=16, depth=2, heads=2, feed=32, length=64, vector="mean").net.eval()
    pairs = [{"source": row(n, n)["tokens"], "target": row(n + 3, n + 9)["tokens"]} for n in range(4, 8)]
    batch = made(goal, pairs)
    assert goal.together == ("vector",)
    assert goal.counts(batch) == {"loss": 4}
    vectors = [
        [net(goal.collate([{"source": pair[side], "target": pair[side]}]))["vector"][0] for pair in pairs]
        for side in ("source", "target")
    ]
    a, b = map(torch.stack, vectors)
    scores = F.cosine_similarity(a[:, None], b[None], dim=-1) / 0.1
    close(goal(net(batch)), F.cross_entropy(scores, torch.arange(4)))


def test_images_and_texts_have_clips_loss(tmp_path: Path) -> None:
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    texts = dict(
        sizes,
        vocab_size=SIZE,
        max_position_embeddings=32,
        eos_token_id=SEP,
        bos_token_id=CLS,
        pad_token_id=PAD,
    )
    config = hf.CLIPConfig(
        text_config=texts, vision_config=dict(sizes, image_size=16, patch_size=8), projection_dim=8
    )
    theirs, net = both(hf.CLIPModel(config), tmp_path)
    goal = objective("image-text", WORDS._replace(cells=5))
    pixels = rng().normal(size=(4, 3, 16, 16)).astype(np.float32)
    batch = goal.collate([{**row(6 + n, n), "pixels": pixels[n]} for n in range(4)])
    assert batch.image is not None
    given = dict(pixel_values=batch.image.images, attention_mask=seats(batch.rows), return_loss=True)
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)
    assert isinstance(net, Pair)
    assert net.temperature is not None
    with torch.no_grad():
        net.temperature.fill_(9.0)
    bounded(net).train()(batch)
    assert net.temperature.exp().item() == pytest.approx(100.0, rel=1e-5)


# What is asked of a text.


@pytest.mark.parametrize(
    ("kind", "label", "theirs"),
    [
        ("single", [[2], [0]], "single_label_classification"),
        ("several", [[0, 2], []], "multi_label_classification"),
        ("regression", [[labels.to_bits(x, Record({}, ""))] for x in (0.25, -3)], "regression"),
    ],
)  # fmt: skip
def test_labels_have_the_loss_of_their_kind(tmp_path: Path, kind: str, label: Any, theirs: str) -> None:
    count = 1 if kind == "regression" else 3
    config = hf.BertConfig(**SMALL, num_labels=count, problem_type=theirs)
    oracle, net = both(hf.BertForSequenceClassification(config), tmp_path)
    goal = objective("label", WORDS, kind=kind)
    batch = made(goal, [{**row(9 + n, n), "label": np.array(label[n], np.int64)} for n in range(2)])
    expected = oracle(
        ids_of(batch.rows), attention_mask=seats(batch.rows), labels=batch.labels["labels"]
    ).loss
    close(goal(net(batch)), expected)
    if kind == "regression":
        assert batch.labels["labels"].tolist() == [0.25, -3.0]
    if kind == "several":
        assert batch.labels["labels"].tolist() == [[1, 0, 1], [0, 0, 0]]


def test_tags_spans_and_choices_have_berts_losses(tmp_path: Path) -> None:
    config = hf.BertConfig(**SMALL, num_labels=3)
    rows = [row(9 + n, n) for n in range(2)]
    theirs, net = both(hf.BertForTokenClassification(config), tmp_path / "tag")
    goal = objective("tag", WORDS)
    batch = made(goal, [{**one, "labels": np.arange(len(one["tokens"])) % 4} for one in rows])
    assert batch.labels["labels"][0].tolist()[:4] == [NONE, 0, 1, 2]
    close(
        goal(net(batch)),
        theirs(ids_of(batch.rows), attention_mask=seats(batch.rows), labels=batch.labels["labels"]).loss,
    )

    oracle, net = both(hf.BertForQuestionAnswering(hf.BertConfig(**SMALL)), tmp_path / "span")
    goal = objective("span", WORDS)
    batch = made(goal, [{**one, "start": 2 + n, "end": 5} for n, one in enumerate(rows)])
    given = dict(
        attention_mask=seats(batch.rows),
        start_positions=batch.labels["starts"],
        end_positions=batch.labels["ends"],
    )
    close(goal(net(batch)), oracle(ids_of(batch.rows), **given).loss)

    chooser, net = both(hf.BertForMultipleChoice(hf.BertConfig(**SMALL)), tmp_path / "choice")
    goal = objective("choice", WORDS)
    examples = []
    for n in range(2):
        held = [row(5, n), row(7, 3 + n), row(6, 6 + n)]
        tokens = np.concatenate([one["tokens"] for one in held])
        windows = np.array([len(one["tokens"]) for one in held])
        examples.append(
            {"tokens": tokens, "types": np.zeros_like(tokens), "windows": windows, "label": np.array([n])}
        )
    batch = made(goal, examples)
    ids = ids_of(batch.rows).unflatten(0, (2, 3))
    mask = seats(batch.rows).unflatten(0, (2, 3))
    close(goal(net(batch)), chooser(ids, attention_mask=mask, labels=torch.tensor([0, 1])).loss)


def test_a_decoder_that_is_asked_for_a_label_reads_the_text_moved_by_one(tmp_path: Path) -> None:
    theirs, net = both(hf.BartForSequenceClassification(hf.BartConfig(**BART, num_labels=3)), tmp_path)
    goal = objective("label", WORDS._replace(shift=qkv.load(tmp_path).spec.shift))  # type: ignore[union-attr]
    batch = made(goal, [{**row(9 + n, n), "label": np.array([n])} for n in range(2)])
    given = dict(attention_mask=seats(batch.rows), labels=batch.labels["labels"])
    close(goal(net(batch)), theirs(ids_of(batch.rows), **given).loss)


def test_types_that_a_model_does_not_have_are_its_last() -> None:
    goal = objective("label", WORDS._replace(types=1))
    example = {**row(4), "types": np.array([0, 0, 0, 1, 1, 1]), "label": np.array([0])}
    batch = made(goal, [example])
    assert batch.rows is not None
    assert batch.rows.types is not None
    assert batch.rows.types.max() == 0


# What is wrong.


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("masked", {}, r"objective 'masked', expected one of causal-lm"),
        (
            "masked-lm",
            {"shares": 0.1},
            r"objective\.shares: masked-lm has no such setting; it has share, hidden",
        ),
        ("causal-lm", {"share": 0.1}, r"objective\.share: causal-lm has no such setting; it has none"),
        ("masked-lm", {"share": "0.1"}, r"objective\.share is '0\.1', expected a value such as 0\.15"),
        ("masked-lm", {"share": 1.5}, r"objective\.share is 1\.5: expected a number, more than 0"),
        ("masked-lm", {"longest": 0}, r"objective\.longest is 0"),
        ("segments", {"order": "swap"}, r"objective\.order 'swap', expected one of next, order"),
        ("label", {"kind": "many"}, r"objective\.kind 'many', expected one of single, several, regression"),
        ("seq2seq", {"smoothing": 1}, r"objective\.smoothing is 1"),
        ("seq2seq", {"agree": -1}, r"objective\.agree is -1"),
        ("contrastive", {"temperature": 0.0}, r"objective\.temperature is 0\.0"),
        ("denoising", {"mean": 0.0}, r"objective\.mean is 0\.0"),
        ("denoising", {"deleted": 1.0}, r"objective\.deleted is 1\.0"),
        ("denoising", {"rotate": True}, r"it has share, .*; did you mean rotated\?"),
        ("masked-lm", {"hidden": 5.0}, r"objective\.hidden is 5\.0"),
        ("masked-lm", {"random": 0.9}, r"objective\.random is 0\.9: .* at most 0\.2"),
        ("replaced-token", {"weight": -5.0}, r"objective\.weight is -5\.0"),
        ("segments", {"short": 7.0}, r"objective\.short is 7\.0"),
    ],
)
def test_a_setting_that_is_wrong_is_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(name, WORDS, **settings)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("masked-lm", dict(mask=None), "no mask token"),
        ("denoising", dict(mask=None), "no mask token"),
        ("span-corruption", dict(sentinels=()), "no sentinels"),
        ("segments", dict(length=0), r"data\.length 0"),
    ],
)
def test_a_tokenizer_that_lacks_a_token_is_refused(name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(name, WORDS._replace(**words))


def test_places_of_an_answer_move_with_pads_on_the_left() -> None:
    goal = objective("span", WORDS._replace(left=True))
    batch = made(goal, [{**row(9), "start": 2, "end": 4}, {**row(5, 1), "start": 2, "end": 3}])
    assert batch.labels["starts"].tolist() == [2, 6]
    assert batch.labels["ends"].tolist() == [4, 7]
    assert ids_of(batch.rows)[1, 6] == row(5, 1)["tokens"][2]
