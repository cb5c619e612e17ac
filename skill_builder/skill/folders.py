"""Folders that are replaced whole: at every moment the old one or the new one is there, also for a killed process."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # Linux, renameat2(2)
_RENAME_SWAP = 2  # macOS, renamex_np(2)
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_folder(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files as a folder, in the place of the one that was there.

    Raises:
        OSError: The disk is full, or a folder cannot be written; the place is as it was.
    """
    with _beside(place) as new:
        write_files(new, files)
        exchange(new, place)


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A new folder on the same disk, gone afterwards unless it was moved."""
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.absolute().parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a skill's files below a folder, scripts executable."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(0o755 if "scripts" in Path(path).parts[:-1] else 0o644)


def exchange(new: Path, place: Path) -> None:
    """Put a folder in a place on the same disk, and what was there where the folder was.

    In one step where the system can. Elsewhere what was there is moved aside first, to the name that `aside` gives,
    from where `restore` takes it back after a kill in between.

    Raises:
        OSError: The place is as it was.
    """
    if not os.path.lexists(place):
        new.rename(place)
    elif not _swap(new, place):
        old = aside(new)
        place.rename(old)
        try:
            new.rename(place)
        except OSError:
            old.rename(place)
            raise
        old.rename(new)


def aside(new: Path) -> Path:
    """Where what was there is kept while the new folder takes its place."""
    return new.with_name(f"{new.name}-old")


def restore(staging: Path, place: Path) -> None:
    """Bring back what a kill left moved aside."""
    for old in sorted(staging.glob("*-old")):
        if not os.path.lexists(place):
            old.rename(place)


def remove(path: Path) -> None:
    """Remove a file, a link (not what it leads to) or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False where the system or the disk cannot."""
    call = _swap_call()
    if call is None:
        return False
    if call(os.fsencode(one), os.fsencode(other)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _swap_call() -> Callable[[bytes, bytes], int] | None:
    if sys.platform == "win32":
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        swap = getattr(library, "renamex_np", None)
        return swap and (lambda one, other: int(swap(one, other, _RENAME_SWAP)))
    renameat2 = getattr(library, "renameat2", None)
    return renameat2 and (lambda one, other: int(renameat2(_AT_FDCWD, one, _AT_FDCWD, other, _RENAME_EXCHANGE)))
