import pytest
import torch

import vitrail
from tests.randomise import randomise
from vitrail.errors import ConfigError
from vitrail.inference.engine import forward_pass
from vitrail.inference.precision import choose_precision, in_precision

CPU = torch.device("cpu")


def test_auto_on_a_cpu_is_float32():
    assert choose_precision("auto", CPU) == "float32"


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp8"])
def test_what_is_asked_for_is_what_it_is(precision):
    assert choose_precision(precision, CPU) == precision


def test_others_are_refused():
    with pytest.raises(ConfigError, match="int8"):
        choose_precision("int8", CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mu/8", "R50x1"])
def test_in_bf16_and_back(name):
    torch.manual_seed(0)
    model = randomise(vitrail.create(name, classes=5, image_size=32)).eval()
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        before = model(x)
        with forward_pass(model, precision="bf16") as forward:
            rounded = forward(x)
        assert 0 < (rounded - before).norm() / before.norm() < 0.3
        assert torch.equal(model(x), before)
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_weights_come_back_after_an_error():
    model = vitrail.create("mu/8", classes=5, image_size=16)
    with pytest.raises(KeyError), in_precision(model, "bf16"):
        raise KeyError
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_resnet_has_no_fp8():
    model = vitrail.create("R50x1", classes=5, image_size=32)
    with pytest.raises(ConfigError, match="fp8"), in_precision(model, "fp8"):
        pass
