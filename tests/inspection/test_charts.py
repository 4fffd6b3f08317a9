"""Charts of measured numbers are files; what is on them is what was given."""

import pytest

from vitrail.inspection import charts
from vitrail.inspection.charts import Dot, Panel, draw_panels, format_number, round_numbers

LINES = Panel(
    "ours", "images", "accuracy (%)", {"ViT": [Dot(1e3, 20, 1), Dot(9e4, 60, 2)], "$x$": [Dot(1e3, 30)]}, log_x=True,
    curves={"ViT": [(1e3, 20.0), (9e4, 61.0)]},
)  # fmt: skip
ROWS = Panel("the paper", "", "accuracy (%)", {"paper": [Dot(1, 64.2)]}, rows=("none", "1-D"), hollow=True)


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    save = charts.save_figure
    monkeypatch.setattr(
        charts, "save_figure", lambda figure, path: figures.append(figure) or save(figure, path)
    )
    return figures


def test_lines_and_rows_side_by_side(tmp_path, drawn):
    paths = [tmp_path / "figure.png", tmp_path / "figure.svg"]
    draw_panels([LINES, ROWS], paths, title="a & b")
    assert paths[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in paths[1].read_bytes()[:500]
    lines, rows = drawn[0].axes
    assert (lines.get_xlabel(), lines.get_ylabel(), lines.get_xscale()) == ("images", "accuracy (%)", "log")
    assert [tick.get_text() for tick in lines.get_xticklabels()] == ["1,000", "90k"]
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["ViT", r"\$x\$"]
    assert [tick.get_text() for tick in rows.get_yticklabels()] == ["none", "1-D"]
    assert rows.get_xlabel() == "accuracy (%)"
    assert rows.get_legend() is None  # of one series


def test_a_panel_without_numbers(tmp_path):
    draw_panels([Panel("nothing yet", "x", "y", {})], [tmp_path / "figure.png"])
    assert (tmp_path / "figure.png").exists()


def test_round_numbers_of_a_range():
    assert round_numbers(60, 1100) == [100, 200, 500, 1000]
    assert round_numbers(1, 1e5) == [1, 10, 100, 1000, 1e4, 1e5]


@pytest.mark.parametrize(
    ("x", "text"), [(303e6, "303M"), (9e4, "90k"), (1800, "1,800"), (0.03, "0.03"), (3e-4, "3e-4"), (0, "0")]
)
def test_numbers_as_labels(x, text):
    assert format_number(x) == text
