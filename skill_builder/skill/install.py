"""A built skill, installed for Hermes on this machine: whole or not at all, and nothing of the user's is lost.

What is to happen is first a `Plan`, which writes nothing. What the user changed in an installed skill, and skills that
have to make way, are copied to ``KEPT`` before anything is replaced. All that is on its way in or out lies in a folder
that Hermes does not look into, so that it never sees two skills of one name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from skill_builder.errors import InstallBusy, NameTaken, NotASkill, SkillError
from skill_builder.skill.assemble import SKILL_NAME
from skill_builder.skill.folders import exchange, remove, restore, write_files
from skill_builder.skill.manifest import MANIFEST, edited_files, files_of, listed_files, load_manifest
from skill_builder.skill.publish import for_target, read_whole

CATEGORY = "mlops"
KEPT = "kept-by-fsdp-skill"
"""In Hermes' home: copies of what people had changed, and of skills that made way; a folder a state, by its hash."""
LOCK = ".fsdp-skill.lock"
STAGING = ".archive"
"""Beside the skill, so that moving is one step; Hermes looks into no folder of this name."""
SUPPORT = ("references", "templates", "assets", "scripts")
"""Folders of a skill in which Hermes looks for no other skill."""
NOT_LOOKED_INTO = frozenset(
    (
        ".git",
        ".github",
        ".hub",
        ".archive",
        ".venv",
        "venv",
        "node_modules",
        "site-packages",
        "__pycache__",
        ".tox",
        ".nox",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
    )
)
"""The same for any skill. Both were read from hermes-agent 0.19.0."""
LOCK_TIMEOUT = 60
"""Seconds to wait for another install to end; one takes less than a second."""

_NAME = re.compile(r"^name:\s*[\"']?([^\"'\n]+?)[\"']?\s*$", re.MULTILINE)


def hermes_home() -> Path:
    """Where Hermes keeps its things on this machine."""
    named = os.environ.get("HERMES_HOME", "").strip()
    if named:
        return Path(named)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "").strip()
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "hermes"
    return Path.home() / ".hermes"


def place_in(home: Path) -> Path:
    """The folder of the installed skill."""
    return home / "skills" / CATEGORY / SKILL_NAME


@dataclass(frozen=True, slots=True)
class Plan:
    """What an install or uninstall is going to do."""

    home: Path
    files: Mapping[str, bytes] | None
    """The new skill; None to remove the one that is there."""
    replaces: bool
    """Whether a skill is there."""
    edited: tuple[str, ...]
    """Files of the skill that is there that somebody has changed or added."""
    makes_way: tuple[Path, ...]
    """Other skills, folders or single files, that Hermes knows by the same name; the one in the place itself, too."""
    is_same: bool = False
    """Whether the skill that is there is the new one already."""

    @property
    def place(self) -> Path:
        """Where the skill is, or is going to be."""
        return place_in(self.home)


def plan_install(skill: Path, home: Path, *, replace: bool = False) -> Plan:
    """See what installing a built skill takes.

    Args:
        skill: The folder that was built.
        home: Hermes' home.
        replace: Other skills of the same name make way.

    Raises:
        NotASkill: The folder holds no skill of ours.
        NameTaken: There are other skills of the same name, and they are not to make way.
        SkillError: A file of the skill is missing or not as it was built.
    """
    files = for_target(read_whole(skill), "hermes")
    place = place_in(home)
    others = same_name(home / "skills", place)
    is_ours = (place / MANIFEST).is_file()
    if os.path.lexists(place) and not is_ours and any(place.iterdir() if place.is_dir() else (place,)):
        others = [place, *others]
    if others and not replace:
        raise NameTaken(
            ", ".join(map(str, others)),
            f"fsdp-skill did not install this, and with two skills named {SKILL_NAME} Hermes loads neither",
            f"install with --replace (a copy goes to {home / KEPT}), or remove it first",
        )
    edited = tuple(edited_files(place)) if is_ours else ()
    return Plan(home, files, is_ours, edited, tuple(others), not others and not edited and _holds(place, files))


def _holds(place: Path, files: Mapping[str, bytes]) -> bool:
    """Whether a folder holds this skill, though it may have been built at another time."""
    try:
        there = load_manifest(place)
        listed = listed_files(place)
    except SkillError:
        return False
    return set(listed) == set(files_of(place)) and _without_time(there) == _without_time(json.loads(files[MANIFEST]))


def _without_time(manifest: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in manifest.items() if name != "built"}


def plan_uninstall(home: Path) -> Plan:
    """See what removing the installed skill takes.

    Raises:
        NotASkill: None is installed, or it is not ours.
    """
    place = place_in(home)
    if not os.path.lexists(place):
        raise NotASkill(place, "no skill is installed there", "set HERMES_HOME, or name Hermes' home with --home")
    if not (place / MANIFEST).is_file():
        raise NotASkill(place, "fsdp-skill did not install this", "remove it with `hermes skills uninstall`")
    return Plan(home, None, replaces=True, edited=tuple(edited_files(place)), makes_way=())


def same_name(skills: Path, place: Path) -> list[Path]:
    """What Hermes would take for a skill of the same name, but for the one in its place.

    That is a folder with a SKILL.md that is called so or whose frontmatter says so, or a file of that name with
    ``.md``; as ``skill_view`` in hermes-agent 0.19.0 looks for them.
    """
    return sorted({*_folders_named(skills), *_files_named(skills)} - {place})


def _folders_named(skills: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for root, folders, files in os.walk(skills, followlinks=True):
        real = os.path.realpath(root)
        is_skill = "SKILL.md" in files
        skipped = NOT_LOOKED_INTO | (set(SUPPORT) if is_skill else set())
        folders[:] = [] if real in seen else [folder for folder in folders if folder not in skipped]
        seen.add(real)
        if is_skill and SKILL_NAME in (Path(root).name, _name_in(Path(root) / "SKILL.md")):
            yield Path(root)


def _name_in(skill_md: Path) -> str:
    """The name in a frontmatter, which need not be YAML for Hermes."""
    try:
        text = skill_md.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    header = text.partition("\n---")[0] if text.startswith("---") else ""
    match = _NAME.search(header)
    return match[1] if match else ""


def _files_named(skills: Path) -> Iterator[Path]:
    for path in skills.rglob(f"{SKILL_NAME}.md"):
        inside = path.relative_to(skills).parts[:-1]
        in_support = any(
            part in SUPPORT and (skills.joinpath(*inside[:depth]) / "SKILL.md").is_file()
            for depth, part in enumerate(inside)
        )
        if not in_support:
            yield path


def carry_out(plan: Plan) -> list[Path]:
    """Do what a plan says.

    Returns:
        The folders in which something of the user's is kept.

    Raises:
        SkillError: The disk is full, or a folder cannot be written; the skill that was there is there.
    """
    try:
        with _staging(plan) as staging:
            kept = list(_keep(plan))
            if plan.files is not None:
                new = Path(tempfile.mkdtemp(prefix="new-", dir=staging))
                new.chmod(0o755)
                write_files(new, plan.files)
                exchange(new, plan.place)
            else:
                _take_away(plan.place, staging)
            for other in plan.makes_way:
                if other != plan.place:
                    _take_away(other, staging)
            return kept
    except OSError as error:
        raise SkillError(
            error.filename or plan.place,
            f"cannot be written ({error.strerror})",
            "free some space or change the permissions, and try again",
        ) from error


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One install at a time: from seeing what there is until it is done. A killed process holds no lock.

    Raises:
        InstallBusy: Another one does not end.
        SkillError: Hermes' home cannot be written.
    """
    lock = FileLock(home / LOCK, timeout=LOCK_TIMEOUT)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise InstallBusy(home, "another install is at work", "try again when it has ended") from error
    except OSError as error:
        raise SkillError(home, f"cannot be written ({error.strerror})", "change its permissions") from error
    try:
        _recover(home)
        yield
    finally:
        lock.release()


def _recover(home: Path) -> None:
    """Mend and tidy what a killed install left."""
    place = place_in(home)
    staging = place.with_name(STAGING)
    if staging.is_dir():
        restore(staging, place)
        for left in [*staging.glob("new-*"), *staging.glob("gone-*")]:
            remove(left)
        _remove_if_empty(staging)
    for left in (home / KEPT).glob(".new-*"):
        remove(left)


@contextmanager
def _staging(plan: Plan) -> Iterator[Path]:
    staging = plan.place.with_name(STAGING)
    staging.mkdir(parents=True, exist_ok=True)
    try:
        yield staging
    finally:
        for left in [*staging.glob("new-*"), *staging.glob("gone-*")]:
            if not left.name.endswith("-old"):
                remove(left)
        _remove_if_empty(staging)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _take_away(path: Path, staging: Path) -> None:
    """Remove a folder or file, gone in one step."""
    gone = Path(tempfile.mkdtemp(prefix="gone-", dir=staging))
    path.rename(gone / path.name)
    remove(gone)


def _keep(plan: Plan) -> Iterator[Path]:
    """Copy what would be lost."""
    if plan.edited:
        yield _copy({name: plan.place / name for name in plan.edited}, plan.home)
    for path in plan.makes_way:
        files = files_of(path) if path.is_dir() else {path.name: path}
        manifest = {MANIFEST: path / MANIFEST} if (path / MANIFEST).is_file() else {}
        yield _copy({**files, **manifest}, plan.home)


def _copy(files: Mapping[str, Path], home: Path) -> Path:
    """Copy files into a folder named for what they hold, so that doing it again changes nothing."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    kept = home / KEPT / f"{SKILL_NAME}-{digest.hexdigest()[:12]}"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=kept.parent))
    try:
        for name, path in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, new / name, follow_symlinks=False)
        new.rename(kept)
    finally:
        if new.is_dir():
            remove(new)
    return kept
