"""Atomic files and folders: written beside their place, then moved into it, so that they are always complete.

And safe opening of files in a folder that may not be trusted: never a link, a pipe or a device.
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

# Names that a killed atomic_file or atomic_folder leaves behind; `.old`: the folder that was to be replaced.
UNFINISHED = re.compile(r"\.(?P<name>.+?)(?P<old>\.old)?\.[a-z0-9_]{8}")
HOUR = 3600.0
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # disk full, quota exceeded, file too large
# Errors of file systems that cannot flush a folder, or do not allow opening it.
UNFLUSHED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
EXCHANGE = 2  # flag of Linux's renameat2 and macOS's renamex_np
HERE = -100  # AT_FDCWD of renameat2: paths are relative to the working directory
MOMENT = 1.0  # seconds that a live writer needs at most between two moves (it takes microseconds)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; move it to `path` at the end, or remove it after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        with naming_full_disk(path):
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
    """Yield a folder to fill; put it in the place of `path`, which may exist or be a link, unless an error occurs."""
    path = path.resolve() if path.is_symlink() else path  # keep the link and replace its target
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(path)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        with naming_full_disk(path):
            yield temporary
        for file in temporary.iterdir():
            flush(file)
            file.chmod(0o666 & ~umask())
        temporary.chmod(0o777 & ~umask())
        flush_folder(temporary)
        put_folder(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def put_folder(new: Path, place: Path) -> None:
    """Move a folder, named `.NAME.random`, into its place. One that is there is replaced: in one step where the
    system can, else by way of `.NAME.old.random`, from where it is moved back after a kill between the two moves."""
    if not place.is_dir():
        new.replace(place)
        flush_folder(place.parent)
        return
    old = new
    if not exchange(new, place):
        old = place.with_name(f".{place.name}.old.{new.name.rpartition('.')[2]}")
        try:
            place.replace(old)
            new.replace(place)
        except BaseException:
            if not place.exists():
                old.replace(place)
            raise
    flush_folder(place.parent)
    shutil.rmtree(old)


def exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step; return False if the system or the file system cannot."""
    names, system = (os.fsencode(a), os.fsencode(b)), ctypes.CDLL(None)
    if hasattr(system, "renameat2"):
        return system.renameat2(HERE, names[0], HERE, names[1], EXCHANGE) == 0
    return hasattr(system, "renamex_np") and system.renamex_np(*names, EXCHANGE) == 0


def restore_folder(path: Path) -> None:
    """Move a folder back to `path` after a kill between the two moves of `put_folder`."""
    for aside in [] if path.exists() else sorted(path.parent.glob(".*.old.*")):
        match = UNFINISHED.fullmatch(aside.name)
        if match is None or not match["old"] or match["name"] != path.name:
            continue
        time.sleep(MOMENT)
        with suppress(OSError):
            if not path.exists() and not aside.is_symlink() and any(aside.iterdir()):
                aside.replace(path)


def remove_unfinished(folder: Path, names: str, untouched: float = 0.0) -> None:
    """Clean up after a kill: remove unfinished files and folders whose final name matches the pattern `names`, and
    move back folders that were moved aside but not replaced. Without a lock that excludes other writers, give the
    seconds that a file must have been `untouched`. Files that cannot be removed (another user's) are left."""
    for left in sorted(folder.glob(".*")):
        match = UNFINISHED.fullmatch(left.name)
        if match is None or not re.fullmatch(names, match["name"]):
            continue
        with suppress(OSError):
            place = folder / match["name"]
            inside = left.iterdir() if left.is_dir() else ()
            if time.time() - max(p.lstat().st_ctime for p in (left, *inside)) < untouched:
                continue
            if left.is_symlink() or not left.is_dir():
                left.unlink()
            elif match["old"] and any(left.iterdir()) and not place.exists():
                left.replace(place)
            else:
                shutil.rmtree(left)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk, from any library, into an OSError that names `path`."""
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
    """Return whether an error means that the disk is full."""
    return error_number(error) in FULL


def error_number(error: BaseException) -> int | None:
    """Return the errno of an error; safetensors has it only in its message."""
    if isinstance(error, OSError):
        return error.errno
    words = re.search(r"\(os error (\d+)\)", str(error))
    return None if words is None else int(words[1])


def check_writable(folder: Path) -> None:
    """Raise OSError now rather than after a long computation if files cannot be written to `folder`."""
    here = folder.absolute()
    while not here.exists():
        here = here.parent
    if not here.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(here))
    if not os.access(here, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(here))


def check_regular(path: Path) -> None:
    """Raise OSError for a pipe or a device, which might block or never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def check_own_file(path: Path) -> None:
    """Raise OSError if a path exists and is not a regular file: a link may lead to any file, a pipe or a device may
    block or never end."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            kind = (
                "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
            )
            raise OSError(errno.EINVAL, f"not a regular file but {kind}", str(path))


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file of a folder that may not be trusted; raise OSError as `check_own_file` does."""
    check_own_file(path)
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


def flush_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk, where the file system can do that."""
    try:
        flush(path)
    except OSError as error:
        if error.errno not in UNFLUSHED:
            raise


def flush(path: Path) -> None:
    """Flush a file to the disk, so that a rename cannot come before the content."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """Return the umask of this process; the only way to read it is to set it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
