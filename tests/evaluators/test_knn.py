import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluators.split import Split, named, small_model
from tests.evaluators.tinted import Tinted
from vitrail.errors import ConfigError
from vitrail.evaluators import knn
from vitrail.evaluators.knn import KNN, elect, fitting_k, neighbours, weights
from vitrail.inference.features import Features

CPU = torch.device("cpu")


def brute_force(keys, queries, k):
    """Every cosine in float64, one stable sort."""
    a, b = queries.astype(np.float64), keys.astype(np.float64)
    norms = np.sqrt((a**2).sum(1))[:, None] * np.sqrt((b**2).sum(1))
    s = (a[:, None] * b).sum(2) / np.where(norms > 0, norms, 1)
    index = np.argsort(-s, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(s, index, axis=1), index


def check(keys, queries, k):
    s, index = neighbours(keys, queries, k)
    expected_s, expected = brute_force(keys, queries, k)
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_allclose(s, expected_s, rtol=1e-12, atol=1e-15)


@settings(max_examples=60)
@given(st.data())
def test_whole_numbers_with_many_ties(data):
    """Small whole numbers: rows repeat, products and squared norms are exact, and equal cosines are equal."""
    n, N, D = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 60)), data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    keys, queries = (rng.integers(-1, 2, (rows, D)).astype(np.float16) for rows in (N, n))
    check(keys, queries, data.draw(st.integers(1, N)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("k", [1, 20, 150])
def test_blocks_of_keys_and_queries(monkeypatch, dtype, k):
    monkeypatch.setattr(knn, "QUERIES", 32)
    monkeypatch.setattr(knn, "SLICE", 16)
    monkeypatch.setattr(knn, "KEYS", 96)
    monkeypatch.setattr(knn, "GROUP", 2)
    rng = np.random.default_rng(0)
    keys, queries = rng.standard_normal((500, 24)).astype(dtype), rng.standard_normal((50, 24)).astype(dtype)
    keys[200:260] = keys[:60]
    check(keys, queries, k)


def test_neighbours_that_float32_cannot_tell_apart():
    """Cosines that differ by 1e-9: only float64 knows their order, and many more than k come into question."""
    rng = np.random.default_rng(0)
    keys = np.zeros((300, 8))
    keys[:, 0] = 1
    keys[:, 1] = 1e-4 + 1e-6 * rng.permutation(300)
    queries = np.eye(8)[:1]
    single = (keys[:, 0] / np.sqrt(1 + keys[:, 1] ** 2)).astype(np.float32)
    assert len(np.unique(single)) < 30
    check(keys, queries, 10)


def test_features_all_but_equal_as_of_a_fresh_model():
    rng = np.random.default_rng(0)
    base = rng.standard_normal(32)
    keys, queries = (base + 1e-3 * rng.standard_normal((n, 32)) for n in (200, 20))
    check(keys.astype(np.float16), queries.astype(np.float16), 7)


def test_zeros_are_near_nothing():
    keys = np.array([[0, 0], [1, 1], [-1, -1]], np.float16)
    s, index = neighbours(keys, np.array([[1, 1], [0, 0]], np.float16), 3)
    assert index.tolist() == [[1, 0, 2], [0, 1, 2]]
    assert s[0, 1] == 0 and (s[1] == 0).all()


def test_where_products_of_float32_are_not_exact_float64_is_used():
    assert knn.score_type(CPU) == torch.float32
    torch.set_float32_matmul_precision("high")
    try:
        assert knn.score_type(CPU) == torch.float64
        rng = np.random.default_rng(0)
        check(rng.standard_normal((50, 8)), rng.standard_normal((5, 8)), 5)
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("k", [0, 4])
def test_more_neighbours_than_there_are(k):
    with pytest.raises(ConfigError, match="between 1 and 3"):
        neighbours(np.eye(3), np.eye(3), k)


def test_votes():
    s = np.array([[0.9, 0.5, 0.5], [0.9, 0.89, 0.89], [0.5, 0.5, 0.1]])
    labels = np.array([[2, 1, 1], [2, 1, 1], [1, 0, 2]])
    assert elect(weights(s, None), labels, 3).tolist() == [1, 1, 0]
    assert elect(weights(s, 0.07), labels, 3).tolist() == [2, 1, 0]
    np.testing.assert_allclose(weights(s, 0.07)[0, 1], np.exp(0.5 / 0.07) / np.exp(0.9 / 0.07))
    assert np.isfinite(weights(s, 1e-300)).all()


def test_an_election_in_blocks_is_an_election(monkeypatch):
    rng = np.random.default_rng(0)
    w, labels = rng.random((10, 4)), rng.integers(0, 3, (10, 4))
    whole = elect(w, labels, 3)
    monkeypatch.setattr(knn, "ELECTED", 3)
    np.testing.assert_array_equal(elect(w, labels, 3), whole)


def test_accuracy_of_each_k_and_vote():
    x = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float16)
    train = Features(x, np.array([0, 0, 1, 0]), named(2), "four")
    queries = Features(x[[0, 2]], np.array([0, 1]), named(2), "two")
    made = KNN(Split(2, named(2)), Split(2, named(2)), (1,)).accuracies(train, queries, (1, 4), CPU)
    assert made["weighted", 1] == made["unweighted", 1] == 1.0
    assert made["unweighted", 4] == 0.5  # three of four are of class 0


def test_the_evaluator_chooses_k_on_the_training_split():
    train, test, model = Tinted(120), Tinted(30, seed=1), small_model()
    evaluator = KNN(train, test, k=(1, 3, 90))
    scores = list(evaluator(model))
    assert [(s.name, s.n) for s in scores] == [("knn", 30), ("knn_unweighted", 30)]
    assert min(s.value for s in scores) > 0.8
    chosen = evaluator.chosen(model)
    assert chosen["unweighted"][0] in (1, 3)  # 90 of 96 neighbours say little
    for vote, (k, value, _) in chosen.items():
        assert KNN(train, test, k=(k,)).chosen(model)[vote][1] == value


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"k": ()}, r"^k must .*at least 1, not \[\]$"),
        ({"k": (5, 0)}, r"^k must .*at least 1, not \[5, 0\]$"),
        ({"temperature": 0.0}, "^temperature must be finite and above 0, not 0$"),
    ],
)
def test_settings_that_make_no_sense(wrong, said):
    with pytest.raises(ConfigError, match=said):
        KNN(Split(6, named(3)), Split(6, named(3)), **wrong)


def test_the_k_that_fit_leave_room_for_what_is_held_out():
    assert fitting_k(Tinted(36)) == (1, 5, 10, 20)
    assert fitting_k(Tinted(120)) == (1, 5, 10, 20, 50)
    for n in (36, 60):
        KNN(Tinted(n), Tinted(6, seed=1), fitting_k(Tinted(n))).chosen(small_model())


@pytest.mark.parametrize(("k", "most"), [((37,), 36), ((1, 36), 30), ((1, 0), None)])
def test_a_k_that_is_too_large_is_refused_before_anything_is_computed(k, most):
    with pytest.raises(ConfigError, match="k .*at least 1" if most is None else rf"between 1 and {most}\b"):
        KNN(Tinted(36), Tinted(6, seed=1), k)
