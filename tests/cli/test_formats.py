"""Commands on models of other libraries: show, translate, embed and export."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import qkv
from qkv.cli import main
from tests.model.test_fairseq_translation import write_joined
from tests.model.test_marian_files import write_opus
from tests.tasks.test_sentence_transformers import write_folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_fairseq(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_joined(tmp_path / "wmt")
    out = run(capsys, "show", tmp_path / "wmt")
    assert out.startswith("wmt: encoder-decoder, 24,112 parameters")
    expected = qkv.task("translate", tmp_path / "wmt", max_new_tokens=5)("low new").text
    arguments = ["translate", "low new", "--max-new-tokens", 5, "--model", tmp_path / "wmt"]
    assert run(capsys, *arguments) == f"{expected}\n"
    out = run(capsys, "export", tmp_path / "wmt", tmp_path / "exported")
    assert re.search(r"read +\S+wmt\n +fairseq checkpoint\n", out)
    assert run(capsys, *arguments[:-1], tmp_path / "exported") == f"{expected}\n"


@pytest.mark.filterwarnings("ignore:.*no BPE codes")
def test_marian(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_opus(tmp_path / "opus")
    assert run(capsys, "show", tmp_path / "opus").startswith(
        "opus: encoder-decoder, 23,616 parameters"
    )
    expected = qkv.task("translate", tmp_path / "opus", max_new_tokens=5)("▁a b").text
    arguments = ["translate", "▁a b", "--max-new-tokens", 5, "--model", tmp_path / "opus"]
    assert run(capsys, *arguments) == f"{expected}\n"
    out = run(capsys, "export", tmp_path / "opus", tmp_path / "exported")
    assert re.search(r"read +\S+opus\n +Marian model\n", out)
    assert run(capsys, *arguments[:-1], tmp_path / "exported") == f"{expected}\n"


def test_sentence_transformers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dense = "torch.nn.modules.activation.Tanh"
    write_folder(tmp_path / "st", transformer="0_Transformer", dense=dense)
    assert run(capsys, "show", tmp_path / "st").startswith("st: encoder, 5,056 parameters")
    out = run(capsys, "embed", "the cat", "--model", tmp_path / "st", "--json")
    expected = qkv.task("embed", tmp_path / "st")("the cat")
    assert json.loads(out)["vector"] == pytest.approx(expected.tolist(), abs=1e-6)
    run(capsys, "export", tmp_path / "st", tmp_path / "exported")
    modules = json.loads((tmp_path / "exported" / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    assert not (tmp_path / "exported" / "0_Transformer").exists()
    vector = qkv.task("embed", tmp_path / "exported")("the cat")
    assert vector.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_format_that_is_not_read_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\3\0\0\0")
    for command in (["show"], ["translate", "Hello", "--model"], ["export"]):
        arguments = [*command, str(path), *(["out"] if command == ["export"] else [])]
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"qkv: \S+model\.gguf: a GGUF file, which qkv does not read; .+\n", err)
