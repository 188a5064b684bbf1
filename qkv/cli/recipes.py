"""The command `recipes`, which lists the recipes of the package. Does not import torch."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from qkv.cli.console import print_rich
from qkv.cli.flags import JsonFlag
from qkv.recipes import find_recipe, list_recipes, read_about


def recipes(name: str | None = None, /, *, as_json: JsonFlag = False) -> None:
    """List the recipes of the package with measured results and times, or print one as TOML.

    qkv recipes shakespeare

    Parameters
    ----------
    name
        recipe to print; default: list all
    as_json
        print JSON
    """
    if name is not None:
        if as_json:
            raise ValueError(f"--json with {name}: a recipe is printed as TOML; remove --json")
        sys.stdout.write(find_recipe(name).read_text(encoding="utf-8"))
        return
    abouts = {name: read_about(find_recipe(name)) for name in list_recipes()}
    rows = [{"name": name, **asdict(about)} for name, about in abouts.items() if about is not None]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    print_recipe_list(rows)
    print("qkv recipes NAME   prints a recipe, with all that its data needs")
    print("qkv train NAME     trains it; a path to a recipe of your own works as well")


def print_recipe_list(rows: list[dict[str, str]]) -> None:
    """Print the name of each recipe, what it does, its data, and the measured result and time."""
    from rich.padding import Padding
    from rich.text import Text

    for row in rows:
        data = " ".join(row["data"].split("\n    ")[0].split()).removesuffix(":")
        lines = [row["description"], f"data: {data}"]
        if row["result"]:
            steps = f" ({row['run']})" if row["run"] else ""
            lines.append(f"measured: {row['result']}{steps}, in {row['time']} on {row['hardware']}")
        indented = (Padding(Text(line), (0, 0, 0, 2)) for line in lines)
        print_rich(Text(row["name"], "bold"), *indented, Text(""))
