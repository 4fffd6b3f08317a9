import json

import pytest

from vitrail.data.bad_files import BadExample, BadFiles
from vitrail.errors import DataError


def bad(i):
    return BadExample(i, f"k{i}.jpg", f"k{i}.jpg: reason {i}")


def test_each_is_listed_once_also_after_a_restart(tmp_path):
    path = tmp_path / "run" / "bad_files.jsonl"
    first = BadFiles(1000, path=path)
    first.add([bad(1), bad(2)])
    first.add([bad(1)])
    second = BadFiles(1000, path=path)
    second.add([bad(2), bad(3)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["key"] for row in rows] == ["k1.jpg", "k2.jpg", "k3.jpg"]
    assert rows[0] == {"index": 1, "key": "k1.jpg", "reason": "k1.jpg: reason 1"}
    assert len(second.examples) == 3


def test_any_name_and_a_torn_last_line_are_borne(tmp_path):
    path = tmp_path / "bad_files.jsonl"
    strange = BadExample(1, "a\u2028b\x85.jpg", "a\u2028b: reason")
    BadFiles(1000, path=path).add([strange])
    with path.open("a") as file:
        file.write('{"index": 2, "ke')
    again = BadFiles(1000, path=path)
    assert again.examples == {strange.key: strange}
    again.add([bad(3)])
    again.add([bad(4)])
    assert list(BadFiles(1000, path=path).examples) == [strange.key, "k3.jpg", "k4.jpg"]
    path.write_text("nonsense\n")
    with pytest.raises(DataError, match="line 1: not a broken example"):
        BadFiles(1000, path=path)


def test_the_threshold():
    files = BadFiles(200, max_bad=0.01)
    files.add([bad(1), bad(2)])
    with pytest.raises(
        DataError, match=r"3 of 200 examples are broken, more than the 1\.0% allowed: k1\.jpg: reason 1"
    ):
        files.add([bad(3)])
    BadFiles(10).add([bad(1)])  # one is always borne


def test_the_error_says_what_to_do(tmp_path):
    for path in (None, tmp_path / "bad_files.jsonl"):
        with pytest.raises(DataError, match=r"reason 2\. Remove or replace them, or allow .* --max-bad"):
            BadFiles(10, path=path).add([bad(1), bad(2)])


def test_the_same_again_is_not_borne_either(tmp_path):
    """A list that is over the threshold is so when it is read, whether or not another one is found."""
    path = tmp_path / "bad_files.jsonl"
    with pytest.raises(DataError):
        BadFiles(10, path=path).add([bad(1), bad(2)])
    with pytest.raises(DataError, match=r"2 of 10 examples.*delete the list"):
        BadFiles(10, path=path)
    assert len(BadFiles(10, max_bad=0.2, path=path).examples) == 2


def test_the_lists_of_others_count_and_stay_theirs(tmp_path):
    for i in (1, 2):
        BadFiles(1000, path=tmp_path / f"bad_files.{i}.jsonl").add([bad(i)])
    others = sorted(tmp_path.glob("bad_files.*.jsonl"))
    own = BadFiles(1000, path=tmp_path / "bad_files.jsonl", others=others)
    assert set(own.examples) == {"k1.jpg", "k2.jpg"}
    own.add([bad(2), bad(3)])
    assert [json.loads(line)["key"] for line in own.path.read_text().splitlines()] == ["k3.jpg"]
    with pytest.raises(DataError, match=r"2 of 10 examples.*bad_files\.1\.jsonl, .*bad_files\.2\.jsonl\)"):
        BadFiles(10, path=tmp_path / "none.jsonl", others=others)


def test_summary():
    files = BadFiles(10_000)
    files.add(bad(i) for i in range(7))
    assert files.summary(2).endswith("reason 1; and 5 more")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"index": 0, "key": [1], "reason": "x"}\n', "line 1: not a broken example"),
        (b'{"index": "0", "key": "a", "reason": "x"}\n', "line 1: not a broken example"),
        (b'{"index": 0, "key": "a", "reason": 5}\n', "line 1: not a broken example"),
        (b"[]\n", "line 1: not a broken example"),
        (b"[" * 100_000 + b"\n", "line 1: not a broken example"),
        (b"\xff\xfe\n", "broken examples cannot be read: not UTF-8"),
    ],
)
def test_a_list_that_others_changed(tmp_path, content, says):
    (tmp_path / "bad_files.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"bad_files\.jsonl.*{says}"):
        BadFiles(10, path=tmp_path / "bad_files.jsonl")
