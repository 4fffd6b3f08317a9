"""Folders that transformers itself writes of models which are read as none of its kinds: refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers import torchvision_or_skip
from vitrail.checkpoints.formats import load
from vitrail.checkpoints.huggingface import OTHER_MODELS
from vitrail.errors import CheckpointError

torchvision_or_skip()
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48, "image_size": 32,
    "patch_size": 16,
}  # fmt: skip
# model: the beginning of its config's name
MODELS = {
    "Data2VecVisionForImageClassification": "Data2VecVision",
}


@pytest.mark.parametrize("model", MODELS)
def test_refused_by_name(model: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{MODELS[model]}Config")(**SIZES)
    getattr(transformers, model)(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert repr(config.model_type) in str(caught.value)
    assert OTHER_MODELS[config.model_type] in str(caught.value)
