from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.split import independent, stratified
from sfumato.errors import UserError

LABELS = st.lists(st.integers(0, 4), max_size=120)
FRACTIONS = st.floats(0, 0.99)
SEEDS = st.integers(0, 2**40)


@given(LABELS, FRACTIONS, SEEDS)
def test_parts_are_disjoint_complete_and_stratified(labels, fraction, seed):
    y = np.array(labels, dtype=np.int64)
    rest, part = stratified(y, fraction, seed=seed, purpose="test")
    assert sorted([*rest, *part]) == list(range(len(y)))
    for label in set(labels):
        whole, taken = np.sum(y == label), np.sum(y[part] == label)
        assert taken <= whole - 1
        assert abs(taken - fraction * whole) <= 0.5 + 1e-9 or taken == whole - 1


@given(LABELS, FRACTIONS, SEEDS)
def test_at_least_one_where_a_class_can_spare_it(labels, fraction, seed):
    y = np.array(labels, dtype=np.int64)
    _, part = stratified(y, fraction, seed=seed, purpose="test", at_least=1)
    for label in set(labels):
        assert np.sum(y[part] == label) >= min(1, labels.count(label) - 1)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), FRACTIONS, SEEDS, st.data())
def test_leaving_one_example_out_moves_at_most_one_other(labels, fraction, seed, data):
    gone = data.draw(st.integers(0, len(labels) - 1))
    ids = [f"image-{k}" for k in range(len(labels))]

    def sides(keep):
        y = np.array([labels[k] for k in keep], dtype=np.int64)
        names = [ids[k] for k in keep]
        _, part = stratified(y, fraction, seed=seed, purpose="test", ids=names, at_least=1)
        return {names[k] for k in part}

    everyone = list(range(len(labels)))
    others = [k for k in everyone if k != gone]
    moved = (sides(everyone) ^ sides(others)) - {ids[gone]}
    assert len(moved) <= 1
    assert all(labels[int(name.removeprefix("image-"))] == labels[gone] for name in moved)


def test_split_depends_on_seed_and_purpose_only():
    y = np.repeat(np.arange(10), 50)
    first = stratified(y, 0.2, seed=0, purpose="test")[1].tolist()
    assert first == stratified(y, 0.2, seed=0, purpose="test")[1].tolist()
    assert first != stratified(y, 0.2, seed=1, purpose="test")[1].tolist()
    assert first != stratified(y, 0.2, seed=0, purpose="validation")[1].tolist()
    assert first[:5] == [5, 6, 10, 11, 12]  # the same on every machine and version


def test_negative_seed_is_refused():
    with pytest.raises(UserError, match="split_seed = -1"):
        stratified(np.zeros(3), 0.5, seed=-1, purpose="test")


@given(st.lists(st.binary(min_size=1, max_size=3), max_size=60), FRACTIONS, SEEDS)
def test_independent_parts_are_disjoint_and_complete(ids, fraction, seed):
    rest, part = independent(ids, fraction, seed=seed, purpose="test")
    assert sorted([*rest, *part]) == list(range(len(ids)))
    sides = {ids[k] for k in rest} & {ids[k] for k in part}
    assert not sides, "copies lie on one side"


@settings(max_examples=25)
@given(st.lists(st.text(max_size=3), min_size=1, max_size=60), FRACTIONS, SEEDS, st.data())
def test_no_example_depends_on_another(ids, fraction, seed, data):
    gone = data.draw(st.integers(0, len(ids) - 1))
    fewer = [*ids[:gone], *ids[gone + 1 :]]
    part = [ids[k] for k in independent(ids, fraction, seed=seed, purpose="test")[1] if k != gone]
    assert part == [fewer[k] for k in independent(fewer, fraction, seed=seed, purpose="test")[1]]


def test_independent_part_has_the_expected_size():
    ids = [f"image-{k}" for k in range(20_000)]
    for fraction in (0.05, 0.2, 0.9):
        count = len(independent(ids, fraction, seed=0, purpose="test")[1])
        assert abs(count - fraction * 20_000) < 4 * (20_000 * fraction * (1 - fraction)) ** 0.5
    assert len(independent(ids, 0.0, seed=0, purpose="test")[1]) == 0
    first = independent(ids, 0.2, seed=0, purpose="test")[1][:5].tolist()
    assert first == [1, 10, 13, 16, 23]  # the same on every machine and version
    assert first != independent(ids, 0.2, seed=1, purpose="test")[1][:5].tolist()
    both = set(first) & set(independent(ids, 0.2, seed=0, purpose="validation")[1].tolist())
    assert len(both) < 5, "another purpose chooses others"
