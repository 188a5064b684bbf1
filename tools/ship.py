"""Export the model of a run as a built-in model: int8 weights, compact files and a model card.

    python tools/ship.py runs/builtin/last OUT --card translate.json --num-beams 5 --max-new-tokens 128 \\
        --unit sentence --language-detector german-english --restore-uppercase

OUT/model.safetensors, config.json   the weights as int8, and the config
OUT/tokenizer.json ...               the tokenizer, without whitespace in the JSON
OUT/generation_config.json           the generation settings of the flags
OUT/recipe.toml                      the recipe of the run
OUT/README.md                        the model card, from the JSON file and the model

The JSON file has the keys `title`, `purpose`, `data`, `license`, `attribution`, `command` and `date`, each a
text; `scores`, an object of texts by name; and `limits`, a list."""

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
from qkv.builtin.language import LANGUAGE_DETECTORS
from qkv.cli.folders import describe_model
from qkv.decode.config import add_do_sample
from qkv.decode.config_file import read_generation_config, write_generation_config
from qkv.staging import check_new_folder, write_folder
from qkv.text.files import read_tokenizer_json_object

TEXTS = ("title", "purpose", "data", "license", "attribution", "command", "date")
GENERATION_FLAGS = dict(
    num_beams=int, length_penalty=float, max_new_tokens=int, temperature=float, top_p=float, top_k=int
)  # fmt: skip
CARD = """\
# {title}

{purpose}

- Model: {model}, int8 weights, {size} MB
- Trained: {date}, with `{command}`; all settings are in `recipe.toml`
{defaults}
## Scores

{scores}

## Limits

{limits}

## Data and license

{data}

License of the data: {license}

{attribution}
"""
SAMPLE_TEXTS = [
    "Wo ist der Bahnhof?",
    "Where's the station? 42 – it's “there”.",
    "Ünïcode 東京 👍🏽",
]


def read_card(path: Path) -> dict[str, Any]:
    """Read the JSON file of a card; report all missing, unknown and empty entries at once."""
    entries = read_tokenizer_json_object(path)
    types: dict[str, type] = {**dict.fromkeys(TEXTS, str), "scores": dict, "limits": list}
    problems = [f"{name} is missing" for name in types if name not in entries]
    problems += [f"{name} is unknown" for name in entries if name not in types]
    problems += [
        f"{name} is {entries[name]!r}, expected a {type_.__name__} that is not empty"
        for name, type_ in types.items()
        if name in entries and not (isinstance(entries[name], type_) and entries[name])
    ]
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}")
    return entries


def format_card(
    entries: dict[str, Any], model: qkv.Model, generation_settings: dict[str, Any], size: int
) -> str:
    """Return the text of README.md; `size` is the size of the weights in bytes."""
    defaults = ", ".join(f"{name} {value}" for name, value in generation_settings.items())
    return CARD.format(
        **{name: entries[name] for name in TEXTS},
        model=describe_model(model),
        size=f"{size / 1e6:.1f}",
        defaults=f"- Defaults: {defaults}\n" if defaults else "",
        scores="\n".join(f"- {name}: {value}" for name, value in entries["scores"].items()),
        limits="\n".join(f"- {limit}" for limit in entries["limits"]),
    )


def compact_json(file: Path) -> None:
    """Rewrite a JSON file without whitespace."""
    data = json.dumps(json.loads(file.read_bytes()), ensure_ascii=False, separators=(",", ":"))
    file.write_text(data + "\n", encoding="utf-8")


def set_model_max_length(file: Path, data_table: dict[str, Any]) -> None:
    """Set the maximum length of the tokenizer to the maximum length of the training data."""
    if max_length := data_table.get("max_length"):
        config = {**read_tokenizer_json_object(file), "model_max_length": max_length}
        file.write_text(json.dumps(config), encoding="utf-8")


def merge_whitespace(file: Path) -> None:
    """Add a normalizer that replaces any run of whitespace by one space."""
    tokenizer = read_tokenizer_json_object(file)
    rule = {"type": "Replace", "pattern": {"Regex": "[\\s\ufeff]+"}, "content": " "}
    normalizer = tokenizer["normalizer"]
    if isinstance(normalizer, dict) and normalizer.get("normalizers", [])[:1] == [rule]:
        return  # of a built-in model that was trained further
    own_rules = [normalizer] if normalizer else []
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [rule, *own_rules]}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")


def set_label_names(model: qkv.Model, label_names: list[str]) -> None:
    num_labels = model.args.get("num_labels", 0)
    if len(label_names) != num_labels:
        raise ValueError(
            f"--labels {' '.join(label_names)}: got {len(label_names)}, expected {num_labels} names"
        )
    model.config["id2label"] = {str(i): name for i, name in enumerate(label_names)}
    model.config["label2id"] = {name: i for i, name in enumerate(label_names)}


def ship(
    run: Path,
    out: Path,
    card: dict[str, Any],
    generation_settings: dict[str, Any],
    labels: list[str] | None = None,
    unit: str | None = None,
    language_detector: str | None = None,
    restore_uppercase: bool = False,
) -> None:
    """Write the folder of a built-in model."""
    recipe = run.parent / "recipe.toml"
    if not recipe.is_file():
        raise ValueError(f"{recipe}: file not found; expected the model in the folder of its run")
    model = qkv.load(run)
    if model.tokenizer is None:
        raise ValueError(f"{run}: no tokenizer; expected its files next to the weights")
    if labels is not None:
        set_label_names(model, labels)
    params = {
        "unit": unit,
        "language_detector": language_detector,
        "restore_uppercase": restore_uppercase or None,
    }
    translation = {name: value for name, value in params.items() if value is not None}
    if translation:
        model.config["task_specific_params"] = {"translation": translation}
    if generation_settings:
        config = read_generation_config(model.generation_config, model.config)
        model.generation_config = write_generation_config(
            replace(config, **add_do_sample(generation_settings)), model.generation_config
        )
    with write_folder(out) as folder:
        model.save(folder, quantization="int8")
        data_table = tomllib.loads(recipe.read_text("utf-8")).get("data", {})
        set_model_max_length(folder / "tokenizer_config.json", data_table)
        if unit == "sentence":
            merge_whitespace(folder / "tokenizer.json")
        for file in folder.glob("*.json"):
            compact_json(file)
        shutil.copyfile(recipe, folder / "recipe.toml")
        size = (folder / "model.safetensors").stat().st_size
        text = format_card(card, model, generation_settings, size)
        (folder / "README.md").write_text(text, encoding="utf-8")
        check_tokenizer(model, folder)


def check_tokenizer(model: qkv.Model, folder: Path) -> None:
    """Check that the folder can be loaded, and that its tokenizer is unchanged."""
    loaded = qkv.load(folder)
    assert model.tokenizer is not None
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode_ids(SAMPLE_TEXTS) == model.tokenizer.encode_ids(SAMPLE_TEXTS)
    assert dict(loaded.tokenizer.languages) == dict(model.tokenizer.languages)


def print_files(out: Path) -> None:
    """Print the size of every file, and a warning for absolute paths in the text files."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    rows = [(str(path.relative_to(out)), path.stat().st_size) for path in files]
    for name, size in [*rows, ("total", sum(size for _, size in rows))]:
        print(f"{name:<28}{size:>12,}")
    for name in ("recipe.toml", "config.json", "README.md"):
        text = (out / name).read_text(encoding="utf-8")
        for path in re.findall(r"[\"'`( ](/[\w.-]+/[^\"'`) \n]+)", text):
            print(f"{name} contains the absolute path {path}: expected none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run", type=Path, help="model folder in the folder of a run: runs/builtin/last"
    )
    parser.add_argument("out", type=Path, help="output folder; must not exist")
    parser.add_argument("--card", type=Path, required=True, help="JSON file of the model card")
    parser.add_argument("--unit", choices=("line", "sentence"), help="unit of translation")
    parser.add_argument(
        "--language-detector", choices=[*LANGUAGE_DETECTORS], help="detector of the source language"
    )
    parser.add_argument(
        "--restore-uppercase",
        action="store_true",
        help="translate text in capital letters in lower case, and uppercase its translation",
    )
    parser.add_argument("--labels", nargs="+", help="label names of a classifier")
    for name, type_ in GENERATION_FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=type_, help="value in generation_config.json")
    options = parser.parse_args()
    values = {name: getattr(options, name) for name in GENERATION_FLAGS}
    generation_settings = {name: value for name, value in values.items() if value is not None}
    try:
        check_new_folder(options.out)
        ship(
            options.run,
            options.out,
            read_card(options.card),
            generation_settings,
            options.labels,
            options.unit,
            options.language_detector,
            options.restore_uppercase,
        )
    except (ValueError, OSError) as error:
        sys.exit(f"ship: {error}")
    print_files(options.out)


if __name__ == "__main__":
    main()
