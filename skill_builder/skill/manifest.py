"""A built skill's ``manifest.json``, of whatever builder, and what it says of the skill's files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from skill_builder.errors import SkillError

MANIFEST = "manifest.json"
_MADE_ALONG = ("__pycache__", ".DS_Store", "Thumbs.db")
"""Files that running or looking at a skill leaves in it."""


def load_manifest(folder: Path) -> dict[str, Any]:
    """Everything that the manifest says.

    Raises:
        SkillError: It is missing, cannot be read, or is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise SkillError(path, f"cannot be read ({error.strerror})", "build or install the skill again") from error
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise SkillError(path, "is damaged", "build or install the skill again")
    return manifest


def listed_files(folder: Path) -> dict[str, str]:
    """The files that the manifest lists: path -> SHA-256.

    Raises:
        SkillError: As `load_manifest`; or there is no such list, or a path in it leads out of the skill.
    """
    files = load_manifest(folder).get("files")
    if not isinstance(files, dict) or not all(isinstance(hash_, str) for hash_ in files.values()):
        raise SkillError(folder / MANIFEST, "lists no files", "build or install the skill again")
    for path in files:
        if not is_inside(path):
            raise SkillError(
                folder / MANIFEST, f"lists {path!r}, outside the skill", "build or install the skill again"
            )
    return files


def is_inside(path: str) -> bool:
    r"""Whether a path, written as in the manifest, stays below the folder that it is taken from.

    >>> [is_inside(path) for path in ("references/x.md", "../x.md", "/etc/x", "a\\..\\b", "")]
    [True, False, False, False, False]
    """
    pure = PurePosixPath(path)
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and not set(path) & set("\\:\0")


def files_of(folder: Path) -> dict[str, Path]:
    """Every file below a folder, links included, but for what is made along the way and the manifest."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: path for name, path in named.items() if name != MANIFEST and not set(_MADE_ALONG) & set(path.parts)}


def edited_files(folder: Path) -> list[str]:
    """Files that are not as they were installed, or were not installed; all, where the manifest is damaged."""
    try:
        hashes: Mapping[str, str] = listed_files(folder)
    except SkillError:
        hashes = {}
    return [name for name, path in files_of(folder).items() if _hash(path) != hashes.get(name)]


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # a link to nowhere
        return ""
