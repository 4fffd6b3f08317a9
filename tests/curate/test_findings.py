import copy
import json

import pytest

from vitrail.curate.findings import NAME, read_findings, thumbnail_name, write_findings
from vitrail.errors import DataError

FINDING = {
    "key": "cat/1.jpg", "index": 1, "kind": "label", "label": "cat", "suggested": "dog", "score": 0.93,
    "reason": "It looks like a dog.",
    "neighbours": [{"key": "dog/2.jpg", "index": 2, "label": "dog", "similarity": 0.9}],
    "copy_of": None, "thumbnail": thumbnail_name(1),
}  # fmt: skip
FINDINGS = {
    "format": "vitrail findings", "version": 1, "data": "photos", "split": "train", "fingerprint": "0",
    "model": "ti8-64", "classes": ["cat", "dog"], "images": 3, "findings": [FINDING],
    "pairs": [{"classes": ["cat", "dog"], "confused": 1, "of": 3}],
    "curve": {"images_per_class": [1.5, 3], "accuracy": [0.5, 0.6], "low": [0.4, 0.5], "high": [0.6, 0.7],
              "more": "Twice the images: 1 to 5 points more."},
    "shortcuts": [{"from": "border", "accuracy": 0.9, "interval": [0.8, 1], "chance": 0.5, "reason": "Frames."}],
}  # fmt: skip


def test_findings_are_read_as_written(tmp_path):
    write_findings(FINDINGS, tmp_path)
    assert read_findings(tmp_path) == FINDINGS
    without = FINDINGS | {"curve": None, "pairs": [], "shortcuts": [], "findings": []}
    write_findings(without, tmp_path)
    assert read_findings(tmp_path) == without


def changed(path, value):
    """FINDINGS with another value at a path of keys; the value `...` removes the entry."""
    contents = copy.deepcopy(FINDINGS)
    *parents, last = path
    inner = contents
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return contents


WRONG = [
    (("format",), "another"),
    (("version",), 2),
    (("version",), ...),
    (("classes",), ["cat", "cat"]),
    (("classes",), ["cat"]),
    (("images",), 2),
    (("images",), -1),
    (("findings",), {}),
    (("findings", 0, "kind"), "ugly"),
    (("findings", 0, "score"), 1.5),
    (("findings", 0, "score"), float("nan")),
    (("findings", 0, "index"), 3),
    (("findings", 0, "index"), -1),
    (("findings", 0, "label"), "bird"),
    (("findings", 0, "suggested"), "bird"),
    (("findings", 0, "suggested"), ...),
    (("findings", 0, "neighbours", 0, "label"), "bird"),
    (("findings", 0, "neighbours"), FINDING["neighbours"] * 21),
    (("findings", 0, "thumbnail"), "../photos/000001.jpg"),
    (("findings", 0, "thumbnail"), "thumbnails/../../1.jpg"),
    (("findings", 0, "thumbnail"), "/thumbnails/1.jpg"),
    (("findings", 0, "thumbnail"), "thumbnails/1.jpg\n"),
    (("findings",), [FINDING, FINDING]),
    (("pairs", 0, "classes"), ["cat"]),
    (("pairs", 0, "classes"), ["cat", "bird"]),
    (("pairs", 0, "confused"), 4),
    (("curve", "low"), [0.1]),
    (("curve",), ...),
    (("shortcuts", 0, "from"), "smell"),
    (("shortcuts", 0, "interval"), [1]),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_other_contents_are_refused(tmp_path, path, value):
    (tmp_path / NAME).write_text(json.dumps(changed(path, value)))
    with pytest.raises(DataError, match=NAME):
        read_findings(tmp_path)


def test_a_folder_without_findings_is_refused(tmp_path):
    with pytest.raises(DataError, match="data check"):
        read_findings(tmp_path)
    (tmp_path / NAME).write_text("{")
    with pytest.raises(DataError, match="JSON"):
        read_findings(tmp_path)
