"""Captions: a folder of images as records of a path and a text. Opens no image."""

import re
from collections.abc import Iterator
from pathlib import Path

from qkv.data.read import formats
from qkv.data.read.lines import PACKED, File
from qkv.data.read.record import Record, short

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
CAPTIONS = tuple(
    f"captions{end}{packed}" for end in (".txt", ".tsv", ".csv", ".jsonl") for packed in ("", *PACKED)
)


def images(folder: Path, column: str, encoding: str) -> Iterator[Record]:
    """Images with their captions: those of one file for the whole folder, or a .txt beside each image."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images; is the path right?")
    held = next((folder / name for name in CAPTIONS if (folder / name).exists()), None)
    if held is None:
        for image in sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES):
            text = image.with_suffix(".txt")
            if not text.exists():
                expected = f"{text.name} beside it, or all in one: captions.txt, .tsv, .csv or .jsonl"
                raise ValueError(f"{image}: no caption; expected {expected}")
            yield Record(
                {"image": str(image), "caption": File(str(text), encoding).text().strip()}, str(text)
            )
        return
    for record in _captions(File(str(held), encoding)):
        # Flickr numbers the captions of an image: 1000092795.jpg#0
        image = folder / re.sub(r"#\d+$", "", record.text(column))
        if not image.is_file():
            found = short(record[column])
            raise ValueError(f"{record.place}: {found} is not in {folder}; expected the name of an image")
        yield Record({**record, column: str(image)}, record.place)


def _captions(file: File) -> Iterator[Record]:
    match Path(file.path).name.split(".")[1]:
        case "jsonl":
            return formats.jsonl(file)
        case "csv":
            return formats.table(file, (), ",", quoted=True)
        case "tsv":
            return formats.table(file, (), "\t", quoted=False)
        case _:
            return formats.table(file, ("image", "caption"), "\t", quoted=False)
