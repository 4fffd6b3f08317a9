"""The public surface: what tools outside the project call."""

import inspect
import subprocess
import sys
import time

import pytest

import vitrail

PROBE = "train_split, test_split, which, cache, batch_size, num_workers)"
SIGNATURES = {
    "create": "(name, *, classes, image_size, **overrides)",
    "load": "(path_or_name, *, classes, image_size, heads, activation, norm_eps, pool, resample, patch_size, "
    "ignore_fields, adapter, max_tokens)",
    "save": "(model, path, *, to)",
    "push": "(model, repository, *, to, private, revision, message, picture)",
    "list_models": "(pattern)",
    "transform": "(model, training)",
    "predict": "(model, images, top, *, batch_size, num_workers, precision, text_embeddings)",
    "predict_to": "(model, images, out, *, top, split, probabilities, features, min_confidence, sort_into, sort_by, "
    "rows_per_file, batch_size, num_workers, precision, on)",
    "features": "(model, images_or_source, *, which, batch_size, num_workers)",
    "evaluate": "(model, data, *, split, batch_size, num_workers, mapping, real, precision, max_bad, "
    "progress, text_embeddings)",
    "export": "(model, path, to, *, precision, input, batch, image_size, rollout, calibrate, calibrate_split, "
    "verify_on, verify_split, max_drop, timing)",
    "inspect": "(model, images, *, names, truths, name, beside, closely, figures)",
    "fewshot": "(model, data, *, shots, seeds, l2, draws, out, " + PROBE,
    "knn": "(model, data, *, k, temperature, " + PROBE,
    "linear": "(model, data, *, l2, out, " + PROBE,
    "finetune": "(data, model, *, protocol, recipe, out, device, **settings)",
    "pretrain": "(data, *, model, objective, recipe, out, device, **settings)",
}
ERRORS = {"VitrailError", "ConfigError", "CheckpointError", "DataError", "ImageError"}


def test_public_names():
    assert set(vitrail.__all__) == set(SIGNATURES) | ERRORS
    assert all(hasattr(vitrail, name) for name in vitrail.__all__)


def test_signatures():
    for name, expected in SIGNATURES.items():
        parameters = inspect.signature(getattr(vitrail, name)).parameters.values()
        words, starred = [], False
        for p in parameters:
            if p.kind is p.KEYWORD_ONLY and not starred:
                words.append("*")
                starred = True
            words.append(f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name)
        assert f"({', '.join(words)})" == expected, name


def test_a_model_describes_itself():
    model = vitrail.create("mu/8", image_size=16)
    assert model.config.classes == 1000
    assert isinstance(model.preprocess, str)
    assert model.class_names is None


def test_help_answers_without_torch():
    """The time itself is a benchmark; what makes it short is that torch is not imported."""
    pytest.importorskip("tyro")
    code = "import sys; from vitrail.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'numpy', 'matplotlib', 'pyarrow'} & set(sys.modules)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "convert" in done.stdout
    assert time.perf_counter() - start < 10
