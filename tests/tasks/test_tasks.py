"""Tasks beside the goldens: batches, windows, offsets, what the network itself says, and what is refused."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv.model.adapters.write import write_adapter
from qkv.nn.lora import add_lora
from qkv.tasks.batching import by_length
from qkv.tasks.read.tag import Found, entities, longest
from qkv.tasks.registry import TASKS
from qkv.tasks.requirements import NEEDS, fitting
from tests.support import tiny

ROOT = Path(__file__).parent.parent / "goldens" / "pipelines"
TEXTS = [
    "Clara waits.", "A lighthouse stands at the end of the pier; its lamp was lit.", "x",
    "The ferry to Bregenz leaves at nine and comes back before noon.", "Anna lives near  the harbour.",
]  # fmt: skip
ODD = "Zoë  rows, 東京 👍🏽 — naïve\tCAFÉ e\u0301té \u200bend"
HEADS = {"detect": ("electra", "replaced"), "score": ("gpt2", "lm"), "complete": ("gpt2", "lm")}


@cache
def folder(name: str) -> qkv.Model:
    return qkv.load(ROOT / name)


@cache
def words(purpose: str = "bert") -> qkv.Tokenizer:
    kind = "wordpiece" if purpose == "bert" else "byte"
    return qkv.Tokenizer.train(TEXTS * 3, kind=kind, vocab=300, purpose=purpose)


@cache
def built(family: str, head: str) -> qkv.Model:
    """A tiny model with every tensor random, and a tokenizer of our own."""
    purpose = "gpt" if family == "gpt2" else "bert"
    more = {"embed_width": 8} if family == "electra" else {}
    sizes: dict[str, Any] = dict(width=16, depth=2, heads=2, feed=24, vocab=len(words(purpose)), length=32)
    model = qkv.build(family, **(sizes | more), head=head)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = words(purpose)
    return model


MODELS = {
    "classify": "bert-label", "tag": "bert-tag", "fill": "roberta", "answer": "roberta-span", "embed": "bert",
    "match": "clip", "translate": "marian", "summarise": "bart",
}  # fmt: skip


def task(name: str, **settings: Any) -> Any:
    model = folder(MODELS[name]) if name in MODELS else built(*HEADS[name])
    return qkv.task(name, model, **settings)


def given(name: str, text: str) -> Any:
    return {"fill": f"{text} <mask> and <mask>", "answer": ("Who waits?", text)}.get(name, text)


def numbers(result: Any) -> Any:
    """Everything in a result, its floats apart."""
    if isinstance(result, np.ndarray):
        return [], result.tolist()
    flat: list[Any] = []

    def walk(x: Any) -> None:
        if isinstance(x, tuple):
            for each in x:
                walk(each)
        elif hasattr(x, "__dataclass_fields__"):
            walk(tuple(getattr(x, name) for name in x.__dataclass_fields__))
        else:
            flat.append(x)

    walk(result)
    return [x for x in flat if not isinstance(x, float)], [x for x in flat if isinstance(x, float)]


@pytest.mark.parametrize("name", [name for name in TASKS if name != "match"])
def test_results_do_not_depend_on_the_company_in_the_batch(name: str) -> None:
    long = {"long": "cut"} if name == "complete" else {}
    one, texts = task(name, **long), [given(name, text) for text in TEXTS if name != "score" or text != "x"]
    alone = [one(*text) if name == "answer" else one(text) for text in texts]
    for budget in (1, 40, 4096):
        many = one.many(texts, batch_tokens=budget)
        assert len(many) == len(texts)
        for ours, theirs in zip(many, alone, strict=True):
            (words, found), (same, wanted) = numbers(ours), numbers(theirs)
            assert words == same
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert len(one.many([])) == 0


@pytest.mark.parametrize("family", "bert xlnet gpt2 bart t5 llama modernbert transformer-xl".split())
def test_nor_in_any_kind_of_family(family: str) -> None:
    text = qkv.Tokenizer.train(TEXTS * 3, kind="char", vocab=tiny.VOCAB, purpose="bert", lower=True)
    kin = qkv.build(family, **tiny.sizes(family)).family
    for head, name in (("label", "classify"), ("tag", "tag"), ("span", "answer"), ("none", "embed")):
        if head not in kin.heads or (name == "embed" and family in tiny.PAIRS):
            continue
        end: dict[str, Any] = {"end": text.sep} if "end" in kin.defaults else {}
        made = tiny.model(family, head=head, **end)
        made.tokenizer = text
        one, some = qkv.task(name, made, length=40), [given(name, text) for text in TEXTS[::2]]
        for ours, each in zip(one.many(some), some, strict=True):
            theirs = one(*each) if name == "answer" else one(each)
            np.testing.assert_allclose(numbers(ours)[1], numbers(theirs)[1], rtol=1e-6, atol=1e-7)


def test_words_are_tokens_where_the_table_is_longer_than_the_vocabulary() -> None:
    text = qkv.Tokenizer.train(TEXTS, kind="char", vocab=tiny.VOCAB, purpose="bert", lower=True)
    made = tiny.model("bert", head="masked-lm", vocab=len(text) + 40)
    made.tokenizer = text
    found = qkv.task("fill", made, top=1000)("clara [MASK]")
    assert sorted(word.id for word in found.best) == list(range(len(text)))


def test_rows_are_read_by_length_within_the_budget() -> None:
    lengths = [3, 9, 1, 9, 4]
    found = list(by_length(lengths, 18))
    assert found == [[1, 3], [4, 0, 2]]
    assert list(by_length([50, 40], 10)) == [[0], [1]]


def test_progress_is_told_up_to_the_end() -> None:
    told: list[tuple[int, int | None]] = []
    task("classify").many(TEXTS, batch_tokens=30, progress=lambda words, done, of: told.append((done, of)))
    assert len(told) > 2
    assert told[-1] == (5, 5)
    assert told == sorted(told, key=lambda each: each[0])
    told.clear()
    lines = "\n".join(TEXTS)  # one text, of which five lines are read
    task("translate", max_new=2).many([lines], batch_tokens=30, progress=lambda *far: told.append(far[1:]))
    assert told[-1] == (5, 5)
    assert len(told) > 2


def test_a_network_that_trains_is_read_at_rest_and_trains_on() -> None:
    model = folder("bert-label")
    model.net.train()
    try:
        one = qkv.task("classify", model)
        assert one(TEXTS[1]) == one(TEXTS[1])
        assert model.net.training
    finally:
        model.net.eval()


@pytest.mark.parametrize("name", ["bert-tag", "roberta-tag"])
@pytest.mark.parametrize("join", ["none", "simple", "first", "average", "max"])
def test_offsets_point_into_the_users_own_text(name: str, join: str) -> None:
    found = qkv.task("tag", folder(name), join=join, leave=())(ODD)
    assert found
    assert all(one.text == ODD[one.start : one.end] != "" for one in found)
    if join != "none":  # all of the text, in its order
        assert all(one.end <= two.start for one, two in pairwise(found))
        gaps = ODD[found[-1].end :] + "".join(ODD[one.end : two.start] for one, two in pairwise(found))
        assert not gaps.replace("\u200b", "").strip()


@pytest.mark.parametrize("name", ["bert-span", "roberta-span"])
def test_answers_keep_case_and_spacing(name: str) -> None:
    found = qkv.task("answer", folder(name), top=20)("Who?", ODD)
    assert len(found.best) > 5
    assert all(one.text == ODD[one.start : one.end] for one in found.best)
    assert found.best[0] == qkv.task("answer", folder(name), top=20)("Who?", ODD).best[0]


def test_entities_of_every_scheme() -> None:
    def joined(row: str) -> list[tuple[str, int, int]]:
        told = [Found(label, 1.0, place, place + 1) for place, label in enumerate(row.split())]
        return [(one.label, one.start, one.end) for one in entities(told) if one.label != "O"]

    assert joined("B-A I-A O I-A B-A B-A") == [("A", 0, 2), ("A", 3, 4), ("A", 4, 5), ("A", 5, 6)]
    assert joined("B-A I-A E-A S-A S-A B-B E-B") == [("A", 0, 3), ("A", 3, 4), ("A", 4, 5), ("B", 5, 7)]
    assert joined("B-A I-A S-A I-A U-A") == [("A", 0, 2), ("A", 2, 3), ("A", 3, 4), ("A", 4, 5)]
    assert joined("B-A L-A U-A I-A") == [("A", 0, 2), ("A", 2, 3), ("A", 3, 4)]
    assert joined("A A O B") == [("A", 0, 2), ("B", 3, 4)]
    same = [Found("A", 0.5, 0, 4), Found("A", 0.9, 2, 4), Found("B", 0.9, 5, 7), Found("C", 0.3, 5, 7)]
    assert longest(same) == [same[0], same[2]]


def test_filled_text_is_the_users_own() -> None:
    text = "ÀB  [MASK], the [MASK]!"
    found = qkv.task("fill", folder("bert"))(text)
    assert [text[gap.start : gap.end] for gap in found.gaps] == ["[MASK]", "[MASK]"]
    assert found.text.startswith("ÀB")
    assert "[MASK]" not in found.text
    assert len(found.best) == 5
    assert found.best[0].text.endswith(", the [MASK]!")


@pytest.mark.parametrize("kind", ["unigram", "byte", "wordpiece"])
def test_gaps_and_entities_of_every_kind_of_tokenizer(kind: str) -> None:
    """Blanks that a tokenizer counts to a word are in no entity and stay before a word that fills a gap."""
    purpose = {"unigram": "xlnet", "byte": "roberta", "wordpiece": "bert"}[kind]
    text = qkv.Tokenizer.train(TEXTS * 5, kind=kind, vocab=270 if kind == "byte" else 60, purpose=purpose)
    mask = text.token(text.mask or 0)
    for head in ("masked-lm", "tag"):
        model = qkv.build(
            "bert", width=16, depth=1, heads=2, feed=24, vocab=len(text), types=3, head=head, labels=3
        )
        model.tokenizer = text
        if head == "tag":
            found = qkv.task("tag", model, leave=(), join="simple")(TEXTS[4])
            assert all(one.text.strip() == one.text == TEXTS[4][one.start : one.end] for one in found)
            continue
        told = qkv.task("fill", model, top=len(text))(f"Anna  {mask} here.")
        assert (told.gaps[0].start, told.gaps[0].end) == (6, 6 + len(mask))
        fronts = {word.text[:6] for word in told.best}
        assert all(front.startswith("Anna") for front in fronts)
        assert "Anna  " in fronts


def test_targets_that_are_no_tokens_warn() -> None:
    with pytest.warns(UserWarning, match=r"target 'boat' is no token of this model; 'b' stands for it"):
        qkv.task("fill", folder("bert"), targets=["boat"])("a [MASK]")


def test_detect_says_what_the_network_says() -> None:
    model = built("electra", "replaced")
    text = TEXTS[4]
    assert model.tokenizer is not None
    whole = model.tokenizer.encode(text)
    scores = model.run(torch.tensor([whole.ids]))["logits"][0].sigmoid().tolist()[1:-1]
    found = qkv.task("detect", model, above=0.4)(text)
    assert [one.score for one in found] == pytest.approx(scores, abs=1e-6)
    assert [one.replaced for one in found] == [score >= 0.4 for score in scores]
    assert [one.text for one in found] == [text[a:b] for a, b in whole.offsets[1:-1]]
    many = qkv.task("detect", model)(" ".join(TEXTS * 2))
    assert len(many) > 32
    assert [one.start for one in many] == sorted(one.start for one in many)
    first, second, *_ = model.tokenizer.encode(" ".join(TEXTS * 2)).windows(32, stride=16)
    both = model.run(torch.tensor([first.ids, second.ids]))["logits"].sigmoid()
    assert many[14 + 3].score == pytest.approx(
        float((both[0, 15 + 3] + both[1, 1 + 3]).detach()) / 2, abs=1e-6
    )


def test_a_causal_model_scores_a_token_by_those_before_it() -> None:
    model = built("gpt2", "lm")
    text = TEXTS[4]
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text).ids
    logs = model.run(torch.tensor([ids]))["logits"][0].detach().log_softmax(-1)
    wanted = [float(logs[n, word]) for n, word in enumerate(ids[1:])]
    found = qkv.task("score", model)(text)
    assert found.tokens[0].score is None
    assert [one.score for one in found.tokens[1:]] == pytest.approx(wanted, abs=1e-4)
    assert found.score == pytest.approx(sum(wanted), abs=1e-3)
    assert found.perplexity == pytest.approx(np.exp(-np.mean(wanted)), rel=1e-4)
    assert "".join(one.text for one in found.tokens).replace(" ", "") == text.replace(" ", "")


def test_a_batch_of_which_no_token_has_one_before_it() -> None:
    model = built("gpt2", "lm")
    assert model.tokenizer is not None
    words = "ab" * 40
    while len(model.tokenizer.encode(words).ids) % 32 != 1:
        words += "x"
    found = qkv.task("score", model, stride=0).many([words], batch_tokens=32)[0]
    assert found.tokens[-1].score is None


def test_windows_score_each_token_once_with_what_is_before_it() -> None:
    model = built("gpt2", "lm")
    text = " ".join(TEXTS)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text).ids
    assert len(ids) > 60
    found = qkv.task("score", model, stride=10)(text)
    assert len(found.tokens) == len(ids)
    assert sum(one.score is None for one in found.tokens) == 1
    start = 32 - 10  # the second window
    logs = model.run(torch.tensor([ids[start : start + 32]]))["logits"][0].detach().log_softmax(-1)
    assert found.tokens[33].score == pytest.approx(float(logs[32 - start, ids[33]]), abs=1e-4)


def test_a_masked_model_scores_a_token_by_all_others() -> None:
    model = folder("bert")
    text = "the quiet lake."
    assert model.tokenizer is not None
    ids, wanted = model.tokenizer.encode(text).ids, []
    for place in range(1, len(ids) - 1):
        hidden = torch.tensor([ids])
        hidden[0, place] = model.tokenizer.mask  # type: ignore[assignment]
        wanted.append(float(model.run(hidden)["logits"][0, place].detach().log_softmax(-1)[ids[place]]))
    found = qkv.task("score", model)(text)
    assert [one.score for one in found.tokens] == pytest.approx(wanted, abs=1e-4)


def test_vectors_are_pooled_as_asked_or_as_the_folder_says(tmp_path: Path) -> None:
    model = folder("bert")
    states = qkv.task("embed", model).states(TEXTS[1])
    pools = {"mean": states.mean(0), "first": states[0], "last": states[-1]}
    for pool, wanted in pools.items():
        found = qkv.task("embed", model, pool=pool).many(TEXTS)
        assert found.shape == (5, 16)
        np.testing.assert_allclose(found[1], wanted, rtol=1e-4, atol=1e-5)
    unit = qkv.task("embed", model, unit=True)(TEXTS[1])
    np.testing.assert_allclose(unit, pools["mean"] / np.linalg.norm(pools["mean"]), rtol=1e-4, atol=1e-5)
    pooled = built("bert", "none")
    assert pooled.tokenizer is not None
    ids = torch.tensor([pooled.tokenizer.encode("Clara waits").ids])
    np.testing.assert_allclose(
        qkv.task("embed", pooled, pool="pooled")("Clara waits"),
        pooled.run(ids)["pooled"][0].detach(),
        atol=1e-5,
    )
    own = qkv.build(
        "bert", vector="first", width=16, depth=1, heads=2, feed=24, vocab=len(words()), length=32
    )
    own.tokenizer = words()
    own.save(tmp_path / "own")
    told = qkv.task("embed", tmp_path / "own")
    ids = torch.tensor([words().encode("Clara waits").ids])
    np.testing.assert_allclose(told("Clara waits"), own.run(ids)["vector"][0].detach(), atol=1e-5)
    assert np.linalg.norm(told("Clara waits")) == pytest.approx(1, abs=1e-5)
    (tmp_path / "own" / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    with pytest.raises(ValueError, match="more than the 9 that are read at once"):
        qkv.task("embed", tmp_path / "own")(TEXTS[1])


def test_clip_has_a_vector_for_texts_and_scores_both_ways() -> None:
    model, images = folder("clip"), sorted((ROOT / "images").glob("*.png"))[:3]
    one, texts = qkv.task("match", model), ["a boat", "bread"]
    scores = one.scores(images, texts)
    assert scores.shape == (3, 2)
    np.testing.assert_allclose(one.scores(images, texts, batch_tokens=1), scores, rtol=1e-5, atol=1e-5)
    vectors = qkv.task("embed", model).many(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-5)
    from PIL import Image

    with Image.open(images[0]) as image:
        assert one(image, texts) == one(images[0], texts)
    together, alone = one.many(images, labels=texts)[0], one(images[0], texts)
    assert [each.label for each in together.best] == [each.label for each in alone.best]
    # In fp32 and another shape of matrix product: not to the bit.
    one_by_one, in_a_batch = ([each.score for each in found.best] for found in (alone, together))
    np.testing.assert_allclose(in_a_batch, one_by_one, rtol=1e-5)


def test_a_text_that_is_too_long_is_cut_or_read_in_windows() -> None:
    text = " ".join(TEXTS * 3)
    with pytest.raises(ValueError, match=r"text: \d+ tokens, \d+ more than the 64 .* set long to cut"):
        task("classify")(text)
    whole = task("classify").tokenizer.encode(text)
    first = whole.cut(64)
    logits = folder("bert-label").run(torch.tensor([first.ids]))["logits"][0].softmax(-1)
    assert task("classify", long="cut")(text).score == pytest.approx(float(logits.detach().max()), abs=1e-6)
    with pytest.raises(ValueError, match=r"text 2: .* set long to cut or window"):
        task("tag", long="refuse").many(["x", text])
    assert task("tag")(text)[-1].end > first.offsets[-2][1] + 20
    assert task("answer")("Who?", text, top=30, length=40, stride=5).best[0].score > 0
    assert task("answer")("Who waits? " * 6, text).score > 0  # little room: windows share less
    assert task("answer", longest=10**30, top=10**30)("Who?", "Clara waits.").score > 0


def test_a_megabyte_in_one_word_or_many_windows() -> None:
    assert task("tag", leave=())("y" * 1_000_000)[0].end == 1_000_000
    whole = task("tag").tokenizer.encode("Clara waits. " * 20_000)
    parts = task("tag").parts(whole, "text")  # a second where it was quadratic: minutes
    assert len(parts) > 3000
    assert parts[-1].offsets[-2] == whole.offsets[-2]


BAD = {
    "": "text is empty", "  \n": "text is only blanks", "a\ud800b": "a lone surrogate",
    "\u0000": "nothing in it",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("match", "fill", "answer")])
@pytest.mark.parametrize(("text", "wrong"), BAD.items())
def test_texts_that_say_nothing_are_refused(name: str, text: str, wrong: str) -> None:
    if text == "\0" and name in ("score", "complete", "summarise", "translate"):
        pytest.skip("a byte-level tokenizer knows NUL, and to Marian's it is an unknown word")
    with pytest.raises(ValueError, match=wrong) as error:
        task(name)(text)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="text 2" if wrong.startswith("text") else wrong):
        task(name).many(["Clara waits.", text])


def test_nul_inside_a_text_moves_no_offset() -> None:
    text = "Cla\0ra waits\0 here"
    assert all(one.text == text[one.start : one.end] for one in task("tag", leave=())(text))


@pytest.mark.parametrize(("make", "wrong"), [
    (lambda: qkv.task("sing", "x"), "task is 'sing', expected one of classify, tag"),
    (lambda: qkv.task("tag"), "`tag` of which model"),
    (lambda: qkv.task("tag", folder("bert-tag"), device="cuda"), "device and adapter are for a model"),
    (lambda: task("classify", tpo=3), "setting is 'tpo', expected one of long"),
    (lambda: task("classify", long="window"), "long is 'window', expected one of refuse, cut"),
    (lambda: task("classify", top=0), "top is 0"),
    (lambda: task("classify", length=0), "length is 0"),
    (lambda: task("classify", apply="log"), "apply is 'log'"),
    (lambda: task("classify", labels=["a", ""]), "a label is empty"),
    (lambda: task("classify", labels=["a", "a"]), "label 'a' is there twice"),
    (lambda: task("classify", labels=["a"], template="x"), "template 'x': expected a text with {}"),
    (lambda: qkv.task("classify", folder("roberta-label"), labels=["a"]), "`entailment`; this one has calm"),
    (lambda: task("classify", labels=["a"])(("a", "b")), "2 texts, expected one"),
    (lambda: task("classify")(3), "text is a int, expected a string"),
    (lambda: task("classify").many(["a"], batch_tokens=0), "batch_tokens is 0"),
    (lambda: task("classify").many("a text"), "many: one text, expected a list"),
    (lambda: task("classify").many(3), "many: a int, expected a list of texts"),
    (lambda: task("match").many(b"x", labels=["a"]), "many: a bytes, expected a list of images"),
    (lambda: task("match", labels=["a"])(3), "an image is a int, expected the file of one, or Pillow's"),
    (lambda: task("match", labels=3), "labels: a int, expected a list"),
    (lambda: task("match", template=3), "template 3: expected a text with {}"),
    (lambda: task("tag", leave=3), "leave: a int, expected a list of labels"),
    (lambda: task("fill", targets=3)("a <mask>"), "targets: a int, expected a list"),
    (lambda: qkv.task("fill", folder("bert"), targets=["東"])("a [MASK]"), "target '東': nothing in it"),
    (lambda: task("fill", top=None), "top is None"),
    (lambda: task("answer", none="no"), "none is 'no', expected true or false"),
    (lambda: task("embed", unit="yes"), "unit is 'yes', expected true or false"),
    (lambda: qkv.task("tag", 3), "model is a int, expected a folder or a hub id"),  # type: ignore[call-overload]
    (lambda: qkv.task("tag", "x", adapter=3), "adapter is a int, expected a folder or a hub id"),
    (lambda: task("tag", join="all"), "join is 'all'"),
    (lambda: task("tag", stride=-1), "stride is -1"),
    (lambda: task("tag", stride=62)(" ".join(TEXTS * 3)), "stride 62: expected less than 62"),
    (lambda: task("fill")("no mask"), "text: no <mask>; expected one"),
    (lambda: task("fill", long="cut")("x " * 99 + "<mask>"), "no <mask> in what is left of it"),
    (lambda: task("answer")("", "a"), "the question of text is empty"),
    (lambda: task("answer")("why? " * 90, "a"), "the question of text: .* expected fewer than the 64"),
    (lambda: task("answer")("why?", " "), "text is only blanks"),
    (lambda: task("answer", stride=30)("why? " * 10, "x " * 99), "stride 30: expected less than"),
    (lambda: task("answer").many(["why?"]), "expected a question and a text"),
    (lambda: task("embed", pool="sum"), "pool is 'sum'"),
    (lambda: task("embed", pool="pooled"), "this model has no pooler"),
    (lambda: qkv.task("embed", folder("clip"), pool="mean"), "has a vector of its own"),
    (lambda: task("match")(ROOT / "images" / "tall.png"), "labels: there are none"),
    (lambda: task("match")(ROOT / "README.md", ["a"]), r"README\.md: no image that can be read"),
    (lambda: task("match")(ROOT / "none.png", ["a"]), r"none\.png: no image that can be read"),
    (lambda: task("detect", above=2), "above is 2"),
    (lambda: task("score")("x"), "no token with one before it to score it by"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(make: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TASKS)
def test_a_model_must_fit_its_task(name: str) -> None:
    folders = ["bert", "bert-label", "bert-span", "bert-tag", "bart", "t5", "clip", "marian"]
    fits = {
        "classify": ["bert-label"], "tag": ["bert-tag"], "fill": ["bert", "bart"],
        "answer": ["bert-span", "bart", "t5", "marian"],
        "embed": ["bert", "bert-label", "bert-span", "bert-tag", "clip"], "match": ["clip"], "detect": [],
        "score": ["bert"], "translate": ["bart", "t5", "marian"], "summarise": ["bart", "t5", "marian"],
        "complete": [],
    }[name]  # fmt: skip
    for each in folders:
        if each in fits:
            qkv.task(name, folder(each))
            continue
        with pytest.raises(
            ValueError, match=rf"{each}: this folder holds .*; `{name}` needs .*\. Models that fit: "
        ):
            qkv.task(name, folder(each))
    assert NEEDS.keys() == TASKS.keys()


def test_families_that_fit_are_named() -> None:
    assert fitting("detect") == "electra, with the head replaced"
    assert fitting("match") == "clip, with the head both"
    assert "gpt2" in fitting("score")
    assert "xlnet" not in fitting("score")
    assert "bart" not in fitting("embed")
    assert {"gpt2", "xlnet"} <= {*fitting("complete").replace(",", "").split()}
    assert "bart" not in fitting("complete")
    assert {"bart", "marian", "t5"} <= {*fitting("translate").replace(",", "").split()}
    assert "gpt2" not in fitting("translate")
    assert {"bert", "t5"} <= {*fitting("answer").replace(",", "").split()}
    assert "ctrl" not in fitting("answer")


def test_a_model_without_a_tokenizer_is_refused() -> None:
    model = qkv.build("bert", "tiny", head="label")
    with pytest.raises(ValueError, match="`classify`: the model has no tokenizer"):
        qkv.task("classify", model)
    with pytest.raises(ValueError, match="this bert is an encoder with the head label; `tag` needs"):
        qkv.task("tag", model)


def test_regression_is_the_number_itself() -> None:
    model = qkv.load(ROOT / "bert-score")
    share = qkv.task("classify", model)(TEXTS[1])
    model.config["problem_type"] = "regression"
    number = qkv.task("classify", model)(TEXTS[1])
    assert share.score == pytest.approx(1 / (1 + np.exp(-number.score)))
    assert number.label == "GOOD"


def test_an_adapter_is_put_onto_the_model(tmp_path: Path) -> None:
    built("bert", "label").save(tmp_path / "base")
    made = qkv.load(tmp_path / "base")
    add_lora(made.net, rank=2, where=["q", "v"])
    for parameter in made.net.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    wanted = qkv.task("classify", made)(TEXTS[1])
    write_adapter(made, tmp_path / "adapter", base=str(tmp_path / "base"))
    for found in (
        qkv.task("classify", tmp_path / "base", adapter=tmp_path / "adapter")(TEXTS[1]),
        qkv.task("classify", tmp_path / "adapter")(TEXTS[1]),
    ):
        assert found.score == pytest.approx(wanted.score, abs=1e-6)
    assert qkv.task("classify", tmp_path / "base")(TEXTS[1]).score != pytest.approx(wanted.score, abs=1e-4)
