"""Whether there is anything to do: what a skill was made from, and what its source has now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import TextIO

from skill_builder import __version__
from skill_builder.errors import NotASkill, Shrunk, TorchUnusable
from skill_builder.pages.site import site_pages
from skill_builder.records import Page, PageSource, Progress
from skill_builder.scope import Scope
from skill_builder.skill.assemble import PACKAGE, Built, HandWritten, Manifest, read_manifest

MOST_LOST = 0.03
"""Share of its sections that a skill may lose from one build to the next: pages come and go, whole topics do not."""
_OWN_FILES = (".py", ".yaml", ".json")


def made_from(source: PageSource, scope: Scope, hand_written: HandWritten) -> str:
    """A hash of all that decides what is written, but the pages."""
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in _OWN_FILES):
        digest.update(path.read_bytes())
    parts = asdict(scope), source.version, [asdict(item) for item in source.objects]
    digest.update(json.dumps(parts, default=str).encode())
    digest.update(hand_written.skill_md.encode())
    for files in (hand_written.guides, hand_written.scripts, hand_written.assets):
        for name, data in files.items():
            digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


def take_known(pages: Iterator[Page], known: Mapping[str, str], kept: TextIO) -> tuple[bool, Iterator[Page]]:
    """See whether pages are those that are known, as far as that takes.

    Args:
        pages: The pages of a source.
        known: URL -> hash.
        kept: A file for the pages that have to be taken to know.

    Returns:
        Whether every page is known and none is gone; and all the pages, those that are kept first.
    """
    same: set[str] = set()
    for page in pages:
        if known.get(page.url) != page.digest:
            return False, chain(_again(kept), [page], pages)
        same.add(page.url)
        kept.write(json.dumps([page.url, page.html]) + "\n")
    return same == set(known), _again(kept)


def _again(kept: TextIO) -> Iterator[Page]:
    kept.seek(0)
    for line in kept:
        yield Page(*json.loads(line))


def is_unchanged(built: Built, now: Manifest, folder: Path) -> bool:
    """Whether a build would write what is there already, but for the time."""
    same = ("origin", "address", "docs_version", "documentation", "made_from", "stale")
    return all(getattr(built.manifest, name) == getattr(now, name) for name in same) and built.is_whole(folder)


def vanished(before: Manifest, now: Manifest) -> tuple[str, ...]:
    """A note that names the pages that the skill before had from the same source, and this one has not."""
    gone = [url for url in before.pages if url not in now.pages]
    if not gone or not _comparable(before, now):
        return ()
    return (f"{len(gone)} pages of the skill that was there are gone: {', '.join(gone)}",)


def _comparable(before: Manifest, now: Manifest) -> bool:
    """Not if another source or version was asked for; the installed torch where the site is down was not."""
    return before.docs_version == now.docs_version and (before.origin == now.origin or now.reason != "asked for")


def check_shrink(before: Manifest, now: Manifest) -> None:
    """Refuse a skill that has lost much of what the one before it had.

    Raises:
        Shrunk: It has lost more than ``MOST_LOST``.
    """
    had, has = before.counts["sections"], now.counts["sections"]
    if _comparable(before, now) and has < had * (1 - MOST_LOST):
        notes = "".join(f"; {note}" for note in vanished(before, now))
        raise Shrunk(
            now.address,
            f"{has} sections, and the skill that is there has {had}{notes}",
            "see whether the documentation is complete, or build with --accept-shrink",
        )


@dataclass(frozen=True, slots=True)
class Changes:
    """What has become of the documentation since a skill was built."""

    changed: tuple[str, ...]
    """URLs of pages."""
    new: tuple[str, ...]
    gone: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.changed or self.new or self.gone)


def check_skill(folder: Path, scope: Scope, progress: Progress = lambda stage, done, total: None) -> Changes:
    """Ask a skill's source whether it has changed.

    Raises:
        NotASkill: The folder holds none whose manifest can be read.
        SourceError: The source cannot be reached, or a page is missing.
    """
    built = read_manifest(folder)
    if built is None:
        raise NotASkill(folder / "manifest.json", "is missing, damaged or of another builder", "build the skill again")
    known = built.manifest.pages
    if built.manifest.origin == "installed":
        return Changes(() if _same_torch(built.manifest.address) else tuple(known), (), ())
    source = site_pages(
        scope, base=built.manifest.address, docs_version=built.manifest.docs_version, mode="check", progress=progress
    )
    return compare_pages(known, source.pages)


def compare_pages(known: Mapping[str, str], pages: Iterable[Page]) -> Changes:
    """What is different in pages, given the hashes that they had, by URL."""
    now = {page.url: page.digest for page in pages}
    return Changes(
        changed=tuple(url for url, digest in now.items() if known.get(url, digest) != digest),
        new=tuple(url for url in now if url not in known),
        gone=tuple(url for url in known if url not in now),
    )


def _same_torch(address: str) -> bool:
    """Whether the installed torch is the one that an address tells of."""
    try:
        release = version("torch")
    except PackageNotFoundError as error:
        raise TorchUnusable(
            "torch", "the skill was made from it and it is not installed", "pip install 'fsdp-skill[torch]'"
        ) from error
    return address.startswith(f"torch {release} in ")
