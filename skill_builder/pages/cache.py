"""What the site answered before, kept under the user's cache folder.

requests-cache decides by the rules of HTTP (RFC 9111) what may be kept, what is still fresh, and what has to be asked
for again with ``If-None-Match`` or ``If-Modified-Since``. Here is where the answers lie: a file each, written whole or
not at all, with a checksum in front, so that a damaged one is not there; JSON inside, so that reading one runs nothing.
A cache that cannot be written costs requests and no more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path
from requests_cache import CachedSession
from requests_cache.backends.base import BaseCache, BaseStorage
from requests_cache.models.response import CachedResponse

from skill_builder.errors import CacheError

CacheMode = Literal["use", "refresh", "check", "offline"]
"""``use``: by the rules. ``refresh``: ask for everything anew. ``check``: ask whether what is kept still holds, even
where it is fresh. ``offline``: what is kept, however old, and no request."""

LIMIT = 256 * 1024 * 1024
"""Bytes; the official pages in scope take 4 MB."""
_CHECKSUM = hashlib.sha256().digest_size
_FAST = 1
"""zlib's quickest level, which makes a page a seventh of its size."""


def cache_folder() -> Path:
    """``fsdp-skill`` in the user's cache folder; ``XDG_CACHE_HOME`` is obeyed."""
    return user_cache_path("fsdp-skill")


def open_session(folder: Path, mode: CacheMode) -> CachedSession:
    """A session whose answers are kept in a folder; for one thread."""
    return CachedSession(
        backend=_Backend(folder),
        cache_control=True,
        expire_after=0,  # Where the server does not say how long, ask each time.
        always_revalidate=mode == "check",
        only_if_cached=mode == "offline",
        stale_if_error=mode == "offline",
    )


def clear(folder: Path) -> int:
    """Remove every answer; returns how many bytes they took.

    Raises:
        CacheError: The folder cannot be removed.
    """
    size = sum(entry.stat().st_size for entry in _files(folder))
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise CacheError(folder, f"cannot be removed ({error.strerror})", "change its permissions") from error
    return size


def trim(folder: Path, limit: int = LIMIT) -> None:
    """Remove the answers that were used longest ago until the others fit the limit, in bytes."""
    with suppress(OSError):
        known = sorted(((entry.stat().st_mtime, entry.stat().st_size, entry) for entry in _files(folder)), reverse=True)
        total = 0
        for _, size, entry in known:
            total += size
            if total > limit:
                entry.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [entry for entry in folder.iterdir() if entry.is_file() and not entry.is_symlink()]
    return []


class _Backend(BaseCache):
    """A cache that keeps its answers in files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(cache_name=str(folder))
        self.responses = _Answers(folder)


class _Answers(BaseStorage[str, CachedResponse]):
    """Key -> answer, a file each.

    Args:
        folder: Where they lie; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(serializer="json")
        self._folder = folder

    def _path(self, key: str) -> Path:
        """A file whose name is a hash, whatever is in the key."""
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def __getitem__(self, key: str) -> CachedResponse:
        path = self._path(key)
        try:
            data = path.read_bytes()
            packed = data[_CHECKSUM:]
            if hashlib.sha256(packed).digest() != data[:_CHECKSUM]:
                raise KeyError(key)
            answer = self.deserialize(key, zlib.decompress(packed).decode())  # type: ignore[arg-type]
            os.utime(path)
        except (OSError, zlib.error, UnicodeDecodeError) as error:
            raise KeyError(key) from error
        if answer is None:
            raise KeyError(key)
        found: CachedResponse = answer
        return found

    def __setitem__(self, key: str, value: CachedResponse) -> None:
        packed = zlib.compress(self.serialize(value).encode(), _FAST)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.sha256(packed).digest() + packed)
                Path(name).replace(self._path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)

    def __delitem__(self, key: str) -> None:
        try:
            self._path(key).unlink()
        except OSError as error:
            raise KeyError(key) from error

    def __iter__(self) -> Iterator[str]:
        """The names of the files, which stand for keys that only their askers know."""
        return (entry.name for entry in _files(self._folder))

    def __len__(self) -> int:
        return len(_files(self._folder))
