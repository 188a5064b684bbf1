"""What a model reads: texts, pairs, targets, memory and images; what is cut, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import qkv
from qkv.explorer.inputs import builder as inputs_module
from qkv.explorer.inputs.builder import InputBuilder
from qkv.explorer.inputs.trace_inputs import TraceInputs, UserInput
from qkv.explorer.trace.trace import Trace
from tests.explorer import models
from tests.support.errors import assert_error

LONG = "the cat sat on the mat " * 20
READS = {
    "bert": ("text", "text_pair"),
    "gpt2": ("text",),
    "transformer-xl": ("text", "text_pair"),
    "bart": ("text", "target"),
    "bahdanau": ("text", "target"),
    "vit": ("image",),
    "clip": ("text", "image"),
    "show-attend-tell": ("target", "image"),
}
ARCHITECTURES = {
    "bert": "encoder", "xlnet": "encoder", "vit": "encoder", "gpt2": "decoder", "llama": "decoder",
    "transformer-xl": "decoder", "bart": "encoder-decoder", "bahdanau": "encoder-decoder",
    "show-attend-tell": "encoder-decoder", "clip": "dual-encoder",
}  # fmt: skip


def build_builder(name: str, **generation_config: Any) -> InputBuilder:
    return InputBuilder(model=models.build_changed_model(name, **generation_config))


def get_texts(inputs: TraceInputs, name: str) -> list[str]:
    return [token.text for token in inputs.sequences[name].tokens]


def get_ids(inputs: TraceInputs, name: str = "input_ids") -> list[int]:
    (row,) = inputs.arguments[name].tolist()
    return list(row)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    builder = build_builder(name)
    assert builder.architecture == ARCHITECTURES[name]
    assert builder.reads_text is (name != "vit")
    assert builder.has_memory is (name == "transformer-xl")


@pytest.mark.parametrize("name", READS)
def test_what_a_model_does_not_read_is_refused(name: str) -> None:
    builder = build_builder(name)
    reads = builder.describe_inputs()
    assert tuple(part for part in reads if reads[part]) == READS[name]
    user_input = models.build_user_input(builder)
    values = {"text": "a", "text_pair": "b", "target": "c", "image": models.build_image()}
    for part, value in values.items():
        changed = replace(user_input, **{part: value})
        if part in READS[name]:
            builder.build(changed)
        else:
            message = f"{part}: this model ({name}) reads {' and '.join(READS[name])}"
            assert_error(lambda: builder.build(changed), message, "leave it out")  # noqa: B023


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "clip"])
def test_empty_texts_are_refused(name: str) -> None:
    builder = build_builder(name)
    for text in ("", " ", "\n\t "):
        words = (
            ("no image is given",) if name == "clip" else ("the text is empty", "expected words")
        )
        assert_error(lambda: builder.build(UserInput(text=text)), *words)  # noqa: B023
    for name in ("vit", "show-attend-tell"):
        assert_error(lambda: build_builder(name).build(UserInput()), "no image is given")  # noqa: B023


# --- texts of encoders and decoders ---


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "clip"])
def test_a_text_is_read_as_the_tokenizer_encodes_it(name: str) -> None:
    builder = build_builder(name)
    inputs = builder.build(UserInput(text=models.TEXT))
    assert get_ids(inputs) == builder.labeler.tokenizer.encode(models.TEXT)
    stack = {"bert": "encoder", "clip": "text"}.get(name, "decoder")
    (words,) = [" ".join(inputs.sequences[key].words) for key in inputs.sequences]
    assert words == models.TEXT
    assert inputs.sequences.keys() == {stack}
    assert (inputs.notice, inputs.target) == (None, None)
    assert inputs.memory_segments == ()


def test_a_pair_has_token_types() -> None:
    inputs = build_builder("bert").build(UserInput(text=models.TEXT, text_pair="a bird"))
    tokens = inputs.sequences["encoder"].tokens
    segments = [token.segment for token in tokens]
    assert get_texts(inputs, "encoder")[0] == "[CLS]"
    assert get_texts(inputs, "encoder")[-1] == "[SEP]"
    assert [token.special for token in tokens] == [segment is None for segment in segments]
    middle = segments.index(1)
    assert segments == [None, *[0] * (middle - 2), None, *[1] * (len(segments) - middle - 1), None]
    types = get_ids(inputs, "token_type_ids")
    assert types == [0] * middle + [1] * (len(segments) - middle)
    alone = build_builder("bert").build(UserInput(text=models.TEXT, text_pair=""))
    assert alone.arguments.keys() == {"input_ids"}
    assert {token.segment for token in alone.sequences["encoder"].tokens} == {None}


@pytest.mark.parametrize("name", ["bert", "gpt2", "clip"])
def test_a_long_text_is_cut_with_a_notice(name: str) -> None:
    builder = build_builder(name)
    tokenizer = builder.labeler.tokenizer
    inputs = builder.build(UserInput(text=LONG))
    count = len(tokenizer.encode(LONG))
    assert count > 64
    assert inputs.notice == f"Cut to 64 of {count} tokens, the most that the model reads."
    ids = get_ids(inputs)
    assert len(ids) == 64
    (sequence,) = inputs.sequences.values()
    assert len(sequence) == 64
    if name == "bert":
        assert [ids[0], ids[-1]] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    Trace(builder.model, inputs)


def test_a_long_pair_is_cut_with_a_notice() -> None:
    builder = build_builder("bert")
    inputs = builder.build(UserInput(text=LONG, text_pair="a bird"))
    assert inputs.notice is not None
    assert inputs.notice.startswith("Cut to 64 of ")
    assert {token.segment for token in inputs.sequences["encoder"].tokens} == {None, 0, 1}
    assert len(get_ids(inputs)) == len(get_ids(inputs, "token_type_ids")) == 64
    Trace(builder.model, inputs)


@pytest.mark.parametrize("name", ["xlnet", "llama", "t5", "transformer-xl"])
def test_models_of_any_length_read_as_much_as_the_explorer_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = build_builder(name)
    assert builder.get_limit() <= 4096
    monkeypatch.setattr(inputs_module, "MAX_TOKENS", 12)
    inputs = builder.build(replace(models.build_user_input(builder), text=LONG))
    assert inputs.notice is not None
    assert inputs.notice.endswith("the most that the explorer shows.")
    assert inputs.notice.startswith("Cut to 12 of ")
    assert len(get_ids(inputs)) == 12


def test_texts_without_tokens_are_refused() -> None:
    builder = build_builder("bert")
    builder.model.tokenizer = qkv.Tokenizer.train(
        [models.TEXT], type="wordpiece", vocab_size=60, template="bert"
    )
    for text in ("\u200b", "\x07", "\ufffd"):  # which BERT's tokenizer removes
        user_input = UserInput(text=text)
        message = "has no tokens for this text; expected words"
        assert_error(lambda: builder.build(user_input), message)  # noqa: B023


# --- memory ---


def test_a_second_text_reads_the_first_as_memory() -> None:
    builder = build_builder("transformer-xl")
    tokenizer = builder.labeler.tokenizer
    inputs = builder.build(UserInput(text=models.TEXT, text_pair=models.SECOND_TEXT))
    assert get_ids(inputs) == tokenizer.encode(models.SECOND_TEXT)
    assert [*map(list, inputs.memory_segments)] == [tokenizer.encode(models.TEXT)]
    assert [*inputs.sequences] == ["memory", "decoder"]
    assert inputs.sequences["memory"].words == ("the", "cat", "sat", "on", "the", "mat")
    assert inputs.sequences["decoder"].words == ("a", "bird", "sang")
    assert inputs.predicts == "decoder"


def test_a_model_without_memory_reads_one_text() -> None:
    builder = build_builder("transformer-xl-none")
    assert not builder.has_memory
    user_input = UserInput(text="the cat", text_pair="a bird")
    assert_error(
        lambda: builder.build(user_input), "text_pair: this model (transformer-xl) reads text"
    )


def test_both_segments_are_cut_with_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = build_builder("transformer-xl")
    monkeypatch.setattr(inputs_module, "MAX_TOKENS", 12)
    notice = "Cut to 12 of 120 tokens, the most that the explorer shows."
    first = builder.build(UserInput(text=LONG[:-1], text_pair="a bird"))
    assert first.notice == notice
    assert [len(segment) for segment in first.memory_segments] == [12]
    both = builder.build(UserInput(text=LONG[:-1], text_pair=LONG[:-1]))
    assert both.notice == f"{notice} {notice}"


# --- targets of encoder-decoders ---


@pytest.mark.parametrize("name", ["bart", "marian", "t5", "bahdanau", "luong"])
def test_a_target_of_the_user_follows_the_start_token(name: str) -> None:
    builder = build_builder(name)
    tokenizer = builder.labeler.tokenizer
    inputs = builder.build(UserInput(text=models.TEXT, target=models.TARGET))
    start, *target = get_ids(inputs, "decoder_input_ids")
    assert start == tokenizer.pad_token_id
    assert target == tokenizer.encode(models.TARGET, is_target=True)
    assert inputs.target == models.TARGET
    assert get_ids(inputs) == tokenizer.encode(models.TEXT)
    assert inputs.sequences["encoder"].label == "source"
    assert inputs.sequences["decoder"].label == "target"
    assert inputs.sequences["decoder"].words == ("we", "saw", "the", "dog")
    assert inputs.sequences["decoder"].tokens[0].special


@pytest.mark.parametrize("name", ["bart", "t5", "luong", "show-attend-tell"])
def test_a_target_that_the_user_leaves_out_is_generated(name: str) -> None:
    builder = build_builder(name)
    user_input = replace(models.build_user_input(builder), target=None)
    inputs = builder.build(user_input)
    task = "caption" if name == "show-attend-tell" else "translate"
    settings: dict[str, Any] = {"prefix": ""} if name == "t5" else {}
    expected = qkv.task(task, builder.model, **settings)(user_input.image or models.TEXT)
    assert inputs.target == expected.text.strip()
    ids = get_ids(inputs, "decoder_input_ids")
    assert (
        builder.labeler.tokenizer.decode(ids[1:], skip_special_tokens=True).strip() == inputs.target
    )
    assert inputs.predicts == "decoder"
    for empty in ("", None):
        assert get_ids(builder.build(replace(user_input, target=empty)), "decoder_input_ids") == ids


@pytest.mark.parametrize("name", ["bart", "vision-encoder-decoder"])
def test_long_targets_are_cut_with_a_notice(name: str) -> None:
    builder = build_builder(name, max_new_tokens=80, min_new_tokens=80)
    user_input = models.build_user_input(builder)
    num_tokens = len(builder.labeler.tokenizer.encode(LONG, is_target=True))
    for target, count in ((LONG, num_tokens), (None, 80)):
        inputs = builder.build(replace(user_input, target=target))
        notice = f"Target cut to 63 of {count} tokens, the most that the model reads."
        assert inputs.notice == notice
        assert len(get_ids(inputs, "decoder_input_ids")) == 64
        trace = Trace(builder.model, inputs)
        assert trace.shapes["decoder.layers.0.attention"][1:] == (64, 64)
    if name == "bart":
        inputs = builder.build(UserInput(text=LONG, target=LONG))
        assert inputs.notice is not None
        assert inputs.notice.startswith("Cut to 64 of ")
        assert inputs.notice.endswith(" tokens, the most that the model reads.")
        assert " Target cut to 63 of " in inputs.notice


def test_a_language_code_that_is_generated_first_comes_before_a_target() -> None:
    builder = build_builder("bart", forced_bos_token_id=17)
    ids = get_ids(
        builder.build(UserInput(text=models.TEXT, target=models.TARGET)), "decoder_input_ids"
    )
    target = builder.labeler.tokenizer.encode(models.TARGET, is_target=True)
    assert ids[1:] == [17, *target]
    generated = get_ids(builder.build(UserInput(text=models.TEXT)), "decoder_input_ids")
    assert generated[1] == 17


def test_languages_of_a_model_without_codes_are_refused() -> None:
    builder = InputBuilder(model=models.build_model("bart"), src_lang="de", tgt_lang="en")
    assert_error(
        lambda: builder.build(UserInput(text="a")), "src_lang is 'de'", "no language codes"
    )


# --- models that cannot be looked at ---


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "clip", "show-attend-tell"])
def test_models_without_tokenizer_are_refused(name: str) -> None:
    model = models.build_changed_model(name)
    model.tokenizer = None
    assert_error(lambda: InputBuilder(model=model), name, "has no tokenizer", "next to the weights")


def test_a_model_of_images_needs_no_tokenizer() -> None:
    model = models.build_changed_model("vit")
    model.tokenizer = None
    builder = InputBuilder(model=model)
    trace = Trace(model, builder.build(UserInput(image=models.build_image())))
    assert len(trace.shapes) == 2


def test_the_frames_of_a_clip_are_tokens(tmp_path: Path) -> None:
    builder = build_builder("video-transformer")
    frames = models.build_clip(6)
    images = [Image.fromarray(frame) for frame in frames]
    images[0].save(tmp_path / "clip.gif", save_all=True, append_images=images[1:])
    for clip in (frames, images, tmp_path / "clip.gif"):
        inputs = builder.build(UserInput(image=clip))
        trace = Trace(builder.model, inputs)
        assert {shape[1:] for shape in trace.shapes.values()} == {(6, 6)}
        assert [token.text for token in inputs.sequences["encoder"].tokens] == [
            f"frame {i}" for i in range(6)
        ]
    assert_error(
        lambda: builder.build(UserInput(image=3)), "a clip is of type int, expected the path"
    )
    too_many = builder.model.args["max_positions"] + 1
    clip = models.build_clip(6).repeat(too_many, 0)[:too_many]
    assert_error(
        lambda: builder.build(UserInput(image=clip)), f"{too_many} frames, expected at most"
    )


def test_a_recurrent_model_of_clips_has_no_attention() -> None:
    model = models.build_tiny_model("video-transformer", cell="gru")
    assert_error(lambda: InputBuilder(model=model), "video-transformer", "no attention")


def test_heads_that_generate() -> None:
    for family, head, can_generate in (
        ("gpt2", "lm", True), ("gpt2", "none", False), ("gpt2", "sequence-classification", False),
        ("gpt2", "double-heads", True), ("bart", "lm", True), ("bert", "masked-lm", False),
        ("t5", "encoder", False), ("xlnet", "lm", False),
    ):  # fmt: skip
        builder = InputBuilder(model=models.build_tiny_model(family, head=head))
        assert builder.can_generate is can_generate, (family, head)
        inputs = builder.build(models.build_user_input(builder))
        trace = Trace(builder.model, inputs)
        assert (trace.last_logits is not None) is can_generate


@pytest.mark.parametrize(
    ("family", "head"),
    [("bart", "sequence-classification"), ("bart", "question-answering"), ("mbart", "question-answering"),
     ("t5", "sequence-classification"), ("t5", "question-answering"), ("bart", "none")],
)  # fmt: skip
def test_heads_that_read_the_source_in_the_decoder(family: str, head: str) -> None:
    """As the model does it by itself: the weights of the cross-attention are those of a plain call."""
    model = models.build_tiny_model(family, head=head)
    builder = InputBuilder(model=model)
    assert builder.describe_inputs()["target"] is (head == "none")
    for user_input in (
        UserInput(text="the cat sat"),
        UserInput(text="the cat", text_pair="a bird"),
    ):
        inputs = builder.build(user_input)
        assert inputs.target is None
        assert inputs.predicts is None
        assert model.tokenizer is not None
        pair = model.tokenizer(user_input.text, user_input.text_pair, return_tensors="pt")
        with qkv.look(model) as weights, torch.no_grad():
            model(pair.input_ids)
        trace = Trace(model, inputs)
        for path, expected in weights.items():
            actual = trace.get_record(path).compute_weights(slice(None), slice(None))
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    if head != "none":
        with_target = UserInput(text="the cat", target="a bird")
        assert_error(lambda: builder.build(with_target), "target", "leave it out")


@pytest.mark.parametrize("family", ["transformer", "marian", "t5", "bahdanau", "show-attend-tell"])
def test_models_without_a_head_need_a_target(family: str) -> None:
    builder = InputBuilder(model=models.build_tiny_model(family, head="none"))
    user_input = models.build_user_input(builder)
    inputs = builder.build(user_input)
    assert inputs.target == models.TARGET
    tokens = get_texts(inputs, "decoder")
    assert models.TARGET.replace(" ", "")[:6] in "".join(tokens[1:])
    assert Trace(builder.model, inputs).last_logits is None
    long_target = replace(user_input, target="we saw the dog " * 60)
    if (limit := builder.get_limit("decoder")) < 200:
        inputs = builder.build(long_target)
        assert len(get_texts(inputs, "decoder")) == limit
        assert inputs.notice is not None
        assert inputs.notice.startswith(f"Target cut to {limit} of ")
    no_target = replace(user_input, target=None)
    assert_error(lambda: builder.build(no_target), "target", "the head 'none' generates none")


def test_the_towers_of_clip() -> None:
    """A text, an image, or both."""
    builder = build_builder("clip")
    user_input = models.build_user_input(builder)
    for parts in (("text",), ("image",), ("text", "image")):
        inputs = builder.build(UserInput(**{part: getattr(user_input, part) for part in parts}))
        assert (*inputs.sequences,) == parts
        stacks = {info.stack for info in Trace(builder.model, inputs).attentions.values()}
        assert stacks == {f"{part}.encoder" for part in parts}


def test_images_may_be_paths_or_arrays(tmp_path: Path) -> None:
    builder = build_builder("vit")
    image = models.build_image()
    image.save(tmp_path / "image.png")
    expected = builder.build(UserInput(image=image))
    for other in (tmp_path / "image.png", str(tmp_path / "image.png")):
        inputs = builder.build(UserInput(image=other))
        assert torch.equal(inputs.arguments["pixel_values"], expected.arguments["pixel_values"])
    assert_error(lambda: builder.build(UserInput(image=3)), "an image is a int, expected a path")
    missing = tmp_path / "none.png"
    assert_error(
        lambda: builder.build(UserInput(image=missing)), "none.png", "not a readable image"
    )
