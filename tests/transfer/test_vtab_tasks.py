from collections import Counter

import pytest

from vitrail.errors import ConfigError
from vitrail.transfer.vtab_tasks import PAPER, TASKS, chosen_tasks, paper_scores


def test_the_groups_are_the_papers():
    assert Counter(task.group for task in TASKS.values()) == {"natural": 7, "specialized": 4, "structured": 8}


@pytest.mark.parametrize(("model", "mean"), [("H/14 JFT", 77.6), ("L/16 JFT", 76.3), ("L/16 i21k", 72.7)])
def test_table_9_has_the_mean_that_the_paper_states(model, mean):
    scores = paper_scores(model)
    assert list(scores) == list(TASKS)
    assert round(100 * sum(scores.values()) / 19, 1) == mean


def test_names_and_groups_in_the_order_of_the_table():
    assert chosen_tasks(()) == list(TASKS)
    assert chosen_tasks(("dmlab", "specialized", "cifar100")) == [
        "cifar100", "camelyon", "eurosat", "resisc45", "retinopathy", "dmlab",
    ]  # fmt: skip


def test_a_name_that_is_no_task():
    with pytest.raises(
        ConfigError, match=r"no task 'cifar10' \(did you mean cifar100\?\); tasks: caltech101"
    ):
        chosen_tasks(("cifar10",))


def test_a_model_that_is_not_in_table_9():
    with pytest.raises(ConfigError, match=f"no 'B/16'; it has: {', '.join(PAPER)}"):
        paper_scores("B/16")
