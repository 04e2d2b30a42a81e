"""What is expected of a number of images: the measured points, and between them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sfumato.recipes.measured import (
    CIFAR10,
    FASHION,
    MEASURED,
    better_last_layer,
    expected_accuracy,
    interpolated,
)

PAGE = Path(__file__).parents[2] / "docs" / "initialisation.md"


@pytest.mark.parametrize(("recipe", "data", "epsilon"), list(MEASURED))
def test_measured_points_are_those_of_the_page(recipe: str, data: str, epsilon: float) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for images, accuracy in MEASURED[recipe, data, epsilon].items():
        number = f"{100 * accuracy:.1f} %"
        if recipe == "images" and data == CIFAR10:
            row = f"| {images:,} | {epsilon:g} |".replace(",", " ")
        elif recipe == "images":
            row = f"| {images} images of {data}, whole network | {epsilon:g} |"
        else:
            row = f"| {images} images of {data} | {epsilon:g} |"
        line = next(line for line in page.splitlines() if line.startswith(row))
        assert number in line


def test_between_points_the_curve_is_linear_in_the_logarithm() -> None:
    curve = {1000: 0.3, 4000: 0.5, 16_000: 0.6}
    assert [interpolated(curve, n) for n in curve] == list(curve.values())
    assert interpolated(curve, 2000) == pytest.approx(0.4)
    assert interpolated(curve, 8000) == pytest.approx(0.55)


def test_a_curve_ends_where_nothing_was_measured() -> None:
    few = expected_accuracy("images", 92, 8.0, grey=False)
    assert few is not None
    assert (few.accuracy, few.images, few.epsilon, few.data) == (0.428, 1000, 8.0, CIFAR10)
    assert "expect less with 92" in few.words and "no promise" in few.words
    many = expected_accuracy("images", 60_000, 5.0, grey=False)
    assert many is not None and (many.accuracy, many.epsilon) == (0.711, 3.0)
    assert "20,000" in many.words and "expect more" in many.words
    within = expected_accuracy("images", 20_000, 3.0, grey=False)
    assert within is not None and "71 % at 20,000" in within.words and "expect" not in within.words


def test_grey_images_have_the_curve_of_grey_images() -> None:
    grey = expected_accuracy("wavelets", 1000, 1.0, grey=True)
    assert grey is not None and (grey.data, grey.accuracy, grey.epsilon) == (FASHION, 0.758, 3.0)
    whole = expected_accuracy("images", 1000, 3.0, grey=True)
    assert whole is not None and (whole.data, whole.accuracy) == (FASHION, 0.639)
    assert expected_accuracy("from-scratch", 1000, 3.0, grey=True) is None
    assert math.isclose(sum(MEASURED["images", CIFAR10, 3.0].values()), 1.586)


@pytest.mark.parametrize(
    ("examples", "epsilon", "grey", "last"),
    [
        (92, 3.0, False, True),
        (1000, 8.0, False, True),
        (5000, 3.0, False, True),
        (5000, 8.0, False, True),
        (9469, 3.0, False, True),
        (9469, 7.0, False, False),  # Ahead at epsilon 3, behind at 8.
        (9469, 8.0, False, False),
        (20_000, 3.0, False, False),
        (20_001, 1.0, False, False),
        (3882, 3.0, True, True),
        (10_000, 8.0, True, True),
        (10_001, 3.0, True, False),
    ],
)
def test_a_last_layer_is_better_with_few_examples(
    examples: int, epsilon: float, grey: bool, last: bool
) -> None:
    assert better_last_layer(examples, epsilon, grey=grey) == last


@pytest.mark.parametrize(
    ("row", "data", "images"),
    [
        ("1000 photographs (CIFAR-10)", CIFAR10, 1000),
        ("5000 photographs", CIFAR10, 5000),
        ("1000 images of clothes (Fashion-MNIST)", FASHION, 1000),
        ("4000 images of clothes", FASHION, 4000),
    ],
)
def test_the_table_of_the_readme_has_the_measured_points(row: str, data: str, images: int) -> None:
    lines = (PAGE.parents[1] / "README.md").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"| {row} |")]
    [head] = [line for line in lines if line.startswith("| training images |")]
    columns = [cell.strip(" `") for cell in head.strip("|").split("|")[1:]]
    said = [cell.strip(" %") for cell in line.strip("|").split("|")[1:]]
    for column, cell in zip(columns, said, strict=True):
        name = "images" if column == "whole network" else column
        if cell == "–":
            assert (name, data, 3.0) not in MEASURED
        else:
            assert abs(float(cell) - 100 * MEASURED[name, data, 3.0][images]) <= 0.51
