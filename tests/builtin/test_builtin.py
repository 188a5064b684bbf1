"""Built-in models: how they are exported, found, used without a name and described."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv import builtin
from qkv.builtin.language import detect_german_or_english
from qkv.cli import main
from tests.conftest import ROOT
from tests.tasks.test_tasks import build_model
from tests.tasks.test_write import build_decoder, build_seq2seq
from tools import ship

GERMAN, ENGLISH = "Wo ist der Bahnhof?", "Where is the station?"
CARD: dict[str, Any] = dict(
    title="A stand-in", purpose="It has learned nothing.", data="Four sentences.", license="CC BY 2.0 FR",
    attribution="By nobody.", command="qkv train builtin", date="2026-11-16",
    scores={"BLEU, German to English": "0.1"}, limits=["Everything.", "All else."],
)  # fmt: skip


def save_run(model: qkv.Model, folder: Path) -> Path:
    """Save a model as the last checkpoint of a run."""
    model.save(folder / "last")
    (folder / "recipe.toml").write_text('[model]\nfamily = "transformer"\n', encoding="utf-8")
    return folder / "last"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stand-ins for the three models."""
    home, runs = tmp_path_factory.mktemp("shipped"), tmp_path_factory.mktemp("runs")
    models = dict(
        translate=build_seq2seq(">>en<<", ">>de<<"),
        complete=build_decoder(),
        classify=build_model("bert", "sequence-classification"),
    )
    search: dict[str, dict[str, Any]] = dict(
        translate=dict(num_beams=2, max_new_tokens=6),
        complete=dict(temperature=0.8, top_p=0.9, max_new_tokens=6),
        classify={},
    )
    for name, model in models.items():
        labels = ["bad", "good"] if name == "classify" else None
        ship.ship(save_run(model, runs / name), home / name, CARD, search[name], labels)
    return home


@pytest.fixture
def stand_ins(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(builtin, "BUILTIN_FOLDER", home)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return home


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def run_failing_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


# --- export ---


def test_the_exported_files_are_complete(home: Path) -> None:
    folder = home / "translate"
    names = "README.md config.json generation_config.json model.safetensors recipe.toml"
    names += " special_tokens_map.json tokenizer.json tokenizer_config.json"
    assert sorted(path.name for path in folder.iterdir()) == names.split()
    assert json.loads((folder / "config.json").read_text())["weights"] == "int8"
    settings = json.loads((folder / "generation_config.json").read_text())
    assert (settings["num_beams"], settings["max_new_tokens"]) == (2, 6)
    assert settings["eos_token_id"] == qkv.Tokenizer.load(folder).eos_token_id
    assert (folder / "recipe.toml").read_text() == '[model]\nfamily = "transformer"\n'
    assert (folder / "tokenizer.json").read_text(encoding="utf-8").count("\n") == 1
    sampling = json.loads((home / "complete" / "generation_config.json").read_text())
    assert (sampling["do_sample"], sampling["temperature"], sampling["top_p"]) == (True, 0.8, 0.9)
    assert not (home / "classify" / "generation_config.json").exists()


def test_model_card_is_complete(home: Path) -> None:
    card = (home / "translate" / "README.md").read_text(encoding="utf-8")
    texts = (
        [CARD[name] for name in ship.TEXTS]
        + CARD["limits"]
        + ["BLEU, German to English: 0.1", "int8"]
    )
    assert [text for text in texts if text not in card] == []
    assert "num_beams 2, max_new_tokens 6" in card
    assert "Unless told otherwise" not in (home / "classify" / "README.md").read_text(
        encoding="utf-8"
    )


def test_the_tool_prints_file_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out, card = (
        save_run(build_seq2seq(), tmp_path / "run"),
        tmp_path / "out",
        tmp_path / "card.json",
    )
    (run.parent / "recipe.toml").write_text(
        '[data]\ntrain = "/home/me/train.tsv"\n', encoding="utf-8"
    )
    card.write_text(json.dumps(CARD), encoding="utf-8")
    arguments = [
        sys.executable,
        str(ROOT / "tools" / "ship.py"),
        str(run),
        str(out),
        "--card",
        str(card),
    ]
    process = subprocess.run(
        [*arguments, "--num-beams", "3"], capture_output=True, encoding="utf-8", check=True
    )
    rows = dict(
        line.rsplit(maxsplit=1) for line in process.stdout.splitlines() if line[-1].isdigit()
    )
    sizes = {name: int(size.replace(",", "")) for name, size in rows.items()}
    total = sizes.pop("total")
    assert sizes == {path.name: path.stat().st_size for path in out.iterdir()}
    assert total == sum(sizes.values())
    assert "recipe.toml contains the absolute path /home/me/train.tsv" in process.stdout
    repeated = subprocess.run(arguments, capture_output=True, encoding="utf-8", check=False)
    assert (repeated.returncode, repeated.stderr.count("\n")) == (1, 1)
    assert "already exists; expected a new or an empty folder" in repeated.stderr


def test_incomplete_card_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text(
        json.dumps({**CARD, "date": "", "scores": [1], "color": "red"} | {"limits": []})
    )
    with pytest.raises(
        ValueError, match=r"color is unknown; date is ''.*; scores is \[1\].*; limits is \[\]"
    ):
        ship.read_card(file)
    file.write_text(json.dumps({name: CARD[name] for name in CARD if name != "license"}))
    with pytest.raises(ValueError, match="license is missing"):
        ship.read_card(file)


def test_number_of_labels_is_checked(tmp_path: Path) -> None:
    run = save_run(build_model("bert", "sequence-classification"), tmp_path / "run")
    with pytest.raises(ValueError, match="--labels no maybe yes: got 3, expected 2 names"):
        ship.ship(run, tmp_path / "out", CARD, {}, ["no", "maybe", "yes"])
    assert not (tmp_path / "out").exists()


# --- lookup ---


def test_tasks_use_the_builtin_model_by_default(stand_ins: Path) -> None:
    # Equal to the bit: the same kernels run on the same shapes.
    assert qkv.task("translate")(GERMAN) == qkv.task("translate", stand_ins / "translate")(GERMAN)
    assert qkv.task("translate", "builtin:translate")(GERMAN) == qkv.task("translate")(GERMAN)
    assert qkv.task("complete")("Clara").text.startswith("Clara")
    assert {item.label for item in qkv.task("classify")("Fine.").candidates} == {"bad", "good"}
    assert qkv.load("builtin:complete").family.name == "gpt2"


def test_other_tasks_have_no_builtin_model(stand_ins: Path) -> None:
    with pytest.raises(ValueError, match="`tag` has no model"):
        qkv.task("tag")
    with pytest.raises(
        ValueError,
        match=r"builtin:tag: unknown built-in model; expected one of builtin:translate, b",
    ):
        qkv.load("builtin:tag")


def test_missing_weights_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(builtin, "BUILTIN_FOLDER", tmp_path)
    with pytest.raises(
        ValueError, match="builtin:translate: the weights are not in this copy of qkv"
    ):
        qkv.task("translate")
    for arguments in (
        ["translate", GERMAN],
        ["translate", "--show-card"],
        ["show", "builtin:translate"],
    ):
        assert "weights are not in this copy" in run_failing_command(capsys, *arguments)


def test_package_contains_the_models() -> None:
    """hatch packages all files that git does not ignore."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "build"
    ]
    assert built["targets"]["wheel"]["packages"] == ["qkv"]
    assert "/qkv" in built["targets"]["sdist"]["include"]
    assert not any("exclude" in part for part in (built, *built["targets"].values()))
    ignored = {
        line.strip() for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    }
    assert not {"*.safetensors", "*.json", "*.toml", "qkv/builtin", "/qkv/builtin/"} & ignored


# --- use ---


def test_source_language_is_detected(stand_ins: Path) -> None:
    task = qkv.task("translate")
    to_english, to_german = (
        qkv.task("translate", tgt_lang="en"),
        qkv.task("translate", tgt_lang="de"),
    )
    assert task(GERMAN) == to_english(GERMAN) != to_german(GERMAN)
    assert task(ENGLISH) == to_german(ENGLISH) != to_english(ENGLISH)
    results = task.map([ENGLISH, GERMAN, f">>de<< {GERMAN}"])
    expected = [to_german(ENGLISH), to_english(GERMAN), to_german(GERMAN)]
    assert [item.tokens for item in results] == [item.tokens for item in expected]
    with pytest.raises(ValueError, match="text 2 is only whitespace"):
        task.map([ENGLISH, " "])
    # A text has one language.
    assert task(f"{ENGLISH}\nOk?").tokens == to_german(f"{ENGLISH}\nOk?").tokens


def test_other_languages_are_not_detected() -> None:
    with pytest.raises(ValueError, match="the target language is unknown"):
        qkv.task("translate", build_seq2seq(">>en<<", ">>fr<<"))(ENGLISH)


@pytest.mark.parametrize(("language", "text"), [
    ("de", GERMAN), ("en", ENGLISH), ("de", "Süß!"), ("de", "WIR GEHEN NICHT"), ("en", "I’m tired."),
    ("en", "Everybody smiled."), ("en", "Don't!"), ("de", "42"), ("de", ""), ("de", "Katze"), ("en", "cat"),
    ("en", "Hello world!"), ("en", "Yes."), ("en", "Thanks!"),
    ("de", "Was war das?"), ("en", "What was that?"), ("de", "So ist er: The Beatles hört er gern."),
])  # fmt: skip
def test_german_and_english_are_told_apart(language: str, text: str) -> None:
    assert detect_german_or_english(text) == language


def test_commands_use_the_builtin_model_by_default(
    stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = qkv.task("translate")
    assert run_command(capsys, "translate", GERMAN) == task(GERMAN).text + "\n"
    assert (
        run_command(capsys, "translate", GERMAN, "--tgt-lang", "de")
        == task(GERMAN, tgt_lang="de").text + "\n"
    )
    assert (
        run_command(capsys, "translate", GERMAN, "--src-lang", "en")
        == task(GERMAN, tgt_lang="de").text + "\n"
    )
    assert (
        run_command(capsys, "complete", "Clara", "--seed", "3")
        == qkv.task("complete", seed=3)("Clara").text + "\n"
    )
    assert "bad" in run_command(capsys, "classify", "Fine.")
    assert (
        "--model requires an argument: qkv has no built-in model for this task"
        in run_failing_command(capsys, "tag", "Clara")
    )
    assert "translate: encoder-decoder" in run_command(capsys, "show", "builtin:translate")


def test_show_card_prints_the_model_card(
    stand_ins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in builtin.BUILTIN_TASKS:
        output = run_command(capsys, name, "--show-card")
        assert "A stand-in" in output
        assert "CC BY 2.0 FR" in output
        assert "# " not in output  # rendered, not copied
    results = json.loads(run_command(capsys, "translate", "--show-card", "--json"))
    assert results["card"] == (stand_ins / "translate" / "README.md").read_text(encoding="utf-8")
    folder = Path("other")
    build_seq2seq().save(folder)
    assert "no model card; expected a README.md" in run_failing_command(
        capsys, "translate", "--show-card", "--model", "other"
    )
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine \x1b[31m\n", encoding="utf-8")
    output = run_command(capsys, "translate", "--show-card", "--model", "other")
    assert "Mine" in output
    assert "license" not in output
    assert "\x1b" not in output


def test_show_card_needs_no_torch(home: Path) -> None:
    code = f"""
import sys
from qkv.cli import main
assert main(["translate", "--show-card", "--model", {str(home / "translate")!r}]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True)


def test_translation_imports_no_unneeded_modules(home: Path) -> None:
    """Modules for training, compilation or downloads would double the start-up time."""
    code = f"""
import sys, pathlib, qkv.builtin
qkv.builtin.BUILTIN_FOLDER = pathlib.Path({str(home)!r})
from qkv.cli import main
assert main(["translate", {GERMAN!r}, "--device", "cpu"]) == 0
needless = "qkv.train torch._dynamo torch._inductor sympy transformers huggingface_hub datasets pyarrow"
print(*[name for name in needless.split() if name in sys.modules], sep=" ", file=sys.stderr)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT, check=False
    )
    # Progress, which a slow machine shows, precedes the last line.
    assert (process.returncode, process.stderr.splitlines()[-1]) == (0, "")


# --- the models of the package ---


@pytest.mark.parametrize(
    ("names", "most"), [(["translate"], 12_000_000), (["complete", "classify"], 5_000_000)]
)
def test_the_models_are_small(names: list[str], most: int) -> None:
    files = [path for name in names for path in (builtin.BUILTIN_FOLDER / name).rglob("*")]
    assert 0 < sum(path.stat().st_size for path in files) <= most


def test_german_and_english_are_translated() -> None:
    translate = qkv.task("translate")
    pairs = {
        "Wo ist der Bahnhof?": "Where is the station?", "Guten Morgen!": "Good morning.",
        "The children are playing in the garden.": "Die Kinder spielen im Garten.",
    }  # fmt: skip
    assert [item.text for item in translate.map(pairs)] == [*pairs.values()]
    # Sentence by sentence, with single spaces.
    assert translate("I am tired. Where is my bed?").text == "Ich bin müde. Wo ist mein Bett?"
    assert translate("Wo \t ist\u00a0der  Bahnhof?").text == "Where is the station?"
    (aligned,) = translate("Wo ist der Bahnhof?", alignment_layer="penultimate").alignments
    words = aligned.merge_into_words()
    sources = {
        item.text: words.source[place].text
        for item, place in zip(words.target, words.argmax(), strict=True)
        if place is not None
    }
    assert (sources["station"], sources["Where"]) == ("Bahnhof", "Wo")
    # Offsets include the language code.
    (after,) = translate(">>en<< Wo ist der Bahnhof?", alignment_layer="penultimate").alignments
    assert [piece.text for piece in after.merge_into_words().source] == [
        piece.text for piece in words.source
    ]
    assert "Tatoeba" in (builtin.BUILTIN_FOLDER / "translate" / "README.md").read_text(
        encoding="utf-8"
    )


def test_words_and_phrases_are_translated() -> None:
    translate = qkv.task("translate")
    pairs = {
        "Hallo Welt": "Hello world", "Good morning": "Guten Morgen", "Katze": "cat", "cat": "Katze",
        "Ja": "Yes", "Danke": "Thank you", "wo ist der bahnhof": "Where is the station",
        "the apple": "der Apfel", "to eat": "essen",
    }  # fmt: skip
    assert [item.text for item in translate.map(pairs)] == [*pairs.values()]
    assert translate("WO IST DER BAHNHOF?").text == "WHERE IS THE STATION?"


def test_text_in_the_target_language_is_left_as_it_is() -> None:
    text = "The children are playing in the garden.\n\nWhere is the station?  I do not know."
    result = qkv.task("translate", tgt_lang="en")(text)
    assert (result.text, result.candidates[0].text, result.tokens) == (text, text, ())
    translate = qkv.task("translate", tgt_lang="de")
    mixed = translate("Wir haben den Zug verpasst. Where is the station?", num_return_sequences=2)
    assert mixed.text == "Wir haben den Zug verpasst. Wo ist der Bahnhof?"
    assert len(mixed.candidates) == 2
    aligned = translate(
        "Wir haben den Zug verpasst. Where is the station?", alignment_layer="penultimate"
    )
    (alignment,) = aligned.alignments
    words = alignment.merge_into_words()
    assert [piece.text for piece in words.source] == ["Where", "is", "the", "station", "?"]
    assert aligned.text[words.target[0].start : words.target[0].end] == "Wo"


def test_text_without_letters_is_left_as_it_is() -> None:
    translate = qkv.task("translate")
    for text in ("-----", "* * *", "2024-01-05", "😀", "!!!"):
        assert translate(text).text == text
    assert translate("STRAßE").text.isupper()


def test_label_names_in_another_order_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected the order of the label ids: negative, positive"):
        qkv.load("builtin:classify", label_names=["positive", "negative"])


def test_reviews_are_classified() -> None:
    classify = qkv.task("classify")
    praise = [
        "A wonderful film, I loved every minute of it.",
        "Moving, funny and beautifully acted.",
    ]
    blame = [
        "What a waste of time, the worst film I have seen.",
        "Dull, badly written and far too long.",
        "I hated it",
    ]
    labels = [item.label for item in classify.map(praise + blame)]
    assert labels == ["positive"] * len(praise) + ["negative"] * len(blame)


def test_plays_are_completed() -> None:
    complete = qkv.task("complete")
    item = complete("ROMEO:", seed=1)
    assert item == complete("ROMEO:", seed=1)  # the same kernels and shapes
    assert item.text != complete("ROMEO:", seed=2).text
    score = qkv.task("score", "builtin:complete")
    line = "My lord, I will not go."
    jumble = "Yn lrod, I llwi oto gn."
    assert score(line).perplexity < score(jumble).perplexity / 2
