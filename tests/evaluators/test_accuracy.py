"""Scores are those of a computation by hand; every example counts once, however the work is divided."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.evaluators.split import Split, named, small_model
from vitrail.data.loader import Loader
from vitrail.data.preprocess import parse
from vitrail.data.settings import DataSettings
from vitrail.data.sources import open_source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluators.accuracy import (
    BINS,
    Accuracy,
    Predictions,
    evaluate,
    expected_calibration_error,
    join_predictions,
    judge,
    score_logits,
)
from vitrail.evaluators.right_answers import by_order
from vitrail.models.calibration import Calibration

MODEL = small_model()


def by_hand(model, source, indices):
    """top1, top5, loss, ece, one example at a time, in float64 and Python; logits too."""
    model = copy.deepcopy(model).double()
    pipeline = parse(model.preprocess)
    losses, first, fifth, bins, all_logits = [], [], [], [[] for _ in range(15)], []
    for i in indices:
        example = source.read(i)
        x = pipeline.device(pipeline.host(example.image)[None]).double()
        y = model(x)[0].detach().numpy()
        p = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
        ranked = sorted(range(len(y)), key=lambda k: -y[k])
        losses.append(-np.log(p[example.label]))
        first.append(ranked[0] == example.label)
        fifth.append(example.label in ranked[:5])
        b = next(b for b in range(15) if p.max() <= (b + 1) / 15 + 1e-12)
        bins[b].append((p.max(), first[-1]))
        all_logits.append(y)
    n = len(losses)
    gaps = [abs(np.mean([r for _, r in b]) - np.mean([c for c, _ in b])) * len(b) / n for b in bins if b]
    return {
        "top1": sum(first) / n,
        "top5": sum(fifth) / n,
        "loss": sum(losses) / n,
        "ece": sum(gaps),
    }, np.stack(all_logits)


def numbers(evaluation):
    return {score.name: score.value for score in evaluation.scores()}


def labels_with_hits(model, n):
    """About half of the labels are what the model answers, the others random."""
    _, logits = by_hand(model, Split(n, named(7)), range(n))
    rng = np.random.default_rng(0)
    return np.where(rng.random(n) < 0.5, logits.argmax(1), rng.integers(0, 7, n))


@pytest.fixture(scope="module")
def source():
    return Split(41, named(7), labels=labels_with_hits(MODEL, 41))


@pytest.fixture(scope="module")
def expected(source):
    return by_hand(MODEL, source, range(41))


def test_scores_are_those_computed_by_hand(source, expected):
    made = evaluate(MODEL, source, batch_size=16)
    assert numbers(made) == pytest.approx(expected[0], rel=1e-5)
    assert 0.3 < made.top1 < made.top5 < 1 and made.ece > 0.05, "an evaluation that could go wrong"
    assert (made.n, made.broken, made.left_out, made.data) == (41, 0, 0, "pictures:test")
    predicted = expected[1].argmax(1)
    assert made.predictions.predicted.tolist() == predicted.tolist()
    assert made.predictions.index.tolist() == list(range(41))
    assert made.predictions.label.tolist() == source.labels.tolist()
    confusion = np.zeros((7, 7), np.int64)
    for label, answer in zip(source.labels, predicted, strict=True):
        confusion[label, answer] += 1
    assert (made.confusion == confusion).all()
    assert [(one.n, one.correct) for one in made.per_class] == [
        (int(confusion[k].sum()), int(confusion[k, k])) for k in range(7)
    ]


def test_mistakes_by_name_the_surest_first_and_no_more_than_are_wanted(source, expected, monkeypatch):
    made = evaluate(MODEL, source)
    p = np.exp(expected[1]) / np.exp(expected[1]).sum(1, keepdims=True)  # (n, K)
    wrong = [i for i in range(41) if p[i].argmax() != source.labels[i]]
    wrong.sort(key=lambda i: -p[i].max())
    assert made.mistakes(source) == [
        {
            "key": source.key(i),
            "true": source.class_names[source.labels[i]],
            "predicted": source.class_names[p[i].argmax()],
            "probability": pytest.approx(p[i].max(), rel=1e-4),
        }
        for i in wrong
    ]
    assert made.as_json()["wrong"] == len(wrong) > 3
    monkeypatch.setattr("vitrail.evaluators.accuracy.MOST_MISTAKES", 3)
    assert [one["key"] for one in made.mistakes(source)] == [source.key(i) for i in wrong[:3]]


@settings(max_examples=12)
@given(batch=st.integers(1, 60), n=st.integers(1, 41))
def test_any_batch_size_gives_the_same_numbers(batch, n):
    part = Split(n, named(7))
    whole, made = evaluate(MODEL, part, batch_size=n), evaluate(MODEL, part, batch_size=batch)
    assert made.n == n
    assert numbers(made) == pytest.approx(numbers(whole), rel=1e-5, abs=1e-6)
    assert (made.predictions.predicted == whole.predictions.predicted).all()


@pytest.mark.parametrize("world", [2, 3])
def test_processes_share_the_examples(source, world):
    whole = evaluate(MODEL, source).predictions
    parts = []
    for rank in range(world):
        settings = DataSettings(batch_size=4 * world)
        loader = Loader(source, parse(MODEL.preprocess), settings, rank=rank, world=world, evaluation=True)
        parts.append(judge(MODEL, loader, by_order(source.class_names))[0])
    assert all(0 < len(part) < len(source) for part in parts)
    together = join_predictions(parts)
    assert together.index.tolist() == list(range(41))
    assert (together.rank == whole.rank).all()
    assert together.loss == pytest.approx(whole.loss, rel=1e-5)


def test_the_training_loops_evaluator_says_the_same(source):
    made = evaluate(MODEL, source)
    evaluator = Accuracy(source, 16, 0)
    scores = list(evaluator(MODEL))
    assert tuple(s.name for s in scores) == evaluator.names == ("val_top1", "val_top5", "val_loss", "val_ece")
    assert {s.name.removeprefix("val_"): s.value for s in scores} == pytest.approx(numbers(made), rel=1e-5)
    assert {s.n for s in scores} == {41}


def test_a_source_with_more_classes_than_the_model(source):
    more = Split(41, named(9))
    with pytest.raises(DataError, match="class 8, but the model has only 7"):
        list(Accuracy(more, 16, 0)(MODEL))


def test_broken_examples_are_counted_and_named_not_dropped():
    split = Split(41, named(7), broken=(3, 40))
    made = evaluate(MODEL, split, max_bad=0.1)
    assert (made.n, made.broken) == (39, 2)
    assert [(bad.index, bad.reason) for bad in made.bad] == [
        (3, "picture-004: scribbled over"), (40, "picture-041: scribbled over"),
    ]  # fmt: skip
    kept = [i for i in range(41) if i not in (3, 40)]
    assert made.predictions.index.tolist() == kept
    assert numbers(made) == pytest.approx(by_hand(MODEL, split, kept)[0], rel=1e-5)


def test_too_many_broken_examples():
    with pytest.raises(DataError, match="2 of 41 examples are broken"):
        evaluate(MODEL, Split(41, named(7), broken=(3, 40)))
    with pytest.raises(DataError, match="no example could be used: picture-001"):
        evaluate(MODEL, Split(1, named(7), broken=(0,)))


def test_the_model_stays_in_the_mode_in_which_it_was(source):
    model = small_model()
    model.train()
    model.encoder.eval()
    before = {name: module.training for name, module in model.named_modules()}
    evaluate(model, source)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_outputs_that_are_no_numbers_are_no_score(source):
    model = small_model()
    model.head.classifier.bias.data[2] = torch.nan
    with pytest.raises(CheckpointError, match="not finite"):
        evaluate(model, source)


def test_bf16_is_near(source, expected):
    made = evaluate(MODEL, source, precision="bf16")
    assert made.loss == pytest.approx(expected[0]["loss"], rel=0.1)
    assert made.loss != evaluate(MODEL, source).loss


def test_few_classes_are_all_among_the_first_five():
    made = evaluate(small_model(3), Split(9, named(3)))
    assert made.top5 == 1 and made.confusion.shape == (3, 3)


def test_equal_outputs_count_by_order():
    """A fresh head of zeros answers class 0: right for one class of seven, and five of seven are in the top 5."""
    model = small_model()
    model.head.classifier.weight.data.zero_(), model.head.classifier.bias.data.zero_()
    made = evaluate(model, Split(14, named(7)))
    assert (made.top1, made.top5) == (pytest.approx(1 / 7), pytest.approx(5 / 7))
    assert made.loss == pytest.approx(np.log(7))
    assert made.ece == pytest.approx(0, abs=1e-6)


def test_the_most_confident_mistakes(source, expected):
    made = evaluate(MODEL, source).predictions
    y = expected[1]
    p = np.exp(y - y.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True)).max(1)
    wrong = [i for i in range(41) if y[i].argmax() != source.labels[i]]
    assert made.index[made.mistakes()].tolist() == sorted(wrong, key=lambda i: -p[i])
    assert made.confidence == pytest.approx(p, rel=1e-5)


def test_classes_in_another_order_are_matched_by_name(source, expected):
    """The model knows the classes backwards, and one more."""
    model = small_model(8, ["another", *named(7)[::-1]])
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), MODEL.parameters(), strict=True):
            if mine.shape == theirs.shape:
                mine.copy_(theirs)
        model.head.classifier.weight[1:], model.head.classifier.weight[0] = (
            MODEL.head.classifier.weight.flip(0),
            0,
        )
        model.head.classifier.bias[1:], model.head.classifier.bias[0] = (
            MODEL.head.classifier.bias.flip(0),
            -1e9,
        )
    made = evaluate(model, source)
    assert made.top1 == expected[0]["top1"]
    assert made.loss == pytest.approx(expected[0]["loss"], rel=1e-5)
    assert made.confusion.shape == (8, 8)
    assert (made.confusion[1:, 1:][::-1, ::-1] == evaluate(MODEL, source).confusion).all()
    assert [one.name for one in made.per_class] == named(7)[::-1]


def test_a_mapping_leaves_out_what_it_does_not_have(source, tmp_path):
    """Class 0, which padding is labelled too, is left out; for class 1 two answers are right."""
    table = {"class 1": [2, 4], "class 2": [5], "class 6": [0, 1, 3]}
    (tmp_path / "m.json").write_text(json.dumps(table))
    made = evaluate(MODEL, source, mapping=tmp_path / "m.json", batch_size=4)
    kept = [i for i in range(41) if source.labels[i] in (1, 2, 6)]
    assert made.predictions.index.tolist() == kept
    assert (made.n, made.left_out) == (len(kept), 41 - len(kept))
    _, y = by_hand(MODEL, source, kept)
    right = [table[f"class {source.labels[i]}"] for i in kept]
    p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    ranked = np.argsort(-y, axis=1)
    assert made.top1 == np.mean([ranked[e, 0] in r for e, r in enumerate(right)])
    assert made.top5 == np.mean([bool(set(ranked[e, :5]) & set(r)) for e, r in enumerate(right)])
    assert made.loss == pytest.approx(
        np.mean([-np.log(p[e, r].sum()) for e, r in enumerate(right)]), rel=1e-5
    )
    assert made.confusion.sum() == len(kept) and {one.name for one in made.per_class} == set(table)


def test_real_labels(source, expected, tmp_path):
    named_split = Split(41, named(7), labels=source.labels, keys="n01/ILSVRC2012_val_{:08}.JPEG")
    sets = [[], [0, 3], [1], [2, 5], [4, 6]] * 10  # more images than the split has
    (tmp_path / "real.json").write_text(json.dumps(sets))
    made = evaluate(MODEL, named_split, real=tmp_path / "real.json")
    predicted = expected[1].argmax(1)
    scored = [int(predicted[i]) in sets[i] for i in range(41) if sets[i]]
    assert (made.real, made.real_n) == (sum(scored) / len(scored), len(scored))
    assert 0 < made.real < 1 and made.top1 == expected[0]["top1"]
    assert next(s for s in made.scores() if s.name == "real").n == made.real_n
    (tmp_path / "real.json").write_text(json.dumps([[]] * 41))
    with pytest.raises(DataError, match="every set is empty"):
        evaluate(MODEL, named_split, real=tmp_path / "real.json")


def test_the_test_split_is_taken_else_validation(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        f"{what}_{split}": rng.integers(0, 7, shape).astype(np.uint8)
        for split, n in (("train", 20), ("val", 9), ("test", 8))
        for what, shape in (("x", (n, 16, 16, 3)), ("y", (n,)))
    }
    for split, n in (("test", 8), ("validation", 9)):
        np.savez(tmp_path / f"{split}.npz", class_names=np.array(named(7)), **arrays)
        made = evaluate(MODEL, str(tmp_path / f"{split}.npz"))
        assert (made.n, made.data) == (n, f"{split}:{split}")
        arrays = {name: a for name, a in arrays.items() if not name.endswith("_test")}
    made = evaluate(MODEL, tmp_path / "test.npz", split="train[:5]")
    assert made.n == 5
    np.savez(tmp_path / "bare.npz", x=arrays["x_train"], y=arrays["y_train"])
    with pytest.raises(ConfigError, match="no split test or validation; name one of train"):
        evaluate(MODEL, tmp_path / "bare.npz")
    with pytest.raises(ConfigError, match="one split already"):
        evaluate(MODEL, open_source(tmp_path / "test.npz", "test"), split="train")


def test_what_is_no_data_is_refused_in_words():
    with pytest.raises(ConfigError, match="data is a source, a path or a name, not of type NoneType"):
        evaluate(small_model(), None)
    with pytest.raises(ConfigError, match=r"a model, a path or a name.*Linear"):
        evaluate(nn.Linear(1, 1), Split(2, named(7)))


def test_bad_settings(source):
    with pytest.raises(ConfigError, match="batch_size must be at least 1, not 0"):
        evaluate(MODEL, source, batch_size=0)
    with pytest.raises(ConfigError, match="no classifier"):
        evaluate(small_model(0), source)


@st.composite
def examples(draw):
    """Logits with many ties, and for each example some right answers."""
    K, B = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    y = draw(st.lists(st.lists(st.integers(-6, 6), min_size=K, max_size=K), min_size=B, max_size=B))
    right = [sorted(draw(st.sets(st.integers(0, K - 1), min_size=1))) for _ in range(B)]
    return y, right


@given(examples())
def test_against_sorting_and_sums(given_):
    y, right = given_
    m = max(map(len, right)) + 1
    padded = torch.tensor([row + [-1] * (m - len(row)) for row in right])
    made = {
        name: t.tolist()
        for name, t in score_logits(torch.tensor(y, dtype=torch.float32), padded, Calibration()).items()
    }
    for e, (row, answers) in enumerate(zip(y, right, strict=True)):
        ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
        p = np.exp(np.array(row, np.float64))
        p /= p.sum()
        assert made["predicted"][e] == ranked[0]
        assert made["rank"][e] == min(ranked.index(k) for k in answers)
        assert made["confidence"][e] == pytest.approx(p.max(), rel=1e-5)
        assert made["loss"][e] == pytest.approx(-np.log(p[answers].sum()), rel=1e-5, abs=1e-5)


def test_large_logits_do_not_overflow():
    made = score_logits(
        torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]), torch.tensor([[1], [1]]), Calibration()
    )
    assert made["loss"].tolist() == [1000.0, 0.0]


def part(*index):
    zeros = np.zeros(len(index))
    return Predictions(np.array(index, np.int64), *[zeros] * 5)


def test_joining_puts_examples_in_order_and_takes_none_twice():
    assert join_predictions([part(4, 5), part(), part(0, 3)]).index.tolist() == [0, 3, 4, 5]
    with pytest.raises(AssertionError, match="twice"):
        join_predictions([part(4, 5), part(5)])


def test_two_bins_on_paper():
    """Ten answers at 0.75, six right; ten at 0.35, five right: (|6 - 7.5| + |5 - 3.5|) / 20."""
    confidence = np.array([0.75] * 10 + [0.35] * 10)
    right = np.array([True] * 6 + [False] * 4 + [True] * 5 + [False] * 5)
    assert expected_calibration_error(confidence, right) == pytest.approx(0.15)


def test_gaps_of_one_bin_cancel_and_those_of_two_do_not():
    right = np.array([True, False])
    assert expected_calibration_error(np.array([0.5, 0.5]), right) == pytest.approx(0)
    assert expected_calibration_error(np.array([0.1, 0.9]), right) == pytest.approx(0.9)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    """1.0 is in the last bin, 1/3 in the fifth with 0.3."""
    assert expected_calibration_error(np.array([1.0, 0.95]), np.array([True, False])) == pytest.approx(0.475)
    edge, inside = np.float64(5 / 15), 0.3
    assert expected_calibration_error(np.array([edge, inside]), np.array([True, False])) == pytest.approx(
        abs(1 - edge - inside) / 2
    )


@given(st.lists(st.tuples(st.integers(1, 10_000), st.booleans()), min_size=1, max_size=60))
def test_against_a_loop(answers):
    # (k - 1/2) / 10,000 is never an edge, where rounding would decide.
    answers = [((k - 0.5) / 10_000, right) for k, right in answers]
    expected = 0.0
    for b in range(BINS):
        inside = [(c, r) for c, r in answers if b / BINS < c <= (b + 1) / BINS]
        if inside:
            accuracy = sum(r for _, r in inside) / len(inside)
            mean = sum(c for c, _ in inside) / len(inside)
            expected += len(inside) / len(answers) * abs(accuracy - mean)
    made = expected_calibration_error(np.array([c for c, _ in answers]), np.array([r for _, r in answers]))
    assert made == pytest.approx(expected, abs=1e-12)
    assert 0 <= made <= 1
