"""The gallery: its pictures are those of its commands, and its commands can be run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from qkv.cli import app
from qkv.recipes import find_recipe
from qkv.train.recipe import read_recipe
from tests.conftest import ROOT
from tests.project.test_pictures import assert_fits_pages, assert_same_picture
from tools.gallery import PAGE, PICTURES, Step, draw, list_commands, list_steps

STEPS = list_steps()
DRAWN = [step for step in STEPS if step.is_picture]
COMMANDS = [step.text for step in STEPS if step.kind == "sh"]


def name_step(step: Step) -> str:
    return step.outputs[0]


def test_every_picture_has_a_command_and_is_on_the_page() -> None:
    names = [name for step in DRAWN for name in step.outputs]
    assert len(names) == len({*names}) > 10
    links = re.findall(r"!\[.+?\]\(gallery/(.*?)\)", PAGE.read_text(encoding="utf-8"))
    assert links == names
    assert sorted(path.name for path in PICTURES.iterdir()) == sorted(names)


@pytest.mark.parametrize("path", sorted(PICTURES.iterdir()), ids=lambda path: path.name)
def test_pictures_fit_light_and_dark_pages(path: Path) -> None:
    assert_fits_pages(path)


@pytest.mark.parametrize(
    "step", [step for step in DRAWN if not step.needs_preparation], ids=name_step
)
def test_pictures_of_models_that_ship_are_up_to_date(step: Step, tmp_path: Path) -> None:
    for name, path in draw(step, tmp_path).items():
        hint = f"docs/gallery/{name} is out of date: run python -m tools.gallery FOLDER"
        assert_same_picture(PICTURES / name, path.read_text(encoding="utf-8"), hint, 0.5)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_parsed(command: str) -> None:
    """Also those that read a model or data that a test does not have."""
    program, *arguments = shlex.split(command)
    if program == "python":
        assert arguments[0] == "-m"
        assert (ROOT / f"{arguments[1].replace('.', '/')}.py").is_file()
    elif arguments[0] == "train":
        flags = arguments[2:]
        place = flags.index("--run")
        read_recipe(find_recipe(arguments[1]), [*flags[:place], *flags[place + 2 :]])
    else:
        assert program == "qkv"
        app.parse_args(arguments, print_error=False, exit_on_error=False)


def test_commands_go_on_after_a_backslash() -> None:
    assert list_commands("qkv a \\\n    --b\n\nqkv c\n") == ["qkv a --b", "qkv c"]
