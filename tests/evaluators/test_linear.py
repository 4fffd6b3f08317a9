import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import vitrail
from tests.evaluators.split import Split, named, small_model
from tests.evaluators.tinted import Tinted
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators import linear
from vitrail.evaluators.linear import LinearProbe, accuracy, choose, fit
from vitrail.evaluators.probes import learn_linear
from vitrail.inference.features import Extraction, Features

CPU = torch.device("cpu")


def gaussians(n, D=6, K=3, seed=0, spread=1.5):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((K, D))
    mixing = np.random.default_rng(98).standard_normal((D, D))  # features are correlated
    labels = np.tile(np.arange(K), n)
    x = (centres[labels] + spread * rng.standard_normal((n * K, D))) @ mixing
    return Features((x + 3).astype(np.float16), labels, named(K), "gaussians")


def reference(features, l2):
    """The same objective, written out, by scipy."""
    x = features.x.astype(np.float64)
    x = (x - x.mean(0)) / (x.std(0) + 1e-5)
    n, D, K = *x.shape, len(features.class_names)
    onehot = np.eye(K)[features.labels]

    def objective(flat):
        W, b = flat[: D * K].reshape(D, K), flat[D * K :]
        logits = x @ W + b
        top = logits.max(1, keepdims=True)
        log_p = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
        error = (np.exp(log_p) - onehot) / n
        slope = np.concatenate([(x.T @ error + l2 * W).ravel(), error.sum(0)])
        return -(log_p * onehot).sum() / n + l2 / 2 * (W**2).sum(), slope

    made = minimize(objective, np.zeros(D * K + K), jac=True, tol=1e-12, options={"maxiter": 2000})
    return made.x[: D * K].reshape(D, K)


@pytest.mark.parametrize("l2", [1.0, 1e-3])
def test_the_minimum_is_found(l2, monkeypatch):
    monkeypatch.setattr(linear, "BLOCK", 16)
    features = gaussians(20)
    np.testing.assert_allclose(fit(features, l2).W.numpy(), reference(features, l2), atol=2e-4)


def test_where_it_starts_does_not_matter():
    features = gaussians(20)
    there = fit(features, 0.01)
    np.testing.assert_allclose(fit(features, 0.01, start=fit(features, 10.0)).W, there.W, atol=2e-4)


def test_stopping_too_early_is_said(monkeypatch, caplog):
    monkeypatch.setattr(linear, "ITERATIONS", 1)
    fit(gaussians(20), 1e-4)
    assert "l2 = 0.0001 stopped at a gradient of" in caplog.text


def test_constant_features_are_borne():
    features = gaussians(10)
    features.x[:, 2] = 1
    assert torch.isfinite(fit(features, 1e-3).W).all()


def test_l2_is_the_best_on_what_is_held_out():
    rest, held = gaussians(4, D=24, spread=4.0), gaussians(200, D=24, seed=1, spread=4.0)
    sweep = (1e3, 1.0, 1e-5)
    by_value = {l2: accuracy(fit(rest, l2), held) for l2 in sweep}
    best = choose([(rest, held)], sweep, CPU)
    assert by_value[best] >= max(by_value.values()) - 0.01
    assert min(by_value.values()) < by_value[best]


def test_of_equals_the_strongest():
    features = gaussians(20, spread=0.01)
    assert choose([(features, features)], (1e-3, 1e-2, 1e-4), CPU) == 1e-2


def test_of_a_small_set_each_example_is_held_out_once(monkeypatch):
    features = gaussians(7)
    parts = features.held_out_parts()
    assert len(parts) == 5
    held = np.concatenate([part.x for _, part in parts])
    assert sorted(map(tuple, held)) == sorted(map(tuple, features.x))
    for rest, part in parts:
        assert len(rest) + len(part) == 21 and set(part.labels) == {0, 1, 2}
        assert not {*map(tuple, rest.x)} & {*map(tuple, part.x)}
    monkeypatch.setattr("vitrail.inference.features.FOLDED", 20)
    assert len(features.held_out_parts()) == 1


def test_with_one_example_of_each_class_nothing_can_be_held_out():
    with pytest.raises(DataError, match="3 examples of 3 classes are too few"):
        gaussians(1).held_out_parts()


def test_the_model_that_is_written_gives_the_scores_of_the_probe(tmp_path):
    """The classifier reads features as they are; the probe standardised them."""
    train, test, model = Tinted(60), Tinted(30, seed=1), small_model()
    _, score = learn_linear(LinearProbe(train, test), model, tmp_path / "model")
    written = vitrail.load(tmp_path / "model")
    assert written.class_names == train.class_names
    assert vitrail.evaluate(written, test).top1 == pytest.approx(score.value, abs=1 / 30)
    assert written.metrics["test"] == {"top1": score.value, "n": 30}
    assert torch.equal(written.embedding.weight, model.embedding.weight)


def test_a_probe_that_a_model_cannot_have_is_refused_before_anything_is_computed(tmp_path):
    probe = LinearProbe(Tinted(60), Tinted(30, seed=1), extraction=Extraction("mean"))
    with pytest.raises(ConfigError, match="reads pre_logits, not mean"):
        learn_linear(probe, small_model(), tmp_path / "model")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="nothing is overwritten"):
        learn_linear(LinearProbe(Tinted(60), Tinted(30, seed=1)), small_model(), tmp_path / "there")


def test_the_evaluator():
    (made,) = LinearProbe(Tinted(60), Tinted(30, seed=1), l2=(1.0, 1e-2))(small_model())
    assert (made.name, made.n) == ("linear", 30)
    assert made.value > 0.8


@pytest.mark.parametrize("l2", [(0.0,), (-1.0,), (float("inf"),)])
def test_settings_that_make_no_sense(l2):
    with pytest.raises(ConfigError):
        LinearProbe(Split(6, named(3)), Split(6, named(3)), l2=l2)
