"""Tasks that generate text, without goldens: defaults of the folder, settings, errors, samples."""

from functools import cache
from typing import Any

import pytest
import torch

import qkv
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


def test_max_length_setting_overrides_the_folder() -> None:
    model = build_decoder()
    model.generation_config = {"max_new_tokens": 30}
    try:
        assert len(qkv.task("complete", model, max_length=12)("ab").tokens) <= 12
    finally:
        model.generation_config = None


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
