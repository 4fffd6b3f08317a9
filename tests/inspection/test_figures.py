"""What an inspection's figures say and show, of whatever size the model's images are."""

import numpy as np
import pytest
import torch

import vitrail
from tests.inspection.looked_at import bit, made, pictures
from vitrail.inspection import drawing, figures
from vitrail.inspection.figures import draw_distances, draw_heads, draw_positions, draw_views
from vitrail.inspection.inspect import Subject, inspect
from vitrail.inspection.occlusion import cell_size, hide
from vitrail.inspection.pictures import heat


@pytest.fixture
def labelled(monkeypatch):
    """What the pages of pictures are told to say."""
    said = []
    monkeypatch.setattr(figures.drawing, "labelled", lambda picture, path, **words: said.append(words))
    return said


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (vitrail.create("mu/14", image_size=518).config, (8, 8)),
        (vitrail.create("mu/16", image_size=(96, 240)).config, (3, 8)),
        (bit().config, (2, 2)),
    ],
    ids=["518", "96x240", "resnet"],
)
def test_occlusion_is_drawn_where_it_was_hidden(config, shape):
    (H, W), size = config.image_size, cell_size(config)
    x = torch.rand(1, H, W)
    for r, c in {(0, 0), (1, 1), (shape[0] - 2, shape[1] - 2), (shape[0] - 1, shape[1] - 1)}:
        falls = np.zeros(shape)
        falls[r, c] = 0.5
        subject = Subject("a", np.zeros((H, W, 3), np.uint8), [], falls, None, None)
        *_, seen = draw_views(subject, config).values()
        bright = (seen == np.round(0.6 * heat(np.ones((1, 1)))).astype(np.uint8)).all(axis=2)  # (H, W)
        hidden = (hide(x[0][None], [(r * size, c * size)], size)[0, 0] != x[0]).numpy()
        np.testing.assert_array_equal(bright, hidden)


@pytest.mark.parametrize(
    ("grid", "said"),
    [((8, 8), "each of 8 x 8"), ((37, 37), "16 x 16 of 37 x 37"), ((5, 20), "5 x 16 of 5 x 20")],
)
def test_positions_say_how_many_have_a_tile(labelled, tmp_path, grid, said):
    draw_positions(np.ones((*grid, *grid), np.float32), tmp_path / "p.png")
    (words,) = labelled
    assert words["title"].endswith(f"\na tile for {said} positions")
    assert words["axes"] == ("row", "column") and words["rows"][-1] == str(grid[0])


def test_heads_are_named(labelled, tmp_path):
    seen = inspect(made("axial"), pictures(1))
    draw_heads(seen.subjects[0], seen.layers, tmp_path / "h.png")
    (words,) = labelled
    assert words["rows"] == ["layer 1 row", "layer 1 column", "layer 2 row", "layer 2 column"]
    assert words["columns"] == ["1", "2"] and words["axes"] == ("", "head")


def test_distances_have_the_layers_of_their_model_and_beside_another_its_size(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(drawing, "attention_distances", lambda panels, path: drawn.append(panels))
    axial, token = made("axial"), made("token")
    for beside in ({}, {"b": token}):
        draw_distances(inspect(axial, pictures(1), name="a", beside=beside, closely=0), tmp_path / "d.png")
    alone, both = drawn
    layers = ["1 row", "1 column", "2 row", "2 column"]
    assert {title: list(names) for title, (_, names) in alone.items()} == {"a": layers}
    assert {title: list(names) for title, (_, names) in both.items()} == {
        "a\n16 x 24 pixels": layers,
        "b\n32 x 32 pixels": ["1"],
    }
