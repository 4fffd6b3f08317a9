"""Images whose labels stand in a file or in their names: every form is understood, and what is wrong is named."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitrail.data.sources import DataSet, list_splits, open_source
from vitrail.errors import ConfigError, DataError

KINDS = ("ant", "bee", "cat")


def put(path: Path, level: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (level % 256, 2 * level % 256, 3 * level % 256)).save(path)
    return path


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """30 images in one folder, without any labels."""
    for i in range(30):
        put(tmp_path / "set" / f"{i:02d}.png", i)
    return tmp_path / "set"


def rows(n: int = 30) -> list[tuple[str, str]]:
    return [(f"{i:02d}.png", KINDS[i % 3]) for i in range(n)]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


def csv_of(lines: list[tuple[str, ...]], header: str = "file_name,label", mark: str = ",") -> str:
    return "\n".join([header.replace(",", mark), *(mark.join(line) for line in lines)]) + "\n"


def labelled(where: str | Path) -> dict[str, str]:
    """Return {key: class} over all splits; very small sets are all train."""
    data = DataSet(where)
    parts = [data.whole(split) for split in data.splits if split == "train" or len(data.whole("train")) > 15]
    return {part.key(i): part.class_names[part.labels[i]] for part in parts for i in range(len(part))}


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "quoted", "jsonl", "parquet", "bare", "excel"])
def test_labels_in_a_file(flat: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"labels.{kind if kind in ('tsv', 'jsonl', 'parquet') else 'csv'}"
    if kind == "jsonl":
        text = "".join(json.dumps({"file_name": name, "label": label}) + "\n" for name, label in rows())
        write(file, text)
    elif kind == "parquet":
        pq.write_table(pa.table({"image": [n for n, _ in rows()], "class": [c for _, c in rows()]}), file)
    elif kind == "quoted":
        write(
            file,
            csv_of([(f'"{name}"', f'"{label}"') for name, label in rows()], '"file";"kind"', ";").replace(
                '",', '";'
            ),
        )
    elif kind == "bare":
        write(file, csv_of(rows()).partition("\n")[2])
    else:
        mark = {"tsv": "\t", "semicolons": ";", "excel": ";"}.get(kind, ",")
        write(file, ("sep=;\r\n" if kind == "excel" else "") + csv_of(rows(), mark=mark))
    assert labelled(f"{flat}?labels={file}") == dict(rows())
    train = open_source(f"{flat}?labels={file}")
    assert len(train) == 24 and np.bincount(train.labels).tolist() == [8, 8, 8]
    example = train.read(0)
    assert example.key == train.key(0) and isinstance(example.image, bytes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path: Path, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    names = ("grün.png", "é.png", "ñandú.png", "plain.png")
    for name in names:
        put(tmp_path / "set" / name)
    lines = [(name, ("Käfer", "Vögel")[k % 2]) for k, name in enumerate(names)]
    file = write(tmp_path / "labels.csv", csv_of(lines), encoding)
    assert set(labelled(f"{tmp_path / 'set'}?labels={file}").values()) == {
        "Käfer",
        "Vögel",
    }
    assert ("Windows-1252" in caplog.text) is (encoding == "cp1252")


def test_the_columns_are_guessed_or_named(flat: Path) -> None:
    lines = [(str(k), name, label, "x") for k, (name, label) in enumerate(rows())]
    write(flat / "list.csv", csv_of(lines, ",photo,animal,remark"))
    with pytest.raises(DataError, match=r"which column is the label, of , photo, animal, remark.*\?label="):
        open_source(f"{flat}?labels=list.csv")
    assert labelled(f"{flat}?labels=list.csv&label=animal") == dict(rows())
    with pytest.raises(ConfigError, match="no column 'kind'"):
        open_source(f"{flat}?labels=list.csv&label=kind")
    assert set(labelled(f"{flat}?labels=list.csv&label=remark&image=photo").values()) == {"x"}


def test_a_column_of_splits(flat: Path) -> None:
    lines = [(*row, ("train", "train", "val", "TEST")[k % 4]) for k, row in enumerate(rows())]
    write(flat / "list.csv", csv_of(lines, "id,label,split"))
    where = f"{flat}?labels=list.csv"
    assert list_splits(where) == ["train", "validation", "test"]
    assert [len(open_source(where, split)) for split in list_splits(where)] == [16, 7, 7]
    assert len(open_source(f"{where}&split=none")) == 24
    with pytest.raises(ConfigError, match="has its own splits"):
        open_source(f"{where}&test=0.5")
    write(flat / "list.csv", csv_of([(*row, "a") for row in rows()], "id,label,split"))
    assert len(open_source(where)) == 24  # not a word for a split: not taken for one
    assert list_splits(f"{where}&split=split") == ["a"]


def test_names_may_lack_the_extension_or_be_from_windows(tmp_path: Path) -> None:
    names = [f"a/{i}.png" for i in range(4)] + [f"b/{i}.png" for i in range(4)]
    for name in names:
        put(tmp_path / "set" / name)
    spelled = [name[:-4] if k % 2 else "./" + name.replace("/", "\\") for k, name in enumerate(names)]
    write(tmp_path / "l.csv", csv_of([(name, "xy"[k // 4]) for k, name in enumerate(spelled)]))
    assert set(labelled(f"{tmp_path / 'set'}?labels={tmp_path / 'l.csv'}")) == set(names)


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "a/../../secret.png", "C:\\x.png", "~/x.png", "..\\secret.png"]
)
def test_nothing_outside_of_the_folder_can_be_named(flat: Path, name: str) -> None:
    put(flat.parent / "secret.png")
    write(flat / "list.csv", csv_of([*rows(), (name, "ant")]))
    with pytest.raises(DataError, match="is not a path below"):
        open_source(f"{flat}?labels=list.csv&skip=missing")


def test_a_link_out_of_the_folder_leads_to_nothing(flat: Path) -> None:
    put(flat.parent / "other/secret.png")
    (flat / "link").symlink_to(flat.parent / "other")
    write(flat / "list.csv", csv_of([*rows(), ("link/secret.png", "ant")]))
    with pytest.raises(DataError, match="1 images that are named and are not there"):
        open_source(f"{flat}?labels=list.csv")


def test_what_is_wrong_is_named_and_can_be_left_out(flat: Path) -> None:
    lines = [
        *rows(26),
        ("gone.png", "ant"),
        ("26.png", ""),
        ("00.png", "ant"),
        ("01.png", "cat"),
        ("27.png", "yak"),
    ]
    write(flat / "list.csv", csv_of(lines))
    where = f"{flat}?labels=list.csv"
    for reason, words in (
        ("missing", r"1 images that are named and are not there: 'gone.png' \(.*list.csv, line 28\)"),
        ("unlabelled", r"1 images without a label: '26.png'"),
        ("duplicates", "1 images that are named with several labels: 01.png"),
    ):
        with pytest.raises(DataError, match=rf"{words}.*\?skip={reason}"):
            open_source(where)
        where += f",{reason}" if "skip" in where else f"&skip={reason}"
    left = labelled(f"{where},rare")
    assert left == {name: label for name, label in rows(26) if name != "01.png"}
    assert labelled(where)["27.png"] == "yak"
    ignored = DataSet(f"{where},rare").reader.ignored()
    assert ignored["left out by skip=missing"] == ignored["left out by skip=unlabelled"] == 1
    assert sum(count for reason, count in ignored.items() if "does not name" in reason) == 3  # 26, 28, 29
    with pytest.raises(ConfigError, match="skip=all"):
        open_source(f"{flat}?labels=list.csv&skip=all")


def test_classes_that_train_lacks(flat: Path) -> None:
    lines = [
        (name, "yak" if k > 27 else label, "test" if k > 25 else "train")
        for k, (name, label) in enumerate(rows())
    ]
    write(flat / "list.csv", csv_of(lines, "id,label,split"))
    with pytest.raises(DataError, match="1 images of other splits whose class train does not have: yak"):
        open_source(f"{flat}?labels=list.csv")
    assert len(open_source(f"{flat}?labels=list.csv&skip=unknown", "test")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("file,label\n", "no rows"),
        ("file,label\n00.png\n", "line 2: 1 cells, where the first line has 2"),
        ('file,label\n00.png,"ant\n', "line 2: not a row of a CSV file"),
        ("file,label\n00.png,a\0nt\n", "zero bytes"),
        ("file,label,label\n00.png,a,b\n", "two columns are called 'label'"),
        ("file,label\n00.png," + "x" * 70_000 + "\n", "a cell of 70,000 letters"),
        ("file,label\n00.png," + "x" * 140_000 + "\n", "line 2: not a row"),
        ("file,label\n,ant\n", "line 2: no name of an image"),
        ("file,label\nelsewhere/00.png,ant\n", "none of its 1 images is in .* may be '00.png'"),
        ("a,b,c\n1,2,3\n", "which column has the names"),
    ],
)
def test_broken_files_of_labels(flat: Path, text: str, message: str) -> None:
    write(flat / "list.csv", text)
    with pytest.raises(DataError, match=message):
        open_source(f"{flat}?labels=list.csv")


def test_other_broken_files(flat: Path) -> None:
    write(flat / "list.jsonl", '{"file": "00.png", "label": "ant"}\n[1]\n')
    with pytest.raises(DataError, match=r"line 2: .* is not a JSON object"):
        open_source(f"{flat}?labels=list.jsonl")
    write(flat / "list.parquet", "PAR1 no")
    with pytest.raises(DataError, match="not a Parquet file"):
        open_source(f"{flat}?labels=list.parquet")
    with pytest.raises(DataError, match=r"no file of labels 'none\.csv'"):
        open_source(f"{flat}?labels=none.csv")
    write(flat / "list.xlsx", "")
    with pytest.raises(ConfigError, match="they end in"):
        open_source(f"{flat}?labels=list.xlsx")
    (flat / "list.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="begins as utf-16, and is not"):
        open_source(f"{flat}?labels=list.csv")


def test_numbers_are_classes_in_their_order(flat: Path) -> None:
    write(flat / "list.csv", csv_of([(name, f"{k % 12}.0") for k, (name, _) in enumerate(rows())]))
    assert open_source(f"{flat}?labels=list.csv").class_names == [str(k) for k in range(12)]
    write(flat / "classes.txt", "\n".join(string.ascii_lowercase[:12]))
    assert open_source(f"{flat}?labels=list.csv").class_names == list(string.ascii_lowercase[:12])


def test_metadata_of_an_imagefolder_is_found(flat: Path, tmp_path: Path) -> None:
    write(flat / "metadata.csv", csv_of(rows()))
    assert labelled(flat) == dict(rows())
    assert DataSet(flat).reader.layout.startswith("labels from metadata.csv, column label")
    for name, label in rows():
        put(tmp_path / "split" / ("test" if label == "ant" else "train") / "images" / name)
    keys = [f"{'test' if label == 'ant' else 'train'}/images/{name}" for name, label in rows()]
    for split in ("train", "test"):
        text = "".join(
            json.dumps({"file_name": f"images/{name}", "label": int(name[0])}) + "\n"
            for name, label in rows()
            if (split == "test") == (label == "ant")
        )
        write(tmp_path / "split" / split / "metadata.jsonl", text)
    assert list_splits(tmp_path / "split") == ["train", "test"]
    assert labelled(tmp_path / "split") == {key: key.rpartition("/")[2][0] for key in keys}


def test_metadata_without_labels_leaves_the_folders(tmp_path: Path) -> None:
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        put(tmp_path / "set" / name)
    write(tmp_path / "set/metadata.csv", csv_of([("a/0.png", "a picture")], "file_name,text"))
    assert open_source(tmp_path / "set").class_names == ["a", "b"]
    write(tmp_path / "set/metadata.csv", csv_of([(f"{c}/{i}.png", "xy"[i]) for c in "ab" for i in (0, 1)]))
    assert open_source(tmp_path / "set").class_names == ["x", "y"]
    assert open_source(f"{tmp_path / 'set'}?labels=none").class_names == ["a", "b"]


def test_labels_in_the_names(tmp_path: Path) -> None:
    for k, kind in enumerate(("great_dane", "pug", "cat")):
        for i in range(10):
            put(tmp_path / "set" / f"{kind}_{i}.png", 10 * k + i)
    put(tmp_path / "set/odd.png")
    where = f"{tmp_path / 'set'}?pattern={{label}}_{{number}}"
    source = open_source(where)
    assert source.class_names == ["cat", "great_dane", "pug"] and len(source) == 24
    assert any("odd.png" in reason for reason in DataSet(where).reader.ignored())
    with pytest.raises(DataError, match=r"none of its 31 images, such as '.*', has a name of the form"):
        open_source(f"{tmp_path / 'set'}?pattern={{label}}-{{number}}")
    with pytest.raises(ConfigError, match="only one of them"):
        open_source(f"{where}&labels=x.csv")


def test_a_pattern_may_name_the_split(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for i in range(6):
            put(tmp_path / "set" / f"{split}-{'ab'[i % 2]}{i}.png")
    where = f"{tmp_path / 'set'}?pattern={{split}}-{{label}}{{number}}.png"
    assert list_splits(where) == ["train", "validation"] and open_source(where).class_names == ["a", "b"]


def test_the_order_of_rows_and_files_does_not_matter(flat: Path) -> None:
    write(flat / "list.csv", csv_of(rows()))
    write(flat / "other.csv", csv_of(rows()[::-1]))
    one, two = (open_source(f"{flat}?labels={name}.csv") for name in ("list", "other"))
    assert [one.key(i) for i in range(len(one))] == [two.key(i) for i in range(len(two))]
    write(flat / "other.csv", csv_of([("00.png", "bee"), *rows()[1:]]))
    assert one.fingerprint() != open_source(f"{flat}?labels=other.csv").fingerprint()
