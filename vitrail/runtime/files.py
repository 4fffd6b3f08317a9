"""Writing files so that what is there is always whole: beside the place, then moved into it.

And opening those of a folder that somebody else may have filled: never through a link, never a pipe or a device.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# What an atomic_file or atomic_folder that was killed leaves behind, a folder also its predecessor.
UNFINISHED = re.compile(r"\.(?P<name>.+?)(?P<old>\.old)?\.[a-z0-9_]{8}")
HOUR = 3600.0
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # the disk, what the user may have of it, a file
# What file systems say that cannot flush a folder, or do not let it be opened.
UNFLUSHED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
EXCHANGE = 2  # a flag of Linux's renameat2 and of macOS's renamex_np
HERE = -100  # of renameat2: paths are from the working directory
MOMENT = 1.0  # seconds; between two moves there are microseconds


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A path to write to; on leaving without an error it becomes `path`, otherwise it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        with placed(path):
            yield temporary
        flush(temporary)
        temporary.chmod(0o666 & ~umask())
        temporary.replace(path)
        flush_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; on leaving without an error its files become those of `path`, which may exist, or link."""
    path = path.resolve() if path.is_symlink() else path  # the link stays, and what it points to is replaced
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(path)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        with placed(path):
            yield temporary
        for file in temporary.iterdir():
            flush(file)
            file.chmod(0o666 & ~umask())
        temporary.chmod(0o777 & ~umask())
        flush_folder(temporary)
        if path.is_dir():
            random = temporary.name.rpartition(".")[2]
            replace_folder(temporary, path, path.with_name(f".{path.name}.old.{random}"))
        else:
            temporary.replace(path)
            flush_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_folder(new: Path, place: Path, aside: Path) -> None:
    """Put a folder in the place of another one, which goes: in one step where the system can, else by way of `aside`,
    where a kill between the two moves leaves it to be put back."""
    old = new
    if not exchange(new, place):
        old = aside
        try:
            place.replace(aside)
            new.replace(place)
        except BaseException:
            if not place.exists():
                aside.replace(place)
            raise
    flush_folder(place.parent)
    shutil.rmtree(old)


def exchange(a: Path, b: Path) -> bool:
    """Swap what stands at two paths, in one step; False where the system or the file system cannot."""
    names, system = (os.fsencode(a), os.fsencode(b)), ctypes.CDLL(None)
    if hasattr(system, "renameat2"):
        return system.renameat2(HERE, names[0], HERE, names[1], EXCHANGE) == 0
    return hasattr(system, "renamex_np") and system.renamex_np(*names, EXCHANGE) == 0


def restore_folder(path: Path) -> None:
    """Where a kill between the two moves of `replace_folder` left nothing at `path`: the folder that stood there."""
    for aside in [] if path.exists() else sorted(path.parent.glob(".*.old.*")):
        found = UNFINISHED.fullmatch(aside.name)
        if found is None or not found["old"] or found["name"] != path.name:
            continue
        time.sleep(MOMENT)  # a writer that is alive is done by then
        with suppress(OSError):
            if not path.exists() and not aside.is_symlink() and any(aside.iterdir()):
                aside.replace(path)


def remove_unfinished(folder: Path, names: str, untouched: float = 0.0) -> None:
    """After a kill: what was on its way to a name that the pattern matches goes; a folder that was moved aside for it
    comes back where nothing came into its place. Where no lock says that nobody is writing, it has been `untouched`
    for so many seconds. What cannot be removed, as it is another user's or going already, stays."""
    for left in sorted(folder.glob(".*")):
        found = UNFINISHED.fullmatch(left.name)
        if found is None or not re.fullmatch(names, found["name"]):
            continue
        with suppress(OSError):
            place = folder / found["name"]
            if time.time() - touched(left) < untouched:
                continue
            if left.is_symlink() or not left.is_dir():
                left.unlink()
            elif found["old"] and any(left.iterdir()) and not place.exists():
                left.replace(place)
            else:
                shutil.rmtree(left)


def touched(path: Path) -> float:
    """When it, or a file in it, was last written to or moved."""
    return max(p.lstat().st_ctime for p in (path, *(path.iterdir() if path.is_dir() else ())))


@contextmanager
def placed(path: Path) -> Iterator[None]:
    """A full disk is an OSError that says where."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error) and error.filename is None:  # the system does not name the file
            error.filename = str(path)
        raise
    except Exception as error:
        code = error_number(error)
        if code is None:
            raise
        raise OSError(code, os.strerror(code), str(path)) from error


def is_disk_full(error: BaseException) -> bool:
    """Whether there was no room for what was written."""
    return error_number(error) in FULL


def error_number(error: BaseException) -> int | None:
    """The system's number of an error; safetensors has it only in its words."""
    if isinstance(error, OSError):
        return error.errno
    words = re.search(r"\(os error (\d+)\)", str(error))
    return None if words is None else int(words[1])


def check_writable(folder: Path) -> None:
    """An OSError at once, where files could not be written there after a long computation."""
    here = folder.absolute()
    while not here.exists():
        here = here.parent
    if not here.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(here))
    if not os.access(here, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(here))


def check_regular(path: Path) -> None:
    """An OSError for a pipe or a device, which would be waited for, or never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def check_own_file(path: Path) -> None:
    """An OSError for what is there and is no file itself: a link, which leads to anybody's; a pipe or a device, which
    would be waited for, or never end."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no file"
            raise OSError(errno.EINVAL, f"not a regular file but {what}", str(path))


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """A file of a folder that somebody else may have filled; OSError for whatever `check_own_file` finds."""
    check_own_file(path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def flush_folder(path: Path) -> None:
    """The names in it, onto the disk; not every file system can do that."""
    try:
        flush(path)
    except OSError as error:
        if error.errno not in UNFLUSHED:
            raise


def flush(path: Path) -> None:
    """Onto the disk, so that a rename cannot come before the content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """What this process leaves out of the permissions of new files (reading it means setting it)."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
