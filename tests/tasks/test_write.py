"""Tasks that write, beside the goldens: languages, lines, streams, stops, and what is refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.decode import How, generate
from qkv.tasks.chunking import portions
from qkv.tasks.write.translate import cut
from tests.support import tiny
from tests.support.text_oracle import ctrl
from tests.tasks.test_tasks import built, folder

TEXTS = ["Wo ist der Bahnhof?", "Where is the station?", "Ein Zug fährt.", "Süß – 東京 👍🏽!"]


def shaken(model: qkv.Model) -> qkv.Model:
    torch.manual_seed(3)
    for parameter in model.net.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@cache
def ours(*codes: str) -> qkv.Model:
    """An encoder-decoder as recipes make them."""
    text = qkv.Tokenizer.train(TEXTS * 5, kind="bpe", vocab=90, purpose="seq2seq", codes=codes)
    sizes: dict[str, Any] = dict(width=16, depth=2, heads=2, feed=24, vocab=len(text), length=64)
    model = shaken(qkv.build("transformer", **sizes, head="lm", start=text.bos, pad=text.pad, end=text.eos))
    model.tokenizer = text
    return model


@cache
def byte() -> qkv.Model:
    return built("gpt2", "lm")


# --- translate ---


def test_a_text_keeps_its_lines_and_blanks() -> None:
    task = qkv.task("translate", folder("marian"), max_new=6)
    text = "  Anna lives here.\r\n\n\tMarie plays. She sings!\n"
    found = task(text)
    one, two = (task(line).text for line in ("Anna lives here.", "Marie plays. She sings!"))
    assert found.text == f"  {one}\r\n\n\t{two}\n"
    three = [task(part).text for part in ("Anna lives here.", "Marie plays.", "She sings!")]
    apart = task(text, by="sentence")
    assert apart.text == "  {}\r\n\n\t{} {}\n".format(*three)
    task.model.config["task_specific_params"] = {"translation": {"by": "sentence"}}
    assert (task(text), task(text, by="line")) == (apart, found)
    del task.model.config["task_specific_params"]
    both = [task(part) for part in ("Anna lives here.", "Marie plays. She sings!")]
    assert found.score == pytest.approx(sum(each.score for each in both))
    assert found.tokens == both[0].tokens + both[1].tokens


@pytest.mark.parametrize("by", ["line", "sentence"])
def test_nothing_is_lost_between_parts(by: str) -> None:
    for text in ('He said "no." Then?  (Yes.) \n\n', "a\r\n b", "a", "\n\n", 'x." y', "1.5 m. z…  w"):
        assert "".join(gap + body for gap, body in cut(text, by)) == text
    assert [body for _, body in cut('"No." Then? Go', "sentence")] == ['"No."', "Then?", "Go", ""]


def test_best_are_in_order_and_the_first_is_the_result() -> None:
    found = qkv.task("translate", folder("marian"), max_new=6, results=3)("Anna lives.")
    assert len(found.best) == 3
    assert (found.text, found.score, found.tokens) == (
        found.best[0].text, found.best[0].score, found.best[0].tokens,
    )  # fmt: skip
    assert [one.score for one in found.best] == sorted((one.score for one in found.best), reverse=True)


def test_a_model_of_our_own_takes_the_direction_in_front() -> None:
    model = ours(">>en<<", ">>de<<")
    text = model.tokenizer
    assert text is not None
    assert text.eos is not None
    how = How(beams=2, max_new=8, ends=(text.eos,), start=text.bos)
    results = {}
    for target, source in (("en", "de"), ("de", "en")):
        found = qkv.task("translate", model, target=target, beams=2, max_new=8)(TEXTS[0])
        ids = text.encode(f">>{target}<< {TEXTS[0]}").ids  # as the recipe's "{to} {source}"
        wanted = generate(model.net, sources=[ids], how=how)[0][0]  # type: ignore[arg-type]
        assert found.tokens == tuple(map(text.token, wanted.ids))
        assert found.score == pytest.approx(wanted.score, rel=1e-5)
        assert qkv.task("translate", model, source=source, beams=2, max_new=8)(TEXTS[0]) == found
        results[target] = found
    assert results["en"] != results["de"]
    typed = qkv.task("translate", model, beams=2, max_new=8)(f">>en<< {TEXTS[0]}")
    assert typed.text == results["en"].text


def test_without_codes_there_is_nothing_to_say() -> None:
    assert qkv.task("translate", ours(), max_new=5)(TEXTS[0]).tokens
    with pytest.raises(ValueError, match="target is 'en', and this model has no languages"):
        qkv.task("translate", ours(), target="en")


def test_a_row_that_starts_with_a_language_starts_with_the_target() -> None:
    model = folder("mbart")
    languages = model.tokenizer.languages  # type: ignore[union-attr]
    task = qkv.task("translate", model, target="de")
    assert (task.how.start, task.how.first) == (2, languages["de_DE"])
    older = qkv.load(model.home)  # type: ignore[arg-type]
    older.generation = {**(model.generation or {}), "decoder_start_token_id": languages["ro_RO"]}
    assert qkv.task("translate", older).how.start == languages["ro_RO"]
    task = qkv.task("translate", older, target="de_DE")
    assert (task.how.start, task.how.first) == (languages["de_DE"], None)


def test_t5_is_told_in_words() -> None:
    model = qkv.load(folder("t5").home)  # type: ignore[arg-type]
    kinds = {"translation_en_to_de": {"prefix": "to German: "}, "translation_en_to_fr": {"prefix": "fr: "}}
    model.config["task_specific_params"] = kinds
    plain = qkv.task("translate", model, prefix="to German: ", max_new=6)("Anna lives.")
    assert qkv.task("translate", model, source="en", target="de", max_new=6)("Anna lives.") == plain
    with pytest.raises(ValueError, match=r"into which language\? Expected .* of en to de, en to fr"):
        qkv.task("translate", model)("Anna lives.")
    with pytest.raises(ValueError, match="any to ro: expected one of en to de, en to fr"):
        qkv.task("translate", model, target="ro")


# --- complete ---


@pytest.mark.parametrize("prompt", ["Clara waits", "A  👍🏽\n", "Zoë "])
def test_a_stream_is_what_comes_whole(prompt: str) -> None:
    for settings in (dict[str, Any](), {"temperature": 1.5, "seed": 5}, {"beams": 3}):
        task = qkv.task("complete", byte(), max_new=14, **settings)
        whole, parts = task(prompt), [*task.stream(prompt)]
        assert whole.text == prompt + whole.new
        assert "".join(parts) == whole.new
        assert all(parts)
        assert len(whole.tokens) <= 14


def test_bytes_of_a_character_come_together() -> None:
    """A net that says the bytes of 東京 one by one."""
    model, text = byte(), byte().tokenizer
    assert text is not None
    ids = text.encode("東京!").ids
    assert len(ids) > 6
    bias = tuple(((*ids[:place], one), 1e4 * (place + 1)) for place, one in enumerate(ids))
    task = qkv.task("complete", model, max_new=len(ids), bias=bias)
    assert task("x").new == "東京!"
    assert [*task.stream("x")] == ["東", "京", "!"]
    assert task.sure("東\ufffd\ufffd") == "東"


def saying(model: qkv.Model, words: str) -> Any:
    """A task whose model goes on with these words."""
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(words, special=False).ids
    bias = tuple(((*ids[:place], one), 1e4 * (place + 1)) for place, one in enumerate(ids))
    return qkv.task("complete", model, max_new=len(ids), bias=bias)


@pytest.mark.parametrize("kind", ["word", "wordpiece", "unigram"])
def test_a_stream_of_text_that_is_tidied_loses_nothing(tmp_path: Path, kind: str) -> None:
    words = "they do n't go , do they ? it 's n ' o they 've , we 're ."
    text = qkv.Tokenizer.train([words] * 9, kind=kind, vocab=60, purpose="bos-eos")
    text.save(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"clean_up_tokenization_spaces": True}))
    model = shaken(qkv.build("gpt2", width=16, depth=1, heads=2, vocab=len(text), length=99, head="lm"))
    model.tokenizer = qkv.Tokenizer.load(tmp_path)
    task = saying(model, words)
    found, parts = task("they"), [*task.stream("they")]
    assert "don't go, do they? it's n'o they've, we're." in found.new
    assert "".join(parts) == found.new
    assert len(parts) > 5


def test_it_stops_before_a_text() -> None:
    task = qkv.task("complete", byte(), max_new=20, temperature=2.0, seed=1)
    whole = task("Clara")
    stop = whole.new[6:9]
    found = task("Clara", stop=stop)
    assert found.new == whole.new[: whole.new.index(stop)]
    assert found.reason == "stop"
    assert "".join(task.stream("Clara", stop=[stop, "zzzz"])) == found.new
    held = task.changed({"stop": ("ab", "bcd")})
    assert (held.sure("xxbc"), held.sure("xa"), held.sure("xab")) == ("xx", "x", "x")


def test_what_is_drawn_is_by_its_seed() -> None:
    task = qkv.task("complete", byte(), max_new=10, top_k=40)
    assert task("Clara", seed=1) == task("Clara", seed=1)
    assert task("Clara", seed=1) != task("Clara", seed=2)
    assert len({one.text for one in task("Clara", results=4).best}) > 1
    assert task.how.sample


def test_a_long_prompt_is_refused_or_loses_its_beginning() -> None:
    task = qkv.task("complete", byte(), max_new=4)
    text = "The ferry leaves at nine and comes back. " * 3
    with pytest.raises(ValueError, match=r"text: (\d+) tokens, \d+ more than the 31 that are read at once"):
        task(text)
    found = task(text, long="cut")
    ids = byte().tokenizer.encode(text).ids[-28:]  # type: ignore[union-attr]
    assert found.text.startswith(text)
    wanted = generate(byte().net, [ids], how=task.how)[0][0]  # type: ignore[arg-type]
    assert found.score == pytest.approx(wanted.score, rel=1e-5)


@pytest.mark.parametrize("family", "gpt gpt2 llama transformer-xl xlnet".split())
def test_every_family_that_goes_on(family: str) -> None:
    purpose = "xlnet" if family == "xlnet" else "bos-eos"
    text = qkv.Tokenizer.train(TEXTS * 3, kind="char", vocab=tiny.VOCAB, purpose=purpose)
    model = tiny.model(family, head="lm")
    model.tokenizer = text
    task = qkv.task("complete", model, max_new=6)
    found = task("Wo ist")
    ids = [one for one in text.encode("Wo ist").ids if one not in (text.eos, text.sep, text.cls)]
    wanted = generate(model.net.eval(), [ids], how=task.how)[0][0]  # type: ignore[arg-type]
    assert found.score == pytest.approx(wanted.score, rel=1e-4)
    assert found.text.startswith("Wo ist")
    assert "".join(task.stream("Wo ist")) == found.new


def test_a_control_code_stands_in_front(tmp_path: Path) -> None:
    ctrl(tmp_path)
    text = qkv.Tokenizer.load(tmp_path)
    model = shaken(qkv.build("ctrl", width=16, depth=2, heads=2, feed=24, vocab=len(text), head="lm"))
    model.tokenizer = text
    code = next(text.token(one) for one in range(len(text)) if text.token(one).isalpha() and one != text.unk)
    task = qkv.task("complete", model, max_new=5)
    assert task("the dog", code=code).score == pytest.approx(task(f"{code} the dog").score)
    assert task("the dog", code=code).text.startswith("the dog")
    pieces = [number for number in range(len(text)) if text.token(number).endswith("@@")]
    for number in pieces[:9]:
        one = qkv.task("complete", model, max_new=3, bias=(((number,), 9.0),))
        assert "".join(one.stream("the dog")) == one("the dog").new  # though pieces of words are joined
    ((row,),) = task.changed({"code": code, "long": "cut", "length": 8}).all_rows(["the dog " * 9], ["text"])
    assert row.tokens.ids[0] == text.id(code)  # what is cut is the prompt
    assert len(row.tokens) < 8
    with pytest.raises(ValueError, match="code is 'Nowhere'"):
        task("the dog", code="Nowhere")
    with pytest.raises(ValueError, match="expected one of none, as this model knows no codes"):
        qkv.task("complete", byte(), code="Links")


def test_a_window_leaves_room_for_what_is_wanted() -> None:
    """A text of 28 tokens, and a model of 32: four more are written, or as many as are wanted."""
    text = "The ferry leaves at nine and comes back. " * 3
    ids = byte().tokenizer.encode(text).ids  # type: ignore[union-attr]
    prompt = byte().tokenizer.decode(ids[:28])  # type: ignore[union-attr]
    task = qkv.task("complete", byte(), max_new=10, min_new=10)
    assert len(task(prompt, long="cut").tokens) == 4
    found = task(prompt, long="window")
    assert len(found.tokens) == 10
    wanted = generate(byte().net, [ids[6:28]], how=task.how)[0][0]  # type: ignore[arg-type]
    assert found.score == pytest.approx(wanted.score, rel=1e-5)
    assert "".join(task.stream(prompt, long="window")) == found.new
    short = task(prompt, long="window", max_new=3, min_new=0)
    assert short == task(prompt, max_new=3, min_new=0)  # it fits


@pytest.mark.parametrize(("family", "reads"), [("transformer-xl", True), ("xlnet", True), ("gpt2", False)])
def test_models_with_a_memory_read_all(family: str, reads: bool) -> None:
    text = qkv.Tokenizer.train(TEXTS * 3, kind="char", vocab=tiny.VOCAB, purpose="plain")
    more: dict[str, Any] = {"memory": 8} if family == "xlnet" else {}
    model = tiny.model(family, head="lm", **more)
    model.tokenizer = text
    task, prompt = qkv.task("complete", model, max_new=4, length=20), TEXTS[0] * 4
    with pytest.raises(ValueError, match="more than the 19 that are read at once"):
        task(prompt)
    ((row,),) = task.changed({"long": "window"}).all_rows([prompt], ["text"])
    whole = text.encode(prompt).ids
    assert row.tokens.ids == (whole if reads else whole[-16:])
    assert task(prompt, long="window").text.startswith(prompt)


# --- long texts ---

LONG = "Anna lives here. She plays the harp! Marie (his sister.) sings and sings and sings\nThe end comes"


def test_portions_end_with_sentences_else_with_words_else_anywhere() -> None:
    task = qkv.task("translate", folder("marian"))

    def encode(text: str) -> Any:
        return task.encode([text])[0]

    def cut_up(text: str, limit: int, before: str = "") -> list[str]:
        found = [*portions(text, limit, encode, before)]
        assert "".join(gap + body for gap, body in found) == text
        assert all(len(encode(before + body)) <= limit for _, body in found)
        return [body for _, body in found]

    assert cut_up(LONG, 200) == [LONG]
    whole = len(encode(LONG))
    for body in cut_up(LONG, whole * 2 // 3):
        assert body.endswith((".", "!", ".)", "sings", "comes"))
    assert all(LONG.count(word) for body in cut_up(LONG, 12) for word in body.split())
    assert len(cut_up("sings" * 30, 12)) > 8
    assert cut_up(LONG, 30, "Anna: ") != cut_up(LONG, 30)
    even = [len(encode(body)) for body in cut_up("Anna lives here. " * 9 + "Anna.", 30)]
    assert min(even) > max(even) / 2  # the last is no crumb
    with pytest.raises(ValueError, match="too few tokens are read at once to cut a text"):
        cut_up(LONG, 1)


def test_a_long_line_is_translated_in_parts() -> None:
    task = qkv.task("translate", folder("marian"), max_new=5, length=24, results=2)
    text = f"  Anna.\n\n{LONG}\n"
    with pytest.raises(ValueError, match="more than the 24 that are read at once"):
        task(text)
    found = task(text, long="window")
    assert len(found.best) == 2
    window = task.changed({"long": "window"})
    parts = [*window.parted(text)]
    assert "".join(gap + body for gap, body in parts) == text
    assert len(parts) > 5
    assert found.text == "".join(gap + (task(body).text if body else "") for gap, body in parts)
    assert found.text.startswith("  ")
    assert found.text.count("\n") == 4
    assert [one.text for one in window.many([text, "Anna."])] == [found.text, task("Anna.").text]
    few = task.changed({"long": "window", "by": "sentence", "length": 64})
    assert few(LONG) == task(LONG, by="sentence", length=64)


def test_parts_of_a_guessed_direction_are_those_that_were_read() -> None:
    """A code is one token more: what was cut with it is put together with it."""
    task = qkv.task("translate", ours(">>en<<", ">>de<<"), max_new=3, long="window")
    for text in (TEXTS[0] * 4, TEXTS[1] * 4, f">>en<< {TEXTS[0]}"):
        for length in range(7, 30):
            way, said = task.changed({"length": length}).directed(text)
            parts = [body for _, body in way.parted(said) if body]
            found = task(text, length=length, alignment="mean")
            assert len(found.alignments) == len(parts)
            assert found.text == way(said).text


def test_parts_tell_what_they_were_made_of() -> None:
    for name, model, text in (
        ("translate", folder("marian"), f"  Anna.\n\n{LONG}\n"),
        ("summarise", folder("t5"), LONG),
    ):
        found = qkv.task(name, model, max_new=5, length=32, long="window", alignment="mean")(text)
        assert len(found.alignments) > 2
        ends = [0]
        for one in found.alignments:
            assert all(
                piece.text == text[piece.start : piece.end] for piece in one.source if piece.end > piece.start
            )
            assert one.source[0].start >= ends[-1]
            ends.append(one.source[-1].end)
        assert ends[-1] == len(text.rstrip())


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_a_long_text_is_summarised_in_parts(name: str) -> None:
    task = qkv.task("summarise", folder(name), max_new=6, results=2, length=32, long="window")
    bodies = [str(one)[len(task.before) :] for one in task.texts(LONG, "text")]
    assert len(bodies) > 2
    parts = [task(body) for body in bodies]
    found = task(LONG)
    assert found.text == " ".join(one.text for one in parts)
    assert found.score == pytest.approx(sum(one.score for one in parts))
    assert len(found.best) == 2
    assert task("Anna lives.") == task("Anna lives.", long="refuse")


def test_what_comes_of_parts_is_summarised_again() -> None:
    task = qkv.task("summarise", folder("bart"), max_new=9, min_length=0, length=32, long="window")
    text = LONG * 3
    once, again = task(text), task(text, again=True)
    passes = [text, once.text]
    while len(task.texts(passes[-2], "text")) > 1 and len(passes[-1]) < len(passes[-2]):
        passes.append(task(passes[-1]).text)
    assert len(passes) > 2
    assert again.text == passes[-1]
    many = task.many(["Anna.", text], again=True)
    assert [one.text for one in many] == [task("Anna.").text, again.text]


# --- settings ---


def test_the_folder_has_the_defaults() -> None:
    model = qkv.load(folder("bart").home)  # type: ignore[arg-type]
    model.config["task_specific_params"] = {
        "summarization": {"num_beams": 3, "min_length": 7, "max_length": 12, "prefix": "sum: "}
    }
    task = qkv.task("summarise", model)
    assert (task.how.beams, task.how.min_length, task.how.max_length) == (3, 7, 12)
    assert task.before == "sum: "
    assert task.changed({"beams": 1, "max_new": 4}).how.beams == 1
    assert qkv.task("translate", folder("marian")).how.bad_words == ((158,),)


def test_a_prompt_is_not_counted_in_a_folder_s_length() -> None:
    model = built.__wrapped__("gpt2", "lm")
    model.config["task_specific_params"] = {"text-generation": {"do_sample": True, "max_length": 5}}
    task = qkv.task("complete", model)
    assert (task.how.sample, task.how.top_k, task.how.max_length) == (True, 50, None)
    prompt = "The ferry leaves at nine"
    assert task(prompt).text.startswith(prompt)
    assert task.changed({"max_length": 30}).how.max_length == 30


@pytest.mark.parametrize(("settings", "wrong"), [
    ({"beams": 0}, "beams is 0"), ({"beams": 10**5}, "beams is 100000"), ({"temperature": -1}, "temperature"),
    ({"temperature": float("nan")}, "temperature is nan"), ({"top_p": 2}, "top_p is 2"),
    ({"stop": ""}, "stop is ''"), ({"stop": ["a", ""]}, "stop is ''"), ({"seed": -1}, "seed is -1"),
    ({"beems": 2}, "setting is 'beems'"), ({"long": "wide"}, "long is 'wide'"),
    ({"results": 0}, "results is 0"), ({"max_new": 0}, "max_new is 0"), ({"stop": 3}, "stop is 3"),
    ({"code": 3}, "code is 3"), ({"decoding": {"x": 3}}, "setting is 'x'"),
    ({"decoding": 3}, "decoding is 3"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong) as error:
        qkv.task("complete", byte(), **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("settings", "wrong"), [
    ({"by": "word"}, "by is 'word'"), ({"by": ""}, "by is ''"), ({"prefix": 3}, "prefix is 3"),
    ({"source": 3}, "source is 3"),
    ({"target": "fr"}, "target is 'fr', and this model has no languages"),
])  # fmt: skip
def test_and_so_it_is_of_translate(settings: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        qkv.task("translate", folder("marian"), **settings)


def test_a_long_source_is_refused_unless_only_distances_count() -> None:
    text = "Anna lives here and there. " * 9
    with pytest.raises(ValueError, match="more than the 64 that are read at once"):
        qkv.task("translate", folder("marian"))(text)
    assert qkv.task("translate", folder("marian"), long="cut", max_new=3)(text).tokens
    assert qkv.task("summarise", folder("t5"), max_new=3)(text).tokens
    with pytest.raises(ValueError, match="more than the 20 that are read at once"):
        qkv.task("summarise", folder("t5"), length=20)(text)


@pytest.mark.parametrize("seed", range(3))
def test_of_several_that_are_drawn_the_best_comes_first(seed: int) -> None:
    found = qkv.task("complete", byte(), max_new=8)("Clara", sample=True, results=6, seed=seed)
    scores = [one.score for one in found.best]
    assert scores == sorted(scores, reverse=True)
    assert (found.text, found.score) == (found.best[0].text, scores[0])


def test_a_text_may_begin_with_a_code_and_no_other_arrows_are_one() -> None:
    task = qkv.task("translate", ours(">>en<<", ">>de<<"), max_new=3, by="sentence")
    two = f"{TEXTS[0]} {TEXTS[1]}"
    assert task(f">>de<< {two}").text == task(two, target="de").text
    assert task(f">>en<< {two}").text == task(two, target="en").text
    quoted = f">> {TEXTS[0]}"
    assert task(quoted).text in (task(quoted, target="de").text, task(quoted, target="en").text)


def test_codes_that_differ_by_their_region_alone() -> None:
    model = ours(">>cmn_Hans<<", ">>cmn_Hant<<", ">>en_GB<<")
    task = qkv.task("translate", model, max_new=3)
    assert task(TEXTS[0], target="cmn_Hans").text == task(TEXTS[0], target=">>cmn_Hans<<").text
    assert task(TEXTS[0], target="en").text == task(TEXTS[0], target=">>en_GB<<").text
    with pytest.raises(ValueError, match=r"^target is 'cmn', expected one of cmn_Hans, cmn_Hant, en$"):
        task(TEXTS[0], target="cmn")


def test_the_users_length_wins_over_the_folders() -> None:
    model = byte()
    model.generation = {"max_new_tokens": 30}
    try:
        assert len(qkv.task("complete", model, max_length=12)("ab").tokens) <= 12
    finally:
        model.generation = None
