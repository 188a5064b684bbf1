"""Small texts, made of a few words, for each of the small recipes: what there is to learn is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import torch

from qkv.model.build import build
from qkv.text import Tokenizer

COLOURS = "red blue green black white brown".split()
ANIMALS = "cat dog horse cow bird fish".split()
THINGS = "boat house tree stone river door".split()
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet", "has": "hat"}
WORTE = "rot blau gruen schwarz weiss braun katze hund pferd kuh vogel fisch boot haus baum stein fluss tuer"
GERMAN = dict(zip([*COLOURS, *ANIMALS, *THINGS], WORTE.split(), strict=True)) | VERBS | {"the": "das"}
OPENINGS = "first then later finally".split()


def sentence(dice: random.Random, animal: str | None = None) -> str:
    a, b = dice.choice(COLOURS), dice.choice(COLOURS)
    return f"the {a} {animal or dice.choice(ANIMALS)} {dice.choice([*VERBS])} the {b} {dice.choice(THINGS)}"


def document(dice: random.Random) -> str:
    """Sentences on one animal, in an order that their first words tell."""
    animal = dice.choice(ANIMALS)
    return "\n".join(f"{opening} {sentence(dice, animal)}." for opening in OPENINGS)


def german(text: str) -> str:
    return " ".join(GERMAN.get(word, word) for word in text.split())


def texts(folder: Path, dice: random.Random) -> Path:
    (folder / "train.txt").write_text("\n".join(f"{sentence(dice)}." for _ in range(400)) + "\n")
    return folder / "train.txt"


def documents(folder: Path, dice: random.Random) -> Path:
    (folder / "train.txt").write_text("\n\n".join(document(dice) for _ in range(150)) + "\n")
    return folder / "train.txt"


def table(folder: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    lines = [header.split(), *rows]
    (folder / "train.tsv").write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return folder / "train.tsv"


def objects(folder: Path, rows: list[dict[str, object]]) -> Path:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "train.jsonl"


def coded(folder: Path, dice: random.Random) -> Path:
    pets = [("Pets", f"my {dice.choice(ANIMALS)} likes me.") for _ in range(150)]
    ships = [("Ships", f"our {dice.choice(COLOURS)} boat sinks.") for _ in range(150)]
    return table(folder, "code text", [*pets, *ships])


def spoken(folder: Path, dice: random.Random) -> Path:
    lines = [sentence(dice) for _ in range(150)]
    return table(folder, "language text", [*(("en", x) for x in lines), *(("de", german(x)) for x in lines)])


def translated(folder: Path, dice: random.Random) -> Path:
    lines = [sentence(dice) for _ in range(300)]
    return table(folder, "source target", [(line, german(line)) for line in lines])


def squad(folder: Path, dice: random.Random) -> Path:
    """The colour of an animal is asked for; a tenth of the questions has no answer."""
    paragraphs = []
    for number in range(150):
        a, b = dice.sample(ANIMALS, 2)
        colours = dice.sample(COLOURS, 2)
        context = (
            f"the {a} is {colours[0]}. " + "it is here. " * dice.randrange(3) + f"the {b} is {colours[1]}."
        )
        asked, colour = dice.choice([(a, colours[0]), (b, colours[1])])
        answers = [{"text": colour, "answer_start": context.index(f"{asked} is {colour}") + len(asked) + 4}]
        if number % 10 == 0:
            asked, answers = dice.choice([x for x in ANIMALS if x not in (a, b)]), []
        question = {"id": str(number), "question": f"which colour has the {asked}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    (folder / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder / "train.json"


def summaries(folder: Path, dice: random.Random) -> Path:
    rows: list[dict[str, object]] = []
    for _ in range(200):
        animal = dice.choice(ANIMALS)
        rows.append(
            {"text": " ".join(sentence(dice, animal) + "." for _ in range(2)), "summary": f"about a {animal}"}
        )
    return objects(folder, rows)


def labelled(folder: Path, dice: random.Random) -> Path:
    lines = [sentence(dice) for _ in range(300)]
    return table(
        folder,
        "text label",
        [(line, "pet" if line.split()[2] in ("cat", "dog") else "other") for line in lines],
    )


def labels(folder: Path, dice: random.Random) -> Path:
    lines = [sentence(dice) for _ in range(300)]
    return objects(
        folder, [{"text": line, "label": [c for c in COLOURS if c in line.split()]} for line in lines]
    )


def scored(folder: Path, dice: random.Random) -> Path:
    """How many words of two texts are the same."""
    rows = [(sentence(dice), sentence(dice)) for _ in range(300)]
    return table(
        folder, "text pair label", [(a, b, 1.5 * ("red" in a) - 0.25 * ("cat" in b)) for a, b in rows]
    )


def tagged(folder: Path, dice: random.Random) -> Path:
    tag = {**dict.fromkeys(COLOURS, "COLOUR"), **dict.fromkeys(ANIMALS, "ANIMAL")}
    blocks = [
        "\n".join(f"{word} {tag.get(word, 'O')}" for word in sentence(dice).split()) for _ in range(300)
    ]
    (folder / "train.conll").write_text("\n\n".join(blocks) + "\n")
    return folder / "train.conll"


def chosen(folder: Path, dice: random.Random) -> Path:
    rows: list[dict[str, object]] = []
    for _ in range(200):
        colours = dice.sample(COLOURS, 3)
        label = dice.randrange(3)
        rows.append({
            "text": f"the {dice.choice(ANIMALS)} is {colours[label]}", "label": label,
            "choices": [f"it is {colour}" for colour in colours],
        })  # fmt: skip
    return objects(folder, rows)


def images(folder: Path, dice: random.Random) -> Path:
    from PIL import Image

    home = folder / "images"
    home.mkdir()
    lines = []
    for number in range(48):
        shade = tuple(dice.randrange(256) for _ in range(3))
        name = COLOURS[number % 3]
        colour = tuple(255 if c == number % 3 else shade[c] // 4 for c in range(3))
        size = (20 + 4 * dice.randrange(4), 24)
        Image.new("RGB", size, colour).save(home / f"{number}.png")
        lines.append(f"{number}.png\ta {name} picture")
    (home / "captions.txt").write_text("\n".join(lines) + "\n")
    return home


def taught(folder: Path, dice: random.Random) -> Path:
    """Documents, and beside them a teacher that has an opinion."""
    path = documents(folder, dice)
    reader(path, folder / "teacher")
    return path


def adapted(folder: Path, dice: random.Random) -> Path:
    """Labelled texts, and beside them a model that has read no label yet."""
    path = labelled(folder, dice)
    reader(path, folder / "base")
    return path


def reader(path: Path, home: Path) -> None:
    """A small BERT that knows the words of a file."""
    tokenizer = Tokenizer.train([path.read_text()], kind="wordpiece", vocab=200, purpose="bert")
    torch.manual_seed(0)
    model = build(
        "bert",
        width=64,
        depth=2,
        heads=2,
        feed=128,
        length=64,
        vocab=len(tokenizer),
        std=0.15,
        drop=0.0,
        attend_drop=0.0,
        head="masked-lm",
    )
    model.tokenizer = tokenizer
    model.save(home)


MAKERS: dict[str, Callable[[Path, random.Random], Path]] = {
    "causal-lm": texts, "recurrence": texts, "span-corruption": texts, "experts": texts,
    "masked-lm": documents, "permutation-lm": documents, "next-sentence": documents,
    "sentence-order": documents,
    "replaced-token": documents, "denoising": documents, "distillation": taught, "control-codes": coded,
    "multilingual-denoising": spoken, "seq2seq": translated, "sentence-vectors": translated,
    "generative-answers": squad, "span": squad, "summaries": summaries, "label": labelled, "labels": labels,
    "regression": scored, "tag": tagged, "choice": chosen, "image-text": images, "lora": adapted,
}  # fmt: skip


def write(name: str, folder: Path) -> list[str]:
    """Writes the data of a small recipe; returns the flags that name it."""
    flags = ["--data.train", str(MAKERS[name](folder, random.Random(0)))]
    beside = {"distillation": ("--objective.teacher", "teacher"), "lora": ("--model.load", "base")}
    flag, home = beside.get(name, ("", ""))
    return [*flags, flag, str(folder / home)] if flag else flags
