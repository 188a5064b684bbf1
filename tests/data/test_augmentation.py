"""Augmentation of images: each change alone, on pictures whose result is known."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.data.noise.augmentation import NUM_RANDOM_NUMBERS, ImageAugmentation

WHITE = 255


def make_dots(count: int = 3, size: int = 17) -> np.ndarray:
    """Return white pictures with a black dot of 3 × 3 pixels in the center."""
    pixels = np.full((count, size, size, 3), WHITE, np.uint8)
    middle = size // 2
    pixels[:, middle - 1 : middle + 2, middle - 1 : middle + 2] = 0
    return pixels


def make_numbers(**columns: float) -> np.ndarray:
    """Return numbers that change nothing, with other ones in named columns."""
    indices = {
        "zoom": 0,
        "down": 1,
        "right": 2,
        "red": 3,
        "brightness": 6,
        "contrast": 7,
        "erase": 8,
    }
    numbers = np.full((3, NUM_RANDOM_NUMBERS), 0.5, np.float32)
    for name, value in columns.items():
        numbers[:, indices[name]] = value
    return numbers


def find_center(pixels: np.ndarray) -> tuple[float, float]:
    """Return the row and column of the center of what is not white."""
    ink = WHITE - pixels.mean(-1)
    rows, columns = np.indices(ink.shape)
    return float((rows * ink).sum() / ink.sum()), float((columns * ink).sum() / ink.sum())


def test_no_change_by_default_or_with_the_middle_of_every_range() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 12, 9, 3), np.uint8)
    numbers = rng.random((5, NUM_RANDOM_NUMBERS), np.float32)
    assert (ImageAugmentation()(pixels, numbers) == pixels).all()
    augmentation = ImageAugmentation(translate=0.3, scale=0.4, color_jitter=0.5, erase_prob=0.4)
    unchanged = np.full_like(numbers, 0.5)
    assert (augmentation(pixels, unchanged) == pixels).all()


@pytest.mark.parametrize(("number", "shift"), [(0.0, -0.25), (1.0, 0.25), (0.75, 0.125)])
def test_translation_moves_the_picture_on_its_background(number: float, shift: float) -> None:
    augmentation = ImageAugmentation(translate=0.25)
    moved = augmentation(make_dots(), make_numbers(down=number))
    assert find_center(moved[0]) == pytest.approx((8 + 17 * shift, 8), abs=0.1)
    moved = augmentation(make_dots(), make_numbers(right=number))
    assert find_center(moved[0]) == pytest.approx((8, 8 + 17 * shift), abs=0.1)
    assert (moved[:, [0, -1]] == WHITE).all()


def test_scaling_changes_the_size_about_the_center() -> None:
    augmentation = ImageAugmentation(scale=0.69)
    areas = [
        float((WHITE - augmentation(make_dots(), make_numbers(zoom=number))[0].astype(float)).sum())
        for number in (0.0, 0.5, 1.0)
    ]
    assert areas[0] < 0.5 * areas[1] < areas[1] < 0.5 * areas[2]
    larger = augmentation(make_dots(), make_numbers(zoom=1.0))
    assert find_center(larger[0]) == pytest.approx((8, 8), abs=0.01)


def test_colors() -> None:
    gray = np.full((3, 8, 8, 3), 100, np.uint8)
    augmentation = ImageAugmentation(color_jitter=0.2)
    assert (augmentation(gray, make_numbers(red=1.0))[0, 0, 0] == (120, 100, 100)).all()
    assert (augmentation(gray, make_numbers(brightness=0.0)) == 80).all()
    pair = gray.copy()
    pair[:, :4] = 50
    low = augmentation(pair, make_numbers(contrast=0.0))
    assert (low[:, :4] == 55).all()
    assert (low[:, 4:] == 95).all()


def test_a_rectangle_is_erased_with_its_probability() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.random((400, NUM_RANDOM_NUMBERS), np.float32)
    pixels = np.zeros((400, 20, 20, 3), np.uint8)
    erased = (ImageAugmentation(erase_prob=0.3)(pixels, numbers) != pixels).any(-1)  # (B, H, W)
    is_erased = erased.any((1, 2))
    assert 0.2 < is_erased.mean() < 0.4
    for picture in erased[is_erased]:
        rows, columns = np.nonzero(picture)
        sides = (np.ptp(rows) + 1, np.ptp(columns) + 1)
        assert sides[0] * sides[1] == picture.sum()
        assert all(1 <= side <= 10 for side in sides)


@pytest.mark.parametrize(
    "settings",
    [dict(translate=-0.1), dict(scale=2.0), dict(color_jitter=float("nan")), dict(erase_prob=1.1)],
)
def test_bad_settings_are_errors(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(ValueError, match=rf"objective\.{name} is .*: expected a number"):
        ImageAugmentation(**settings)
