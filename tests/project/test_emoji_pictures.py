"""The pictures of emoji: no variant of a name of the test data is in the training data."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tools import emoji_pictures

TONES = ("1F3FB", "1F3FF")
# Names and code points; the entries of a line are variants of one base name.
VARIANTS = """
    MAN COOK 1F468-200D-1F373 | WOMAN COOK 1F469-200D-1F373 | COOK 1F9D1-200D-1F373
    WOMAN RUNNING 1F3C3-200D-2640-FE0F | RUNNER 1F3C3 | MAN RUNNING FACING RIGHT 1F3C3-200D-2642-200D-27A1
    MAN: RED HAIR 1F468-200D-1F9B0 | WOMAN 1F469 | PERSON: BALD 1F9D1-200D-1F9B2 | BEARDED PERSON 1F9D4
    FAMILY 1F46A | FAMILY: MAN, WOMAN, BOY 1F468-200D-1F469-200D-1F466 | FAMILY: ADULT, CHILD 1F9D1-200D-1F9D2
    KISS 1F48F | KISS: WOMAN, MAN 1F469-200D-2764-FE0F-200D-1F48B-200D-1F468
    TWO MEN HOLDING HANDS 1F46C | PEOPLE HOLDING HANDS 1F9D1-200D-1F91D-200D-1F9D1
    FATHER CHRISTMAS 1F385 | MX CLAUS 1F9D1-200D-1F384 | MOTHER CHRISTMAS 1F936
    PRINCE 1F934 | PRINCESS 1F478 | PERSON WITH CROWN 1FAC5
    GUARDSMAN 1F482 | WOMAN GUARD 1F482-200D-2640-FE0F
    MENS SYMBOL 1F6B9 | WOMENS SYMBOL 1F6BA
    LEFT-FACING FIST 1F91B | RIGHT-FACING FIST 1F91C
    LEFTWARDS BLACK ARROW 2B05-FE0F | UPWARDS BLACK ARROW 2B06-FE0F | NORTH EAST ARROW 2197-FE0F
    HEAVY CHECK MARK 2714-FE0F | WHITE HEAVY CHECK MARK 2705
    SQUARED CJK UNIFIED IDEOGRAPH-7121 1F21A | SQUARED CJK UNIFIED IDEOGRAPH-7981 1F232
"""
OTHERS = [f"Country {i} Flag 1F1E6-{0x1F1E6 + i:X}" for i in range(60)] + [
    "KISS MARK 1F48B", "SNOWMAN 2603-FE0F", "KEYCAP 1 0031-FE0F-20E3", "KEYCAP 2 0032-FE0F-20E3",
    "CLOCK FACE ONE OCLOCK 1F550", "CLOCK FACE TWO OCLOCK 1F551", "FEMALE SIGN 2640-FE0F",
    "BLACK RIGHTWARDS ARROW 27A1-FE0F", "HEAVY BLACK HEART 2764-FE0F", "BLACK HEART 1F5A4",
    "CHRISTMAS TREE 1F384",
]  # fmt: skip


def create_entry(line: str) -> dict[str, Any]:
    name, codes = line.strip().rsplit(" ", 1)
    entry = {"name": name, "unified": codes, "image": f"{codes.lower()}.png"}
    variations = {tone: {"image": f"{codes.lower()}-{tone.lower()}.png"} for tone in TONES}
    is_person = codes.startswith(("1F46", "1F9D1", "1F3C3"))
    return entry | {
        "category": "People & Body" if is_person else "Symbols",
        "subcategory": "country-flag" if name.endswith("Flag") else "other",
        "skin_variations": variations if is_person else {},
    }


LINES = [line.split("|") for line in VARIANTS.strip().splitlines()]
ENTRIES = [create_entry(line) for line in (*(part for line in LINES for part in line), *OTHERS)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emoji")
    (folder / "emoji.json").write_text(json.dumps(ENTRIES))
    rng = np.random.default_rng(0)
    glyphs: dict[str, Any] = {}
    for entry in ENTRIES:
        # The last ten flags are drawn like the first ten.
        key = re.sub(r"Country 5(\d)", r"Country \1", entry["name"])
        glyph = glyphs.setdefault(key, rng.integers(0, 256, (8, 8, 4), np.uint8))
        images = [entry["image"], *(tone["image"] for tone in entry["skin_variations"].values())]
        for style in emoji_pictures.STYLES:
            (folder / "img" / style / "64").mkdir(parents=True, exist_ok=True)
            for image in images:
                picture = Image.fromarray(glyph).resize((64, 64), Image.Resampling.NEAREST)
                picture.save(folder / "img" / style / "64" / image)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["emoji_pictures.py", str(folder), str(folder / "out")])
        patch.setattr(emoji_pictures, "HELD_OUT", {"test": 30, "validation": 20})
        emoji_pictures.main()
    return folder / "out"


def read_split(out: Path, split: str) -> dict[str, str]:
    """Return the caption of every image, without the style."""
    header, *lines = (out / split / "captions.tsv").read_text().splitlines()
    assert header == "image\tcaption"
    images = [line.split("\t")[0] for line in lines]
    assert {*images} == {path.name for path in (out / split).glob("*.png")}
    return {line.split("\t")[0].split("-", 1)[1]: line.split("\t")[1] for line in lines}


def test_variants_of_a_name_are_in_one_split(out: Path) -> None:
    splits = {split: read_split(out, split) for split in ("train", "validation", "test")}
    assert min(map(len, splits.values())) > 5
    split_of = {image: split for split, images in splits.items() for image in images}
    assert len(split_of) == sum(map(len, splits.values()))  # both styles of an image are in one
    for line in LINES:
        images = [create_entry(part)["image"] for part in line]
        assert len({split_of[image] for image in images}) == 1, line
    assert not {*splits["train"].values()} & {*splits["test"].values()}
    for entry in ENTRIES:
        for tone in entry["skin_variations"].values():  # only training data has skin tones
            split = split_of[entry["image"]]
            assert split_of.get(tone["image"]) == ("train" if split == "train" else None)


def test_the_same_glyph_is_in_one_split(out: Path) -> None:
    images = [{*read_split(out, split)} for split in ("train", "validation", "test")]
    flags = [create_entry(line)["image"] for line in OTHERS[:60]]
    for first, last in zip(flags[:10], flags[50:], strict=True):
        assert any({first, last} <= split for split in images), (first, last)


def test_base_names_do_not_join_everything() -> None:
    emoji = emoji_pictures.read_emoji(ENTRIES)
    base_names = dict(
        zip((e.caption for e in emoji), emoji_pictures.find_base_names(emoji), strict=True)
    )
    assert len({*base_names.values()}) == len(LINES) + len(OTHERS) - 1  # one more arrow
    for first, second in (
        ("kiss", "kiss mark"), ("clock face one o'clock", "clock face two o'clock"),
        ("keycap 1", "keycap 2"), ("red heart", "black heart"), ("snowman", "man with red hair"),
        ("arrow", "female sign"), ("father christmas", "christmas tree"),
    ):  # fmt: skip
        second = next(c for c in base_names if c.endswith(second))
        first = next(c for c in base_names if c.endswith(first))
        assert base_names[first] != base_names[second]


@pytest.mark.parametrize(
    ("name", "codes", "caption"),
    [
        ("Åland Islands Flag", "1F1E6-1F1FD", "aland islands flag"),
        ("BLACK SUN WITH RAYS", "2600-FE0F", "sun with rays"),
        ("BLACK LARGE SQUARE", "2B1B", "black large square"),
        ("BLACK CAT", "1F408-200D-2B1B", "black cat"),
        ("RESCUE WORKER’S HELMET", "26D1-FE0F", "rescue worker's helmet"),
        ("NEGATIVE SQUARED LATIN CAPITAL LETTER A", "1F170-FE0F", "squared letter a"),
        ("MAN: BLOND HAIR", "1F471-200D-2642-FE0F", "man with blond hair"),
        ("KEYCAP: *", "002A-FE0F-20E3", "keycap *"),
        ("WOMANS HAT", "1F452", "woman's hat"),
    ],
)
def test_names_become_captions(name: str, codes: str, caption: str) -> None:
    assert emoji_pictures.clean_name(name, codes) == caption


def test_transparent_pixels_are_white(tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 4), np.uint8)
    pixels[:32] = (255, 0, 0, 255)
    Image.fromarray(pixels).save(tmp_path / "half.png")
    picture = np.asarray(emoji_pictures.read_picture(tmp_path / "half.png", 32))
    assert picture.shape == (32, 32, 3)
    assert (picture[:16] == (255, 0, 0)).all()
    assert (picture[16:] == 255).all()
