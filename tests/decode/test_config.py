"""GenerationConfig: valid values and combinations, and generation_config.json in both directions."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import transformers

import qkv
from qkv.decode import GenerationConfig, read_generation_config, write_generation_config
from qkv.decode.config_file import override_settings
from tests.support import tiny
from tests.support.errors import assert_error

NAN = float("nan")
INVALID: list[tuple[dict[str, Any], str]] = [
    (dict(num_beams=0), "num_beams is 0, expected an integer from 1 to 1,000"),
    (dict(num_beams=100_000), "num_beams is 100000, expected"),
    (dict(num_beams=True), "num_beams is True, expected"),
    (dict(num_beams=2.0), "num_beams is 2.0, expected"),
    (dict(num_beams=None), "num_beams is None, expected"),
    (dict(temperature=-1), "temperature is -1, expected a number from 1e-06 to 1e+06"),
    (dict(temperature=0.0), "temperature is 0.0, expected"),
    (dict(temperature=NAN), "temperature is nan, expected"),
    (dict(temperature="hot"), "temperature is 'hot', expected"),
    (dict(top_p=2), "top_p is 2, expected a number from 0 to 1"),
    (dict(top_p=NAN), "top_p is nan"),
    (dict(min_p=-0.1), "min_p is -0.1, expected"),
    (dict(typical_p=0.0), "typical_p is 0.0, expected"),
    (dict(top_k=-1), "top_k is -1, expected"),
    (dict(do_sample=1), "do_sample is 1, expected true or false"),
    (dict(early_stopping="later"), "early_stopping is 'later', expected true, false or \"never\""),
    (dict(stop_strings=("",)), "stop_strings is ('',), expected strings of one character or more"),
    (dict(stop_strings=(3,)), "stop_strings is (3,), expected"),
    (dict(stop_strings="a"), "stop_strings is 'a', expected"),
    (dict(bad_words_ids=((),)), "bad_words_ids is ((),), expected phrases of one token id or more"),
    (dict(bad_words_ids=((3, -1),)), "bad_words_ids is ((3, -1),), expected"),
    (dict(bad_words_ids=[[3]]), "bad_words_ids is [[3]], expected"),
    (dict(eos_token_id=(-1,)), "eos_token_id is (-1,), expected token ids (integers from 0)"),
    (dict(eos_token_id=5), "eos_token_id is 5, expected"),
    (dict(suppress_tokens=(1.5,)), "suppress_tokens is (1.5,), expected"),
    (dict(force_words_ids=(((),),)), "force_words_ids is (((),),), expected phrases"),
    (dict(force_words_ids=((),)), "force_words_ids is ((),), expected"),
    (
        dict(sequence_bias=(((3,), NAN),)),
        "sequence_bias is (((3,), nan),), expected pairs of a phrase and a number",
    ),
    (
        dict(exponential_decay_length_penalty=(3, -1.0)),
        "exponential_decay_length_penalty is (3, -1.0), expected a pair of a start from 0 and a factor",
    ),
    (dict(context_overflow="shift"), 'context_overflow is \'shift\', expected "slide" or "stop"'),
    (
        dict(exponential_decay_length_penalty=(3,)),
        "exponential_decay_length_penalty is (3,), expected",
    ),
    (dict(repetition_penalty=0.0), "repetition_penalty is 0.0, expected"),
    (dict(max_new_tokens=0), "max_new_tokens is 0, expected an integer from 1"),
    (dict(max_length=-3), "max_length is -3"),
    (dict(no_repeat_ngram_size=-1), "no_repeat_ngram_size is -1, expected"),
    (dict(num_assistant_tokens=0), "num_assistant_tokens is 0, expected"),
    (dict(length_penalty=NAN), "length_penalty is nan, expected"),
    (
        dict(num_beams=4, num_beam_groups=3),
        "num_beam_groups is 3, expected a divisor of num_beams=4",
    ),
    (
        dict(num_beams=4, diversity_penalty=0.5),
        "diversity_penalty is 0.5, expected 0 with one beam group: set num_beam_groups",
    ),
    (
        dict(num_beams=4, num_beam_groups=2, do_sample=True),
        "num_beam_groups is 2, expected 1 with do_sample or force_words_ids",
    ),
    (
        dict(force_words_ids=(((3,),),)),
        "force_words_ids needs beam search without do_sample: set num_beams to 2 or more",
    ),
    (
        dict(num_beams=2, num_return_sequences=3),
        "num_return_sequences is 3, expected at most 2 with num_beams=2",
    ),
    (
        dict(num_return_sequences=2),
        "num_return_sequences is 2, expected at most 1 with greedy search",
    ),
    (
        dict(do_sample=True, num_return_sequences=3, best_of=2),
        "num_return_sequences is 3, expected at most 2 with best_of=2",
    ),
    (dict(guidance_scale=-1.0), "guidance_scale is -1.0, expected a number from 0"),
    (
        dict(guidance_scale=2.0, num_beams=2),
        "guidance_scale is 2.0, expected 1 with num_beams or penalty_alpha: remove it",
    ),
    (dict(best_of=2), "best_of is 2, expected do_sample=True and num_beams=1"),
    (dict(penalty_alpha=0.6), "penalty_alpha is 0.6, expected top_k of 2 or more"),
    (
        dict(penalty_alpha=0.6, top_k=4, num_beams=2),
        "penalty_alpha is 0.6, expected top_k of 2 or more",
    ),
    (
        dict(forced_bos_token_id=5, suppress_tokens=(5,)),
        "forced_bos_token_id is (5,), and suppress_tokens forbids it",
    ),
    (
        dict(forced_eos_token_id=(5, 6), suppress_tokens=(5, 6, 7)),
        "forced_eos_token_id is (5, 6), and suppress_tokens forbids it",
    ),
]


@pytest.mark.parametrize(
    ("settings", "message"), INVALID, ids=[str(settings) for settings, _ in INVALID]
)
def test_invalid_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        GenerationConfig(**settings)
    assert str(caught.value).startswith(message)


def test_fields_are_the_keys_of_the_file() -> None:
    additions = {"best_of", "context_overflow"}  # unknown to transformers, which keeps them
    names = {field.name for field in fields(GenerationConfig)}
    assert names - additions <= vars(transformers.GenerationConfig()).keys()


def test_invalid_values_in_a_file() -> None:
    with pytest.raises(ValueError, match="num_beams is 0, expected an integer from 1 to 1,000"):
        read_generation_config({"num_beams": 0})
    with pytest.raises(ValueError, match=r"eos_token_id is .*, expected token ids"):
        read_generation_config({"eos_token_id": "</s>"})


FULL = GenerationConfig(
    num_return_sequences=2,
    num_beams=4,
    length_penalty=0.5,
    early_stopping="never",
    num_beam_groups=2,
    diversity_penalty=0.3,
    min_length=3,
    max_length=30,
    min_new_tokens=2,
    max_new_tokens=9,
    context_overflow="stop",
    exponential_decay_length_penalty=(3, 1.2),
    repetition_penalty=1.2,
    no_repeat_ngram_size=3,
    encoder_repetition_penalty=1.1,
    encoder_no_repeat_ngram_size=2,
    bad_words_ids=((4,), (5, 6)),
    sequence_bias=(((7,), -1.5),),
    suppress_tokens=(8, 9),
    begin_suppress_tokens=(10,),
    forced_bos_token_id=11,
    forced_eos_token_id=(12,),
    remove_invalid_values=True,
    renormalize_logits=True,
    stop_strings=("a", "\n\n"),
    decoder_start_token_id=15,
    eos_token_id=(16, 17),
    pad_token_id=18,
    bos_token_id=19,
    num_assistant_tokens=7,
)
SAMPLING = GenerationConfig(
    do_sample=True,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    typical_p=0.8,
    epsilon_cutoff=0.01,
    eta_cutoff=0.02,
    guidance_scale=1.5,
)


@pytest.mark.parametrize(
    "config",
    [
        GenerationConfig(),
        FULL,
        SAMPLING,
        GenerationConfig(do_sample=True),
        GenerationConfig(do_sample=True, best_of=4, num_return_sequences=2),
        GenerationConfig(early_stopping=True, num_beams=2),
        GenerationConfig(penalty_alpha=0.6, top_k=4),
        GenerationConfig(num_beams=4, force_words_ids=(((3,),), ((4, 5), (6,)))),
    ],
)
def test_round_trip(config: GenerationConfig, tmp_path: Path) -> None:
    raw = json.loads(json.dumps(write_generation_config(config)))
    assert read_generation_config(raw) == config
    assert write_generation_config(config, raw) == raw
    (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    reference = transformers.GenerationConfig.from_pretrained(tmp_path)
    for field in fields(GenerationConfig):
        value = getattr(config, field.name)
        if value not in (None, (), field.default) and not isinstance(value, tuple):
            assert getattr(reference, field.name) == value


def test_unknown_keys_are_kept() -> None:
    raw = {
        "_from_model_config": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "guidance_scale": 1.5,
        "num_beams": 4,
        "transformers_version": "4.40.0",
        "max_length": 142,
        "top_k": 50,
        "temperature": 1,
        "forced_eos_token_id": [2],
    }
    assert write_generation_config(read_generation_config(raw), raw) == raw
    changed = write_generation_config(
        GenerationConfig(
            num_beams=2,
            bos_token_id=0,
            eos_token_id=(2, 3),
            max_length=142,
            forced_eos_token_id=(2,),
        ),
        raw,
    )
    assert changed == raw | {"num_beams": 2, "eos_token_id": [2, 3]}
    assert "forced_eos_token_id" not in write_generation_config(GenerationConfig(), raw)
    assert (
        read_generation_config(write_generation_config(GenerationConfig(), raw))
        == GenerationConfig()
    )


def test_settings_in_config_json() -> None:
    """Older folders: BART's lengths and tasks, Marian's banned padding, mBART's forced BOS."""
    bart = {
        "model_type": "bart",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 1,
        "num_beams": 4,
        "decoder_start_token_id": 2,
        "force_bos_token_to_be_generated": True,
        "max_length": 142,
        "task_specific_params": {
            "summarization": {
                "length_penalty": 2.0,
                "max_length": 62,
                "min_length": 11,
                "num_beams": 6,
                "prefix": "x",
            }
        },
    }
    expected = GenerationConfig(
        bos_token_id=0,
        eos_token_id=(2,),
        pad_token_id=1,
        num_beams=4,
        decoder_start_token_id=2,
        forced_bos_token_id=0,
        max_length=142,
    )
    assert read_generation_config(None, bart) == expected
    expected_summarization = GenerationConfig(
        bos_token_id=0,
        eos_token_id=(2,),
        pad_token_id=1,
        num_beams=6,
        decoder_start_token_id=2,
        forced_bos_token_id=0,
        max_length=62,
        min_length=11,
        length_penalty=2.0,
    )
    assert read_generation_config(None, bart, "summarization") == expected_summarization
    assert read_generation_config(None, bart, "translation") == expected
    # generation_config.json takes precedence over all of config.json but the tasks.
    assert read_generation_config({"num_beams": 3}, bart) == GenerationConfig(num_beams=3)
    assert read_generation_config({"num_beams": 3}, bart, "summarization") == GenerationConfig(
        num_beams=6, max_length=62, min_length=11, length_penalty=2.0
    )
    marian = {
        "bad_words_ids": [[58100]],
        "decoder_start_token_id": 58100,
        "num_beams": 6,
        "pad_token_id": 58100,
    }
    assert read_generation_config(None, marian) == GenerationConfig(
        bad_words_ids=((58100,),), decoder_start_token_id=58100, num_beams=6, pad_token_id=58100
    )
    assert read_generation_config(
        None, {"forced_bos_token_id": 250004, "top_k": 50}
    ) == GenerationConfig(forced_bos_token_id=250004)
    assert (
        read_generation_config(None, {"task_specific_params": None, "num_beams": None}, "x")
        == GenerationConfig()
    )


def test_model_keeps_generation_config(tmp_path: Path) -> None:
    model = tiny.build("bart")
    assert model.generation_config is None
    model.save(tmp_path / "a")
    assert not (tmp_path / "a" / "generation_config.json").exists()
    raw = {"num_beams": 4, "unknown": [1, {"x": None}], "forced_bos_token_id": 0}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps(raw))
    loaded = qkv.load(tmp_path / "a")
    assert loaded.generation_config == raw
    for file_format in ("hf", "qkv"):
        loaded.save(tmp_path / file_format, format=file_format)
        assert qkv.load(tmp_path / file_format).generation_config == raw
    loaded.generation_config = write_generation_config(
        GenerationConfig(num_beams=2), loaded.generation_config
    )
    loaded.save(tmp_path / "b")
    reloaded = qkv.load(tmp_path / "b")
    assert reloaded.generation_config == {"num_beams": 2, "unknown": [1, {"x": None}]}
    assert read_generation_config(reloaded.generation_config, reloaded.config) == GenerationConfig(
        num_beams=2
    )


INEFFECTIVE: list[tuple[dict[str, Any], str]] = [
    (dict(temperature=0.3), "temperature is 0.3, expected 1.0 without sampling: remove it, or set do_sample"),
    (dict(top_k=5), "top_k is 5, expected 0 without sampling"),
    (dict(top_p=0.9, num_beams=3), "top_p is 0.9, expected 1.0 without sampling"),
    (dict(early_stopping=True), "early_stopping is True, expected False without beam search"),
    (dict(min_length=9, max_length=8), "min_length is 9, expected at most max_length=8"),
    (dict(min_new_tokens=9, max_new_tokens=8), "min_new_tokens is 9, expected at most max_new_tokens=8"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "problem"), INEFFECTIVE, ids=str)
def test_settings_without_effect(settings: dict[str, Any], problem: str) -> None:
    assert_error(lambda: GenerationConfig(**settings), problem)
    assert_error(lambda: read_generation_config({}, settings=settings), problem)
    # Published files contain such values, which are ignored and kept in the file.
    config = read_generation_config(settings)
    assert config == replace(
        config, **{next(iter(settings)): getattr(GenerationConfig(), next(iter(settings)))}
    )
    assert write_generation_config(config, settings) == settings


def test_a_setting_makes_a_value_of_the_file_effective() -> None:
    file = dict(temperature=0.6, top_p=0.9, num_beams=1, early_stopping=True)
    assert read_generation_config(file) == GenerationConfig()
    assert read_generation_config(file, settings=dict(do_sample=True)) == GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.9
    )
    assert read_generation_config(file, settings=dict(num_beams=2)).early_stopping is True


def test_a_value_of_the_file_does_not_return() -> None:
    file = dict(temperature=0.6, max_length=4, min_length=9)
    for config in (GenerationConfig(do_sample=True), GenerationConfig(max_length=20)):
        assert read_generation_config(write_generation_config(config, file)) == config


def test_changes_remove_settings_without_effect() -> None:
    assert override_settings(dict(temperature=0.8, max_length=3), dict(do_sample=False)) == dict(
        max_length=3, do_sample=False
    )
    assert override_settings(dict(do_sample=False), dict(temperature=0.8)) == dict(
        do_sample=False, temperature=0.8
    )
