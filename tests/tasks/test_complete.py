"""Completion: streams, stop strings, sampling, control codes, long prompts, texts past the context."""

import json
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.decode import generate
from qkv.spec import Spec
from qkv.tasks.registry import create_task
from tests.support import tiny
from tests.support.text_oracle import write_ctrl
from tests.tasks.test_write import TEXTS, build_decoder, build_seq2seq, randomize


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
