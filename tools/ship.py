"""Makes a model of a run into one that comes with the package: small files, and a card that says what it is.

    python tools/ship.py runs/builtin/last OUT --card translate.json --beam 5 --max-new 128 --by sentence

OUT/model.safetensors, config.json   the weights as int8, and what they are the weights of
OUT/tokenizer.json ...               the tokenizer, without blanks between its pieces
OUT/generation_config.json           how it searches, as the flags say
OUT/recipe.toml                      the recipe of the run, as it is
OUT/README.md                        the card: what the JSON file says, and what the model says of itself

The JSON file holds `title`, `purpose`, `data`, `licence`, `attribution`, `command` and `date`, each a text;
`scores`, an object of them by name; and `limits`, a list."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import qkv
from qkv.cli.folders import check_new, described, whole
from qkv.decode.generation_config import read_how, write_how
from qkv.text.files import read_json

TEXTS = ("title", "purpose", "data", "licence", "attribution", "command", "date")
SEARCH = dict(
    beams=int, length_penalty=float, max_new=int, temperature=float, top_p=float, top_k=int
)  # fmt: skip
CARD = """\
# {title}

{purpose}

- Model: {model}, int8 weights, {size} MB
- Made: {date}, with `{command}`; all settings are in its files
{search}
## Scores

{scores}

## Limits

{limits}

## Data and licence

{data}

Licence of the data: {licence}

{attribution}
"""


def read_card(path: Path) -> dict[str, Any]:
    """What is said of the model, all of it there and nothing else."""
    found = read_json(path)
    kinds: dict[str, type] = {**dict.fromkeys(TEXTS, str), "scores": dict, "limits": list}
    wrong = [f"{name} is missing" for name in kinds if name not in found]
    wrong += [f"{name} is unknown" for name in found if name not in kinds]
    wrong += [
        f"{name} is {found[name]!r}, expected a {kind.__name__} that says something"
        for name, kind in kinds.items()
        if name in found and not (isinstance(found[name], kind) and found[name])
    ]
    if wrong:
        raise ValueError(f"{path}: {'; '.join(wrong)}")
    return found


def card(said: dict[str, Any], model: qkv.Model, search: dict[str, Any], size: int) -> str:
    how = ", ".join(f"{name} {value}" for name, value in search.items())
    return CARD.format(
        **{name: said[name] for name in TEXTS}, model=described(model), size=f"{size / 1e6:.1f}",
        search=f"- Unless told otherwise: {how}\n" if how else "",
        scores="\n".join(f"- {name}: {value}" for name, value in said["scores"].items()),
        limits="\n".join(f"- {one}" for one in said["limits"]),
    )  # fmt: skip


def compact(file: Path) -> None:
    """The same JSON without blanks."""
    data = json.dumps(json.loads(file.read_bytes()), ensure_ascii=False, separators=(",", ":"))
    file.write_text(data + "\n", encoding="utf-8")


def limit(file: Path, data: dict[str, Any]) -> None:
    """No text may be longer than those that the model learnt from."""
    if length := data.get("length"):
        file.write_text(json.dumps({**read_json(file), "model_max_length": length}), encoding="utf-8")


def one_blank(file: Path) -> None:
    """Tabs, blanks in a row and the like are read as one blank, as they were in single sentences."""
    found = read_json(file)
    rules = [{"type": "Replace", "pattern": {"Regex": "[\\s\ufeff]+"}, "content": " "}]
    own = [found["normalizer"]] if found["normalizer"] else []
    found["normalizer"] = {"type": "Sequence", "normalizers": rules + own}
    file.write_text(json.dumps(found), encoding="utf-8")


def ship(
    run: Path, out: Path, said: dict[str, Any], search: dict[str, Any], labels: list[str] | None = None,
    by: str | None = None,
) -> None:  # fmt: skip
    recipe = run.parent / "recipe.toml"
    if not recipe.is_file():
        raise ValueError(f"{recipe}: no such file; expected the model in the folder of its run")
    model = qkv.load(run)
    if model.tokenizer is None:
        raise ValueError(f"{run}: no tokenizer; expected its files beside the weights")
    if labels is not None:
        if len(labels) != model.args.get("labels", 0):
            raise ValueError(f"--labels {' '.join(labels)}: expected {model.args.get('labels', 0)} of them")
        model.config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        model.config["label2id"] = {label: i for i, label in enumerate(labels)}
    if by is not None:
        model.config["task_specific_params"] = {"translation": {"by": by}}
    if search:
        how = read_how(model.generation, model.config)
        drawn = bool(search.keys() & {"temperature", "top_p", "top_k"})
        wanted: dict[str, Any] = {"sample": how.sample or drawn, **search}
        model.generation = write_how(replace(how, **wanted), model.generation)
    with whole(out) as folder:
        model.save(folder, weights="int8")
        limit(folder / "tokenizer_config.json", tomllib.loads(recipe.read_text("utf-8")).get("data", {}))
        if by == "sentence":
            one_blank(folder / "tokenizer.json")
        for file in folder.glob("*.json"):
            compact(file)
        shutil.copyfile(recipe, folder / "recipe.toml")
        text = card(said, model, search, (folder / "model.safetensors").stat().st_size)
        (folder / "README.md").write_text(text, encoding="utf-8")
        check(model, folder)


def check(model: qkv.Model, folder: Path) -> None:
    """It opens, and its tokenizer says what it said."""
    again = qkv.load(folder)
    assert model.tokenizer is not None
    assert again.tokenizer is not None
    texts = ["Wo ist der Bahnhof?", "Where's the station? 42 – it's “there”.", "Ünïcode 東京 👍🏽"]
    assert again.tokenizer.encode_ids(texts) == model.tokenizer.encode_ids(texts)
    assert dict(again.tokenizer.languages) == dict(model.tokenizer.languages)


def tell(out: Path) -> None:
    """The bytes of every file, and paths of this machine that are in them."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    rows = [(str(path.relative_to(out)), path.stat().st_size) for path in files]
    for name, size in [*rows, ("total", sum(size for _, size in rows))]:
        print(f"{name:<28}{size:>12,}")
    for name in ("recipe.toml", "config.json", "README.md"):
        for path in re.findall(r"[\"'`( ](/[\w.-]+/[^\"'`) \n]+)", (out / name).read_text(encoding="utf-8")):
            print(f"{name} names {path}: a path of this machine?")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a model in that of its run: runs/builtin/last")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--card", type=Path, required=True, help="a JSON file, as above")
    parser.add_argument(
        "--by", choices=("line", "sentence"), help="what a model that translates reads at once"
    )
    parser.add_argument("--labels", nargs="+", help="names of the labels of a model that classifies")
    for name, kind in SEARCH.items():
        flag = "beam" if name == "beams" else name.replace("_", "-")
        parser.add_argument(f"--{flag}", dest=name, type=kind, help="for generation_config.json")
    given = parser.parse_args()
    search = {name: getattr(given, name) for name in SEARCH if getattr(given, name) is not None}
    try:
        check_new(given.out)
        ship(given.run, given.out, read_card(given.card), search, given.labels, given.by)
    except (ValueError, OSError) as error:
        sys.exit(f"ship: {error}")
    tell(given.out)


if __name__ == "__main__":
    main()
