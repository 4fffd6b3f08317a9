"""The label rules are written out here as task_adaptation computes them, with numpy."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.transfer.vtab_tasks import (
    PAPER,
    TASKS,
    clevr_count,
    clevr_distance,
    dsprites_orientation,
    dsprites_x,
    kitti_distance,
    paper_accuracies,
    select_tasks,
)


def test_the_groups_are_the_papers():
    assert Counter(task.group for task in TASKS.values()) == {"natural": 7, "specialized": 4, "structured": 8}


@pytest.mark.parametrize(("model", "mean"), [("H/14 JFT", 77.6), ("L/16 JFT", 76.3), ("L/16 i21k", 72.7)])
def test_table_9_has_the_mean_that_the_paper_states(model, mean):
    scores = paper_accuracies(model)
    assert list(scores) == list(TASKS)
    assert round(100 * sum(scores.values()) / 19, 1) == mean


def test_names_and_groups_in_the_order_of_the_table():
    assert select_tasks(()) == list(TASKS)
    assert select_tasks(("dmlab", "specialized", "cifar100")) == [
        "cifar100", "camelyon", "eurosat", "resisc45", "retinopathy", "dmlab",
    ]  # fmt: skip


def test_a_name_that_is_no_task():
    with pytest.raises(ConfigError, match=r"'cifar10' \(did you mean cifar100\?\); tasks: caltech101"):
        select_tasks(("cifar10",))


def test_a_model_that_is_not_in_table_9():
    with pytest.raises(ConfigError, match=f"no 'B/16'; it has: {', '.join(PAPER)}"):
        paper_accuracies("B/16")


depths = st.floats(0.125, 99.0, width=32)


def by_thresholds(distance, thresholds):
    """The largest index at which threshold - distance < 0."""
    return int(np.flatnonzero(np.array(thresholds) - distance < 0).max())


def scene(depths, kinds=None):
    return {
        "pixel_coords": [[5.0, 6.0, z] for z in depths],
        "location": [[-3.0, 1.0, z] for z in depths],
        "type": [0] * len(depths) if kinds is None else kinds,
    }


def as_records(objects):
    return [dict(zip(objects, values, strict=True)) for values in zip(*objects.values(), strict=True)]


@pytest.mark.parametrize(("n", "label"), [(3, 0), (4, 1), (10, 7)])
def test_clevr_counts_from_three(n, label):
    assert clevr_count(scene([9.0] * n)) == clevr_count(as_records(scene([9.0] * n))) == label


@given(st.lists(depths, min_size=3, max_size=10))
def test_clevr_distance(z):
    wanted = by_thresholds(min(z), [0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0])
    assert clevr_distance(scene(z)) == clevr_distance(as_records(scene(z))) == wanted
    assert 0 <= wanted < 6


@pytest.mark.parametrize(
    ("z", "label"),
    [(7.9, 0), (8.0, 0), (8.01, 1), (8.5, 1), (8.6, 2), (9.1, 3), (9.6, 4), (10.0, 4), (11.0, 5)],
)
def test_clevr_distance_at_its_thresholds(z, label):
    assert clevr_distance(scene([z, 50.0, 60.0])) == label


@given(st.lists(st.tuples(st.floats(-5, 120, width=32), st.integers(0, 7)), max_size=8))
def test_kitti_distance(objects):
    z, kinds = [o[0] for o in objects], [o[1] for o in objects]
    closest = min([*(d for d, kind in objects if kind < 3), 1000.0])
    wanted = by_thresholds(closest, [-100.0, 8.0, 20.0, 999.0])
    assert kitti_distance(scene(z, kinds)) == kitti_distance(as_records(scene(z, kinds))) == wanted


@pytest.mark.parametrize(
    ("z", "kinds", "label"),
    [([5.0], [0], 0), ([8.0], [1], 0), ([8.1], [2], 1), ([20.5], ["Truck"], 2), ([5.0], [3], 3), ([], [], 3),
     ([5.0, 30.0], ["Pedestrian", "Van"], 2)],
)  # fmt: skip
def test_kitti_looks_at_cars_vans_and_trucks(z, kinds, label):
    assert kitti_distance(scene(z, kinds)) == label


@pytest.mark.parametrize(("rule", "values"), [(dsprites_x, 32), (dsprites_orientation, 40)])
def test_dsprites_has_16_classes_of_neighbours(rule, values):
    made = [rule(value) for value in range(values)]
    wanted = np.floor_divide(np.arange(values, dtype=np.float32), np.float32(values / 16)).astype(int)
    assert made == wanted.tolist()
    assert sorted(set(made)) == list(range(16))


def test_dsprites_positions_share_a_class_by_twos_and_orientations_by_threes_and_twos():
    assert [dsprites_x(v) for v in range(5)] == [0, 0, 1, 1, 2]
    assert [dsprites_orientation(v) for v in range(8)] == [0, 0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("rule", "value", "said"),
    [
        (dsprites_x, 32, "0 to 31"),
        (dsprites_orientation, -1, "0 to 39"),
        (clevr_distance, {"size": [1, 2, 3]}, "pixel_coords"),
        (kitti_distance, [{"location": [0, 0, 1]}], "type"),
        (clevr_distance, scene([-1.0]), "above 0"),
        (clevr_count, {"size": [1, 2], "shape": [1]}, "shorter"),
    ],
)
def test_annotations_that_make_no_sense(rule, value, said):
    with pytest.raises((ValueError, KeyError), match=said):
        rule(value)
