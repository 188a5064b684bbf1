"""Translation: lines, sentences, candidates, languages and their codes."""

from typing import Any

import pytest

import qkv
from qkv.decode import GenerationConfig, generate
from qkv.tasks.write.translate import split_segments
from tests.tasks.test_tasks import load_golden
from tests.tasks.test_write import TEXTS, build_seq2seq


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


@pytest.mark.parametrize(("settings", "message"), [
    ({"unit": "word"}, "unit is 'word'"), ({"unit": ""}, "unit is ''"),
    ({"prefix": 3}, "prefix is 3"), ({"src_lang": 3}, "src_lang is 3"),
    ({"tgt_lang": "fr"}, "tgt_lang is 'fr', expected none: this model has no language codes"),
])  # fmt: skip
def test_errors_of_translate(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qkv.task("translate", load_golden("marian"), **settings)


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
