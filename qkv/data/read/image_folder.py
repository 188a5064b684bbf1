"""Folders of images, as records of an image path and a caption or a label.

Captions or labels are in one table for all images (captions.tsv, labels.csv, ...), a caption in one .txt
file per image. In a folder without either, the label of an image is the name of its subfolder."""

import re
from collections.abc import Iterator
from pathlib import Path

from qkv.data.read import formats
from qkv.data.read.lines import COMPRESSION_OPENERS, TextFile
from qkv.data.read.record import Record
from qkv.validate import shorten_repr

IMAGE_SUFFIXES = tuple(".jpg .jpeg .png .webp .gif .bmp .tif .tiff .ppm .pgm .avif".split())
TABLE_FILES = {  # file: its columns, if it has no header
    f"{name}{suffix}{compression}": ("image", column)
    for name, column in (("captions", "caption"), ("labels", "label"))
    for suffix in (".txt", ".tsv", ".csv", ".jsonl")
    for compression in ("", *COMPRESSION_OPENERS)
}


def read_image_folder(folder: Path, image_column: str, encoding: str) -> Iterator[Record]:
    """Read images with captions or labels."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images; is the path right?")
    candidates = (folder / name for name in TABLE_FILES)
    table_path = next((path for path in candidates if path.exists()), None)
    if table_path is None:
        images = sorted(path for path in folder.rglob("*") if is_image_name(path))
        are_labeled = all(image.parent != folder for image in images)
        if are_labeled and not any(image.with_suffix(".txt").exists() for image in images[:1]):
            yield from _read_label_of_each_folder(folder, images)
        else:
            yield from _read_caption_of_each_image(images, encoding)
        return
    for record in _read_table(TextFile(str(table_path), encoding)):
        # Flickr numbers the captions of an image: 1000092795.jpg#0
        image = folder / re.sub(r"#\d+$", "", record.get_text(image_column))
        if not image.is_file():
            name = shorten_repr(record[image_column])
            raise ValueError(
                f"{record.location}: {name} is not in {folder}; expected the name of an image"
            )
        yield Record({**record, image_column: str(image)}, record.location)


def is_image_name(path: Path) -> bool:
    """Return whether a file has the suffix of an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def _read_label_of_each_folder(folder: Path, images: list[Path]) -> Iterator[Record]:
    """Read a folder with one subfolder per label, as torchvision's ImageFolder."""
    for image in images:
        label = image.relative_to(folder).parts[0]
        yield Record({"image": str(image), "label": label}, str(image))


def _read_caption_of_each_image(images: list[Path], encoding: str) -> Iterator[Record]:
    for image in images:
        caption = image.with_suffix(".txt")
        if not caption.exists():
            raise ValueError(
                f"{image}: no caption; expected {caption.name} in the same folder, one file for all "
                "images (captions.tsv or labels.tsv; .txt, .csv, .jsonl), or a subfolder for each label"
            )
        text = TextFile(str(caption), encoding).read_text().strip()
        yield Record({"image": str(image), "caption": text}, str(caption))


def _read_table(file: TextFile) -> Iterator[Record]:
    match Path(file.path).name.split(".")[1]:
        case "jsonl":
            return formats.read_jsonl(file)
        case "csv":
            return formats.read_delimited_table(file, (), None, has_quotes=True)
        case "tsv":
            return formats.read_delimited_table(file, (), "\t", has_quotes=False)
        case _:
            columns = TABLE_FILES[Path(file.path).name]
            return formats.read_delimited_table(file, columns, "\t", has_quotes=False)
