import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vitrail
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError
from vitrail.models.cost import cost
from vitrail.models.names import make_config
from vitrail.train import estimate as estimates
from vitrail.train.assemble import Inputs, build_model, model_config, read_start
from vitrail.train.estimate import Accelerators
from vitrail.train.keywords import override
from vitrail.train.settings import Experiment


def experiment(model="mu/8", batch_size=64, steps=100, image_size=32, **settings):
    named = {"model": model, "image_size": image_size, "batch_size": batch_size, "steps": steps}
    return override(Experiment(), named | settings)


def estimate(made, examples, classes, on=None):
    config = model_config(made, classes, read_start(made.model))
    return estimates.estimate(made, config, examples, on)


@given(
    batch_size=st.sampled_from([8, 64, 4096]),
    epochs=st.integers(1, 300),
    examples=st.integers(5_000, 10**9),
    processes=st.sampled_from([1, 2, 8]),
)
def test_flops_and_time(batch_size, epochs, examples, processes):
    on = Accelerators(processes, peak_flops=1e12, utilisation=0.5)
    made = estimate(experiment(batch_size=batch_size, steps=f"{epochs}ep"), examples, 10, on)
    each = cost(make_config("mu/8", image_size=32, classes=10)).training_flops
    assert abs(made.examples_seen - epochs * examples) <= batch_size / 2
    assert made.flops == pytest.approx(each * made.steps * batch_size)
    assert made.seconds * processes * 0.5e12 == pytest.approx(made.flops)
    assert made.accelerator_days == pytest.approx(made.seconds * processes / 86_400)
    assert made.exaflops == made.flops / 1e18


def test_the_state_is_what_torch_holds():
    """Weights, gradients and moments of a model that took one step, counted in bytes."""
    for optimizer in ("adamw", "sgd"):
        made = estimate(experiment(optimizer=optimizer), 1000, 10)
        model = vitrail.create("mu/8", image_size=32, classes=10)
        kinds = {
            "adamw": torch.optim.AdamW(model.parameters()),
            "sgd": torch.optim.SGD(model.parameters(), momentum=0.9),
        }
        model(torch.randn(2, 3, 32, 32)).sum().backward()
        kinds[optimizer].step()
        moments = [
            t for state in kinds[optimizer].state.values() for t in state.values()
            if torch.is_tensor(t) and t.ndim
        ]  # fmt: skip
        held = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None), *moments]
        assert made.state_bytes == sum(t.numel() * t.element_size() for t in held)


def test_what_changes_the_memory():
    plain = estimate(experiment(), 1000, 10)
    images = 64 * cost(make_config("mu/8", image_size=32, classes=10)).activation_bytes(2)
    assert plain.activation_bytes == images
    assert plain.memory_bytes == plain.state_bytes + images

    averaged = estimate(experiment(ema=0.99), 1000, 10)
    assert averaged.state_bytes == plain.state_bytes + 4 * plain.parameters
    parts = estimate(experiment(grad_accum=4), 1000, 10, Accelerators(2))
    assert parts.activation_bytes == images // 8
    assert parts.state_bytes == plain.state_bytes
    assert estimate(experiment(precision="float32"), 1000, 10).activation_bytes == 2 * images
    sharded = estimate(experiment(parallel="fsdp", replicas=2), 1000, 10, Accelerators(8))
    assert sharded.state_bytes == plain.state_bytes // 4


@pytest.mark.parametrize("model", ["Ti/16", "R26+S/32", "L/16"])
def test_recomputation_keeps_the_inputs_of_layers_and_one_layer(model):
    def activations(recompute):
        chosen = experiment(model, image_size=None, activation_checkpointing=recompute)
        return estimate(chosen, 1000, 10).activation_bytes

    assert 0.02 < activations(True) / activations(False) < (0.9 if "+" in model else 0.2)
    flat, plain = (experiment("R50x1", image_size=None, activation_checkpointing=on) for on in (True, False))
    assert estimate(flat, 1000, 10).activation_bytes == estimate(plain, 1000, 10).activation_bytes


def test_masked_patches_have_no_classifier():
    masked = experiment(objective="masked-patches")
    assert model_config(masked, 10).classes == 0
    assert estimate(masked, 1000, 10).parameters < estimate(experiment(), 1000, 10).parameters


def test_the_model_of_a_file(tmp_path):
    vitrail.save(vitrail.create("mu/8", image_size=32, classes=3), tmp_path / "model")
    made = estimate(experiment(str(tmp_path / "model"), image_size=64), 1000, 10)
    assert made.image_size == (64, 64)
    assert made.parameters == cost(make_config("mu/8", image_size=64, classes=10)).parameters


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("image_size", [None, 64])
def test_the_model_of_a_file_is_the_one_that_is_trained(tmp_path, classes, image_size):
    """Also where the number of classes stays: the head is a new one, without the layer before it."""
    vitrail.save(vitrail.create("mu/8", image_size=32, classes=classes, pre_logits=9), tmp_path / "model")
    made = experiment(str(tmp_path / "model"), image_size=image_size, data="shapes?n=80")
    start = Inputs.read(made).start
    built = build_model(made, open_source("shapes?n=80", "train"), start)
    assert model_config(made, 10, start) == built.config


@pytest.mark.parametrize(
    ("made", "on", "words"),
    [
        (experiment(batch_size=64), Accelerators(3), "64 .* 3 .*processes"),
        (experiment(grad_accum=5), None, "64 .* 5 .*grad_accum"),
        (experiment(parallel="fsdp", replicas=3), Accelerators(4), "replicas=3: 4 processes cannot form"),
        (experiment(steps="0.001ep"), None, "0.001ep"),
        (experiment(), Accelerators(peak_flops=0.0), "peak"),
        (experiment(), Accelerators(utilisation=2.0), "utilisation"),
    ],
)
def test_what_cannot_be_is_refused_in_words(made, on, words):
    with pytest.raises(ConfigError, match=words):
        estimate(made, 1000, 10, on)
