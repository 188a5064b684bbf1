"""Tasks without goldens: batches, windows, offsets, agreement with the network, errors."""

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
from qkv.tasks.batching import group_rows_by_length
from qkv.tasks.read.tag import TagSpan, aggregate_overlapping_entities, group_entities
from qkv.tasks.registry import TASK_CLASSES, create_task, get_task_requirement
from qkv.tasks.requirements import describe_supporting_families
from tests.support import tiny
from tests.support.limits import get_error_message

ROOT = Path(__file__).parent.parent / "goldens" / "pipelines"
TEXTS = [
    "Clara waits.", "A lighthouse stands at the end of the pier; its lamp was lit.", "x",
    "The ferry to Bregenz leaves at nine and comes back before noon.", "Anna lives near  the harbour.",
]  # fmt: skip
UNUSUAL = "Zoë  rows, 東京 👍🏽 — naïve\tCAFÉ e\u0301té \u200bend"
HEADS = {
    "detect": ("electra", "replaced-token-detection"),
    "score": ("gpt2", "lm"),
    "complete": ("gpt2", "lm"),
}


@cache
def load_golden(name: str) -> qkv.Model:
    return qkv.load(ROOT / name)


@cache
def train_tokenizer(template: str = "bert") -> qkv.Tokenizer:
    tokenizer_type = "wordpiece" if template == "bert" else "byte"
    return qkv.Tokenizer.train(TEXTS * 3, type=tokenizer_type, vocab_size=300, template=template)


@cache
def build_model(family: str, head: str) -> qkv.Model:
    """Return a tiny model with random weights and a trained tokenizer."""
    tokenizer = train_tokenizer("gpt" if family == "gpt2" else "bert")
    sizes: dict[str, Any] = dict(
        width=16, depth=2, heads=2, ffn_width=24, vocab_size=len(tokenizer), max_positions=32
    )
    if family == "electra":
        sizes["embedding_width"] = 8
    model = qkv.build(family, **sizes, head=head)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = tokenizer
    return model


MODELS = {
    "classify": "bert-label", "tag": "bert-tag", "fill": "roberta", "answer": "roberta-span", "embed": "bert",
    "match": "clip", "translate": "marian", "summarize": "bart",
}  # fmt: skip


IMAGE_TASKS = ("match", "caption")


@cache
def build_drawing_model() -> qkv.Model:
    """Return a tiny model that draws images of 4 codes after at most 60 tokens of a text."""
    image_tokenizer = qkv.ImageTokenizer(
        image_size=4,
        patch_size=2,
        num_channels=3,
        codebook=np.arange(96, dtype=np.uint8).reshape(8, 12),
    )
    tokenizer = train_tokenizer("gpt")
    vocab_size = len(tokenizer) + len(image_tokenizer)
    model = qkv.build("gpt2", width=16, depth=2, heads=2, vocab_size=vocab_size, max_positions=64)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    model.tokenizer = tokenizer
    model.image_tokenizer = image_tokenizer
    return model


def build_task(name: str, **settings: Any) -> Any:
    if name == "draw":
        return qkv.task(name, build_drawing_model(), **settings)
    model = load_golden(MODELS[name]) if name in MODELS else build_model(*HEADS[name])
    return qkv.task(name, model, **settings)


def build_input(name: str, text: str) -> Any:
    return {"fill": f"{text} <mask> and <mask>", "answer": ("Who waits?", text)}.get(name, text)


def flatten_result(result: Any) -> tuple[list[Any], Any]:
    """Return all values of a result, and its floats separately."""
    if isinstance(result, np.ndarray):
        return [], result.tolist()
    flat: list[Any] = []

    def walk(x: Any) -> None:
        if isinstance(x, tuple):
            for item in x:
                walk(item)
        elif isinstance(x, np.ndarray):
            flat.append(x.tolist())
        elif hasattr(x, "__dataclass_fields__"):
            walk(tuple(getattr(x, name) for name in x.__dataclass_fields__))
        else:
            flat.append(x)

    walk(result)
    return [x for x in flat if not isinstance(x, float)], [x for x in flat if isinstance(x, float)]


@pytest.mark.parametrize("name", [name for name in TASK_CLASSES if name not in IMAGE_TASKS])
def test_results_do_not_depend_on_the_batch(name: str) -> None:
    settings: dict[str, Any] = {"overflow": "truncate"} if name == "complete" else {}
    if name in ("complete", "summarize", "translate"):
        settings["max_new_tokens"] = 24
    task = build_task(name, **settings)
    inputs = [build_input(name, text) for text in TEXTS if name != "score" or text != "x"]
    single = [task(*text) if name == "answer" else task(text) for text in inputs]
    for batch_tokens in (1, 40, 4096):
        batched = task.map(inputs, batch_tokens=batch_tokens)
        assert len(batched) == len(inputs)
        for result, expected in zip(batched, single, strict=True):
            values, floats = flatten_result(result)
            expected_values, expected_floats = flatten_result(expected)
            assert values == expected_values
            np.testing.assert_allclose(floats, expected_floats, rtol=2e-5, atol=2e-6)
    assert len(task.map([])) == 0


@pytest.mark.parametrize(
    "family_name", "bert xlnet gpt2 bart t5 llama modernbert transformer-xl".split()
)
def test_results_do_not_depend_on_the_batch_in_any_family(family_name: str) -> None:
    tokenizer = qkv.Tokenizer.train(
        TEXTS * 3, type="char", vocab_size=tiny.VOCAB, template="bert", lowercase=True
    )
    family = qkv.build(family_name, **tiny.change_sizes(family_name)).family
    for head, name in (
        ("sequence-classification", "classify"), ("token-classification", "tag"),
        ("question-answering", "answer"), ("none", "embed"),
    ):  # fmt: skip
        if head not in family.heads or (name == "embed" and family_name in tiny.ENCODER_DECODERS):
            continue
        changes: dict[str, Any] = {}
        if "eos_token_id" in family.defaults:
            changes["eos_token_id"] = tokenizer.sep_token_id
        model = tiny.build(family_name, head=head, **changes)
        model.tokenizer = tokenizer
        task: Any = create_task(name, model, {"max_input_length": 40})
        inputs = [build_input(name, text) for text in TEXTS[::2]]
        for result, task_input in zip(task.map(inputs), inputs, strict=True):
            expected = task(*task_input) if name == "answer" else task(task_input)
            np.testing.assert_allclose(
                flatten_result(result)[1], flatten_result(expected)[1], rtol=1e-6, atol=1e-7
            )


def test_padding_of_the_vocabulary_is_never_predicted() -> None:
    tokenizer = qkv.Tokenizer.train(
        TEXTS, type="char", vocab_size=tiny.VOCAB, template="bert", lowercase=True
    )
    model = tiny.build("bert", head="masked-lm", vocab_size=len(tokenizer) + 40)
    model.tokenizer = tokenizer
    result = qkv.task("fill", model, top_k=1000)("clara [MASK]")
    assert sorted(word.token for word in result.candidates) == list(range(len(tokenizer)))


def test_rows_are_batched_by_length() -> None:
    lengths = [3, 9, 1, 9, 4]
    assert list(group_rows_by_length(lengths, 18)) == [[1, 3], [4, 0, 2]]
    assert list(group_rows_by_length([50, 40], 10)) == [[0], [1]]


def test_progress_is_reported_up_to_the_end() -> None:
    reports: list[tuple[int, int | None]] = []
    build_task("classify").map(
        TEXTS, batch_tokens=30, progress=lambda message, done, total: reports.append((done, total))
    )
    assert len(reports) > 2
    assert reports[-1] == (5, 5)
    assert reports == sorted(reports, key=lambda report: report[0])
    reports.clear()
    lines = "\n".join(TEXTS)  # one text of five lines
    build_task("translate", max_new_tokens=2).map(
        [lines], batch_tokens=30, progress=lambda *report: reports.append(report[1:])
    )
    assert reports[-1] == (5, 5)
    assert len(reports) > 2


def test_training_mode_is_restored() -> None:
    model = load_golden("bert-label")
    model.net.train()
    try:
        task = qkv.task("classify", model)
        assert task(TEXTS[1]) == task(TEXTS[1])  # no dropout, the same kernels and shapes
        assert model.net.training
    finally:
        model.net.eval()


@pytest.mark.parametrize("name", ["bert-tag", "roberta-tag"])
@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_offsets_refer_to_the_input_text(name: str, aggregation: str) -> None:
    entities = qkv.task("tag", load_golden(name), aggregation=aggregation, ignore_labels=())(
        UNUSUAL
    )
    assert entities
    assert all(entity.text == UNUSUAL[entity.start : entity.end] != "" for entity in entities)
    if aggregation != "none":  # all of the text, in order
        pairs = [*pairwise(entities)]
        assert all(entity.end <= following.start for entity, following in pairs)
        gaps = UNUSUAL[entities[-1].end :]
        gaps += "".join(UNUSUAL[entity.end : following.start] for entity, following in pairs)
        assert not gaps.replace("\u200b", "").strip()


@pytest.mark.parametrize("name", ["bert-span", "roberta-span"])
def test_answers_keep_case_and_spacing(name: str) -> None:
    result = qkv.task("answer", load_golden(name), top_k=20)("Who?", UNUSUAL)
    assert len(result.candidates) > 5
    assert all(item.text == UNUSUAL[item.start : item.end] for item in result.candidates)
    assert (
        result.candidates[0]
        == qkv.task("answer", load_golden(name), top_k=20)("Who?", UNUSUAL).candidates[0]
    )


def test_entities_of_every_tagging_scheme() -> None:
    def group(row: str) -> list[tuple[str, int, int]]:
        tags = [TagSpan(label, 1.0, i, i + 1) for i, label in enumerate(row.split())]
        entities = [entity for entity in group_entities(tags) if entity.label != "O"]
        return [(entity.label, entity.start, entity.end) for entity in entities]

    assert group("B-A I-A O I-A B-A B-A") == [("A", 0, 2), ("A", 3, 4), ("A", 4, 5), ("A", 5, 6)]
    assert group("B-A I-A E-A S-A S-A B-B E-B") == [
        ("A", 0, 3),
        ("A", 3, 4),
        ("A", 4, 5),
        ("B", 5, 7),
    ]
    assert group("B-A I-A S-A I-A U-A") == [("A", 0, 2), ("A", 2, 3), ("A", 3, 4), ("A", 4, 5)]
    assert group("B-A L-A U-A I-A") == [("A", 0, 2), ("A", 2, 3), ("A", 3, 4)]
    assert group("A A O B") == [("A", 0, 2), ("B", 3, 4)]
    overlapping = [
        TagSpan("A", 0.5, 0, 4),
        TagSpan("A", 0.9, 2, 4),
        TagSpan("B", 0.9, 5, 7),
        TagSpan("C", 0.3, 5, 7),
    ]
    assert aggregate_overlapping_entities(overlapping) == [overlapping[0], overlapping[2]]


def test_filled_text_keeps_the_input_text() -> None:
    text = "ÀB  [MASK], the [MASK]!"
    result = qkv.task("fill", load_golden("bert"))(text)
    assert [text[mask.start : mask.end] for mask in result.masks] == ["[MASK]", "[MASK]"]
    assert result.text.startswith("ÀB")
    assert "[MASK]" not in result.text
    assert len(result.candidates) == 5
    assert result.candidates[0].sequence.endswith(", the [MASK]!")


@pytest.mark.parametrize("tokenizer_type", ["unigram", "byte", "wordpiece"])
def test_masks_and_entities_with_every_tokenizer_type(tokenizer_type: str) -> None:
    """Whitespace that is part of a token is in no entity, and stays before a filled mask."""
    template = {"unigram": "xlnet", "byte": "roberta", "wordpiece": "bert"}[tokenizer_type]
    tokenizer = qkv.Tokenizer.train(
        TEXTS * 5,
        type=tokenizer_type,
        vocab_size=270 if tokenizer_type == "byte" else 60,
        template=template,
    )
    mask = tokenizer.convert_ids_to_tokens(tokenizer.mask_token_id or 0)
    sizes: dict[str, Any] = dict(
        width=16, depth=1, heads=2, ffn_width=24, vocab_size=len(tokenizer), type_vocab_size=3,
        num_labels=3,
    )  # fmt: skip
    model = qkv.build("bert", **sizes, head="token-classification")
    model.tokenizer = tokenizer
    text = TEXTS[4]
    entities = qkv.task("tag", model, ignore_labels=(), aggregation="simple")(text)
    assert all(item.text.strip() == item.text == text[item.start : item.end] for item in entities)
    model = qkv.build("bert", **sizes, head="masked-lm")
    model.tokenizer = tokenizer
    result = qkv.task("fill", model, top_k=len(tokenizer))(f"Anna  {mask} here.")
    assert (result.masks[0].start, result.masks[0].end) == (6, 6 + len(mask))
    beginnings = {prediction.sequence[:6] for prediction in result.candidates}
    assert all(beginning.startswith("Anna") for beginning in beginnings)
    assert "Anna  " in beginnings


def test_targets_that_are_not_tokens_warn() -> None:
    with pytest.warns(UserWarning, match=r"target 'boat' is not a token of this model; using 'b'"):
        qkv.task("fill", load_golden("bert"), targets=["boat"])("a [MASK]")


def test_detect_agrees_with_the_network() -> None:
    model = build_model("electra", "replaced-token-detection")
    text = TEXTS[4]
    assert model.tokenizer is not None
    (encoding,) = model.tokenizer.encode_batch([text])
    scores = model(torch.tensor([encoding.input_ids]))["logits"][0].sigmoid().tolist()[1:-1]
    result = qkv.task("detect", model, threshold=0.4)(text)
    assert [item.score for item in result] == pytest.approx(scores, abs=1e-6)
    assert [item.is_replaced for item in result] == [score >= 0.4 for score in scores]
    assert [item.text for item in result] == [text[a:b] for a, b in encoding.offset_mapping[1:-1]]
    detections = qkv.task("detect", model)(" ".join(TEXTS * 2))
    assert len(detections) > 32
    assert [item.start for item in detections] == sorted(item.start for item in detections)
    (encoding,) = model.tokenizer.encode_batch([" ".join(TEXTS * 2)])
    first, second, *_ = encoding.split_into_windows(32, stride=16)
    both = model(torch.tensor([first.input_ids, second.input_ids]))["logits"].sigmoid()
    assert detections[14 + 3].score == pytest.approx(
        float((both[0, 15 + 3] + both[1, 1 + 3]).detach()) / 2, abs=1e-6
    )


def test_causal_scores_agree_with_the_network() -> None:
    model = build_model("gpt2", "lm")
    text = TEXTS[4]
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text)
    log_probs = model(torch.tensor([ids]))["logits"][0].detach().log_softmax(-1)
    expected = [float(log_probs[n, word]) for n, word in enumerate(ids[1:])]
    result = qkv.task("score", model)(text)
    assert result.tokens[0].score is None
    assert [item.score for item in result.tokens[1:]] == pytest.approx(expected, abs=1e-4)
    assert result.score == pytest.approx(sum(expected), abs=1e-3)
    assert result.perplexity == pytest.approx(np.exp(-np.mean(expected)), rel=1e-4)
    assert "".join(item.text for item in result.tokens).replace(" ", "") == text.replace(" ", "")


def test_windows_whose_only_token_has_no_score() -> None:
    model = build_model("gpt2", "lm")
    assert model.tokenizer is not None
    words = "ab" * 40
    while len(model.tokenizer.encode(words)) % 32 != 1:
        words += "x"
    result = qkv.task("score", model, stride=0).map([words], batch_tokens=32)[0]
    assert result.tokens[-1].score is None


def test_windows_score_each_token_once() -> None:
    model = build_model("gpt2", "lm")
    text = " ".join(TEXTS)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(text)
    assert len(ids) > 60
    result = qkv.task("score", model, stride=10)(text)
    assert len(result.tokens) == len(ids)
    assert sum(item.score is None for item in result.tokens) == 1
    start = 32 - 10  # the second window
    log_probs = model(torch.tensor([ids[start : start + 32]]))["logits"][0].detach().log_softmax(-1)
    assert result.tokens[33].score == pytest.approx(float(log_probs[32 - start, ids[33]]), abs=1e-4)


def test_masked_scores_agree_with_the_network() -> None:
    model = load_golden("bert")
    text = "the quiet lake."
    assert model.tokenizer is not None
    ids, expected = model.tokenizer.encode(text), []
    for place in range(1, len(ids) - 1):
        hidden = torch.tensor([ids])
        hidden[0, place] = model.tokenizer.mask_token_id  # type: ignore[assignment]
        expected.append(
            float(model(hidden)["logits"][0, place].detach().log_softmax(-1)[ids[place]])
        )
    result = qkv.task("score", model)(text)
    assert [item.score for item in result.tokens] == pytest.approx(expected, abs=1e-4)


def test_pooling_is_that_of_the_setting_or_the_folder(tmp_path: Path) -> None:
    model = load_golden("bert")
    states = qkv.task("embed", model).get_last_hidden_state(TEXTS[1])
    embeddings = {"mean": states.mean(0), "first": states[0], "last": states[-1]}
    for pooling, expected in embeddings.items():
        result = qkv.task("embed", model, pooling=pooling).map(TEXTS)
        assert result.shape == (5, 16)
        np.testing.assert_allclose(result[1], expected, rtol=1e-4, atol=1e-5)
    normalized = qkv.task("embed", model, normalize=True)(TEXTS[1])
    mean = embeddings["mean"]
    np.testing.assert_allclose(normalized, mean / np.linalg.norm(mean), rtol=1e-4, atol=1e-5)
    with_pooler = build_model("bert", "none")
    assert with_pooler.tokenizer is not None
    ids = torch.tensor([with_pooler.tokenizer.encode("Clara waits")])
    np.testing.assert_allclose(
        qkv.task("embed", with_pooler, pooling="pooler_output")("Clara waits"),
        with_pooler(ids)["pooler_output"][0].detach(),
        atol=1e-5,
    )
    tokenizer = train_tokenizer()
    sizes: dict[str, Any] = dict(
        width=16, depth=1, heads=2, ffn_width=24, vocab_size=len(tokenizer), max_positions=32
    )
    with_pooling = qkv.build("bert", pooling="first", **sizes)
    with_pooling.tokenizer = tokenizer
    folder = tmp_path / "embedding"
    with_pooling.save(folder)
    task = qkv.task("embed", folder)
    ids = torch.tensor([tokenizer.encode("Clara waits")])
    expected = with_pooling(ids)["sentence_embedding"][0].detach()
    np.testing.assert_allclose(task("Clara waits"), expected, atol=1e-5)
    assert np.linalg.norm(task("Clara waits")) == pytest.approx(1, abs=1e-5)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    with pytest.raises(ValueError, match="tokens, expected at most 9"):
        qkv.task("embed", folder)(TEXTS[1])


def test_clip_embeds_texts_and_scores_images() -> None:
    model, images = load_golden("clip"), sorted((ROOT / "images").glob("*.png"))[:3]
    task, texts = qkv.task("match", model), ["a boat", "bread"]
    scores = task.compute_logits_per_image(images, texts)
    assert scores.shape == (3, 2)
    np.testing.assert_allclose(
        task.compute_logits_per_image(images, texts, batch_tokens=1), scores, rtol=1e-5, atol=1e-5
    )
    vectors = qkv.task("embed", model).map(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, rtol=1e-5)
    from PIL import Image

    with Image.open(images[0]) as image:
        assert task(image, texts) == task(images[0], texts)  # the same kernels and shapes
    together, alone = task.map(images, candidate_labels=texts)[0], task(images[0], texts)
    assert [item.label for item in together.candidates] == [item.label for item in alone.candidates]
    # In fp32 and with another shape of the matrix product, results are not bitwise equal.
    one_by_one, in_a_batch = (
        [item.score for item in result.candidates] for result in (alone, together)
    )
    np.testing.assert_allclose(in_a_batch, one_by_one, rtol=1e-5)


def test_overflow_is_an_error_truncated_or_split_into_windows() -> None:
    text = " ".join(TEXTS * 3)
    message = r'text: \d+ tokens, expected at most 64; .* set overflow to "truncate"$'
    with pytest.raises(ValueError, match=message):
        build_task("classify")(text)
    (encoding,) = build_task("classify").tokenizer.encode_batch([text])
    truncated = encoding.truncate(64)
    logits = load_golden("bert-label")(torch.tensor([truncated.input_ids]))["logits"][0]
    score = float(logits.softmax(-1).detach().max())
    result = build_task("classify", overflow="truncate")(text)
    assert result.score == pytest.approx(score, abs=1e-6)
    with pytest.raises(ValueError, match=r'text 2: .* set overflow to "truncate" or "window"'):
        build_task("tag", overflow="error").map(["x", text])
    assert build_task("tag")(text)[-1].end > truncated.offset_mapping[-2][1] + 20
    answer = build_task("answer")("Who?", text, top_k=30, max_input_length=40, stride=5)
    assert answer.candidates[0].score > 0
    # A long question leaves little room: windows share fewer tokens.
    assert build_task("answer")("Who waits? " * 6, text).score > 0
    task = build_task("answer", max_answer_tokens=10**30, top_k=10**30)
    assert task("Who?", "Clara waits.").score > 0


def test_a_megabyte_of_text() -> None:
    assert build_task("tag", ignore_labels=())("y" * 1_000_000)[0].end == 1_000_000
    (encoding,) = build_task("tag").tokenizer.encode_batch(["Clara waits. " * 20_000])
    parts = build_task("tag").split_encoding(encoding, "text")  # must be linear: one second
    assert len(parts) > 3000
    assert parts[-1].offset_mapping[-2] == encoding.offset_mapping[-2]


INVALID_TEXTS = {
    "": "text is empty", "  \n": "text is only whitespace", "a\ud800b": "a lone surrogate",
    "\u0000": "has no tokens for its characters",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [name for name in TASK_CLASSES if name not in (*IMAGE_TASKS, "fill", "answer")]
)
@pytest.mark.parametrize(("text", "message"), INVALID_TEXTS.items())
def test_texts_without_content_are_errors(name: str, text: str, message: str) -> None:
    if text == "\0" and name in ("score", "complete", "summarize", "translate", "draw"):
        pytest.skip("a byte-level tokenizer knows NUL, and to Marian's it is an unknown word")
    with pytest.raises(ValueError, match=message) as error:
        build_task(name)(text)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="text 2" if message.startswith("text") else message):
        build_task(name).map(["Clara waits.", text])


def test_nul_in_a_text_keeps_the_offsets() -> None:
    text = "Cla\0ra waits\0 here"
    assert all(
        item.text == text[item.start : item.end]
        for item in build_task("tag", ignore_labels=())(text)
    )


@pytest.mark.parametrize(("call", "message"), [
    (lambda: qkv.task("sing", "x"), "task sing is unknown; expected one of classify, tag"),
    (lambda: qkv.task("ner", "x"), "task ner is unknown; did you mean tag?"),
    (lambda: qkv.task("tag"), "`tag` has no model"),
    (lambda: qkv.task("tag", load_golden("bert-tag"), device="cuda"), "device and adapter apply to a model"),
    (lambda: build_task("classify", tpo=3), "setting tpo is unknown; expected one of overflow"),
    (lambda: build_task("classify", overflow="window"),
     "overflow is 'window', expected one of error, truncate"),
    (lambda: build_task("classify", top_k=0), "top_k is 0"),
    (lambda: build_task("classify", max_input_length=0), "max_input_length is 0"),
    (lambda: build_task("classify", function_to_apply="log"), "function_to_apply is 'log'"),
    (lambda: build_task("classify", candidate_labels=["a", ""]), "a candidate label is empty"),
    (lambda: build_task("classify", candidate_labels=["a", "a"]), "candidate label 'a' is repeated"),
    (lambda: build_task("classify", candidate_labels=["a"], hypothesis_template="x"),
     "hypothesis_template is 'x', expected a text with {}"),
    (lambda: qkv.task("classify", load_golden("roberta-label"), candidate_labels=["a"]),
     "`entailment`; this model has calm"),
    (lambda: build_task("classify", candidate_labels=["a"])(("a", "b")), "2 texts, expected one"),
    (lambda: build_task("classify")(3), "text is a int, expected a string"),
    (lambda: build_task("classify").map(["a"], batch_tokens=0), "batch_tokens is 0"),
    (lambda: build_task("classify").map("a text"), "inputs: one text, expected a list"),
    (lambda: build_task("classify").map(3), "inputs: a int, expected a list of texts"),
    (lambda: build_task("match").map(b"x", candidate_labels=["a"]),
     "inputs: a bytes, expected a list of images"),
    (lambda: build_task("match", candidate_labels=["a"])(3),
     "an image is a int, expected a path or a Pillow image"),
    (lambda: build_task("match", candidate_labels=3), "candidate_labels: a int, expected a list"),
    (lambda: build_task("match", hypothesis_template=3),
     "hypothesis_template is 3, expected a text with {}"),
    (lambda: build_task("tag", ignore_labels=3), "ignore_labels: a int, expected a list of labels"),
    (lambda: build_task("fill", targets=3)("a <mask>"), "targets: a int, expected a list"),
    (lambda: qkv.task("fill", load_golden("bert"), targets=["東"])("a [MASK]"),
     "target '東': the tokenizer has no tokens"),
    (lambda: build_task("fill", top_k=None), "top_k is None"),
    (lambda: build_task("answer", allow_no_answer="no"), "allow_no_answer is 'no', expected true or false"),
    (lambda: build_task("embed", normalize="yes"), "normalize is 'yes', expected true or false"),
    (lambda: qkv.task("tag", 3), "model is a int, expected a folder or a hub id"),  # type: ignore[call-overload]
    (lambda: qkv.task("tag", "x", adapter=3), "adapter is a int, expected a folder or a hub id"),  # type: ignore[call-overload]
    (lambda: build_task("tag", aggregation="all"), "aggregation is 'all'"),
    (lambda: build_task("tag", stride=-1), "stride is -1"),
    (lambda: build_task("tag", stride=62)(" ".join(TEXTS * 3)), "stride 62: expected less than 62"),
    (lambda: build_task("fill")("no mask"), "text: no <mask>; expected at least one"),
    (lambda: build_task("fill", overflow="truncate")("x " * 99 + "<mask>"),
     "no <mask> after truncation"),
    (lambda: build_task("answer")("", "a"), "the question of text is empty"),
    (lambda: build_task("answer")("why? " * 90, "a"),
     "the question of text: .* expected fewer than the limit of 64"),
    (lambda: build_task("answer")("why?", " "), "text is only whitespace"),
    (lambda: build_task("answer", stride=30)("why? " * 10, "x " * 99), "stride 30: expected less than"),
    (lambda: build_task("answer").map(["why?"]), "expected a tuple of a question and a context"),
    (lambda: build_task("embed", pooling="sum"), "pooling is 'sum'"),
    (lambda: build_task("embed", pooling="pooler_output"), "this model has no pooler"),
    (lambda: qkv.task("embed", load_golden("clip"), pooling="mean"), "text embeddings without pooling"),
    (lambda: build_task("match")(ROOT / "images" / "tall.png"), "candidate_labels is empty"),
    (lambda: build_task("match")(ROOT / "README.md", ["a"]), r"README\.md: not a readable image"),
    (lambda: build_task("match")(ROOT / "none.png", ["a"]), r"none\.png: not a readable image"),
    (lambda: build_task("detect", threshold=2), "threshold is 2"),
    (lambda: build_task("score")("x"), "does not predict the first token"),
])  # fmt: skip
def test_errors_are_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", TASK_CLASSES)
def test_unsupported_models_are_errors(name: str) -> None:
    folders = ["bert", "bert-label", "bert-span", "bert-tag", "bart", "t5", "clip", "marian"]
    supported = {
        "classify": ["bert-label"], "tag": ["bert-tag"], "fill": ["bert", "bart"],
        "answer": ["bert-span", "bart", "t5", "marian"],
        "embed": ["bert", "bert-label", "bert-span", "bert-tag", "clip"], "match": ["clip"], "detect": [],
        "score": ["bert"], "translate": ["bart", "t5", "marian"], "summarize": ["bart", "t5", "marian"],
        "complete": [], "caption": [], "draw": [],
    }[name]  # fmt: skip
    for item in folders:
        if item in supported:
            qkv.task(name, load_golden(item))
            continue
        with pytest.raises(
            ValueError, match=rf"{item}: this model is .*; `{name}` needs .*\. Supported: "
        ):
            qkv.task(name, load_golden(item))


def list_supporting_families(name: str) -> set[str]:
    """Return the words of the description: families, and the heads they need."""
    description = describe_supporting_families(get_task_requirement(name))
    return {*description.replace(",", "").split()}


def test_supporting_families_are_described() -> None:
    described = {
        name: describe_supporting_families(get_task_requirement(name)) for name in TASK_CLASSES
    }
    assert described["detect"] == "electra, with the head replaced-token-detection"
    assert described["match"] == "clip, with the head both"
    assert described["answer"].endswith(", with the head question-answering or lm")
    assert described["embed"].endswith(", with any head")
    assert "gpt2" in list_supporting_families("score")
    assert "xlnet" not in list_supporting_families("score")
    assert not {"bart", "clip"} & list_supporting_families("embed")
    assert {"gpt2", "xlnet"} <= list_supporting_families("complete")
    assert "bart" not in list_supporting_families("complete")
    assert {"bart", "marian", "t5"} <= list_supporting_families("translate")
    assert "gpt2" not in list_supporting_families("translate")
    assert {"bert", "t5"} <= list_supporting_families("answer")
    assert "ctrl" not in list_supporting_families("answer")


def test_a_model_without_a_tokenizer_is_an_error() -> None:
    model = qkv.build("bert", "tiny", head="sequence-classification")
    with pytest.raises(ValueError, match="`classify`: the model has no tokenizer"):
        qkv.task("classify", model)
    with pytest.raises(
        ValueError,
        match="this bert is an encoder with the head sequence-classification; `tag` needs",
    ):
        qkv.task("tag", model)


def test_regression_returns_the_logit() -> None:
    model = qkv.load(ROOT / "bert-score")
    share = qkv.task("classify", model)(TEXTS[1])
    model.config["problem_type"] = "regression"
    number = qkv.task("classify", model)(TEXTS[1])
    assert share.score == pytest.approx(1 / (1 + np.exp(-number.score)))
    assert number.label == "GOOD"


def test_an_adapter_is_loaded_onto_the_model(tmp_path: Path) -> None:
    build_model("bert", "sequence-classification").save(tmp_path / "base")
    model = qkv.load(tmp_path / "base")
    add_lora(model.net, r=2, target_modules=["q", "v"])
    for parameter in model.net.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    expected = qkv.task("classify", model)(TEXTS[1])
    write_adapter(model, tmp_path / "adapter", base_model_name=str(tmp_path / "base"))
    for result in (
        qkv.task("classify", tmp_path / "base", adapter=tmp_path / "adapter")(TEXTS[1]),
        qkv.task("classify", tmp_path / "adapter")(TEXTS[1]),
    ):
        assert result.score == pytest.approx(expected.score, abs=1e-6)
    assert qkv.task("classify", tmp_path / "base")(TEXTS[1]).score != pytest.approx(
        expected.score, abs=1e-4
    )


def test_a_text_of_very_many_characters_is_refused_before_it_is_tokenized() -> None:
    task = qkv.task("classify", load_golden("bert-label"))
    message = get_error_message(lambda: task("a" * 10_000_000))
    assert "10,000,000 characters, expected at most 4,194,304 in one text" in message
