"""Tasks that generate text, without goldens: languages, lines, streams, stop strings, errors."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.decode import GenerationConfig, generate
from qkv.spec import Spec
from qkv.tasks.chunking import chunk_text
from qkv.tasks.registry import create_task
from qkv.tasks.write.translate import split_segments
from tests.support import tiny
from tests.support.text_oracle import write_ctrl
from tests.tasks.test_tasks import build_model, load_golden

TEXTS = ["Wo ist der Bahnhof?", "Where is the station?", "Ein Zug fährt.", "Süß – 東京 👍🏽!"]


def randomize(model: qkv.Model) -> qkv.Model:
    torch.manual_seed(3)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@cache
def build_seq2seq(*codes: str) -> qkv.Model:
    """Return an encoder-decoder as recipes build them, with language codes."""
    tokenizer = qkv.Tokenizer.train(
        TEXTS * 5, type="bpe", vocab_size=90, template="seq2seq", extra_tokens=codes
    )
    sizes: dict[str, Any] = dict(width=16, depth=2, heads=2, ffn_width=24, max_positions=64)
    token_ids: dict[str, Any] = dict(
        decoder_start_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = qkv.build("transformer", **sizes, **token_ids, vocab_size=len(tokenizer), head="lm")
    randomize(model)
    model.tokenizer = tokenizer
    if {*codes} == {">>en<<", ">>de<<"}:
        params = {"translation": {"language_detector": "german-english"}}
        model.config["task_specific_params"] = params
    return model


@cache
def build_decoder() -> qkv.Model:
    return build_model("gpt2", "lm")


# --- translate ---


def test_translation_keeps_lines_and_whitespace() -> None:
    task = qkv.task("translate", load_golden("marian"), max_new_tokens=6)
    text = "  Anna lives here.\r\n\n\tMarie plays. She sings!\n"
    result = task(text)
    first, second = (task(line).text for line in ("Anna lives here.", "Marie plays. She sings!"))
    assert result.text == f"  {first}\r\n\n\t{second}\n"
    sentences = [task(part).text for part in ("Anna lives here.", "Marie plays.", "She sings!")]
    by_sentence = task(text, unit="sentence")
    assert by_sentence.text == "  {}\r\n\n\t{} {}\n".format(*sentences)
    task.model.config["task_specific_params"] = {"translation": {"unit": "sentence"}}
    assert (task(text), task(text, unit="line")) == (by_sentence, result)
    del task.model.config["task_specific_params"]
    lines = [task(part) for part in ("Anna lives here.", "Marie plays. She sings!")]
    assert result.score == pytest.approx(sum(each.score for each in lines))
    assert result.tokens == lines[0].tokens + lines[1].tokens


@pytest.mark.parametrize("unit", ["line", "sentence"])
def test_segments_join_to_the_text(unit: str) -> None:
    for text in (
        'He said "no." Then?  (Yes.) \n\n',
        "a\r\n b",
        "a",
        "\n\n",
        'x." y',
        "1.5 m. z…  w",
    ):
        assert "".join(gap + body for gap, body in split_segments(text, unit)) == text
    assert [body for _, body in split_segments('"No." Then? Go', "sentence")] == [
        '"No."',
        "Then?",
        "Go",
        "",
    ]


def test_candidates_are_sorted_and_the_first_is_the_result() -> None:
    result = qkv.task("translate", load_golden("marian"), max_new_tokens=6, num_return_sequences=3)(
        "Anna lives."
    )
    assert len(result.candidates) == 3
    assert (result.text, result.score, result.tokens) == (
        result.candidates[0].text, result.candidates[0].score, result.candidates[0].tokens,
    )  # fmt: skip
    assert [item.score for item in result.candidates] == sorted(
        (item.score for item in result.candidates), reverse=True
    )


def test_target_code_before_the_source() -> None:
    model = build_seq2seq(">>en<<", ">>de<<")
    text = model.tokenizer
    assert text is not None
    assert text.eos_token_id is not None
    generation_config = GenerationConfig(
        num_beams=2,
        max_new_tokens=8,
        eos_token_id=(text.eos_token_id,),
        decoder_start_token_id=text.bos_token_id,
    )
    results = {}
    words = "Tom"  # in either language, so that it is translated into both
    for target, source in (("en", "de"), ("de", "en")):
        result = qkv.task("translate", model, tgt_lang=target, num_beams=2, max_new_tokens=8)(words)
        ids = text.encode(f">>{target}<< {words}")  # as the recipe's "{to} {source}"
        expected = generate(model.net, sources=[ids], generation_config=generation_config)[0][0]  # type: ignore[arg-type]
        assert result.tokens == tuple(map(text.convert_ids_to_tokens, expected.token_ids))
        assert result.score == pytest.approx(expected.score, rel=1e-5)
        assert (
            qkv.task("translate", model, src_lang=source, num_beams=2, max_new_tokens=8)(words)
            == result
        )
        results[target] = result
    assert results["en"] != results["de"]
    typed = qkv.task("translate", model, num_beams=2, max_new_tokens=8)(f">>en<< {words}")
    assert typed.text == results["en"].text


def test_languages_without_codes_are_errors() -> None:
    assert qkv.task("translate", build_seq2seq(), max_new_tokens=5)(TEXTS[0]).tokens
    with pytest.raises(
        ValueError, match="tgt_lang is 'en', expected none: this model has no language codes"
    ):
        qkv.task("translate", build_seq2seq(), tgt_lang="en")


def test_target_code_as_start_or_first_token() -> None:
    model = load_golden("mbart")
    languages = model.tokenizer.languages  # type: ignore[union-attr]
    task = qkv.task("translate", model, tgt_lang="de")
    assert (
        task.generation_config.decoder_start_token_id,
        task.generation_config.forced_bos_token_id,
    ) == (
        2,
        languages["de_DE"],
    )
    older = qkv.load(model.tokenizer_folder)  # type: ignore[arg-type]
    older.generation_config = {
        **(model.generation_config or {}),
        "decoder_start_token_id": languages["ro_RO"],
    }
    assert (
        qkv.task("translate", older).generation_config.decoder_start_token_id == languages["ro_RO"]
    )
    task = qkv.task("translate", older, tgt_lang="de_DE")
    assert (
        task.generation_config.decoder_start_token_id,
        task.generation_config.forced_bos_token_id,
    ) == (
        languages["de_DE"],
        None,
    )


def test_t5_selects_languages_by_prefix() -> None:
    model = qkv.load(load_golden("t5").tokenizer_folder)  # type: ignore[arg-type]
    kinds = {
        "translation_en_to_de": {"prefix": "to German: "},
        "translation_en_to_fr": {"prefix": "fr: "},
    }
    model.config["task_specific_params"] = kinds
    plain = qkv.task("translate", model, prefix="to German: ", max_new_tokens=6)("Anna lives.")
    assert (
        qkv.task("translate", model, src_lang="en", tgt_lang="de", max_new_tokens=6)("Anna lives.")
        == plain
    )
    with pytest.raises(
        ValueError, match=r"the target language is unknown; expected .* of en to de, en to fr"
    ):
        qkv.task("translate", model)("Anna lives.")
    with pytest.raises(ValueError, match="any to ro: expected one of en to de, en to fr"):
        qkv.task("translate", model, tgt_lang="ro")


# --- complete ---


@pytest.mark.parametrize("prompt", ["Clara waits", "A  👍🏽\n", "Zoë "])
def test_stream_joins_to_the_new_text(prompt: str) -> None:
    for settings in (dict[str, Any](), {"temperature": 1.5, "seed": 5}, {"num_beams": 3}):
        task = qkv.task("complete", build_decoder(), max_new_tokens=14, **settings)
        completion, parts = task(prompt), [*task.stream(prompt)]
        assert completion.text == prompt + completion.new_text
        assert "".join(parts) == completion.new_text
        assert all(parts)
        assert len(completion.tokens) <= 14


def test_stream_yields_complete_characters() -> None:
    """The network generates the bytes of 東京 one by one."""
    model, text = build_decoder(), build_decoder().tokenizer
    assert text is not None
    ids = text.encode("東京!")
    assert len(ids) > 6
    bias = tuple(((*ids[:place], item), 1e4 * (place + 1)) for place, item in enumerate(ids))
    task = qkv.task("complete", model, max_new_tokens=len(ids), sequence_bias=bias)
    assert task("x").new_text == "東京!"
    assert [*task.stream("x")] == ["東", "京", "!"]


def build_task_that_generates(model: qkv.Model, words: str) -> Any:
    """Return a task whose model generates these words."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(words, add_special_tokens=False)
    bias = tuple(((*ids[:place], item), 1e4 * (place + 1)) for place, item in enumerate(ids))
    return qkv.task("complete", model, max_new_tokens=len(ids), sequence_bias=bias)


@pytest.mark.parametrize("tokenizer_type", ["word", "wordpiece", "unigram"])
def test_stream_with_clean_up_of_tokenization_spaces(tmp_path: Path, tokenizer_type: str) -> None:
    words = "they do n't go , do they ? it 's n ' o they 've , we 're ."
    text = qkv.Tokenizer.train([words] * 9, type=tokenizer_type, vocab_size=60, template="bos-eos")
    text.save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps(json.loads(config.read_text()) | {"clean_up_tokenization_spaces": True})
    )
    model = randomize(
        qkv.build(
            "gpt2", width=16, depth=1, heads=2, vocab_size=len(text), max_positions=99, head="lm"
        )
    )
    model.tokenizer = qkv.Tokenizer.load(tmp_path)
    task = build_task_that_generates(model, words)
    result, parts = task("they"), [*task.stream("they")]
    assert "don't go, do they? it's n'o they've, we're." in result.new_text
    assert "".join(parts) == result.new_text
    assert len(parts) > 5


def test_stop_strings() -> None:
    task = qkv.task("complete", build_decoder(), max_new_tokens=20, temperature=2.0, seed=1)
    completion = task("Clara")
    stop = completion.new_text[6:9]
    result = task("Clara", stop_strings=stop)
    assert result.new_text == completion.new_text[: completion.new_text.index(stop) + len(stop)]
    assert result.finish_reason == "stop"
    assert "".join(task.stream("Clara", stop_strings=[stop, "zzzz"])) == result.new_text


@pytest.mark.parametrize("name", ["translate", "summarize", "answer"])
def test_stop_strings_of_encoder_decoders(name: str) -> None:
    task: Any = create_task(name, build_seq2seq(), {"max_new_tokens": 12, "num_beams": 1})
    inputs: Any = [("Wo?", text) for text in TEXTS[:3]] if name == "answer" else TEXTS[:3]
    full = task.map(inputs)
    stop = full[0].text[2:4]
    stopped = task.map(inputs, stop_strings=stop)
    for result, expected in zip(stopped, full, strict=True):
        assert expected.text.startswith(result.text)
        assert (
            (stop in expected.text)
            == (stop in result.text)
            == (len(result.text) < len(expected.text))
        )
    if name != "answer":
        tokenizer = task.tokenizer
        *earlier_ids, _ = [tokenizer.convert_tokens_to_ids(token) for token in stopped[0].tokens]
        assert stop not in tokenizer.decode(earlier_ids, skip_special_tokens=True)


def test_sampling_depends_on_the_seed() -> None:
    task = qkv.task("complete", build_decoder(), max_new_tokens=10, top_k=40)
    assert task("Clara", seed=1) == task("Clara", seed=1)  # the same kernels and shapes
    assert task("Clara", seed=1) != task("Clara", seed=2)
    assert len({item.text for item in task("Clara", num_return_sequences=4).candidates}) > 1
    assert task.generation_config.do_sample


def test_a_long_prompt_is_an_error_or_truncated_on_the_left() -> None:
    task = qkv.task("complete", build_decoder(), max_new_tokens=4)
    text = "The ferry leaves at nine and comes back. " * 3
    with pytest.raises(ValueError, match=r"text: (\d+) tokens, expected at most 31"):
        task(text)
    result = task(text, overflow="truncate")
    ids = build_decoder().tokenizer.encode(text)[-28:]  # type: ignore[union-attr]
    assert result.text.startswith(text)
    expected = generate(build_decoder().net, [ids], generation_config=task.generation_config)[0][0]  # type: ignore[arg-type]
    assert result.score == pytest.approx(expected.score, rel=1e-5)


@pytest.mark.parametrize("family", "gpt gpt2 llama transformer-xl xlnet".split())
def test_completion_in_every_causal_family(family: str) -> None:
    template = "xlnet" if family == "xlnet" else "bos-eos"
    text = qkv.Tokenizer.train(TEXTS * 3, type="char", vocab_size=tiny.VOCAB, template=template)
    model = tiny.build(family, head="lm")
    model.tokenizer = text
    task = qkv.task("complete", model, max_new_tokens=6)
    result = task("Wo ist")
    ids = [
        item
        for item in text.encode("Wo ist")
        if item not in (text.eos_token_id, text.sep_token_id, text.cls_token_id)
    ]
    expected = generate(model.net.eval(), [ids], generation_config=task.generation_config)[0][0]  # type: ignore[arg-type]
    assert result.score == pytest.approx(expected.score, rel=1e-4)
    assert result.text.startswith("Wo ist")
    assert "".join(task.stream("Wo ist")) == result.new_text


def test_control_code(tmp_path: Path) -> None:
    write_ctrl(tmp_path)
    text = qkv.Tokenizer.load(tmp_path)
    model = randomize(
        qkv.build("ctrl", width=16, depth=2, heads=2, ffn_width=24, vocab_size=len(text), head="lm")
    )
    model.tokenizer = text
    code = next(
        text.convert_ids_to_tokens(item)
        for item in range(len(text))
        if text.convert_ids_to_tokens(item).isalpha() and item != text.unk_token_id
    )
    task = qkv.task("complete", model, max_new_tokens=5)
    assert task("the dog", control_code=code).score == pytest.approx(task(f"{code} the dog").score)
    assert task("the dog", control_code=code).text.startswith("the dog")
    pieces = [
        number for number in range(len(text)) if text.convert_ids_to_tokens(number).endswith("@@")
    ]
    for number in pieces[:9]:
        item = qkv.task("complete", model, max_new_tokens=3, sequence_bias=(((number,), 9.0),))
        assert (
            "".join(item.stream("the dog")) == item("the dog").new_text
        )  # although subwords are joined
    ((row,),) = task.with_settings(
        {"control_code": code, "overflow": "truncate", "max_input_length": 8}
    ).preprocess(["the dog " * 9], ["text"])
    assert row.encoding.input_ids[0] == text.convert_tokens_to_ids(
        code
    )  # only the prompt is truncated
    assert len(row.encoding) < 8
    with pytest.raises(ValueError, match="control_code is 'Nowhere'"):
        task("the dog", control_code="Nowhere")
    with pytest.raises(ValueError, match="expected one of none: this model has no control codes"):
        qkv.task("complete", build_decoder(), control_code="Links")


def test_window_leaves_room_for_max_new_tokens() -> None:
    """A prompt of 28 tokens in a model with 32 positions leaves room for four tokens."""
    text = "The ferry leaves at nine and comes back. " * 3
    ids = build_decoder().tokenizer.encode(text)  # type: ignore[union-attr]
    prompt = build_decoder().tokenizer.decode(ids[:28], skip_special_tokens=True)  # type: ignore[union-attr]
    task = qkv.task("complete", build_decoder(), max_new_tokens=10, min_new_tokens=10)
    stopped = task(prompt, overflow="truncate", context_overflow="stop")
    assert (len(stopped.tokens), stopped.finish_reason) == (4, "context")
    result = task(prompt, overflow="window")
    assert len(result.tokens) == 10
    net: Any = build_decoder().net
    expected = generate(net, [ids[6:28]], generation_config=task.generation_config)[0][0]
    assert result.score == pytest.approx(expected.score, rel=1e-5)
    assert "".join(task.stream(prompt, overflow="window")) == result.new_text
    short = task(prompt, overflow="window", max_new_tokens=3, min_new_tokens=0)
    # It fits, so that the same kernels run on the same shapes.
    assert short == task(prompt, max_new_tokens=3, min_new_tokens=0)


@pytest.mark.parametrize(
    ("family", "reads"), [("transformer-xl", True), ("xlnet", True), ("gpt2", False)]
)
def test_models_with_a_memory_read_the_whole_prompt(family: str, reads: bool) -> None:
    text = qkv.Tokenizer.train(TEXTS * 3, type="char", vocab_size=tiny.VOCAB, template="plain")
    more: dict[str, Any] = {"mem_len": 8} if family == "xlnet" else {}
    model = tiny.build(family, head="lm", **more)
    model.tokenizer = text
    task, prompt = qkv.task("complete", model, max_new_tokens=4, max_input_length=20), TEXTS[0] * 4
    with pytest.raises(ValueError, match="tokens, expected at most 19"):
        task(prompt)
    ((row,),) = task.with_settings({"overflow": "window"}).preprocess([prompt], ["text"])
    prompt_ids = text.encode(prompt)
    assert row.encoding.input_ids == (prompt_ids if reads else prompt_ids[-16:])
    assert task(prompt, overflow="window").text.startswith(prompt)


# --- long texts ---

LONG = "Anna lives here. She plays the harp! Marie (his sister.) sings and sings and sings\nThe end comes"


def test_chunks_end_with_sentences_else_words_else_anywhere() -> None:
    task = qkv.task("translate", load_golden("marian"))

    def encode(text: str) -> Any:
        return task.encode([text])[0]

    def chunk(text: str, limit: int, before: str = "") -> list[str]:
        chunks = [*chunk_text(text, limit, encode, before)]
        assert "".join(gap + body for gap, body in chunks) == text
        assert all(len(encode(before + body)) <= limit for _, body in chunks)
        return [body for _, body in chunks]

    assert chunk(LONG, 200) == [LONG]
    num_tokens = len(encode(LONG))
    for body in chunk(LONG, num_tokens * 2 // 3):
        assert body.endswith((".", "!", ".)", "sings", "comes"))
    assert all(LONG.count(word) for body in chunk(LONG, 12) for word in body.split())
    assert len(chunk("sings" * 30, 12)) > 8
    assert chunk(LONG, 30, "Anna: ") != chunk(LONG, 30)
    even = [len(encode(body)) for body in chunk("Anna lives here. " * 9 + "Anna.", 30)]
    assert min(even) > max(even) / 2  # the last chunk is not much shorter
    with pytest.raises(ValueError, match="max_input_length leaves no token for the text"):
        chunk(LONG, 1)


def test_a_long_line_is_translated_in_chunks() -> None:
    task = qkv.task(
        "translate",
        load_golden("marian"),
        max_new_tokens=5,
        max_input_length=24,
        num_return_sequences=2,
    )
    text = f"  Anna.\n\n{LONG}\n"
    with pytest.raises(ValueError, match="tokens, expected at most 24"):
        task(text)
    result = task(text, overflow="window")
    assert len(result.candidates) == 2
    window = task.with_settings({"overflow": "window"})
    parts = [*window.segment_text(text)]
    assert "".join(gap + body for gap, body in parts) == text
    assert len(parts) > 5
    assert result.text == "".join(gap + (task(body).text if body else "") for gap, body in parts)
    assert result.text.startswith("  ")
    assert result.text.count("\n") == 4
    assert [item.text for item in window.map([text, "Anna."])] == [result.text, task("Anna.").text]
    by_sentence = task.with_settings(
        {"overflow": "window", "unit": "sentence", "max_input_length": 64}
    )
    # Equal to the bit: the same kernels run on the same shapes.
    assert by_sentence(LONG) == task(LONG, unit="sentence", max_input_length=64)


def test_segments_with_a_detected_language_are_those_that_were_encoded() -> None:
    """The code is one more token of every chunk, in encoding and in joining."""
    task = qkv.task(
        "translate", build_seq2seq(">>en<<", ">>de<<"), max_new_tokens=3, overflow="window"
    )
    for text in (TEXTS[0] * 4, TEXTS[1] * 4, f">>en<< {TEXTS[0]}"):
        for length in range(7, 30):
            directed, source = task.with_settings({"max_input_length": length}).resolve_direction(
                text
            )
            parts = [body for _, body in directed.segment_text(source) if body]
            result = task(text, max_input_length=length, alignment_layer="mean")
            assert len(result.alignments) == len(parts)
            assert result.text == directed(source).text


def test_segments_have_alignments() -> None:
    for name, model, text in (
        ("translate", load_golden("marian"), f"  Anna.\n\n{LONG}\n"),
        ("summarize", load_golden("t5"), LONG),
    ):
        settings: dict[str, Any] = dict(max_new_tokens=5, max_input_length=32, overflow="window")
        result = create_task(name, model, settings | {"alignment_layer": "mean"})(text)
        assert len(result.alignments) > 2
        ends = [0]
        for item in result.alignments:
            assert all(
                piece.text == text[piece.start : piece.end]
                for piece in item.source
                if piece.end > piece.start
            )
            assert item.source[0].start >= ends[-1]
            ends.append(item.source[-1].end)
        assert ends[-1] == len(text.rstrip())


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_long_text_is_summarized_in_chunks(name: str) -> None:
    task = qkv.task(
        "summarize",
        load_golden(name),
        max_new_tokens=6,
        num_return_sequences=2,
        max_input_length=32,
        overflow="window",
    )
    bodies = [str(item)[len(task.source_prefix) :] for item in task.prepare_texts(LONG, "text")]
    assert len(bodies) > 2
    parts = [task(body) for body in bodies]
    result = task(LONG)
    assert result.text == " ".join(item.text for item in parts)
    assert result.score == pytest.approx(sum(item.score for item in parts))
    assert len(result.candidates) == 2
    # Equal to the bit: the same kernels run on the same shapes.
    assert task("Anna lives.") == task("Anna lives.", overflow="error")


def test_recursive_summaries() -> None:
    task = qkv.task(
        "summarize",
        load_golden("bart"),
        max_new_tokens=9,
        min_length=0,
        max_input_length=32,
        overflow="window",
    )
    text = LONG * 3
    single_pass, recursive = task(text), task(text, recursive=True)
    passes = [text, single_pass.text]
    while len(task.prepare_texts(passes[-2], "text")) > 1 and len(passes[-1]) < len(passes[-2]):
        passes.append(task(passes[-1]).text)
    assert len(passes) > 2
    assert recursive.text == passes[-1]
    results = task.map(["Anna.", text], recursive=True)
    assert [item.text for item in results] == [task("Anna.").text, recursive.text]


# --- settings ---


def test_defaults_come_from_the_folder() -> None:
    model = qkv.load(load_golden("bart").tokenizer_folder)  # type: ignore[arg-type]
    model.config["task_specific_params"] = {
        "summarization": {"num_beams": 3, "min_length": 7, "max_length": 12, "prefix": "sum: "}
    }
    task = qkv.task("summarize", model)
    assert (
        task.generation_config.num_beams,
        task.generation_config.min_length,
        task.generation_config.max_length,
    ) == (3, 7, 12)
    assert task.source_prefix == "sum: "
    assert (
        task.with_settings({"num_beams": 1, "max_new_tokens": 4}).generation_config.num_beams == 1
    )
    assert qkv.task("translate", load_golden("marian")).generation_config.bad_words_ids == ((158,),)


def test_max_length_of_the_folder_is_ignored_in_completion() -> None:
    model = build_model.__wrapped__("gpt2", "lm")
    model.config["task_specific_params"] = {"text-generation": {"do_sample": True, "max_length": 5}}
    task = qkv.task("complete", model)
    assert (
        task.generation_config.do_sample,
        task.generation_config.top_k,
        task.generation_config.max_length,
    ) == (True, 50, None)
    prompt = "The ferry leaves at nine"
    assert task(prompt).text.startswith(prompt)
    assert task.with_settings({"max_length": 30}).generation_config.max_length == 30


@pytest.mark.parametrize(("settings", "message"), [
    ({"num_beams": 0}, "num_beams is 0"), ({"num_beams": 10**5}, "num_beams is 100000"),
    ({"temperature": -1}, "temperature"), ({"temperature": float("nan")}, "temperature is nan"),
    ({"top_p": 2}, "top_p is 2"), ({"stop_strings": ""}, r"stop_strings is \('',\)"),
    ({"stop_strings": ["a", ""]}, r"stop_strings is \('a', ''\)"), ({"seed": -1}, "seed is -1"),
    ({"num_beems": 2}, "setting num_beems is unknown; did you mean num_beams"),
    ({"overflow": "wide"}, "overflow is 'wide'"),
    ({"num_return_sequences": 0}, "num_return_sequences is 0"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"), ({"stop_strings": 3}, r"stop_strings is \(3,\)"),
    ({"control_code": 3}, "control_code is 3"),
    ({"generate_kwargs": {"x": 3}}, "setting x is unknown; expected one of"),
    ({"generate_kwargs": 3}, "generate_kwargs is 3"),
])  # fmt: skip
def test_errors_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        qkv.task("complete", build_decoder(), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"unit": "word"}, "unit is 'word'"), ({"unit": ""}, "unit is ''"),
    ({"prefix": 3}, "prefix is 3"), ({"src_lang": 3}, "src_lang is 3"),
    ({"tgt_lang": "fr"}, "tgt_lang is 'fr', expected none: this model has no language codes"),
])  # fmt: skip
def test_errors_of_translate(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qkv.task("translate", load_golden("marian"), **settings)


def test_a_long_source_is_an_error_unless_positions_are_relative() -> None:
    text = "Anna lives here and there. " * 9
    with pytest.raises(ValueError, match="tokens, expected at most 64"):
        qkv.task("translate", load_golden("marian"))(text)
    assert qkv.task("translate", load_golden("marian"), overflow="truncate", max_new_tokens=3)(
        text
    ).tokens
    assert qkv.task("summarize", load_golden("t5"), max_new_tokens=3)(text).tokens
    with pytest.raises(ValueError, match="tokens, expected at most 20"):
        qkv.task("summarize", load_golden("t5"), max_input_length=20)(text)


@pytest.mark.parametrize("seed", range(3))
def test_samples_are_sorted_by_score(seed: int) -> None:
    result = qkv.task("complete", build_decoder(), max_new_tokens=8)(
        "Clara", do_sample=True, num_return_sequences=6, seed=seed
    )
    scores = [item.score for item in result.candidates]
    assert scores == sorted(scores, reverse=True)
    assert (result.text, result.score) == (result.candidates[0].text, scores[0])


def test_a_text_may_start_with_a_language_code() -> None:
    task = qkv.task(
        "translate", build_seq2seq(">>en<<", ">>de<<"), max_new_tokens=3, unit="sentence"
    )
    two = f"{TEXTS[0]} {TEXTS[1]}"
    assert task(f">>de<< {two}").text == task(two, tgt_lang="de").text
    assert task(f">>en<< {two}").text == task(two, tgt_lang="en").text
    quoted = f">> {TEXTS[0]}"
    assert task(quoted).text in (task(quoted, tgt_lang="de").text, task(quoted, tgt_lang="en").text)


def test_language_detection_is_a_setting_of_the_folder() -> None:
    model = build_seq2seq.__wrapped__(">>en<<", ">>de<<")
    assert qkv.task("translate", model, max_new_tokens=3)(TEXTS[0]).tokens
    model.config["task_specific_params"] = {"translation": {"language_detector": "klingon"}}
    with pytest.raises(ValueError, match="language_detector is 'klingon', expected one of german-"):
        qkv.task("translate", model)(TEXTS[0])
    del model.config["task_specific_params"]
    with pytest.raises(ValueError, match=r"the target language is unknown; expected .* of en, de"):
        qkv.task("translate", model)(TEXTS[0])


def test_codes_that_differ_in_region() -> None:
    model = build_seq2seq(">>cmn_Hans<<", ">>cmn_Hant<<", ">>en_GB<<")
    task = qkv.task("translate", model, max_new_tokens=3)
    assert task(TEXTS[0], tgt_lang="cmn_Hans").text == task(TEXTS[0], tgt_lang=">>cmn_Hans<<").text
    assert task(TEXTS[0], tgt_lang="en").text == task(TEXTS[0], tgt_lang=">>en_GB<<").text
    with pytest.raises(
        ValueError, match=r"^tgt_lang is 'cmn', expected one of cmn_Hans, cmn_Hant, en$"
    ):
        task(TEXTS[0], tgt_lang="cmn")


def test_max_length_setting_overrides_the_folder() -> None:
    model = build_decoder()
    model.generation_config = {"max_new_tokens": 30}
    try:
        assert len(qkv.task("complete", model, max_length=12)("ab").tokens) <= 12
    finally:
        model.generation_config = None


# --- past the context ---


def test_completions_continue_past_the_context() -> None:
    model = build_decoder()
    assert isinstance(model.spec, Spec)
    assert model.spec.decoder is not None
    max_positions = model.spec.decoder.max_positions
    assert max_positions is not None
    task = qkv.task("complete", model, max_new_tokens=2 * max_positions, eos_token_id=[])
    result = task("Clara lives")
    assert (len(result.tokens), result.finish_reason) == (2 * max_positions, "length")
    assert "".join(task.stream("Clara lives")) == result.new_text
    assert len(task("Clara lives", num_beams=2).tokens) == 2 * max_positions
    stopped = task("Clara lives", context_overflow="stop")
    num_prompt_tokens = len(model.tokenizer.encode("Clara lives"))  # type: ignore[union-attr]
    assert stopped.finish_reason == "context"
    assert len(stopped.tokens) == max_positions - num_prompt_tokens
    assert result.new_text.startswith(stopped.new_text)


def test_alignments_are_of_one_context() -> None:
    tokenizer = build_seq2seq().tokenizer
    assert tokenizer is not None
    sizes: dict[str, Any] = dict(width=16, depth=2, heads=2, decoder_heads=2, max_positions=24)
    model = qkv.build("bart", **sizes, vocab_size=len(tokenizer), head="lm")
    model.tokenizer = tokenizer
    task = qkv.task("summarize", randomize(model), max_new_tokens=40, eos_token_id=[])
    assert len(task("Ein Zug").tokens) == 40
    (alignment,) = task("Ein Zug", alignment_layer=-1).alignments
    assert len(alignment.weights) == 23  # all positions but that of the start token
    with pytest.raises(ValueError, match="context_overflow is 'slide' with alignment_layer"):
        task("Ein Zug", alignment_layer=-1, context_overflow="slide")


def test_settings_without_effect() -> None:
    task = qkv.task("complete", build_decoder(), max_new_tokens=4, temperature=0.8)
    assert (
        task("the dog", do_sample=False).text == task("the dog", num_beams=1, do_sample=False).text
    )
    for settings, message in (
        (
            dict(do_sample=False, temperature=0.5),
            "temperature is 0.5, expected 1.0 without sampling",
        ),
        (dict(min_new_tokens=5), "min_new_tokens is 5, expected at most max_new_tokens=4"),
        (dict(early_stopping=True), "early_stopping is True, expected False without beam search"),
        (
            dict(num_assistant_tokens=3),
            "num_assistant_tokens has no effect without assistant_model",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            task("the dog", **settings)
    model = build_decoder()
    ids = torch.tensor([[5, 6]])
    with pytest.raises(ValueError, match="temperature is 0"):
        model.generate(ids, temperature=0.5, max_new_tokens=2)
    model.generation_config = {"temperature": 0.5, "do_sample": False}  # as published files have it
    assert model.generate(ids, max_new_tokens=2).shape[1] <= 4
