"""Settings: what each may be, and the files that say them, both ways."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

import qkv
from qkv.decode import How, read_how, write_how
from qkv.decode.generation_config import THEIRS
from tests.support import tiny

NAN = float("nan")
WRONG: list[tuple[dict[str, Any], str]] = [
    (dict(beams=0), "beams is 0, expected a whole number from 1 to 1,000"),
    (dict(beams=100_000), "beams is 100000, expected"),
    (dict(beams=True), "beams is True, expected"),
    (dict(beams=2.0), "beams is 2.0, expected"),
    (dict(beams=None), "beams is None, expected"),
    (dict(temperature=-1), "temperature is -1, expected a number from 1e-06 to 1e+06"),
    (dict(temperature=0.0), "temperature is 0.0, expected"),
    (dict(temperature=NAN), "temperature is nan, expected"),
    (dict(temperature="hot"), "temperature is 'hot', expected"),
    (dict(top_p=2), "top_p is 2, expected a number from 0 to 1"),
    (dict(top_p=NAN), "top_p is nan"),
    (dict(min_p=-0.1), "min_p is -0.1, expected"),
    (dict(typical=0.0), "typical is 0.0, expected"),
    (dict(top_k=-1), "top_k is -1, expected"),
    (dict(sample=1), "sample is 1, expected true or false"),
    (dict(early="later"), "early is 'later', expected true, false or \"never\""),
    (dict(stop=((),)), "stop is ((),), expected phrases of one id or more each"),
    (dict(stop=((3, -1),)), "stop is ((3, -1),), expected"),
    (dict(bad_words=[[3]]), "bad_words is [[3]], expected"),
    (dict(ends=(-1,)), "ends is (-1,), expected ids from 0 on"),
    (dict(ends=5), "ends is 5, expected"),
    (dict(suppress=(1.5,)), "suppress is (1.5,), expected"),
    (dict(words=(((),),)), "words is (((),),), expected phrases"),
    (dict(words=((),)), "words is ((),), expected"),
    (dict(bias=(((3,), NAN),)), "bias is (((3,), nan),), expected pairs of a phrase and a number"),
    (dict(decay=(3, -1.0)), "decay is (3, -1.0), expected a length from 0 on and a factor above 0"),
    (dict(decay=(3,)), "decay is (3,), expected"),
    (dict(repetition=0.0), "repetition is 0.0, expected"),
    (dict(max_new=0), "max_new is 0, expected a whole number from 1"),
    (dict(max_length=-3), "max_length is -3"),
    (dict(no_repeat=-1), "no_repeat is -1, expected"),
    (dict(drafts=0), "drafts is 0, expected"),
    (dict(length_penalty=NAN), "length_penalty is nan, expected"),
    (dict(beams=4, groups=3), "groups is 3, expected a divisor of the 4 beams"),
    (dict(beams=4, diversity=0.5), "diversity is 0.5 in one group of beams: set groups too"),
    (dict(beams=4, groups=2, sample=True), "groups of beams go without sample and words"),
    (dict(words=(((3,),),)), "words are found by beams, without sample: set beams to 2 or more"),
    (dict(beams=2, results=3), "results is 3, expected no more than come of 2 beams"),
    (dict(results=2), "results is 2, expected no more than come of a greedy row"),
    (dict(sample=True, results=3, best_of=2), "results is 3, expected no more than come of 2 drawn"),
    (dict(best_of=2), "best_of is 2, and nothing is drawn"),
    (dict(contrast=0.6), "contrast goes with top_k of 2 or more"),
    (dict(contrast=0.6, top_k=4, beams=2), "contrast goes with top_k of 2 or more"),
    (dict(first=5, suppress=(5,)), "first is (5,), and suppress forbids it"),
    (dict(last=(5, 6), suppress=(5, 6, 7)), "last is (5, 6), and suppress forbids it"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[str(given) for given, _ in WRONG])
def test_what_is_wrong(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        How(**given)
    assert str(caught.value).startswith(words)


def test_every_setting_has_a_name_in_the_file() -> None:
    assert THEIRS.keys() == {field.name for field in fields(How)}
    ours = {"best_of", "stop_ids"}  # unknown there, and kept by it
    assert {*THEIRS.values()} - ours <= vars(GenerationConfig()).keys()


def test_what_is_wrong_in_a_file_goes_by_its_name_there() -> None:
    with pytest.raises(ValueError, match="num_beams is 0, expected a whole number from 1 to 1,000"):
        read_how({"num_beams": 0})
    with pytest.raises(ValueError, match=r"eos_token_id is .*, expected ids"):
        read_how({"eos_token_id": "</s>"})


FULL = How(
    results=2,
    beams=4,
    length_penalty=0.5,
    early="never",
    groups=2,
    diversity=0.3,
    min_length=3,
    max_length=30,
    min_new=2,
    max_new=9,
    decay=(3, 1.2),
    repetition=1.2,
    no_repeat=3,
    source_repetition=1.1,
    source_no_repeat=2,
    bad_words=((4,), (5, 6)),
    bias=(((7,), -1.5),),
    suppress=(8, 9),
    first_suppress=(10,),
    first=11,
    last=(12,),
    finite=True,
    renormalise=True,
    stop=((13, 14),),
    start=15,
    ends=(16, 17),
    pad=18,
    begin=19,
    drafts=7,
)
DRAWN = How(
    sample=True, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, typical=0.8, epsilon=0.01, eta=0.02
)


@pytest.mark.parametrize(
    "how",
    [
        How(),
        FULL,
        DRAWN,
        How(sample=True),
        How(sample=True, best_of=4, results=2),
        How(early=True, beams=2),
        How(contrast=0.6, top_k=4),
        How(beams=4, words=(((3,),), ((4, 5), (6,)))),
    ],
)
def test_written_and_read(how: How, tmp_path: Path) -> None:
    raw = json.loads(json.dumps(write_how(how)))
    assert read_how(raw) == how
    assert write_how(how, raw) == raw
    (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    theirs = GenerationConfig.from_pretrained(tmp_path)  # the original opens it
    for ours, key in THEIRS.items():
        value = getattr(how, ours)
        if value not in (None, (), getattr(How(), ours)) and not isinstance(value, tuple):
            assert getattr(theirs, key) == value


def test_what_is_not_ours_stays_as_it_was() -> None:
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
    how = read_how(raw)
    assert write_how(how, raw) == raw
    changed = write_how(How(beams=2, begin=0, ends=(2, 3), max_length=142, last=(2,)), raw)
    assert changed == raw | {"num_beams": 2, "eos_token_id": [2, 3]}
    assert "forced_eos_token_id" not in write_how(How(), raw)
    assert read_how(write_how(How(), raw)) == How()


def test_older_folders_have_them_in_config_json() -> None:
    """BART's lengths, Marian's banned pad, mBART's first token, T5's tasks."""
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
    plain = How(begin=0, ends=(2,), pad=1, beams=4, start=2, first=0, max_length=142)
    assert read_how(None, bart) == plain
    task = How(
        begin=0, ends=(2,), pad=1, beams=6, start=2, first=0, max_length=62, min_length=11, length_penalty=2.0
    )
    assert read_how(None, bart, "summarization") == task
    assert read_how(None, bart, "translation") == plain
    assert read_how({"num_beams": 3}, bart) == How(beams=3)  # a file of its own says all
    assert read_how({"num_beams": 3}, bart, "summarization") == How(
        beams=6, max_length=62, min_length=11, length_penalty=2.0
    )
    marian = {
        "bad_words_ids": [[58100]],
        "decoder_start_token_id": 58100,
        "num_beams": 6,
        "pad_token_id": 58100,
    }
    assert read_how(None, marian) == How(bad_words=((58100,),), start=58100, beams=6, pad=58100)
    assert read_how(None, {"forced_bos_token_id": 250004, "top_k": 50}) == How(first=250004)
    assert read_how(None, {"task_specific_params": None, "num_beams": None}, "x") == How()


def test_a_model_keeps_the_file(tmp_path: Path) -> None:
    made = tiny.model("bart")
    assert made.generation is None
    made.save(tmp_path / "a")
    assert not (tmp_path / "a" / "generation_config.json").exists()
    raw = {"num_beams": 4, "unknown": [1, {"x": None}], "forced_bos_token_id": 0}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps(raw))
    opened = qkv.load(tmp_path / "a")
    assert opened.generation == raw
    for form in ("hf", "qkv"):
        opened.save(tmp_path / form, form=form)
        assert qkv.load(tmp_path / form).generation == raw
    opened.generation = write_how(How(beams=2), opened.generation)
    opened.save(tmp_path / "b")
    again = qkv.load(tmp_path / "b")
    assert again.generation == {"num_beams": 2, "unknown": [1, {"x": None}]}
    assert read_how(again.generation, again.config) == How(beams=2)
