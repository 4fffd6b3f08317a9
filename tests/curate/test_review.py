"""The page of a review as a file: what is in it, and that strangers' text stays text."""

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from tests.curate.test_findings import FINDINGS
from vitrail.curate.findings import NAME, THUMBNAILS, thumbnail_name, write_findings
from vitrail.curate.review import write_review
from vitrail.errors import DataError

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> $title <!-- \u202e"


class Page(HTMLParser):
    """The elements of a page, and the texts in them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.inside = [], {}, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = dict(attributes).get("id", tag)

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        self.text[self.inside] = self.text.get(self.inside, "") + data


def evil():
    findings = copy.deepcopy(FINDINGS)
    findings |= {"data": EVIL, "split": EVIL, "model": EVIL, "classes": [EVIL, "dog"], "pairs": []}
    finding = findings["findings"][0]
    finding |= {"key": EVIL, "label": EVIL, "reason": EVIL, "copy_of": EVIL}
    finding["neighbours"][0] |= {"key": EVIL, "label": EVIL}
    findings["curve"]["more"] = findings["shortcuts"][0]["reason"] = EVIL
    return findings


def written(findings, folder):
    write_findings(findings, folder)
    path = write_review(folder)
    assert path == folder / "review.html"
    return Page(path.read_text(encoding="utf-8"))


def test_strangers_text_stays_text(tmp_path):
    plain, page = written(FINDINGS, tmp_path), written(evil(), tmp_path)
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert "\u202e" not in (tmp_path / "review.html").read_text(encoding="utf-8")
    assert page.text["title"].startswith("Review of ")


def test_the_findings_are_in_the_page(tmp_path):
    (tmp_path / THUMBNAILS).mkdir()
    for name in (thumbnail_name(2), f"{THUMBNAILS}/000077.jpg", f"{THUMBNAILS}/mine.png"):
        (tmp_path / name).write_bytes(b"a picture")
    data = json.loads(written(evil(), tmp_path).text["data"])
    assert data.pop("thumbnails") == [2]
    assert data == evil()


def test_the_page_allows_its_own_script_and_nothing_else(tmp_path):
    page = written(evil(), tmp_path)
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "data"}, {}]
    digest = base64.b64encode(hashlib.sha256(page.text["script"].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    # Nothing is fetched from anywhere, whatever the policy is.
    text = (tmp_path / "review.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|url\(", page.text["script"])


def test_findings_are_checked_first(tmp_path):
    (tmp_path / NAME).write_text(json.dumps(FINDINGS | {"classes": ["cat"]}))
    with pytest.raises(DataError, match="not one of the classes"):
        write_review(tmp_path)
    assert not (tmp_path / "review.html").exists()
