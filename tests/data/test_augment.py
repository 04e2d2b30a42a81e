from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data import Augment
from sfumato.errors import UserError

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "crop": st.integers(0, 4),
        "padding_mode": st.sampled_from(["reflect", "zeros"]),
        "flip": st.booleans(),
        "vertical_flip": st.booleans(),
        "rot90": st.booleans(),
        "rotate": st.floats(0, 180),
        "cutout": st.integers(0, 6),
        "brightness": st.floats(0, 1),
        "contrast": st.floats(0, 1),
        "saturation": st.floats(0, 1),
    },
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(SETTINGS, st.integers(0, 9), st.sampled_from([1, 3]), st.integers(5, 17), st.data())
def test_slices_equal_the_whole_bit_for_bit(options, n, channels, side, data):
    augment = Augment(**options)
    images = torch.rand(n, channels, side, side, generator=seeded(1))
    parameters = augment.draw(n, seeded(data.draw(st.integers(0, 1000))))
    whole = augment.apply(images, parameters)
    cut = data.draw(st.integers(0, n))
    pieces = [augment.apply(images[a:b], parameters[a:b]) for a, b in ((0, cut), (cut, n))]
    assert whole.shape == images.shape
    assert torch.equal(torch.cat(pieces), whole)
    one_by_one = [augment.apply(images[k : k + 1], parameters[k : k + 1]) for k in range(n)]
    assert torch.equal(torch.cat([*one_by_one, images[:0]]), whole)


@settings(max_examples=20, deadline=None)
@given(SETTINGS, st.integers(0, 2**31))
def test_the_generator_alone_decides(options, seed):
    augment = Augment(**options)
    images = torch.rand(6, 3, 8, 8, generator=seeded(1))
    first = augment.apply(images, augment.draw(6, seeded(seed)))
    assert torch.equal(first, augment.apply(images, augment.draw(6, seeded(seed))))


def test_nothing_is_done_by_default():
    images = torch.rand(4, 3, 8, 8)
    assert not Augment() and not Augment(padding_mode="zeros") and Augment(flip=True)
    assert torch.equal(Augment().apply(images, Augment().draw(4, seeded())), images)


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
def test_crop_equals_padding_and_slicing(mode):
    augment = Augment(crop=3, padding_mode=mode)
    images = torch.rand(50, 2, 7, 9)
    parameters = augment.draw(50, seeded())
    found = augment.apply(images, parameters)
    torch_mode = {"reflect": "reflect", "zeros": "constant"}[mode]
    padded = torch.nn.functional.pad(images, (3, 3, 3, 3), mode=torch_mode)
    for k, (down, right) in enumerate((parameters.shift + 3).tolist()):
        assert torch.equal(found[k], padded[k, :, down : down + 7, right : right + 9])
    shifts = augment.draw(4000, seeded()).shift
    assert [*shifts.unique().tolist()] == [-3, -2, -1, 0, 1, 2, 3]
    assert torch.bincount(shifts[:, 0] + 3).min() > 4000 / 7 * 0.8


def test_flips_and_turns_equal_torch():
    images = torch.rand(64, 3, 6, 6)
    for name, axis in (("flip", 3), ("vertical_flip", 2)):
        augment = Augment(**{name: True})
        parameters = augment.draw(64, seeded())
        chosen = getattr(parameters, name)
        assert 10 < int(chosen.sum()) < 54
        expected = torch.where(chosen.view(-1, 1, 1, 1), images.flip(axis), images)
        assert torch.equal(augment.apply(images, parameters), expected)
    augment = Augment(rot90=True)
    parameters = augment.draw(64, seeded())
    assert set(parameters.turns.tolist()) == {0, 1, 2, 3}
    found = augment.apply(images, parameters)
    for k, turns in enumerate(parameters.turns.tolist()):
        assert torch.equal(found[k], images[k].rot90(turns, (1, 2)))


def test_rotation_by_a_right_angle_is_a_quarter_turn():
    augment = Augment(rotate=90)
    parameters = augment.draw(1, seeded())
    parameters.rotation.copy_(torch.tensor([[0.0, 1.0]]))
    image = torch.rand(1, 3, 8, 8)
    found = augment.apply(image, parameters)
    turned = [image.rot90(k, (2, 3)) for k in (1, 3)]
    assert any(torch.allclose(found, other, atol=1e-5) for other in turned)
    angles = augment.draw(2000, seeded()).rotation
    assert torch.allclose(angles.square().sum(1), torch.ones(2000))
    assert angles[:, 0].min() >= -1e-6 and angles[:, 1].min() < -0.9 and angles[:, 1].max() > 0.9


def test_cutout_blanks_one_square():
    augment = Augment(cutout=3)
    images = torch.ones(200, 1, 9, 9)
    blank = augment.apply(images, augment.draw(200, seeded())) == 0
    counts = blank.flatten(1).sum(1)
    assert int(counts.max()) == 9 and int(counts.min()) == 4  # whole, and clipped in a corner
    assert blank.any(0).all()


def test_colour_changes_stay_in_range_and_do_what_they_say():
    images = torch.rand(5, 3, 4, 4)
    for name in ("brightness", "contrast", "saturation"):
        augment = Augment(**{name: 0.5})
        parameters = augment.draw(5, seeded())
        factor = getattr(parameters, name).view(-1, 1, 1, 1)
        assert 0.5 <= float(factor.min()) < float(factor.max()) <= 1.5
        found = augment.apply(images, parameters)
        weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        centre = {"brightness": 0.0, "contrast": 0.5}.get(name, (images * weights).sum(1, True))
        expected = (centre + (images - centre) * factor).clamp(0, 1)
        assert torch.allclose(found, expected, atol=1e-6)
    grey = torch.rand(5, 1, 4, 4)
    augment = Augment(saturation=1.0)
    assert torch.equal(augment.apply(grey, augment.draw(5, seeded())), grey)


def test_bytes_can_be_moved_but_not_coloured():
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    augment = Augment(crop=2, flip=True, rot90=True, cutout=2)
    parameters = augment.draw(4, seeded())
    found = augment.apply(images, parameters)
    assert found.dtype == torch.uint8
    assert torch.equal(found.float(), augment.apply(images.float(), parameters))
    augment = Augment(brightness=0.1)
    with pytest.raises(ValueError, match="floats"):
        augment.apply(images, augment.draw(4, seeded()))


def test_nan_stays_in_its_own_image():
    images = torch.rand(3, 3, 8, 8)
    images[1] = float("nan")
    augment = Augment(crop=2, flip=True, rotate=20, brightness=0.2, contrast=0.2, saturation=0.2)
    found = augment.apply(images, augment.draw(3, seeded()))
    assert found[[0, 2]].isfinite().all() and found[1].isnan().any()


def test_the_graph_is_free_of_breaks():
    augment = Augment(crop=2, flip=True, vertical_flip=True, rot90=True, rotate=10, cutout=3)
    images = torch.rand(4, 3, 8, 8)
    parameters = augment.draw(4, seeded())
    compiled = torch.compile(augment.apply, backend="eager", fullgraph=True)
    assert torch.equal(compiled(images, parameters), augment.apply(images, parameters))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding_mode": "reflekt"}, "Did you mean 'reflect'"),
        ({"crop": -1}, "crop = -1"),
        ({"cutout": 1.5}, "cutout = 1.5"),
        ({"rotate": 200}, "rotate = 200"),
        ({"contrast": 1.5}, "contrast = 1.5"),
    ],
)
def test_impossible_settings_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Augment(**options)


def test_settings_that_do_not_fit_the_images_are_refused():
    for augment, words in (
        (Augment(crop=8), "at most 7 pixels"),
        (Augment(rot90=True), "square"),
    ):
        with pytest.raises(UserError, match=words):
            augment.apply(torch.rand(1, 1, 8, 9), augment.draw(1, seeded()))
    with pytest.raises(ValueError, match="2 parameters were drawn for 1 images"):
        Augment().apply(torch.rand(1, 1, 8, 8), Augment().draw(2, seeded()))
