"""What an inspection's figures say and show, of whatever size the model's images are."""

import numpy as np
import pytest
import torch

import vitrail
from tests.inspection.looked_at import bit, made, pictures
from vitrail.evaluators.score import Gallery
from vitrail.inspection import drawing
from vitrail.inspection.embeddings import Filters
from vitrail.inspection.figures import (
    draw_filters,
    draw_gallery,
    draw_heads,
    draw_inspection,
    draw_positions,
    draw_views,
)
from vitrail.inspection.inspect import Subject, inspect
from vitrail.inspection.occlusion import cell_size, hide
from vitrail.inspection.pictures import heat


@pytest.fixture
def labelled(monkeypatch):
    """The pages of pictures, and their words."""
    pages = []
    monkeypatch.setattr(drawing, "labelled", lambda picture, path, **words: pages.append((picture, words)))
    return pages


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
    ((_, words),) = labelled
    assert words["title"].endswith(f"\na tile for {said} positions")
    assert words["axes"] == ("row", "column") and words["rows"][-1] == str(grid[0])


def test_heads_are_named(labelled, tmp_path):
    seen = inspect(made("axial"), pictures(1))
    draw_heads("a", seen.subjects[0].maps, seen.layers, tmp_path / "h.png")
    ((_, words),) = labelled
    assert words["rows"] == ["layer 1 row", "layer 1 column", "layer 2 row", "layer 2 column"]
    assert words["columns"] == ["1", "2"] and words["axes"] == ("", "head")


def test_distances_have_the_layers_of_their_model_and_beside_another_its_size(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(drawing, "draw_attention_distances", lambda panels, path: drawn.append(panels))
    axial, token = made("axial"), made("token")
    for beside in ({}, {"b": token}):
        draw_inspection(inspect(axial, pictures(1), name="a", beside=beside, closely=0), tmp_path)
    alone, both = drawn
    layers = ["1 row", "1 column", "2 row", "2 column"]
    assert {title: list(names) for title, (_, names) in alone.items()} == {"a": layers}
    assert {title: list(names) for title, (_, names) in both.items()} == {
        "a\n16 x 24 pixels": layers,
        "b\n32 x 32 pixels": ["1"],
    }


def test_filters_are_drawn_each_from_its_least_to_its_greatest(labelled, tmp_path):
    components = np.random.default_rng(0).normal(size=(9, 4, 4, 3)) * np.arange(1, 10)[:, None, None, None]
    draw_filters(Filters(components, np.full(9, 0.1), "E"), tmp_path / "f.png")
    draw_filters(Filters(components[:2, ..., :1], np.zeros(2), "E"), tmp_path / "f.png")
    (page, words), (grey, _) = labelled
    assert words["title"] == "9 principal components of E: 90% of its variance"
    side = 24 * 4
    assert page.shape == (2 * side + 2, 7 * side + 6 * 2, 3)
    tile = page[:side:24, :side:24].astype(float)
    expected = (components[0] - components[0].min()) / np.ptp(components[0]) * 255
    assert np.abs(tile - expected).max() <= 0.5
    assert (grey == grey[..., :1]).all()


def test_positions_of_a_large_grid_have_some_of_its_tiles(labelled, tmp_path):
    similarity = np.zeros((20, 5, 20, 5))
    similarity[np.arange(20)[:, None], np.arange(5), np.arange(20)[:, None], np.arange(5)] = 1
    draw_positions(similarity, tmp_path / "p.png")
    ((page, _),) = labelled
    by = round(56 / 20)
    assert page.shape == (16 * (20 * by + 2) - 2, 5 * (5 * by + 2) - 2, 3)
    np.testing.assert_array_equal(page[0, 0], heat(np.ones((1, 1)))[0, 0])  # a patch is like itself
    np.testing.assert_array_equal(page[by, 0], heat(np.zeros((1, 1)))[0, 0])


@pytest.mark.parametrize(("n", "bands"), [(1, 1), (8, 1), (9, 2)])
def test_a_gallery_shows_every_row_of_each_example(labelled, tmp_path, n, bands):
    colours = {"input": (255, 0, 0), "predicted": (0, 255, 0), "truth": (0, 0, 255)}
    rows = {name: np.tile(np.array(colour, np.uint8), (n, 16, 24, 1)) for name, colour in colours.items()}
    draw_gallery(Gallery("patches", rows), tmp_path)
    ((page, words),) = labelled
    assert words["rows"] == [*colours] * bands
    counts = [(page == colour).all(axis=2).sum() for colour in colours.values()]
    assert counts == [n * 16 * 24 * 7**2] * 3  # enlarged 7 times
