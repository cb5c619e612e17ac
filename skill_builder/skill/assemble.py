"""What is shipped: references, index, guides, scripts and assets, put together as a folder that an agent loads.

The folder is made whole beside its place and then exchanged for the one that was there, so that nothing that goes wrong
can damage a skill that works.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from skill_builder import __version__
from skill_builder.errors import NotASkill, OverBudget, SkillError
from skill_builder.scope import Budget, Scope
from skill_builder.skill.folders import replace_folder
from skill_builder.skill.manifest import load_manifest

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

SKILL_NAME = "pytorch-fsdp"
REFERENCES_HEADING = "## Official documentation"
PACKAGE = Path(__file__).resolve().parent.parent
KIB = 1024


def sources() -> Path:
    """The folder with the skill's hand-written files: inside the wheel, or the checkout."""
    inside = PACKAGE / "_skill"
    return inside if inside.is_dir() else PACKAGE.parent


@dataclass(frozen=True, slots=True)
class HandWritten:
    """The skill's own files, path -> bytes, by the share of the budget that they count for."""

    skill_md: str
    guides: Mapping[str, bytes]
    scripts: Mapping[str, bytes]
    assets: Mapping[str, bytes]


def read_hand_written(root: Path) -> HandWritten:
    """Read the hand-written files below a folder.

    Raises:
        SkillError: A file cannot be read.
    """
    try:
        return HandWritten(
            skill_md=(root / "SKILL.md").read_text(encoding="utf-8"),
            guides=_read(root, "references/guide-*.md"),
            scripts=_read(root, "scripts/*.py"),
            assets=_read(root, "assets/*"),
        )
    except OSError as error:
        raise SkillError(
            error.filename, f"cannot be read ({error.strerror})", "restore it, or install again"
        ) from error


def _read(root: Path, pattern: str) -> dict[str, bytes]:
    paths = sorted(path for path in root.glob(pattern) if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def with_references(skill_md: str, files: Mapping[str, str], scope: Scope, version: str) -> str:
    """SKILL.md with a table of the reference files that this build holds, in place of the section's text."""
    before, heading, rest = skill_md.partition(f"{REFERENCES_HEADING}\n")
    if not heading:
        raise SkillError("SKILL.md", f"the heading {REFERENCES_HEADING!r} is missing", "restore it from the repository")
    _, next_heading, after = rest.partition("\n## ")
    rows = [
        f"| {category.about} | `references/{category.file}` |"
        for category in scope.categories
        if category.file in files
    ]
    table = "\n".join(["| what is in it | read |", "| --- | --- |", *rows])
    text = f"The pages of PyTorch {version}, each section with its official URL.\n\n{table}\n"
    return f"{before}{heading}\n{text}{next_heading}{after}"


def check_budget(files: Mapping[str, bytes], budget: Budget) -> None:
    """Compare a skill's files with the size limits.

    Raises:
        OverBudget: The first limit that is exceeded.
    """
    for share, prefixes in _SHARES.items():
        size = sum(len(data) for path, data in files.items() if path.startswith(prefixes))
        limit = getattr(budget, share)
        if size > limit * KIB:
            raise OverBudget(
                f"the skill's share {share!r}",
                f"{size / KIB:.0f} KiB, and the budget has {limit}",
                "shorten what is in it",
            )


# Share of the budget -> how the paths that count for it start.
_SHARES: Mapping[str, tuple[str, ...]] = {
    "docs": ("references/docs-",),
    "index": ("references/index.json",),
    "guides": ("references/guide-",),
    "scripts": ("scripts/",),
    "rest": ("SKILL.md", "assets/", "manifest.json"),
    "skill": ("",),
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a built skill says of itself, in ``manifest.json``."""

    origin: str
    """``site`` or ``installed``."""
    reason: str
    """Why this source."""
    address: str
    docs_version: str
    """The version that was asked for: ``stable``, ``main`` or a release."""
    documentation: str
    """The documentation's version, as it says itself."""
    made_from: str
    """A hash of all that decides what is written but the pages: the builder, the scope, the guides, the inventory."""
    pages: Mapping[str, str] = field(default_factory=dict)
    """Official URL -> the first 16 digits of the SHA-256 of the page as it was fetched or rendered."""
    counts: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, object] = field(default_factory=dict)
    """How many documented objects have a section, of how many, and the names of those that have none."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Official URL of a page -> "12 of 34": how many of its sections there was no room for."""
    reworded: tuple[str, ...] = ()
    """URLs of the sections that are not to the letter, so that scanners of skills let them pass."""
    notes: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    """URLs of the pages that could not be had, for which the last good copy stands."""

    def to_json(self, files: Mapping[str, bytes]) -> bytes:
        """The text of ``manifest.json``; the only place of a build that holds the time."""
        built = {
            "builder": __version__,
            "built": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **asdict(self),
            "files": {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())},
        }
        return (json.dumps(built, indent=1, ensure_ascii=False) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Built:
    """A skill that was built earlier, as its manifest tells it."""

    manifest: Manifest
    built: str
    """When."""
    files: Mapping[str, str]
    """Path -> SHA-256."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the folder holds these files, as they were written, and no others."""
        paths = (path for path in folder.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts)
        found = {path.relative_to(folder).as_posix(): path for path in paths}
        found.pop("manifest.json", None)
        try:
            hashes = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in found.items()}
        except OSError:
            return False
        return hashes == self.files


def read_manifest(folder: Path) -> Built | None:
    """What a skill's manifest says; None where there is none, or it is damaged, or of another builder."""
    try:
        said = load_manifest(folder)
        return Built(_manifest(said), str(said["built"]), {str(k): str(v) for k, v in said["files"].items()})
    except (SkillError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _manifest(said: Mapping[str, Any]) -> Manifest:
    values: dict[str, Any] = {}
    for known in fields(Manifest):
        value, kind = said[known.name], _KINDS[str(known.type).partition("[")[0]]
        if not isinstance(value, kind):
            raise TypeError(known.name)
        values[known.name] = tuple(value) if kind is list else value
    int(values["counts"]["sections"])
    return Manifest(**values)


# How a field of the manifest is annotated -> what it is in JSON.
_KINDS = {"str": str, "Mapping": dict, "tuple": list}


def check_destination(out: Path) -> None:
    """Refuse to replace anything but a skill of ours, before any work is done.

    Raises:
        NotASkill: Something else is there.
        SkillError: The folder around it cannot be written.
    """
    parent = out.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _alone(out):
            _clear_up(out)
            Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=parent)).rmdir()
        is_free = not out.exists() or is_ours(out)
    except OSError as error:
        raise SkillError(
            parent, f"cannot be written ({error.strerror})", "name another folder with --out, or change its permissions"
        ) from error
    if not is_free:
        raise NotASkill(out, "it exists and is not a skill that fsdp-skill built", "name another folder with --out")


def is_ours(folder: Path) -> bool:
    """Whether a folder holds a skill that was built here, or nothing."""
    if not folder.is_dir():
        return False
    return (folder / "manifest.json").is_file() or not any(folder.iterdir())


def write_skill(out: Path, files: Mapping[str, bytes]) -> None:
    """Write a skill's files, in place of the skill that was there.

    Raises:
        SkillError: The disk is full, or a folder cannot be written; what was there is untouched.
    """
    check_destination(out)
    try:
        with _alone(out):
            _clear_up(out)
            replace_folder(out, files)
    except OSError as error:
        raise SkillError(
            out, f"cannot be written ({error.strerror})", "free some space or change the permissions, and build again"
        ) from error


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One build at a time writes here. The lock is on the folder around it: so nothing is left of it, killed or not."""
    if fcntl is None:  # On Windows builds of one folder are not kept apart.
        yield
        return
    folder = os.open(out.absolute().parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # Some network disks have no such lock.
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _clear_up(out: Path) -> None:
    """Bring back, or remove, what builds left that were killed."""
    for left in sorted(out.absolute().parent.glob(f".{glob.escape(out.name)}-*")):
        if left.name.endswith("-old") and not out.exists():
            left.rename(out)
        else:
            shutil.rmtree(left, ignore_errors=True)
