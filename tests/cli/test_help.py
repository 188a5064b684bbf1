"""Help with groups and examples, shell completion, colors, JSON and exit statuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.cli import COMMAND_GROUPS, app, main
from tests.conftest import ROOT

COMMANDS = [name for commands in COMMAND_GROUPS.values() for name in commands]
DEEPER = [
    ["tokenizer", "train"],
    ["tokenizer", "show"],
    ["words", "train"],
    ["words", "near"],
    ["words", "analogy"],
    ["words", "eval"],
    ["words", "convert"],
    ["--install-completion"],
]


def good(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZSH", "ZSH_CUSTOM"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_every_command_is_in_a_group_below_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    output = good(capsys, "--help")
    panels = re.split(r"^╭─ (.+?) ─+╮$", output, flags=re.MULTILINE)[1:]
    panel_texts = dict(zip(panels[::2], panels[1::2], strict=True))
    assert list(panel_texts) == [*(title for title, _ in COMMAND_GROUPS), "This program"]
    for (title, example), commands in COMMAND_GROUPS.items():
        listed = re.findall(r"^│ ([a-z]+) {2,}", panel_texts[title], re.MULTILINE)
        assert listed == list(commands)
        assert f"│ Example: {example} " in panel_texts[title]
        assert example.split()[1] in commands
    assert {*COMMANDS} == {name for name in app if not name.startswith("-")}


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), *DEEPER], ids=" ".join)
def test_every_command_shows_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = good(capsys, *command, "--help").split("╭─")[0]
    assert any(line.startswith(f"qkv {' '.join(command)} ") for line in output.splitlines()[1:])


def test_the_options_of_examples_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        output = good(capsys, name, "--help")
        example = next(line for line in output.splitlines()[1:] if line.startswith(f"qkv {name} "))
        options = [word for word in example.split() if word.startswith("--") and "." not in word]
        known = output.split("╭─", 1)[-1] + (
            good(capsys, name, "show", "--help") if name == "tokenizer" else ""
        )
        allowed = ["--run"] if name == "train" else []  # of the recipe
        assert [name for name in options if f"{name} " not in known and name not in allowed] == []


# --- completion ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(
        good(capsys, "--install-completion", "--shell", shell)
        .splitlines()[0]
        .removeprefix("wrote ")
    )
    assert script.is_relative_to(home)
    text = script.read_text(encoding="utf-8")
    assert all(word in text for word in ("translate", "show-card", "install-completion", "int8"))
    startup = home / f".{shell}rc"
    assert startup.exists() == (shell != "fish")
    good(capsys, "--install-completion", "--shell", shell)
    if shell != "fish":
        assert startup.read_text().count(str(script.parent)) == (
            2 if shell == "bash" else 1
        )  # one line, once
    if shutil.which(shell):
        done = subprocess.run(
            [shell, "-n", script], capture_output=True, encoding="utf-8", check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        good(capsys, "--install-completion", "--shell", "bash")
        .splitlines()[0]
        .removeprefix("wrote ")
    )
    for words, expected in (
        ("qkv transl", "translate"),
        ("qkv export a b --to ct", "ctranslate2"),
    ):
        at = f"COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}"
        line = f'source "{script}"; {at}; _qkv; echo ${{COMPREPLY[*]}}'
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, encoding="utf-8", check=True
        )
        assert done.stdout.split() == [expected]


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
@pytest.mark.parametrize("before", ["", "autoload -Uz compinit\ncompinit\n"], ids=["new", "old"])
def test_zsh_completes(before: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".zshrc").write_text(before)
    good(capsys, "--install-completion", "--shell", "zsh")
    good(capsys, "--install-completion", "--shell", "zsh")
    assert (home / ".zshrc").read_text().count("autoload -Uz compinit") == 1
    done = subprocess.run(
        ["zsh", "-ic", "echo ${_comps[qkv]:-none}"], capture_output=True, encoding="utf-8", check=True,
        env={**os.environ, "HOME": str(home), "ZDOTDIR": str(home)},
    )  # fmt: skip
    assert done.stdout.split()[-1] == "_cyclopts_qkv"


def test_an_unknown_shell(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unknown() -> None:
        from cyclopts.completion.detect import ShellDetectionError

        raise ShellDetectionError

    monkeypatch.setattr("cyclopts.completion.detect.detect_shell", unknown)
    assert main(["--install-completion"]) == 2
    assert capsys.readouterr().err == "qkv: unknown shell; expected --shell bash, zsh or fish\n"
    assert list(home.iterdir()) == []


# --- what is printed ---


@pytest.mark.parametrize("command", [["--help"], ["translate", "--help"]], ids=" ".join)
def test_colors_can_be_turned_off(command: list[str]) -> None:
    output = {}
    for color in ("FORCE_COLOR", "NO_COLOR", None):
        environment = {
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "PYTHONUTF8": "1",
        }
        environment |= {"FORCE_COLOR": "1"} | ({"NO_COLOR": "1"} if color == "NO_COLOR" else {})
        environment |= {} if color else {"FORCE_COLOR": ""}
        done = subprocess.run(
            [sys.executable, "-m", "qkv", *command], capture_output=True, encoding="utf-8", env=environment,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        output[color] = done.stdout
    color_codes = r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38;\d+)"
    assert not re.search(color_codes, output["NO_COLOR"])
    assert "\x1b" not in output[None]  # a pipe
    assert "\x1b" in output["FORCE_COLOR"]


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(good(capsys, "families", "--json"))[0]["name"] == "bert"


def test_exit_statuses_are_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == ["0", "2", "130", "141"]
    assert (main([]), main(["show", "nothing"])) == (0, 2)
    if os.name == "posix":
        command = [sys.executable, "-m", "qkv", "show", "gpt3", "--all-layers"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            process.stdout.close()
        assert process.returncode == 141
