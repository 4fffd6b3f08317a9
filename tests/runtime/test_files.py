import errno
import os
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from vitrail.runtime.files import atomic_file, atomic_folder, check_regular, check_writable, remove_unfinished


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder"
    for text in ("first", "second"):
        with atomic_folder(path) as temporary:
            (temporary / "a").write_text(text)
    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as temporary:
        (temporary / "a").write_text("third")
        raise KeyboardInterrupt
    assert (path / "a").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_an_interrupt_between_the_two_moves_brings_the_old_folder_back(tmp_path, monkeypatch):
    from pathlib import Path

    path = tmp_path / "folder"
    with atomic_folder(path) as temporary:
        (temporary / "a").write_text("first")
    replace, calls = Path.replace, []

    def second_fails(self, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.raises(KeyboardInterrupt), atomic_folder(path) as temporary:
        (temporary / "a").write_text("second")
        monkeypatch.setattr(Path, "replace", second_fails)
    assert (path / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").touch()
    (tmp_path / "link").symlink_to("there")
    with atomic_folder(tmp_path / "link") as temporary:
        (temporary / "a").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert [p.name for p in (tmp_path / "there").iterdir()] == ["a"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "there"]


def test_a_folder_that_cannot_be_moved_aside_stays_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "a").write_text("first")

    def fails(self, target):
        raise PermissionError

    with pytest.raises(PermissionError), atomic_folder(path) as temporary:
        (temporary / "a").write_text("second")
        monkeypatch.setattr(Path, "replace", fails)
    assert (path / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def killed(folder):
    """What kills at every moment of replacing a folder and a file leave, and what others keep beside them."""
    for name in ("model", ".model.a1b2c3d4", ".model.old.e5f6g7h_", ".other.old.e5f6g7h_", ".other.a1b2c3d4"):
        (folder / name).mkdir()
        (folder / name / "a").write_text(name)
    for name in (".curve.png.a1b2c3d4", ".curve.png.swp", ".model.notes.txt", ".model.A1B2C3D4", "a1b2c3d4"):
        (folder / name).write_text("")


def test_what_a_kill_left_goes_and_what_it_only_moved_comes_back(tmp_path):
    killed(tmp_path)
    remove_unfinished(tmp_path, r"model|other|.+\.png")
    left = {".curve.png.swp", ".model.notes.txt", ".model.A1B2C3D4", "a1b2c3d4", "model", "other"}
    assert {p.name for p in tmp_path.iterdir()} == left
    assert (tmp_path / "model/a").read_text() == "model"
    assert (tmp_path / "other/a").read_text() == ".other.old.e5f6g7h_"
    remove_unfinished(tmp_path / "nowhere", ".+")


def test_what_may_still_be_written_stays(tmp_path, monkeypatch):
    killed(tmp_path)
    before = {p.name for p in tmp_path.iterdir()}
    remove_unfinished(tmp_path, ".+", untouched=60)
    assert {p.name for p in tmp_path.iterdir()} == before
    now = time.time()
    monkeypatch.setattr("vitrail.runtime.files.time.time", lambda: now + 61)
    remove_unfinished(tmp_path, "model", untouched=60)
    assert before - {p.name for p in tmp_path.iterdir()} == {".model.a1b2c3d4", ".model.old.e5f6g7h_"}


def test_what_is_read_is_a_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("pipe")
    for fine in ("file", "missing"):
        check_regular(tmp_path / fine)
    for other in ("pipe", "link"):
        with pytest.raises(OSError, match="not a regular file"):
            check_regular(tmp_path / other)


FULL = [
    (OSError, (errno.ENOSPC, os.strerror(errno.ENOSPC))),
    (SafetensorError, ("Error while serializing: I/O error: No space left on device (os error 28)",)),
]


@pytest.mark.parametrize("atomic", [atomic_file, atomic_folder])
@pytest.mark.parametrize(("kind", "words"), FULL, ids=["the system's", "safetensors'"])
def test_a_full_disk_is_an_error_that_names_the_place(tmp_path, atomic, kind, words):
    path = tmp_path / "model"
    with pytest.raises(OSError, match="No space left on device") as said, atomic(path):
        raise kind(*words)
    assert (said.value.errno, said.value.filename) == (errno.ENOSPC, str(path))
    assert not list(tmp_path.iterdir())


def test_other_errors_stay_what_they_are(tmp_path):
    for error in (ValueError("a"), OSError("b"), FileNotFoundError(errno.ENOENT, "c", "d")):
        with pytest.raises(type(error)) as said, atomic_file(tmp_path / "a"):
            raise error
        assert said.value is error and "tmp" not in str(error)


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path):
    check_writable(tmp_path / "new" / "deeper")
    (tmp_path / "file").write_text("")
    for taken in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(NotADirectoryError) as said:
            check_writable(taken)
        assert said.value.filename == str(tmp_path / "file")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.access("/", os.W_OK), reason="whoever may write anywhere is refused nowhere")
def test_nor_one_that_belongs_to_others():
    with pytest.raises(PermissionError):
        check_writable(Path("/vitrail"))
