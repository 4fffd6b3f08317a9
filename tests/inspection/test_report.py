"""The page: one file that needs nothing else, safe against the names in it; in a browser its controls work."""

import base64
import html.parser
import io
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.inspection.looked_at import answering, bit, made, pictures
from vitrail.data.sources import open_source
from vitrail.errors import ConfigError
from vitrail.evaluators.accuracy import evaluate
from vitrail.evaluators.score import format_accuracy
from vitrail.inspection import drawing
from vitrail.inspection.drawing import shorten
from vitrail.inspection.figures import draw_evaluation, draw_inspection, draw_run
from vitrail.inspection.inspect import inspect
from vitrail.inspection.patches import unit
from vitrail.inspection.pictures import heat
from vitrail.inspection.report import average_cells, begin_report, check_report_folder, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "img", "input", "br", "link", "hr"}


class Page(html.parser.HTMLParser):
    """Every tag closed, every address inside the page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.addresses, self.links = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [
            given[name] for name in ("src", "srcset", "data", "action", "poster") if name in given
        ]
        self.links += [given["href"]] if "href" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def looked(model, folder, images=2, **options):
    seen = inspect(model, pictures(images, size=(64, 64)), name=options.pop("name", "it"), **options)
    figures = draw_inspection(seen, folder)
    write_report(seen, figures, folder / "report.html")
    return seen, figures, (folder / "report.html").read_text()


def maps_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="maps">(.*?)</script>', text, re.DOTALL)[1]
    )


@pytest.mark.parametrize("kind", ["token", "relative", "axial"])
def test_one_page_that_needs_nothing_else(tmp_path, kind):
    seen, figures, text = looked(made(kind), tmp_path, images=1)
    page = Page(text)
    assert all(address.startswith("data:image/") for address in page.addresses) and page.addresses
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"https?://|@import|url\(", text)
    assert not re.search(r"<figcaption>[^<]*\\n", text)  # lines of a caption are joined, not escaped
    assert (
        "default-src 'none'" in text and "color-scheme: light dark" in text and "width=device-width" in text
    )
    assert "canvas" in page.tags and f'max="{len(seen.layers)}"' in text
    assert ("positions" in figures) == (kind != "relative") == ("Position embeddings" in text)
    assert all(path.stat().st_size > 500 for path in figures.values())
    assert {"image-01", "image-01-heads", "filters", "attention_distance"} <= set(figures)


def test_a_resnet_has_a_page_without_attention(tmp_path):
    _, figures, text = looked(bit(), tmp_path, images=1)
    page = Page(text)
    assert set(figures) == {"filters", "image-01"}
    assert "canvas" not in page.tags and "script" not in page.tags
    assert "only the filters and the occlusion map exist." in text and "BiT ResNet" in text


def test_names_cannot_break_out_of_the_page(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    model = made("token")
    model.class_names = [f"{evil}{i}" for i in range(5)]
    model.metrics = {evil: evil}
    seen = inspect(model, pictures(1), names=[evil], name=evil)
    write_report(seen, draw_inspection(seen, tmp_path), tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text())
    assert page.tags.count("script") == 4
    assert all(address.startswith("data:image/") for address in page.addresses)


@pytest.fixture
def captioned(monkeypatch):
    """The captions and the title of each page of pictures."""
    words, draw = [], drawing.captioned

    def keep(images, captions, path, title):
        words.append((captions, title))
        draw(images, captions, path, title=title)

    monkeypatch.setattr(drawing, "captioned", keep)
    return words


def test_scores_and_a_training_curve(tmp_path, captioned):
    source = open_source("shapes?n=40&image_size=32", "test")
    model = answering(source)
    evaluation = evaluate(model, source, progress=False)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    figures = draw_evaluation(evaluation, source, tmp_path) | draw_run(tmp_path)
    assert set(figures) == {"training", "confusion", "right", "wrong"}
    (right, _), (wrong, _) = captioned
    always = source.class_names[source.labels[0]]
    assert all(text.split("\n")[1].endswith(always) for text in right + wrong)
    assert all("\ntrue: " in text for text in wrong) and not any("true" in text for text in right)
    assert {text.split("\n")[0] for text in right + wrong} <= {source.key(i) for i in range(len(source))}
    seen = inspect(model)
    write_report(seen, figures, tmp_path / "r.html", evaluation)
    text = (tmp_path / "r.html").read_text()
    assert format_accuracy(evaluation.top1, evaluation.n) in text
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[:5] == ["Accuracy", "Confusions", "Mistakes", "Right answers", "Training"]
    assert headings.index("Architecture") > headings.index("Training")
    Page(text)


@pytest.mark.parametrize("name", ["a.jpg", "x" * 26, "val/n01440764/ILSVRC2012_val_00000293.JPEG"])
def test_a_long_name_loses_its_middle(name):
    short = shorten(name, 26)
    begin, _, end = short.partition("…")
    assert len(short) == min(26, len(name)) and name.startswith(begin) and name.endswith(end)
    assert ("…" in short) == (len(name) > 26)


def test_maps_of_large_grids_are_averaged_down():
    large = np.random.default_rng(0).random((2, 3, 51, 30))
    small = average_cells(large, 17, 10)
    assert small.shape == (2, 3, 17, 10)
    np.testing.assert_allclose(small[1, 2, 3, 4], large[1, 2, 9:12, 12:15].mean())


def test_cells_of_37_patches_lie_over_their_patches():
    """Stretched over the image, a cell is bright where the patch is, and no attention is lost."""
    maps = np.eye(37).reshape(37, 37, 1).repeat(37, axis=2)  # map k: row k of patches
    small = average_cells(maps, 19, 19)[:, :, 0]  # (37, 19)
    np.testing.assert_allclose(small.mean(axis=1), 1 / 37)
    for k, cells in enumerate(small):
        (bright,) = np.nonzero(cells > 1e-9)
        assert bright[0] / 19 <= (k + 1e-6) / 37 and (k + 1 - 1e-6) / 37 <= (bright[-1] + 1) / 19
        assert len(bright) <= 2


def test_numbers_of_large_grids_are_of_patches(tmp_path):
    """26 x 26 patches are shown as 13 x 13 cells; the brightest and the even share are those of patches."""
    model = vitrail.create("mu/8", classes=5, image_size=208)
    seen, _, text = looked(model, tmp_path, images=1)
    data = maps_of(text)
    assert data["grid"] == [13, 13]
    assert data["alike"] == pytest.approx(1 / (26 * 26 + 1))
    assert data["images"][0]["peaks"][0][1] == pytest.approx(
        float(seen.subjects[0].maps[0, 0].max()), rel=1e-3
    )


def test_the_atlas_holds_every_map(tmp_path):
    seen, _, text = looked(made("not square"), tmp_path, images=1)
    data = maps_of(text)
    encoded = data["images"][0]["maps"].split(",")[1]
    atlas = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))))
    rows, columns = data["grid"]
    assert atlas.shape == (3 * rows, 3 * columns)
    expected = seen.subjects[0].maps[1, 0]
    tile = atlas[rows : 2 * rows, columns : 2 * columns]
    assert np.abs(tile / 255 - expected / expected.max()).max() < 0.01
    assert data["images"][0]["peaks"][1][1] == pytest.approx(float(expected.max()), rel=1e-3)


def test_the_cosines_of_the_page_are_those_of_the_features(tmp_path):
    model = made("not square")
    seen, _, text = looked(model, tmp_path)
    data = json.loads(
        re.search(r'<script type="application/json" id="patch-data">(.*?)</script>', text, re.DOTALL)[1]
    )
    rows, columns = data["grid"]
    assert (rows, columns) == model.config.grid and data["dimensions"] == model.config.width
    stored = [
        (np.asarray(Image.open(io.BytesIO(base64.b64decode(one["features"].split(",")[1]))), float) - 128)
        * data["most"]
        / 127
        for one in data["images"]
    ]
    exact = unit(seen.patches.features.reshape(2, rows * columns, -1))
    assert np.abs(stored[0] @ stored[1].T - exact[0] @ exact[1].T).max() < 0.02
    assert np.ptp(exact[0] @ exact[1].T) > 0.1


def test_only_the_figures_that_were_asked_for(tmp_path):
    seen, figures, text = looked(made("token"), tmp_path, figures=("pca", "correspondence"))
    assert set(figures) == {"pca", "correspondence"} and all(p.stat().st_size > 500 for p in figures.values())
    assert seen.subjects == [] and seen.distances == {} and seen.filters is None
    assert 'id="patch-view"' in text and 'id="maps"' not in text
    seen, figures, text = looked(made("token"), tmp_path, figures=("weights",))
    assert (
        set(figures) == {"filters", "positions"} and seen.patches is None and "canvas" not in Page(text).tags
    )
    one, _, _ = looked(made("token"), tmp_path, images=1, figures=("correspondence",))
    assert "correspondence needs two images" in one.notes
    with pytest.raises(ConfigError, match="figures colours: not among weights"):
        inspect(made("token"), figures=("colours",))


TRY = """
<script>
const errors = [], tried = {};
addEventListener("error", (event) => errors.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
const wait = () => new Promise((done) => setTimeout(done, 200));
const set = async (id, value) => {
  const input = document.getElementById(id);
  if (input.type === "checkbox") input.checked = value; else input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
  await wait();
};
const seen = () => {
  const canvas = document.getElementById("view"), pen = canvas.getContext("2d");
  const colours = [];
  for (let r = 0; r < ROWS; r++) for (let c = 0; c < COLUMNS; c++) {
    const x = (c + 0.5) * canvas.width / COLUMNS, y = (r + 0.5) * canvas.height / ROWS;
    colours.push([...pen.getImageData(x, y, 1, 1).data].slice(0, 3));
  }
  const said = (id) => document.getElementById(id).textContent;
  return { colours, layer: said("layer-is"), head: said("head-is"), peak: said("peak") };
};
addEventListener("load", async () => {
  await wait();
  tried.first = seen();
  await set("strength", 100);
  await set("smooth", false);
  await set("layer", 1);
  await set("head", 2);
  tried.layer1head2 = seen();
  await set("image", 1);
  await set("layer", 3);
  await set("head", 0);
  tried.image2mean = seen();
  await set("strength", 0);
  tried.picture = seen();
  tried.background = getComputedStyle(document.body).backgroundColor;
  tried.overflow = document.documentElement.scrollWidth - innerWidth;
  tried.width = innerWidth;
  tried.broken = [...document.images].filter((image) => image.complete && !image.naturalWidth).length;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify({ errors, tried });
  document.body.append(result);
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(1200, 1, "rgb(250, 249, 246)"), (500, 0, "rgb(18, 21, 26)")]
)
def test_in_a_browser_the_controls_choose_what_is_shown(tmp_path, width, scheme, paper):
    seen, _, text = looked(made("not square"), tmp_path)
    rows, columns = seen.config.grid
    script = TRY.replace("ROWS", str(rows)).replace("COLUMNS", str(columns))
    (tmp_path / "tried.html").write_text(text.replace("<body>", f"<body>{script}"))
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    command += [f"--window-size={width},900", f"--blink-settings=preferredColorScheme={scheme}"]
    command += ["--virtual-time-budget=20000", "--dump-dom", (tmp_path / "tried.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    made_of = json.loads(html.unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)[1]))
    tried = made_of["tried"]
    assert made_of["errors"] == [] and tried["broken"] == 0
    assert tried["background"] == paper
    assert tried["width"] == width and tried["overflow"] <= 0
    assert tried["first"]["layer"] == "3 of 3" and tried["first"]["head"] == "mean of all"
    assert tried["layer1head2"]["layer"] == "1 of 3" and tried["layer1head2"]["head"] == "2 of 2"
    for name, image, layer, head in (("layer1head2", 0, 0, 2), ("image2mean", 1, 2, 0)):
        shown = np.array(tried[name]["colours"], float).reshape(rows, columns, 3)
        maps = seen.subjects[image].maps[layer]
        wanted = maps[head - 1] if head else maps.mean(axis=0)
        assert np.abs(shown - heat(wanted / wanted.max()).astype(float)).max() <= 4, name
    picture = np.array(tried["picture"]["colours"], float).reshape(rows, columns, 3)
    assert np.abs(picture - np.array(tried["image2mean"]["colours"]).reshape(rows, columns, 3)).max() > 20


def test_a_folder_is_written_to_again_if_it_has_a_page_of_ours(tmp_path):
    check_report_folder(tmp_path / "new")
    (tmp_path / ".DS_Store").touch()
    check_report_folder(tmp_path)
    begin_report(inspect(made("token"), name="m\udce9"), tmp_path / "report.html")  # drawing was interrupted
    (tmp_path / "filters.png").touch()
    check_report_folder(tmp_path)
    write_report(inspect(made("token")), {}, tmp_path / "report.html")
    check_report_folder(tmp_path)


@pytest.mark.parametrize("name", ["image-01.png", "notes.txt", "report.html"])
def test_a_folder_of_something_else_is_refused(tmp_path, name):
    (tmp_path / name).write_text("<title>my own</title>")
    with pytest.raises(ConfigError, match=f"has {name} and no report.html of an earlier inspection"):
        check_report_folder(tmp_path)


def test_a_folder_of_folders_is_refused(tmp_path):
    (tmp_path / "cats").mkdir()
    with pytest.raises(ConfigError, match=r"has cats and no report\.html"):
        check_report_folder(tmp_path)


def test_the_figures_of_the_page_before_go_and_nothing_else(tmp_path):
    page, out, mine = tmp_path / "look/report.html", tmp_path / "filters.png", tmp_path / "look/mine.png"
    page.parent.mkdir()
    seen = inspect(made("token"), pictures(1), closely=1)
    write_report(seen, {"image-01": page.with_name("image-01.png")}, page)
    page.write_text(
        page.read_text().replace('content="image-01', 'content="../filters.png mine.png image-01')
    )
    for file in (out, mine, page.with_name("image-01.png"), page.with_name("image-02.png")):
        file.touch()
    begin_report(seen, page)
    assert {p.name for p in page.parent.iterdir()} == {"report.html", "mine.png", "image-02.png"}
    assert out.exists()
    for name in ("wrong.png", "image-01-heads.png"):  # drawn, and then it is interrupted
        page.with_name(name).touch()
    begin_report(seen, page)
    assert {p.name for p in page.parent.iterdir()} == {"report.html", "mine.png", "image-02.png"}


def test_the_true_class_stands_beside_the_prediction_and_empty_rows_do_not(tmp_path, captioned):
    model = made("token")
    model.metrics = {"val": {}, "test": {"top1": 0.5}, "dev": {"val_ece": 0.25}}
    seen = inspect(model, pictures(2), truths=["n01443537 goldfish", "<b>"], closely=1)
    write_report(seen, {}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "true: goldfish" in page and "<b>" not in page
    assert "test top-1</th><td>50.0%</td>" in page and "val</th>" not in page
    assert "dev ECE</th><td>0.2500</td>" in page
    draw_inspection(seen, tmp_path)
    ((_, title),) = captioned
    assert title.split("\n")[1] == "true: goldfish"
