import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.evaluators.split import Split, named, small_model
from tests.evaluators.tinted import Tinted
from vitrail.errors import ConfigError, DataError
from vitrail.evaluators import fewshot
from vitrail.evaluators.fewshot import FewShot, Run, ordered_classes, score, solve
from vitrail.evaluators.probes import learn_fewshot
from vitrail.inference.features import Features

CPU = torch.device("cpu")


def run(*arguments):
    (one,) = fewshot.run_draw(*arguments)
    return one


def gaussians(n, D, K, seed=0, spread=1.0):
    """n examples of each of K classes around their own centres."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((K, D))
    labels = np.tile(np.arange(K), n)
    x = centres[labels] + spread * rng.standard_normal((n * K, D))
    return Features(x.astype(np.float16), labels, named(K), "gaussians")


@pytest.mark.parametrize("problem", ["0", "1"])
def test_the_published_code(fixtures, problem):
    with np.load(fixtures / "fewshot.npz") as file:
        given = {k[2:]: file[k] for k in file.files if k[0] == problem}
    solution = solve(given["train_x"], given["train_y"], int(given["train_y"].max()) + 1)
    for l2 in (2.0**-10, 1.0, 1024.0):
        np.testing.assert_allclose(solution.weights(l2).numpy(), given[f"weights/{l2}"], rtol=1e-6)
        right = int((solution.predict(given["test_x"], l2) == given["test_y"]).sum())
        assert right / len(given["test_y"]) == pytest.approx(float(given[f"acc/{l2}"]), abs=1e-6)


def plain_weights(x, y, K, l2):
    """The normal equations as they stand, targets and all."""
    X = np.pad((x - x.mean(0)) / (x.std(0) + 1e-5), ((0, 0), (0, 1)), constant_values=100.0)
    Y = 2.0 * np.eye(K)[y] - 1
    return np.linalg.solve(X.T @ X + l2 * np.eye(X.shape[1]), X.T @ Y)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(2, 4), st.floats(-3, 14), st.integers(0, 10_000))
def test_both_forms_solve_the_normal_equations(shots, D, K, power, seed):
    """N from 2 to 48, D + 1 from 2 to 31: either may be the larger."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(K), shots))
    x = rng.standard_normal((len(y), D)) * rng.uniform(0.1, 10, D) + rng.uniform(-5, 5, D)
    W = solve(x, y, K).weights(2.0**power).numpy()
    np.testing.assert_allclose(W, plain_weights(x, y, K, 2.0**power), rtol=1e-6, atol=1e-9)


def test_a_constant_feature_and_equal_examples_are_borne():
    x = np.ones((6, 3))
    solution = solve(x, np.array([0, 0, 0, 0, 1, 1]), 2)
    assert torch.isfinite(solution.weights(2.0**-10)).all()
    assert solution.predict(x, 1.0).tolist() == [0] * 6  # nothing to go by: the larger class


def test_of_equal_outputs_the_first_class():
    assert solve(np.ones((4, 3)), np.array([1, 0, 2, 3]), 4).predict(np.ones((2, 3)), 1.0).tolist() == [0, 0]


def test_prediction_in_blocks_is_prediction(monkeypatch):
    train, test = gaussians(3, 5, 4), gaussians(6, 5, 4, seed=1)
    solution = solve(train.x, train.labels, 4)
    whole = solution.predict(test.x, 1.0)
    monkeypatch.setattr(fewshot, "BLOCK", 7)
    np.testing.assert_array_equal(solution.predict(test.x, 1.0), whole)


def test_more_shots_are_better():
    train, test = gaussians(40, 16, 5, spread=2.0), gaussians(100, 16, 5, seed=1, spread=2.0)
    found = [np.mean([run(train, test, k, s, (1.0,), CPU).accuracy for s in range(3)]) for k in (1, 5, 25)]
    assert found[0] < found[1] < found[2]
    assert found[0] > 0.3


def as_big_vision_scores(train, test, shots, seed):
    """Its evaluator: the first of each class's permutation, least squares, l2 = 2^10; in double precision."""
    rng, K = np.random.default_rng(seed), len(train.class_names)
    classes = [rng.permutation(np.where(train.labels == c)[0]) for c in range(K)]
    few = np.concatenate([indices[:shots] for indices in classes])
    x, y = train.x[few].astype(np.float64), train.labels[few]
    W = plain_weights(x, y, K, 2.0**10)
    inputs = (test.x.astype(np.float64) - x.mean(0)) / (x.std(0) + 1e-5)
    return np.mean((np.pad(inputs, ((0, 0), (0, 1)), constant_values=100.0) @ W).argmax(1) == test.labels)


@pytest.mark.parametrize("shots", [1, 5, 10])
def test_scores_of_big_visions_seeds(shots):
    train, test = gaussians(30, 24, 5, spread=3.0), gaussians(60, 24, 5, seed=1, spread=3.0)
    ours = [run(train, test, shots, seed, (2.0**10,), CPU, "big_vision").accuracy for seed in range(3)]
    assert ours == pytest.approx([as_big_vision_scores(train, test, shots, seed) for seed in range(3)])
    assert ours != [run(train, test, shots, seed, (2.0**10,), CPU).accuracy for seed in range(3)]


def test_scenics_examples_depend_on_no_seed_and_are_one_run():
    evaluator = FewShot(Tinted(60), Tinted(24, seed=1), shots=(1, 4), seeds=3, draws="scenic")
    assert [len(runs) for runs in evaluator.runs(small_model(classes=0))] == [1, 1]
    train, test = gaussians(30, 24, 5, spread=3.0), gaussians(60, 24, 5, seed=1, spread=3.0)
    first, other = (run(train, test, 2, seed, (1.0,), CPU, "scenic").accuracy for seed in (0, 7))
    few = train.part(np.arange(10))  # in gaussians the classes take turns
    assert first == other == np.mean(solve(few.x, few.labels, 5).predict(test.x, 1.0) == test.labels)


def test_every_l2_of_every_seed():
    model, l2 = small_model(classes=0), (0.5, 2.0**10)
    given = {"train": Tinted(60), "test": Tinted(24, seed=1), "shots": (1, 4), "seeds": 2}
    every = list(FewShot(**given, l2=l2).runs(model, choose=False))
    for runs, shots in zip(every, (1, 4), strict=True):
        assert [(r.shots, r.seed, r.l2) for r in runs] == [
            (shots, seed, value) for seed in (0, 1) for value in l2
        ]
    assert list(FewShot(**given, l2=(0.5,)).runs(model)) == [
        [r for r in runs if r.l2 == 0.5] for runs in every
    ]


def test_l2_is_chosen_without_the_test_labels():
    train, test = gaussians(30, 24, 3, spread=3.0), gaussians(50, 24, 3, seed=1, spread=3.0)
    sweep = tuple(2.0**i for i in range(-10, 20, 3))
    one = run(train, test, 2, 0, sweep, CPU)
    other = run(train, Features(test.x, (test.labels + 1) % 3, test.class_names, "wrong"), 2, 0, sweep, CPU)
    assert one.l2 == other.l2 and one.accuracy != other.accuracy
    assert one.accuracy == run(train, test, 2, 0, (one.l2,), CPU).accuracy


def test_a_sweep_takes_what_suits_the_data():
    train, test = gaussians(30, 24, 3, spread=3.0), gaussians(200, 24, 3, seed=1, spread=3.0)
    seeds = range(5)
    swept = np.mean([run(train, test, 20, s, (1e-9, 1e2, 1e15), CPU).accuracy for s in seeds])
    worst = min(
        np.mean([run(train, test, 20, s, (v,), CPU).accuracy for s in seeds]) for v in (1e-9, 1e2, 1e15)
    )
    assert swept > worst


def test_where_every_example_is_drawn_folds_choose():
    train, test = gaussians(10, 24, 3, spread=3.0), gaussians(200, 24, 3, seed=1, spread=3.0)
    every = {l2: run(train, test, 10, 0, (l2,), CPU).accuracy for l2 in (1e-9, 1e2, 1e15)}
    assert run(train, test, 10, 0, tuple(every), CPU).accuracy > min(every.values())
    with pytest.raises(DataError, match="too few to hold out a part"):
        run(gaussians(1, 4, 3), train, 1, 0, (1.0, 2.0), CPU)


def test_the_model_of_all_examples_gives_the_scores_of_least_squares(tmp_path):
    train, test = Tinted(60), Tinted(30, seed=1)
    l2, score = learn_fewshot(FewShot(train, test, shots=(5,)), small_model(), tmp_path / "model")
    evaluation = vitrail.evaluate(vitrail.load(tmp_path / "model"), test)
    assert evaluation.top1 == pytest.approx(score.value, abs=1 / 30)
    assert l2 > 0 and evaluation.loss < np.log(6) / 2  # probabilities, and not outputs of -1 and 1
    one_each = Tinted(6)
    l2, _ = learn_fewshot(FewShot(one_each, test, shots=(1,)), small_model(), tmp_path / "one")
    assert l2 == fewshot.L2  # where no example can be held out


def test_a_score_is_the_mean_over_seeds():
    made = score([Run(5, 0, 1.0, 0.5, 200), Run(5, 1, 1.0, 0.7, 200)])
    assert (made.name, made.value, made.n) == ("5-shot", pytest.approx(0.6), 200)
    assert made.std == pytest.approx(0.02**0.5)
    assert score([Run(5, 0, 1.0, 0.5, 200)], "pets").std is None
    assert score([Run(5, 0, 1.0, 0.5, 200)], "pets").name == "pets_5-shot"


def test_the_evaluator_in_a_training_loop():
    model = small_model(classes=0)
    evaluator = FewShot(Tinted(60), Tinted(24, seed=1), shots=(1, 8), seeds=2)
    model.train()
    scores = list(evaluator(model))
    assert model.training
    assert [(s.name, s.n) for s in scores] == [("1-shot", 24), ("8-shot", 24)]
    assert scores[1].value > 0.8 and scores[1].std is not None
    assert [s.value for s in evaluator(model)] == [s.value for s in scores]


def test_fewer_examples_in_a_class_than_shots():
    with pytest.raises(DataError, match=r"5-shot: class 'class 2' of pictures:test has 3 .* at most 3"):
        FewShot(Split(11, named(3)), Split(3, named(3)), shots=(1, 5))
    broken = FewShot(Split(12, named(3), broken=(2,)), Split(3, named(3)), shots=(4,))
    with pytest.raises(DataError, match="has 3 examples"):
        list(broken(small_model()))


def test_classes_of_another_order():
    evaluator = FewShot(Split(6, named(3)), Split(6, named(3)[::-1]), shots=(1,))
    with pytest.raises(DataError, match="same classes"):
        list(evaluator(small_model()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shots": ()},
        {"shots": (0,)},
        {"seeds": 0},
        {"l2": (0.0,)},
        {"l2": (float("nan"),)},
        {"draws": "mine"},
    ],
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ConfigError):
        FewShot(Split(6, named(3)), Split(6, named(3)), **({"shots": (1,)} | wrong))


def as_big_vision_does(labels, classes, seed):
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.where(labels == c)[0]) for c in range(classes)]


@given(st.integers(0, 5), st.integers(1, 7), st.integers(0, 200), st.integers(0, 2**31))
def test_the_published_orders(seed, classes, n, data):
    """Classes of any size, of none too: they leave the generator where it is."""
    labels = np.random.default_rng(data).integers(0, classes, n)
    theirs = as_big_vision_does(labels, classes, seed)
    for ours, published in zip(ordered_classes(labels, classes, seed, "big_vision"), theirs, strict=True):
        np.testing.assert_array_equal(ours, published)
    for c, ours in enumerate(ordered_classes(labels, classes, seed, "scenic")):
        np.testing.assert_array_equal(ours, np.where(labels == c)[0])


def test_what_big_visions_seeds_draw():
    """In numpy 1.26 and 2.4: should a release shuffle otherwise, this says so."""
    labels = np.array([0, 1, 2] * 4)
    drawn = [[m[:2].tolist() for m in ordered_classes(labels, 3, seed, "big_vision")] for seed in (0, 1)]
    assert drawn == [[[6, 0], [10, 7], [5, 11]], [[0, 3], [10, 1], [11, 2]]]


@pytest.mark.parametrize("draws", ["vitrail", "big_vision", "scenic"])
def test_every_order_is_of_all_examples_and_of_the_seed_alone(draws):
    labels = np.random.default_rng(0).integers(0, 4, 60)
    first, again, other = (ordered_classes(labels, 4, seed, draws) for seed in (0, 0, 1))
    assert sorted(np.concatenate(first).tolist()) == list(range(60))
    assert all((labels[members] == c).all() for c, members in enumerate(first))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert all((a == b).all() for a, b in zip(first, other, strict=True)) == (draws == "scenic")
