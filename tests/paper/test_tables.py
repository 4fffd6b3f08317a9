"""Numbers that the paper and its code state of the models."""

import pytest
import torch

from vitrail.models.cost import accelerator_days, cost
from vitrail.models.names import build, make_config

# vit_jax/models_test.py of the published code: at 224, 1,000 classes
PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "S/32": 22_878_952,
    "B/8": 86_576_872,
    "B/16": 86_567_656,
    "B/32": 88_224_232,
    "L/16": 304_326_632,
    "L/32": 306_535_400,
    "H/14": 632_045_800,
    "R+Ti/16": 6_337_704,
    "R26+S/32": 36_431_912,
    "R26+B/32": 101_383_976,
    "R50+B/16": 98_659_112,
    "R50+L/32": 328_994_856,
}
GAP = {"B/16": 86_566_120, "S/16": 22_049_896}

# Table 6: (epochs on the 303M images of JFT, exaFLOPs)
EXAFLOPS = {
    "B/32": [(7, 55)], "B/16": [(7, 224)], "L/32": [(7, 196)], "L/16": [(7, 783), (14, 1567)], "H/14": [(14, 4262)],
    "R50x1": [(7, 50)], "R50x2": [(7, 199)], "R101x1": [(7, 96)], "R152x1": [(7, 141)],
    "R152x2": [(7, 563), (14, 1126)], "R200x3": [(14, 3306)],
    "R50+B/32": [(7, 106)], "R50+B/16": [(7, 274)], "R50+L/32": [(7, 246)], "R50+L/16": [(7, 859), (14, 1668)],
}  # fmt: skip
TPU_V3_CORE = 61.5e12


def parameters_of(config):
    with torch.device("meta"):
        return sum(p.numel() for p in build(config).parameters())


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameter_counts(name, count):
    assert parameters_of(make_config(name)) == count


@pytest.mark.parametrize(("name", "count"), GAP.items())
def test_parameter_counts_with_mean_pooling(name, count):
    assert parameters_of(make_config(name, pool="mean")) == count


@pytest.mark.parametrize(("name", "rows"), EXAFLOPS.items())
def test_pretraining_exaflops_of_table_6(name, rows):
    within = 0.035 if "+" in name else 0.045 if "x" in name else 0.025
    for epochs, exaflops in rows:
        ours = cost(make_config(name)).pretraining_flops(303_000_000, epochs) / 1e18
        assert ours == pytest.approx(exaflops, rel=within)


@pytest.mark.parametrize(("name", "core_days"), [("H/14", 2500), ("L/16", 680)])
def test_tpu_core_days_of_table_2_are_met_at_a_plausible_utilisation(name, core_days):
    flops = cost(make_config(name)).pretraining_flops(303_000_000, 14)
    at_peak = accelerator_days(flops, TPU_V3_CORE, utilisation=1.0)
    assert 0.25 < at_peak / core_days < 0.5
