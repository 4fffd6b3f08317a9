import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import SafetensorError

from vitrail.runtime import files
from vitrail.runtime.files import (
    atomic_file,
    atomic_folder,
    check_own_file,
    check_regular,
    check_writable,
    open_own,
    remove_unfinished,
    restore_folder,
)


@pytest.fixture(params=["exchange", "two moves"])
def either_way(request, monkeypatch):
    """Where the system can exchange two folders in one step, and where it cannot."""
    if request.param == "two moves":
        monkeypatch.setattr(files, "exchange", lambda a, b: False)
        monkeypatch.setattr(files, "MOMENT", 0.01)


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    with atomic_file(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "first"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, either_way):
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
    path = tmp_path / "folder"
    monkeypatch.setattr(files, "exchange", lambda a, b: False)
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


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path, either_way):
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

    monkeypatch.setattr(files, "exchange", lambda a, b: False)
    with pytest.raises(PermissionError), atomic_folder(path) as temporary:
        (temporary / "a").write_text("second")
        monkeypatch.setattr(Path, "replace", fails)
    assert (path / "a").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


REPLACE = """
import os, shutil, signal, sys
from pathlib import Path
from vitrail.runtime import files

path, moment = Path(sys.argv[1]), sys.argv[2]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
before = lambda call: lambda *given: die()
after = lambda call: lambda *given: (call(*given), die())
second = lambda call, n=[]: lambda *given: die() if n else (n.append(1), call(*given))
if moment.startswith("two"):
    files.exchange = lambda a, b: False
{
    "before the exchange": lambda: setattr(files, "exchange", before(files.exchange)),
    "after the exchange": lambda: setattr(files, "exchange", after(files.exchange)),
    "two: before the first": lambda: setattr(Path, "replace", before(Path.replace)),
    "two: between them": lambda: setattr(Path, "replace", second(Path.replace)),
    "two: after the second": lambda: setattr(files, "flush_folder", second(files.flush_folder)),
    "two: before the old one goes": lambda: setattr(shutil, "rmtree", before(shutil.rmtree)),
}[moment]()
with files.atomic_folder(path) as temporary:
    (temporary / "a").write_text("new")
"""
OLD, NEW = "old", "new"


@pytest.mark.parametrize(
    ("moment", "there", "next_use"),
    [
        ("before the exchange", OLD, OLD),
        ("after the exchange", NEW, NEW),
        ("two: before the first", OLD, OLD),
        ("two: between them", None, OLD),
        ("two: after the second", NEW, NEW),
        ("two: before the old one goes", NEW, NEW),
    ],
)
def test_a_kill_while_a_folder_is_replaced_leaves_one_that_is_whole(tmp_path, moment, there, next_use):
    path = tmp_path / "model"
    path.mkdir()
    (path / "a").write_text("old")
    done = subprocess.run([sys.executable, "-c", REPLACE, str(path), moment], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (None if there is None else (path / "a").read_text()) == there
    if there is None:
        assert not path.exists()
    restore_folder(path)
    assert (path / "a").read_text() == next_use
    with atomic_folder(path) as temporary:
        (temporary / "a").write_text("newer")
    assert (path / "a").read_text() == "newer"
    remove_unfinished(tmp_path, "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_the_next_writer_puts_back_what_a_kill_left_aside(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOMENT", 0.01)
    (tmp_path / ".model.old.a1b2c3d4").mkdir()
    (tmp_path / ".model.old.a1b2c3d4" / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_folder(tmp_path / "model") as temporary:
        (temporary / "a").write_text("new")
        raise KeyboardInterrupt
    assert (tmp_path / "model/a").read_text() == "old"


def test_what_a_kill_left_is_no_link_to_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOMENT", 0.01)
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday/beach.jpg").touch()
    (tmp_path / ".model.old.a1b2c3d4").symlink_to("holiday")
    restore_folder(tmp_path / "model")
    remove_unfinished(tmp_path, "model")
    assert [p.name for p in tmp_path.iterdir()] == ["holiday"]
    assert (tmp_path / "holiday/beach.jpg").exists()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EIO])
def test_a_file_system_that_cannot_flush_folders_is_no_error(tmp_path, monkeypatch, code):
    flush = files.flush

    def not_folders(path):
        if path.is_dir():
            raise OSError(code, os.strerror(code))
        flush(path)

    monkeypatch.setattr(files, "flush", not_folders)
    try:
        for text in ("first", "second"):
            with atomic_folder(tmp_path / "folder") as temporary:
                (temporary / "a").write_text(text)
            with atomic_file(tmp_path / "file") as temporary:
                temporary.write_text(text)
    except OSError as error:
        assert error.errno == code == errno.EIO
    else:
        assert (tmp_path / "folder/a").read_text() == (tmp_path / "file").read_text() == "second"


def test_a_folder_is_on_the_disk_before_it_is_moved(tmp_path, monkeypatch):
    done, exchange, flush = [], files.exchange, files.flush
    monkeypatch.setattr(files, "flush", lambda path: (done.append(path.name), flush(path)))
    monkeypatch.setattr(files, "exchange", lambda a, b: (done.append("moved"), exchange(a, b))[1])
    (tmp_path / "folder").mkdir()
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_text("new")
    assert done == ["a", temporary.name, "moved", tmp_path.name]


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_folder(tmp_path / "folder") as temporary:
            (temporary / "a").touch(0o600)
        with atomic_file(tmp_path / "file") as temporary:
            temporary.touch(0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("folder", "folder/a", "file")]
    assert modes == [0o750, 0o640, 0o640]


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


def test_own_files_are_neither_links_nor_pipes_nor_devices(tmp_path):
    (tmp_path / "file").write_text("content")
    os.mkfifo(tmp_path / "pipe")
    for name, target in {"link": "file", "dangling": "missing", "device": "/dev/zero"}.items():
        (tmp_path / name).symlink_to(target)
    check_own_file(tmp_path / "missing")
    os.close(open_own(tmp_path / "file"))
    for name in ("pipe", "link", "dangling", "device", "."):
        for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND):
            with pytest.raises(OSError, match="not a regular file"):
                open_own(tmp_path / name, flags)
    assert not (tmp_path / "missing").exists()


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
