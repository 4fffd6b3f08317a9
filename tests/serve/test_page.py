"""The files of the page: what is served, as what; nothing comes from elsewhere, and names are shown as text."""

import html.parser
import re
from pathlib import Path

import pytest

from tests.serve.asking import ask
from vitrail.data.decode import decode
from vitrail.inspection.pictures import SCALE
from vitrail.serve.app import ASSETS, PAGE, STATIC

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
ADDRESSES = {
    f"{prefix}/{path.relative_to(folder).as_posix()}": path
    for prefix, folder in STATIC.items()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
}
TEXTS = sorted(path for path in ADDRESSES.values() if path.suffix != ".png")
SCRIPTS = [path for path in TEXTS if path.suffix == ".js"]


class Tags(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.all = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))


INDEX = Tags((PAGE / "index.html").read_text())


def name(path):
    return path.name


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_nothing_comes_from_elsewhere(path):
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"\b(https?|wss?|ftp):|[\"'(]//\w", text)
    assert "@import" not in text and "data:" not in text


def test_the_page_has_no_script_or_style_of_its_own():
    """The policy forbids them, and with them whatever a stranger's name could bring."""
    for tag, attributes in INDEX.all:
        assert tag != "style" and "style" not in attributes
        assert not [one for one in attributes if one.startswith("on")]
        assert tag != "script" or attributes["src"].startswith("/static/")
    assert "<script>" not in (PAGE / "index.html").read_text()


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_scripts_make_no_html_of_text(path):
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|setHTML|srcdoc|DOMParser"
    )
    assert not re.search(forbidden, path.read_text())


def test_all_addresses_exist():
    for tag, attributes in INDEX.all:
        for attribute in ("src", "href"):
            address = attributes.get(attribute, "")
            if address.startswith("/static/"):
                assert address in ADDRESSES, f"<{tag} {attribute}={address!r}>"
    for path in SCRIPTS:
        for address in re.findall(r'from "([^"]+)"', path.read_text()):
            assert address.replace("./", "/static/") in ADDRESSES, f"{path.name}: {address}"


def test_scripts_find_the_elements_that_they_name():
    ids = [attributes["id"] for _, attributes in INDEX.all if "id" in attributes]
    assert len(ids) == len(set(ids))
    made = {"collections", "workshop"}  # by learn.js
    for path in SCRIPTS:
        for one in re.findall(r'\bat\("([^"]+)"\)', path.read_text()):
            assert one in ids or one in made, f"{path.name}: {one}"


def test_every_field_has_a_name():
    ids = {attributes["id"] for _, attributes in INDEX.all if "id" in attributes}
    labelled = {attributes["for"] for tag, attributes in INDEX.all if tag == "label" and "for" in attributes}
    assert labelled <= ids
    fields = [attributes for tag, attributes in INDEX.all if tag in ("input", "select")]
    assert fields and all(one["id"] in labelled for one in fields)
    for _, attributes in INDEX.all:
        for reference in ("aria-labelledby", "aria-describedby"):
            assert set(attributes.get(reference, "").split()) <= ids


def test_maps_have_the_colours_of_the_figures():
    steps = re.search(r"SCALE = (\[.*?\n\]);", (ASSETS / "look" / "heat.js").read_text(), re.DOTALL)[1]
    numbers = [int(one) for one in re.findall(r"\d+", steps)]
    assert numbers == SCALE.astype(int).ravel().tolist()


def test_samples_are_pictures():
    listed = re.search(r"SAMPLES = \[(.*?)\]", (PAGE / "look.js").read_text())[1]
    names = re.findall(r'"(\w+)"', listed)
    assert sorted(names) == sorted(path.stem for path in (ASSETS / "pictures").iterdir())
    for path in (ASSETS / "pictures").iterdir():
        assert decode(path.read_bytes()).shape[2] == 3 and path.stat().st_size < 50_000


@pytest.mark.parametrize("address", ["/", *ADDRESSES])
def test_a_file_is_served_as_what_it_is(app, address):
    path = ADDRESSES.get(address, PAGE / "index.html")
    reply = ask(app, "GET", address)
    assert reply.status == 200 and reply.body == path.read_bytes()
    assert reply.headers["content-type"].split(";")[0] == TYPES[path.suffix]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"  # an updated package has another page
    policy = dict(rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


@pytest.mark.parametrize(
    "address", ["/static/", "/static/../app.py", "/static/look/../ti8-64/model.json", "/static/no.js"]
)
def test_nothing_else_is_served(app, address):
    assert ask(app, "GET", address).status == 404


def test_it_is_not_large():
    """It is read from a phone, too."""
    assert sum(path.stat().st_size for path in TEXTS) < 150_000
    assert Path(PAGE / "index.html").stat().st_size < 10_000
