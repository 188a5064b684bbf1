"""Image captions: a folder of images as records of an image path and a caption."""

import re
from collections.abc import Iterator
from pathlib import Path

from qkv.data.read import formats
from qkv.data.read.lines import COMPRESSION_OPENERS, TextFile
from qkv.data.read.record import Record
from qkv.validate import shorten_repr

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
CAPTION_FILES = tuple(
    f"captions{suffix}{compression}"
    for suffix in (".txt", ".tsv", ".csv", ".jsonl")
    for compression in ("", *COMPRESSION_OPENERS)
)


def read_image_captions(folder: Path, image_column: str, encoding: str) -> Iterator[Record]:
    """Read images with captions, from one captions file or from one .txt file per image."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images; is the path right?")
    candidates = (folder / name for name in CAPTION_FILES)
    captions_path = next((path for path in candidates if path.exists()), None)
    if captions_path is None:
        yield from _read_caption_of_each_image(folder, encoding)
        return
    for record in _read_captions(TextFile(str(captions_path), encoding)):
        # Flickr numbers the captions of an image: 1000092795.jpg#0
        image = folder / re.sub(r"#\d+$", "", record.get_text(image_column))
        if not image.is_file():
            name = shorten_repr(record[image_column])
            raise ValueError(
                f"{record.location}: {name} is not in {folder}; expected the name of an image"
            )
        yield Record({**record, image_column: str(image)}, record.location)


def _read_caption_of_each_image(folder: Path, encoding: str) -> Iterator[Record]:
    for image in sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES
    ):
        caption = image.with_suffix(".txt")
        if not caption.exists():
            raise ValueError(
                f"{image}: no caption; expected {caption.name} in the same folder, "
                "or one file for all images: captions.txt, .tsv, .csv or .jsonl"
            )
        text = TextFile(str(caption), encoding).read_text().strip()
        yield Record({"image": str(image), "caption": text}, str(caption))


def _read_captions(file: TextFile) -> Iterator[Record]:
    match Path(file.path).name.split(".")[1]:
        case "jsonl":
            return formats.read_jsonl(file)
        case "csv":
            return formats.read_delimited_table(file, (), None, has_quotes=True)
        case "tsv":
            return formats.read_delimited_table(file, (), "\t", has_quotes=False)
        case _:
            return formats.read_delimited_table(file, ("image", "caption"), "\t", has_quotes=False)
