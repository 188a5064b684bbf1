"""Small synthetic datasets for the small recipes; what a model can learn from them is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from qkv.data.read.clips import write_clips
from qkv.model.build import build
from qkv.text import Tokenizer

COLORS = "red blue green black white brown".split()
ANIMALS = "cat dog horse cow bird fish".split()
OBJECTS = "boat house tree stone river door".split()
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet", "has": "hat"}
GERMAN_NOUNS = "rot blau gruen schwarz weiss braun katze hund pferd kuh vogel fisch"
GERMAN_NOUNS += " boot haus baum stein fluss tuer"
GERMAN = (
    dict(zip([*COLORS, *ANIMALS, *OBJECTS], GERMAN_NOUNS.split(), strict=True))
    | VERBS
    | {"the": "das"}
)
OPENINGS = "first then later finally".split()


def make_sentence(rng: random.Random, animal: str | None = None) -> str:
    """Return a sentence such as "the red cat sees the blue boat"."""
    color_a = rng.choice(COLORS)
    color_b = rng.choice(COLORS)
    subject = f"the {color_a} {animal or rng.choice(ANIMALS)}"
    return f"{subject} {rng.choice([*VERBS])} the {color_b} {rng.choice(OBJECTS)}"


def make_document(rng: random.Random) -> str:
    """Return sentences about one animal, whose first words tell their order."""
    animal = rng.choice(ANIMALS)
    return "\n".join(f"{opening} {make_sentence(rng, animal)}." for opening in OPENINGS)


def translate(text: str) -> str:
    """Translate a sentence into German, word by word."""
    return " ".join(GERMAN.get(word, word) for word in text.split())


def write_tsv(folder: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    path = folder / "train.tsv"
    lines = [header.split(), *rows]
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return path


def write_jsonl(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_texts(folder: Path, rng: random.Random) -> Path:
    path = folder / "train.txt"
    path.write_text("\n".join(f"{make_sentence(rng)}." for _ in range(400)) + "\n")
    return path


def write_documents(folder: Path, rng: random.Random) -> Path:
    path = folder / "train.txt"
    path.write_text("\n\n".join(make_document(rng) for _ in range(150)) + "\n")
    return path


def write_control_codes(folder: Path, rng: random.Random) -> Path:
    pets = [("Pets", f"my {rng.choice(ANIMALS)} likes me.") for _ in range(150)]
    ships = [("Ships", f"our {rng.choice(COLORS)} boat sinks.") for _ in range(150)]
    return write_tsv(folder, "code text", [*pets, *ships])


def write_languages(folder: Path, rng: random.Random) -> Path:
    lines = [make_sentence(rng) for _ in range(150)]
    english = [("en", line) for line in lines]
    german = [("de", translate(line)) for line in lines]
    return write_tsv(folder, "language text", [*english, *german])


def write_translations(folder: Path, rng: random.Random) -> Path:
    lines = [make_sentence(rng) for _ in range(300)]
    return write_tsv(folder, "source target", [(line, translate(line)) for line in lines])


def write_squad(folder: Path, rng: random.Random) -> Path:
    """Write questions for the color of an animal; a tenth of them have no answer."""
    paragraphs = []
    for number in range(150):
        a, b = rng.sample(ANIMALS, 2)
        color_a, color_b = rng.sample(COLORS, 2)
        context = (
            f"the {a} is {color_a}. " + "it is here. " * rng.randrange(3) + f"the {b} is {color_b}."
        )
        animal, color = rng.choice([(a, color_a), (b, color_b)])
        start = context.index(f"{animal} is {color}") + len(animal) + 4
        answers = [{"text": color, "answer_start": start}]
        if number % 10 == 0:
            animal = rng.choice([other for other in ANIMALS if other not in (a, b)])
            answers = []
        question = {
            "id": str(number),
            "question": f"which color has the {animal}?",
            "answers": answers,
        }
        paragraphs.append({"context": context, "qas": [question]})
    path = folder / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def write_summaries(folder: Path, rng: random.Random) -> Path:
    rows: list[dict[str, object]] = []
    for _ in range(200):
        animal = rng.choice(ANIMALS)
        text = " ".join(make_sentence(rng, animal) + "." for _ in range(2))
        rows.append({"text": text, "summary": f"about a {animal}"})
    return write_jsonl(folder, rows)


def write_labeled_texts(folder: Path, rng: random.Random) -> Path:
    """Write texts labeled by their animal."""
    lines = [make_sentence(rng) for _ in range(300)]
    rows = [(line, "pet" if line.split()[2] in ("cat", "dog") else "other") for line in lines]
    return write_tsv(folder, "text label", [*rows])


def write_multi_labeled_texts(folder: Path, rng: random.Random) -> Path:
    """Write texts labeled by their colors."""
    lines = [make_sentence(rng) for _ in range(300)]
    return write_jsonl(
        folder,
        [
            {"text": line, "label": [color for color in COLORS if color in line.split()]}
            for line in lines
        ],
    )


def write_scored_pairs(folder: Path, rng: random.Random) -> Path:
    """Write pairs of texts with a number that depends on a word of each."""
    pairs = [(make_sentence(rng), make_sentence(rng)) for _ in range(300)]
    rows = [(a, b, 1.5 * ("red" in a) - 0.25 * ("cat" in b)) for a, b in pairs]
    return write_tsv(folder, "text pair label", [*rows])


def write_tagged_words(folder: Path, rng: random.Random) -> Path:
    tags = {**dict.fromkeys(COLORS, "COLOR"), **dict.fromkeys(ANIMALS, "ANIMAL")}
    blocks = [
        "\n".join(f"{word} {tags.get(word, 'O')}" for word in make_sentence(rng).split())
        for _ in range(300)
    ]
    path = folder / "train.conll"
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def write_choices(folder: Path, rng: random.Random) -> Path:
    rows: list[dict[str, object]] = []
    for _ in range(200):
        colors = rng.sample(COLORS, 3)
        label = rng.randrange(3)
        text = f"the {rng.choice(ANIMALS)} is {colors[label]}"
        choices = [f"it is {color}" for color in colors]
        rows.append({"text": text, "label": label, "choices": choices})
    return write_jsonl(folder, rows)


def write_images(folder: Path, rng: random.Random) -> Path:
    """Write images in shades of three colors, with the color's name as caption."""
    from PIL import Image

    path = folder / "images"
    path.mkdir()
    lines = []
    for number in range(48):
        channel = number % 3
        shade = tuple(rng.randrange(256) for _ in range(3))
        color = tuple(255 if i == channel else shade[i] // 4 for i in range(3))
        size = (20 + 4 * rng.randrange(4), 24)
        Image.new("RGB", size, color).save(path / f"{number}.png")
        lines.append(f"{number}.png\ta {COLORS[channel]} picture")
    (path / "captions.txt").write_text("\n".join(lines) + "\n")
    return path


def write_labeled_images(folder: Path, rng: random.Random) -> Path:
    """Write images in shades of three colors, in a subfolder for each color."""
    from PIL import Image

    path = folder / "images"
    for number in range(48):
        channel = number % 3
        shade = tuple(rng.randrange(256) for _ in range(3))
        color = tuple(255 if i == channel else shade[i] // 4 for i in range(3))
        (path / COLORS[channel]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 24), color).save(path / COLORS[channel] / f"{number}.png")
    return path


def write_labeled_clips(folder: Path, rng: random.Random) -> Path:
    """Write clips of a bright square that is on the left or on the right; each frame has its side."""
    frames = np.zeros((32, 6, 12, 12), np.uint8)
    labels = np.empty((32, 6), "U5")
    for number, t in np.ndindex(32, 6):
        is_left = rng.random() < 0.5
        top, left = rng.randrange(8), 1 if is_left else 7
        frames[number, t, top : top + 4, left : left + 4] = 200 + rng.randrange(50)
        labels[number, t] = "left" if is_left else "right"
    path = folder / "clips.npz"
    write_clips(path, frames, labels)
    return path


def write_documents_and_teacher(folder: Path, rng: random.Random) -> Path:
    """Write documents, and a teacher model with their vocabulary."""
    path = write_documents(folder, rng)
    write_model(path, folder / "teacher")
    return path


def write_labeled_texts_and_base(folder: Path, rng: random.Random) -> Path:
    """Write labeled texts, and a base model with their vocabulary that has seen no label."""
    path = write_labeled_texts(folder, rng)
    write_model(path, folder / "base")
    return path


def write_model(path: Path, folder: Path) -> None:
    """Write a small random BERT with a tokenizer trained on a file."""
    tokenizer = Tokenizer.train(
        [path.read_text()], type="wordpiece", vocab_size=200, template="bert"
    )
    torch.manual_seed(0)
    model = build(
        "bert",
        width=64,
        depth=2,
        heads=2,
        ffn_width=128,
        max_positions=64,
        vocab_size=len(tokenizer),
        init_std=0.15,
        dropout=0.0,
        attention_dropout=0.0,
        head="masked-lm",
    )
    model.tokenizer = tokenizer
    model.save(folder)


# By the name of the recipe in qkv/recipes/small.
WRITERS: dict[str, Callable[[Path, random.Random], Path]] = {
    "bahdanau":                      write_translations,
    "causal-lm":                     write_texts,
    "control-code-lm":               write_control_codes,
    "denoising":                     write_documents,
    "distillation":                  write_documents_and_teacher,
    "frame-classification":          write_labeled_clips,
    "generative-question-answering": write_squad,
    "image-captioning":              write_images,
    "image-classification":          write_labeled_images,
    "image-text-contrastive":        write_images,
    "text-to-image":                 write_images,
    "lora":                          write_labeled_texts_and_base,
    "lstm-seq2seq":                  write_translations,
    "lstmn":                         write_translations,
    "luong":                         write_translations,
    "masked-lm":                     write_documents,
    "mixture-of-experts":            write_texts,
    "multi-label-classification":    write_multi_labeled_texts,
    "multilingual-denoising":        write_languages,
    "multiple-choice":               write_choices,
    "next-sentence-prediction":      write_documents,
    "permutation-lm":                write_documents,
    "question-answering":            write_squad,
    "regression":                    write_scored_pairs,
    "replaced-token-detection":      write_documents,
    "rnn-encoder-decoder":           write_translations,
    "segment-recurrent-lm":          write_texts,
    "sentence-contrastive":          write_translations,
    "sentence-order-prediction":     write_documents,
    "seq2seq":                       write_translations,
    "sequence-autoencoder":          write_texts,
    "sequence-classification":       write_labeled_texts,
    "span-corruption":               write_texts,
    "summarization":                 write_summaries,
    "token-classification":          write_tagged_words,
}  # fmt: skip


def write_data(name: str, folder: Path) -> list[str]:
    """Write the data of a small recipe, and return the flags that name it."""
    flags = ["--data.train", str(WRITERS[name](folder, random.Random(0)))]
    if name == "distillation":
        flags += ["--objective.teacher", str(folder / "teacher")]
    if name == "lora":
        flags += ["--model.load", str(folder / "base")]
    return flags
