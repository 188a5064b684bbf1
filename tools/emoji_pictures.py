"""Pictures and names of emoji, for captioning, CLIP and drawing, from the files of emoji-datasource.

    python tools/emoji_pictures.py EMOJI OUT [--size 32] [--compress-level 0]

EMOJI contains emoji.json and img/STYLE/64/*.png. The output:

OUT/{train,validation,test}/*.png           pictures on white, drawn by google and by twitter
OUT/{train,validation,test}/captions.tsv    image, caption
OUT/names.tsv                               caption, base_name, group, split

The split is by base name: pictures of one base name are in one part. Emoji have the same base name if they
differ only in skin tone, gender, hair or direction ("woman running facing right" and "runner"), if they are
families or couples, if they have the same caption, or if one style draws them alike (the flags of Norway and
Bouvet Island). Only the training data contains skin tones; captions do not mention them.

A caption is the name of emoji.json in lower case, without accents and punctuation. The words "black", "white"
and "heavy" are removed where they mean the style of a printed symbol and not a color."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

STYLES = ("google", "twitter")
HELD_OUT = {"test": 10, "validation": 10}  # percent of the base names
ALIKE = 7.0  # root mean square of the difference between two pictures, of 255 levels
CAPTIONS = {
    "heavy black heart": "red heart",
    "black universal recycling symbol": "recycling symbol",
    "hash key": "keycap #",
    "playing card black joker": "joker playing card",
}
# Printed symbols are black (filled) or white (outlined); shapes of these names have that color.
FIRST_PICTOGRAPH = 0x1F000
COLORED_SHAPE = re.compile(r"\b(square|circle|flag|heart$)")
# Code points of variants: joiners, skin tones, signs of gender, hair, direction.
VARIANT_CODES = re.compile(r"\b(200D|FE0F|1F3F[B-F]|2640|2642|1F9B[0-3]|27A1)\b")
PERSON_CODES = re.compile(r"\b(1F468|1F469|1F9D1)\b")  # man, woman, person
GENDER_WORDS = re.compile(
    r"\b(?:(?:wo)?m[ae]n(?:'?s)?|(?:fe)?male|persons?|people|adults?|father|mother|boys?|girls?|child)\b"
)
DIRECTION_WORDS = re.compile(
    r"\b(?:(?:left|right|up|down)(?:wards)?|(?:north|south) (?:east|west)|(?:anti)?clockwise)"
    r"(?:-?(?:pointing|facing)\b|\b)"
)
# Base names that neither code points nor words give.
BASE_NAMES = {
    "mx claus": "christmas",
    "princess": "prince",
    "person with crown": "prince",
    "man dancing": "dancer",
    "standing": "person",
}


@dataclass(frozen=True)
class Emoji:
    """One entry of emoji.json."""

    caption: str
    codes: str  # code points, joined with -
    group: str
    images: tuple[str, ...]  # file names: the default picture, then one per skin tone
    obsoletes: tuple[str, ...] = ()  # code points of other entries for the same emoji


def read_emoji(entries: Iterable[dict[str, Any]]) -> list[Emoji]:
    """Return the emoji of emoji.json, without the swatches of skin tones."""
    emoji = []
    for entry in entries:
        if entry["category"] == "Component":
            continue
        tones = entry.get("skin_variations") or {}
        images = [tone["image"] for code, tone in tones.items() if "-" not in code]
        links = (entry.get("obsoletes"), entry.get("obsoleted_by"))
        emoji.append(
            Emoji(
                caption=clean_name(entry["name"], entry["unified"]),
                codes=entry["unified"],
                group=choose_group(entry["category"], entry["subcategory"]),
                images=(entry["image"], *images),
                obsoletes=tuple(code for code in links if code),
            )
        )
    return emoji


def clean_name(name: str, codes: str) -> str:
    """Return the caption for a name of emoji.json."""
    letters = unicodedata.normalize("NFKD", name.replace("’", "'"))
    text = "".join(letter for letter in letters if not unicodedata.combining(letter)).lower()
    if text in CAPTIONS:
        return CAPTIONS[text]
    text = re.sub(r"ideograph-[0-9a-f]{4}\b", "ideograph", text)
    text = re.sub(r"\b(negative squared|squared)\b", "squared", text)
    text = re.sub(r"\b(latin capital|cjk unified)\b", "", text)
    text = re.sub(r"\b((?:wo)?m[ae]n)s\b", r"\1's", text).replace("oclock", "o'clock")
    text = re.sub(r"\b(man|woman|person): ", r"\1 with ", text).replace("&", "and")
    is_printed_symbol = int(codes.split("-")[0], 16) < FIRST_PICTOGRAPH or "pointing" in text
    if is_printed_symbol and not COLORED_SHAPE.search(text):
        text = re.sub(r"\b(black|white|heavy)\b", "", text)
    return " ".join(re.sub(r"[^a-z0-9'#* -]", " ", text).split())


def choose_group(category: str, subcategory: str) -> str:
    """Return the group that results are reported for."""
    if subcategory in ("country-flag", "subdivision-flag"):
        return "country flags"
    if subcategory.startswith(("face-", "cat-face")):
        return "faces"
    if subcategory == "time":
        return "clocks"
    return category.lower()


def get_base_name(caption: str) -> str:
    """Return the caption without words of gender, hair and direction; families are one base name."""
    if caption.startswith(("family", "couple with heart", "kiss ")) and caption != "kiss mark":
        return caption.split()[0]
    if "holding hands" in caption:
        return "holding hands"
    text = DIRECTION_WORDS.sub(" ", re.sub(r" facing right$", "", caption))
    text = re.sub(r" with ((red|curly|white|blond) hair|bald|beard)$", "", text)
    text = re.sub(r"^bearded ", "", text)
    text = " ".join(GENDER_WORDS.sub(" ", text).split()) or "person"
    return BASE_NAMES.get(caption, BASE_NAMES.get(text, text))


def get_base_codes(codes: str) -> str:
    """Return the code points without those of variants; man, woman and person are one code point."""
    base = VARIANT_CODES.sub("", PERSON_CODES.sub("1F9D1", codes))
    return "-".join(code for code in base.split("-") if code) or codes


def find_base_names(emoji: list[Emoji], alike: Iterable[tuple[int, int]] = ()) -> list[str]:
    """Return the base name of every emoji; `alike` are pairs of indices with the same picture."""
    parents = list(range(len(emoji)))

    def find(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    def join(a: int, b: int) -> None:
        parents[find(a)] = find(b)

    first_with: dict[tuple[str, str], int] = {}
    for index, item in enumerate(emoji):
        keys = [("name", get_base_name(item.caption)), ("codes", get_base_codes(item.codes))]
        keys += [("codes", get_base_codes(codes)) for codes in item.obsoletes]
        for key in keys:
            join(index, first_with.setdefault(key, index))
    for a, b in alike:
        join(a, b)
    members: dict[int, list[str]] = {}
    for index, item in enumerate(emoji):
        members.setdefault(find(index), []).append(get_base_name(item.caption))
    return [min(members[find(index)]) for index in range(len(emoji))]


def choose_split(base_name: str) -> str:
    """Return train, validation or test, by a hash of the base name."""
    percent = int.from_bytes(hashlib.sha256(base_name.encode()).digest()[:8]) % 10_000 / 100
    for split, share in HELD_OUT.items():
        if percent < share:
            return split
        percent -= share
    return "train"


def read_picture(path: Path, size: int) -> Image.Image:
    """Return a picture with its transparent background on white."""
    with Image.open(path) as image:
        picture = image.convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    rgb = white.convert("RGB")
    return rgb if rgb.size == (size, size) else rgb.resize((size, size), Image.Resampling.BOX)


def find_alike(pictures: dict[int, NDArray[np.uint8]]) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices whose pictures are the same up to `ALIKE`."""
    indices = list(pictures)
    pixels = np.stack([pictures[index].ravel() for index in indices]).astype(np.float64)
    squares = (pixels**2).sum(1)
    distances = squares[:, None] + squares[None, :] - 2 * pixels @ pixels.T  # (N, N)
    is_alike = distances < ALIKE**2 * pixels.shape[1]
    for a, b in zip(*np.nonzero(np.triu(is_alike, 1)), strict=True):
        yield indices[int(a)], indices[int(b)]


def write_pictures(folder: Path, out: Path, size: int, compress_level: int) -> dict[str, int]:
    """Write the pictures, captions and names; return the number of pictures of every part."""
    emoji = read_emoji(json.loads((folder / "emoji.json").read_text("utf-8")))
    alike: list[tuple[int, int]] = []
    for style in STYLES:
        paths = {i: folder / "img" / style / "64" / item.images[0] for i, item in enumerate(emoji)}
        pictures = {i: np.asarray(read_picture(p, 32)) for i, p in paths.items() if p.exists()}
        alike += find_alike(pictures)
    base_names = find_base_names(emoji, alike)
    captions: dict[str, list[str]] = {split: [] for split in ("train", *HELD_OUT)}
    for split in captions:
        (out / split).mkdir(parents=True, exist_ok=True)
    names = {}
    for item, base_name in zip(emoji, base_names, strict=True):
        split = choose_split(base_name)
        images = item.images if split == "train" else item.images[:1]
        for style in STYLES:
            for image in images:
                path = folder / "img" / style / "64" / image
                if not path.exists():
                    continue
                name = f"{style}-{image}"
                read_picture(path, size).save(out / split / name, compress_level=compress_level)
                captions[split].append(f"{name}\t{item.caption}\n")
                names[item.caption] = f"{item.caption}\t{base_name}\t{item.group}\t{split}\n"
    for split, lines in captions.items():
        text = "image\tcaption\n" + "".join(lines)
        (out / split / "captions.tsv").write_text(text, encoding="utf-8")
    header = "caption\tbase_name\tgroup\tsplit\n"
    (out / "names.tsv").write_text(header + "".join(names.values()), encoding="utf-8")
    return {split: len(lines) for split, lines in captions.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write pictures and names of emoji.")
    parser.add_argument("emoji", type=Path, help="folder with emoji.json and img/")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--size", type=int, default=32, choices=(32, 64), help="pixels per side")
    parser.add_argument("--compress-level", type=int, default=6, help="of the PNG files, 0 to 9")
    args = parser.parse_args()
    counts = write_pictures(args.emoji, args.out, args.size, args.compress_level)
    print(f"{args.out}: " + ", ".join(f"{count:,} {split}" for split, count in counts.items()))


if __name__ == "__main__":
    main()
