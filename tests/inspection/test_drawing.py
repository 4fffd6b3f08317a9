"""Figures: files that are there, whole, with what they should show in them."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from PIL import Image

from vitrail.inspection import drawing


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def has(path, colour, least=20):
    """At least so many pixels near a colour (#rrggbb)."""
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (np.abs(pixels(path).astype(int) - wanted).max(axis=2) < 12).sum() >= least


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures, save = [], drawing.save_figure
    monkeypatch.setattr(
        drawing, "save_figure", lambda figure, path: (figures.append(figure), save(figure, path))
    )
    return figures


def words(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def inside(figure):
    """All words are on the page."""
    figure.draw_without_rendering()  # places all words
    boxes = [text.get_window_extent() for text in figure.findobj(Text) if text.get_text().strip()]
    page = figure.bbox
    return all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= page.x1 and b.y1 <= page.y1 for b in boxes)


def training(n):
    return [{"step": i, "loss": 2.0 - i / 100, "lr": 0.1, "seconds": 0.5} for i in range(n)]


def test_loss_curve_of_one_row(tmp_path):
    drawing.loss_curve(training(1), tmp_path / "deep" / "loss.png")
    assert has(tmp_path / "deep" / "loss.png", drawing.COLOURS[0])
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["loss.png"]


def test_loss_curve_shows_a_smoothed_line_and_scores(tmp_path):
    drawing.loss_curve(training(10), tmp_path / "a.png")
    assert not has(tmp_path / "a.png", drawing.PALE, 200)
    drawing.loss_curve(training(60), tmp_path / "b.png")
    assert has(tmp_path / "b.png", drawing.PALE) and has(tmp_path / "b.png", drawing.COLOURS[0])
    scores = [{"step": i, "val_top1": 0.5, "val_top5": 0.9, "val_n": 1000} for i in (10, 50)]
    drawing.loss_curve(training(60) + scores, tmp_path / "c.png")
    assert pixels(tmp_path / "c.png").shape[0] > pixels(tmp_path / "b.png").shape[0]
    assert has(tmp_path / "c.png", drawing.COLOURS[1]) and has(tmp_path / "c.png", drawing.COLOURS[2])


def test_validation_stands_beside_training(tmp_path, drawn):
    rows = [{**row, "top1": 0.25} for row in training(60)]
    rows += [{"step": i, "val_loss": 1.5, "val_top1": 0.5} for i in (30, 60)]
    drawing.loss_curve(rows, tmp_path / "c.png")
    loss, score, lr = drawn[0].axes
    legends = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in (loss, score)]
    assert legends[0] == ["training", "training, smoothed", "val_loss: 1.5"]
    assert legends[1] == ["training", "training, smoothed", "val_top1: 50.0%"]
    assert lr.get_ylabel() == "learning rate"


def test_loss_curve_takes_rows_with_nothing_in_them(tmp_path):
    rows = [{"step": 1, "loss": None}, {"step": 2, "val_top1": float("nan")}, {"note": "x"}, {}]
    drawing.loss_curve(rows, tmp_path / "a.png", title="$x_1 & _y$ \\alpha")
    assert pixels(tmp_path / "a.png").size
    drawing.loss_curve([], tmp_path / "b.png")
    assert pixels(tmp_path / "b.png").size


def test_scores_are_what_evaluations_say(tmp_path, drawn):
    rows = [{"step": 1, "loss": 1.0, "val_top5": 0.5, "images_per_second": 0.5}, {"step": 2, "top1": 0.5}]
    drawing.loss_curve([*rows, {"step": 3, "note": "text", "val_n": 1000}], tmp_path / "c.png")
    _, score = drawn[0].axes
    legend = [text.get_text() for text in score.get_legend().get_texts()]
    assert legend == ["val_top5: 50.0%", "top1: 50.0%"]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=200))
def test_smoothing_stays_between_least_and_most_and_keeps_constants(values):
    made = drawing.smoothed(values)
    assert len(made) == len(values)
    assert made[0] == pytest.approx(values[0])
    assert made.min() >= min(values) - 1e-6 and made.max() <= max(values) + 1e-6


@pytest.mark.parametrize("K", [1, 12, 205])
def test_confusion_matrix_has_a_dark_diagonal(tmp_path, monkeypatch, K):
    monkeypatch.setattr(drawing, "DPI", 50)  # small pictures are quicker
    drawing.confusion_matrix(
        np.eye(K, dtype=np.int64) * 7, [f"class {i}" for i in range(K)], tmp_path / "c.png"
    )
    assert has(tmp_path / "c.png", "#08306b", 30)  # the darkest of the colours: a share of 1


def test_confusion_matrix_of_no_examples(tmp_path):
    drawing.confusion_matrix(np.zeros((3, 3), np.int64), ["a", "b", "c"], tmp_path / "c.png")
    assert not has(tmp_path / "c.png", "#08306b", 5000)


def test_the_colours_of_a_confusion_matrix_say_their_scale(tmp_path, drawn):
    drawing.confusion_matrix(np.eye(3, dtype=np.int64), ["a", "b", "c"], tmp_path / "c.png")
    assert any("share" in said and "square-root scale" in said for said in words(drawn[0]))
    assert inside(drawn[0])


def test_a_large_confusion_matrix_lists_pairs_instead_of_names(tmp_path, drawn):
    pairs = [("a name that is much too long to be written in one line", "other", 7, 50)] * 60
    for K in (40, 41):
        names = [f"class {i} with a name that is long" for i in range(K)]
        drawing.confusion_matrix(np.eye(K, dtype=np.int64), names, tmp_path / "c.png", pairs=pairs)
        assert inside(drawn[-1])
    small, large = map(words, drawn)
    assert any(text.startswith("class 39") for text in small) and "most confused" not in small
    assert not any(text.startswith("class 3") for text in large)
    assert sum("as other: 7 of 50" in text for text in large) > 10


def test_neighbours_of_a_very_large_matrix_keep_the_greatest():
    values = np.zeros((1000, 1000))
    values[999, 1] = 1
    small = drawing.pooled(values, 800)
    assert small.shape == (500, 500) and small[499, 0] == 1 == small.sum()


def test_attention_distances_name_their_layers(tmp_path, drawn):
    layers = ["1 row", "1 column", "2 row", "2 column"]
    panels = {
        "axial": (np.ones((1, 4, 2)), layers),
        "plain": (np.ones((3, 2, 1)), ["1", "2"]),
        "deep": (np.ones((2, 60, 2)), [str(i) for i in range(1, 61)]),
    }
    drawing.draw_attention_distances(panels, tmp_path / "d.png")
    axial, plain, deep = drawn[0].axes
    assert [label.get_text() for label in axial.get_xticklabels()] == layers
    assert [label.get_text() for label in plain.get_xticklabels()] == ["1", "2"]
    assert [label.get_text() for label in deep.get_xticklabels()][:3] == ["1", "4", "7"]
    assert axial.get_xlim() == (0.5, 4.5) and plain.get_xlim() == (0.5, 2.5)
    assert {"1 image, 2 heads", "3 images, 1 head"} <= set(words(drawn[0]))


@settings(max_examples=4)
@given(st.lists(st.text(max_size=40), min_size=2, max_size=3))
def test_any_name_can_be_drawn(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("names") / "c.png"
    K = len(names)
    drawing.confusion_matrix(np.ones((K, K), np.int64), names, path)
    drawing.captioned([np.zeros((8, 8, 3), np.uint8)] * K, names, path, title=names[0])
    assert pixels(path).size


def test_mistakes_shows_every_picture(tmp_path):
    colours = ["#ff0000", "#00ff00", "#0000ff", "#ff00ff", "#00ffff"]
    images = [
        np.full((20 + 9 * i, 50, 3), [int(c[k : k + 2], 16) for k in (1, 3, 5)], np.uint8)
        for i, c in enumerate(colours)
    ]
    drawing.captioned(images, [f"caption {c}" for c in colours], tmp_path / "m.png", title="wrong")
    assert all(has(tmp_path / "m.png", colour, 500) for colour in colours)
    drawing.captioned([], [], tmp_path / "none.png")
    assert pixels(tmp_path / "none.png").size


@pytest.mark.parametrize("n", [5, 7, 11, 12])
def test_galleries_have_no_holes_and_lose_no_caption(tmp_path, drawn, n):
    caption = (
        "val/IMG_1.jpg\n98.3% soft-coated wheaten terrier of the north\ntrue: black-and-gold garden spider"
    )
    shapes = [(20, 40, 3), (40, 20, 3)] * n
    drawing.captioned([np.zeros(shape, np.uint8) for shape in shapes[:n]], [caption] * n, tmp_path / "m.png")
    (figure,) = drawn
    assert inside(figure)
    texts = [" ".join(text.split()) for text in words(figure) if text]
    assert texts == [" ".join(caption.split())] * n
    boxes = np.array([ax.get_position(original=True).bounds for ax in figure.axes])  # (n, 4)
    for bottom in np.unique(boxes[:, 1].round(6)):
        row = boxes[boxes[:, 1].round(6) == bottom]
        assert row[0, 0] == pytest.approx(1 - row[-1, 0] - row[-1, 2])  # centred


def test_the_filters_of_warnings_are_left_as_they_were(tmp_path):
    before = list(warnings.filters)
    drawing.captioned([np.zeros((8, 8, 3), np.uint8)], ["漢字 😀"], tmp_path / "m.png")
    assert warnings.filters == before


def test_labels_stand_above_and_below_a_picture_that_stays_as_it_is(tmp_path):
    picture = np.full((60, 200, 3), (255, 0, 0), np.uint8)
    drawing.labelled(picture, tmp_path / "p.png", above=["ant\nbee", "cat"], columns=["dog", "elk"])
    made = pixels(tmp_path / "p.png")
    rows = np.flatnonzero((made == (255, 0, 0)).all(axis=2).any(axis=1))
    assert 58 <= len(rows) <= 62  # pixel for pixel
    dark = made.max(axis=2) < 120
    for outside in (dark[: rows[0]], dark[rows[-1] + 1 :]):
        middle = made.shape[1] // 2
        assert outside[:, :middle].any() and outside[:, middle:].any()


@pytest.mark.parametrize("shape", [(48, 48), (600, 150), (150, 600)])
def test_a_page_is_as_wide_as_its_picture_and_all_words_are_on_it(tmp_path, drawn, shape):
    drawing.labelled(
        np.zeros((*shape, 3), np.uint8),
        tmp_path / "p.png",
        title="n01484850_great_white_shark.JPEG\nwhat the output looks at",
        rows=["layer 1", "layer 2"],
        columns=["1", "2"],
        axes=("", "head"),
        scale=(0, 1, "part of the tile's greatest weight"),
    )
    assert pixels(tmp_path / "p.png").shape[1] < shape[1] + 2.2 * drawing.DPI
    assert inside(drawn[0])
    assert "head" in words(drawn[0])


def test_a_name_that_is_no_unicode_is_drawn(tmp_path):
    picture = np.zeros((8, 8, 3), np.uint8)
    name = "caf\udce9.png"
    drawing.captioned([picture], [name], tmp_path / "a.png", title=f"{name}\n{name}")
    drawing.labelled(picture, tmp_path / "b.png", title=name, rows=[name], columns=[name])
    drawing.confusion_matrix(np.eye(2, dtype=np.int64), [name, "b"], tmp_path / "c.png")
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("fonts", "notes"), [(("DejaVu Sans",), 1), (("DejaVu Sans", "DejaVu Sans Mono"), 0)]
)
def test_letters_are_taken_from_any_font_or_a_note_is_made_once(tmp_path, monkeypatch, caplog, fonts, notes):
    """Of the fonts that matplotlib brings, the second has a letter that the first has not."""
    monkeypatch.setattr(drawing, "FONTS", fonts)
    drawing.note_boxes.cache_clear()
    names = ["é", "⌕"]
    for _ in range(2):
        drawing.confusion_matrix(np.eye(2, dtype=np.int64), names, tmp_path / "c.png")
    assert len(caplog.messages) == notes and all("no installed font" in said for said in caplog.messages)
    drawing.note_boxes.cache_clear()


def test_a_map_of_few_and_of_many_groups(tmp_path):
    rng = np.random.default_rng(0)
    for K in (1, 3, 60):
        names = [f"$class_{k}" * (1 + k % 4) for k in range(K)]
        groups, path = rng.integers(0, K, 90), tmp_path / f"{K}.png"
        drawing.draw_map(
            rng.random((90, 2)), groups, names, ["#336699"] * K, path, title="$x", about="of $y_"
        )
        with Image.open(path) as picture:
            assert picture.width > 600 and picture.height > 400
    drawing.draw_map(np.zeros((1, 2)), np.zeros(1, int), ["a"], ["#000000"], tmp_path / "one.png")
