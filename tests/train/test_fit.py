"""The loop itself: which weights it keeps and evaluates, and how the parts of a batch are put together."""

import json

import pytest
import torch

import vitrail
from tests.train.small import measured
from vitrail.checkpoints.run import Run
from vitrail.evaluators.score import Score
from vitrail.objectives.classification import Classification
from vitrail.runtime.training_display import TrainingDisplay, Work
from vitrail.train.fit import Loop
from vitrail.train.settings import Experiment, OptimizerSettings, TrainingSettings
from vitrail.train.state import TrainState

CPU = torch.device("cpu")


class Batches:
    """The same eight images at every step, the last three of them broken."""

    def batches(self, start, stop, device):
        rng = torch.Generator().manual_seed(1)
        batch = {
            "image": torch.randn(8, 3, 16, 16, generator=rng),
            "label": torch.randint(0, 5, (8,), generator=rng),
            "weight": torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0]),
            "index": torch.arange(8),
        }
        return iter([batch] * (stop - start))


def trained(*, steps, ema=0.0, run=None, evaluators=(), **training):
    torch.manual_seed(0)
    objective = Classification().build(vitrail.create("mu/8", classes=5, image_size=16))
    torch.nn.init.normal_(objective.model.head.classifier.weight)  # zeros would give the body no gradient
    optimizer = OptimizerSettings("sgd", lr=0.1, schedule="constant", warmup=0, ema=ema)
    settings = {"log_every": 1, "evaluate_every": 0, "save_every": 0, **training}
    experiment = Experiment(optimizer=optimizer, training=TrainingSettings(steps, **settings))
    state = TrainState(objective, optimizer, CPU)
    display = TrainingDisplay(Work(steps, 8), shown=False)
    return objective, Loop(state, objective, Batches(), experiment, CPU, display, run, evaluators).fit()


@pytest.mark.parametrize(("watch", "best"), [("val_loss", 2), ("val_ece", 2), ("val_top1", 3)])
def test_the_best_is_the_lowest_loss_or_the_highest_accuracy(tmp_path, watch, best):
    values = iter([2.0, 1.0, 3.0, 2.5])

    def evaluator(model):
        yield Score(watch, next(values), 8)

    run = Run.open(tmp_path / "run", {}, keep=1)
    _, outcome = trained(steps=4, evaluate_every=1, monitor=watch, run=run, evaluators=[evaluator])
    assert outcome.kept == best == run.best()
    assert outcome.scores == {watch: {2: 1.0, 3: 3.0}[best]}


@pytest.mark.parametrize(("damaged", "kept"), [([2], 4), ([2, 4, 3, 1], 5)])
def test_a_damaged_best_checkpoint_gives_way_to_the_next_best_then_to_the_last_weights(
    tmp_path, caplog, damaged, kept
):
    values = dict(enumerate([2.0, 9.0, 3.0, 5.0, 1.0], start=1))
    run, steps = Run.open(tmp_path / "run", {}, keep=9), iter(values)

    def evaluator(model):
        yield Score("val_top1", values[step := next(steps)], 8)
        for broken in damaged if step == 5 else ():
            (run.path / f"checkpoints/step-{broken:08d}/state.safetensors").write_bytes(b"")

    objective, outcome = trained(
        steps=5, evaluate_every=1, monitor="val_top1", run=run, evaluators=[evaluator]
    )
    assert (outcome.kept, outcome.scores) == (kept, {"val_top1": values[kept]})
    assert f"using those of step {kept}" in caplog.text
    wanted, _ = trained(steps=kept)
    for p, q in zip(objective.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("at", ["in the evaluation", "before its scores are saved"])
def test_who_is_killed_in_an_evaluation_loses_nothing_else(tmp_path, monkeypatch, at):
    def evaluator(model):
        yield Score("val_loss", model.head.classifier.weight.norm().item(), 8)

    def killed(*given, **named):
        raise KeyboardInterrupt

    def go(name, *evaluators):
        run = Run.open(tmp_path / name, {})
        try:
            return trained(steps=4, evaluate_every=2, monitor="val_loss", run=run, evaluators=evaluators)
        finally:
            run.close()

    whole, outcome = go("whole", evaluator)
    real = Run.save
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if at != "in the evaluation":
            patch.setattr(
                Run, "save", lambda *given, **named: (killed if named["score"] else real)(*given, **named)
            )
        go("killed", killed if at == "in the evaluation" else evaluator)
    assert [p.name for p in (tmp_path / "killed/checkpoints").iterdir()] == ["step-00000002"]
    again, same = go("killed", evaluator)
    assert (same.kept, same.scores) == (outcome.kept, outcome.scores)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), again.parameters(), strict=True))
    lines = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed"))
    a, b = (measured(list(map(json.loads, one))) for one in lines)
    assert a == b and sum("val_loss" in row for row in a) == 2


def test_what_is_evaluated_is_the_average():
    seen = []

    def evaluator(model):
        seen.append(model.head.classifier.weight.detach().clone())
        yield Score("val_top1", 0.0, 8)

    objective, _ = trained(steps=3, ema=0.5, evaluators=[evaluator])
    raw, _ = trained(steps=3)
    assert torch.equal(seen[0], objective.model.head.classifier.weight)  # what is kept in the end
    assert not torch.equal(seen[0], raw.model.head.classifier.weight)


def test_a_part_of_a_batch_counts_by_its_whole_examples(tmp_path):
    """Of eight examples in two parts, four are whole in the first, one in the second."""
    runs = [Run.open(tmp_path / name, {}) for name in ("one", "two")]
    one, two = (
        trained(steps=2, run=run, grad_accum=parts)[0] for run, parts in zip(runs, (1, 2), strict=True)
    )
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    rows = [run.rows() for run in runs]
    for name in ("loss", "top1", "norm"):
        assert [r[name] for r in rows[0]] == pytest.approx([r[name] for r in rows[1]], rel=1e-4)
