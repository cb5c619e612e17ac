"""The builder in one function: pages -> corpus -> index -> skill."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Literal

from skill_builder import __version__
from skill_builder.corpus.harmless import orders
from skill_builder.corpus.references import KIB, Placed, References, write_references
from skill_builder.errors import CoverageError, NotInCache, SiteUnreachable, SkillError, SourceError, TorchUnusable
from skill_builder.index.build import build_index
from skill_builder.index.entries import Entry, File, file_entries, hint_entries, index_entry, load_search
from skill_builder.index.passages import guide_sections, left_out, titles_of
from skill_builder.index.thesaurus import load_thesaurus
from skill_builder.pages.cache import CacheMode
from skill_builder.pages.installed import installed_pages
from skill_builder.pages.site import Manners, site_pages
from skill_builder.rebuild import check_shrink, is_unchanged, made_from, take_known, vanished
from skill_builder.records import DocumentedObject, PageSource, Progress, Section
from skill_builder.scope import OFFICIAL_SITE, Scope
from skill_builder.skill.assemble import (
    HandWritten,
    Manifest,
    check_budget,
    check_destination,
    read_hand_written,
    read_manifest,
    sources,
    with_references,
    write_skill,
)
from skill_builder.skill.frontmatter import render
from skill_builder.workers import WORKERS, parse_pages, started

Run = Callable[[Callable[[File], list[Entry]], Iterable[File]], Iterable[list[Entry]]]
"""As ``map``, or the same in other processes."""

INDEX_FILE = "references/index.json"
MANIFEST_KIB = 13
"""What is kept for ``manifest.json``, which is written last."""


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What to build, from where, to where."""

    scope: Scope
    out: Path
    source: Literal["auto", "site", "installed"] = "auto"
    url: str = OFFICIAL_SITE
    docs_version: str = "stable"
    cache: CacheMode = "use"
    """How the pages that were kept from earlier are used."""
    allow_missing: int = 0
    """So many pages may fail; with any, documented objects may be missing too."""
    accept_shrink: bool = False
    """Go on when the skill loses much of what it had."""
    manners: Manners = field(default_factory=Manners)
    """How the site is treated."""
    workers: int = WORKERS
    """Processes that parse."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What was built."""

    out: Path
    manifest: Manifest
    sizes: Mapping[str, int]
    """Path -> bytes."""
    changed: bool = True
    """Whether anything was written; not if nothing has changed."""
    notes: tuple[str, ...] = ()
    """What people should know of this build, beside what the manifest notes."""


def build_skill(
    request: BuildRequest,
    progress: Progress = lambda stage, done, total: None,
    *,
    pool: ProcessPoolExecutor | None = None,
) -> BuildReport:
    """Build a skill, in place of the one that was there.

    Args:
        request: What to build.
        progress: Called with ``"fetching"`` or ``"rendering"``, ``"parsing"`` and ``"indexing"``.
        pool: Processes that are started already.

    Raises:
        BuilderError: What is wrong, where, and what to do; the skill that was there is untouched.
    """
    check_destination(request.out)
    source, reason = reach_source(request, progress)
    hand_written = read_hand_written(sources())
    before = read_manifest(request.out)
    manifest = Manifest(
        origin=source.origin,
        reason=reason,
        address=source.address,
        docs_version=request.docs_version,
        documentation=source.version,
        made_from=made_from(source, request.scope, hand_written),
    )
    known = before.manifest.pages if before and before.manifest.made_from == manifest.made_from else {}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:
        same, pages = take_known(source.pages, known, kept)
        manifest = replace(manifest, stale=tuple(source.stale))
        if before and same and is_unchanged(before, manifest, request.out):
            sizes = {path: (request.out / path).stat().st_size for path in (*before.files, "manifest.json")}
            return BuildReport(request.out, before.manifest, sizes, changed=False)
        with nullcontext(pool) if pool else started(request.workers) as workers:
            hashes, sections, contradictory = parse_pages(pages, request.scope, source.version, workers, progress)
            missing = check_coverage(source.objects, sections, allow_missing=request.allow_missing > 0)
            references, files = fill(
                sections, hand_written, request.scope, source.version, run=workers.map, progress=progress
            )
    manifest = replace(
        manifest,
        pages=hashes,
        counts={"pages": len(hashes), "sections": len(sections), "files": len(files) + 1},
        coverage={
            "documented": len(source.objects),
            "with_section": len(source.objects) - len(missing),
            "missing": missing,
        },
        left_out=count_left_out(references.left_out, sections),
        reworded=references.reworded,
        notes=(
            *source.notes,
            *(f"{name} is documented, but torch {source.version} lacks it by the history" for name in contradictory),
            *point_out_orders(references.placed),
        ),
        stale=tuple(source.stale),
    )
    notes = vanished(before.manifest, manifest) if before else ()
    if before and not request.accept_shrink:
        check_shrink(before.manifest, manifest)
    files["manifest.json"] = manifest.to_json(files)
    check_budget(files, request.scope.budget)
    write_skill(request.out, files)
    return BuildReport(request.out, manifest, {path: len(data) for path, data in files.items()}, notes=notes)


def reach_source(request: BuildRequest, progress: Progress) -> tuple[PageSource, str]:
    """The source of the pages, and why it is this one.

    Raises:
        SourceError: The source that was asked for, or with ``auto`` both, cannot be reached.
    """
    if request.source == "installed":
        return installed_pages(request.scope, progress=progress), "asked for"
    try:
        source = site_pages(
            request.scope,
            base=request.url,
            docs_version=request.docs_version,
            allow_missing=request.allow_missing,
            mode=request.cache,
            manners=request.manners,
            progress=progress,
        )
    except (SiteUnreachable, NotInCache) as error:
        if request.source == "site":
            raise
        return _fall_back(request, error, progress)
    return source, "asked for" if request.source == "site" else "the site answers"


def _fall_back(request: BuildRequest, site_error: SourceError, progress: Progress) -> tuple[PageSource, str]:
    try:
        source = installed_pages(request.scope, progress=progress)
    except TorchUnusable as error:
        raise SourceError(
            site_error.where,
            f"{site_error.problem}, and the installed torch cannot stand in ({error.problem})",
            f"either {site_error.remedy}; or {error.remedy}",
        ) from error
    if request.docs_version not in ("stable", source.version):
        raise site_error
    return source, f"{site_error.where}: {site_error.problem}"


def fill(
    sections: Sequence[Section],
    hand_written: HandWritten,
    scope: Scope,
    version: str,
    *,
    run: Run,
    progress: Progress,
) -> tuple[References, dict[str, bytes]]:
    """The references, and every file but the manifest, as path -> bytes.

    Where all together is too much for the skill, though no share is, fewer sections get room.
    """
    room = scope.budget.docs
    while True:
        references = write_references(sections, scope, version, room=room)
        docs = sum(len(text.encode()) for text in references.files.values())
        files = {
            "SKILL.md": render_skill_md(hand_written.skill_md, references.files, scope, version),
            **{f"references/{name}": text.encode() for name, text in references.files.items()},
            INDEX_FILE: index_all(references, hand_written.guides, version, run, progress).encode(),
            **hand_written.guides,
            **hand_written.scripts,
            **hand_written.assets,
        }
        over = sum(map(len, files.values())) - (scope.budget.skill - MANIFEST_KIB) * KIB
        if over <= 0:
            return references, files
        room = (docs - over) // KIB


def check_coverage(
    objects: Iterable[DocumentedObject], sections: Iterable[Section], *, allow_missing: bool
) -> tuple[str, ...]:
    """The names of documented objects that have no section.

    Raises:
        CoverageError: There are some, and that is not allowed.
    """
    covered = {url for section in sections for url in (section.url, *_other_urls(section))}
    missing = tuple(item.name for item in objects if item.url not in covered)
    if missing and not allow_missing:
        raise CoverageError(
            "objects.inv", f"no section for {', '.join(missing)}", "report it, or build with --allow-missing 1"
        )
    return missing


def _other_urls(section: Section) -> Iterator[str]:
    return (f"{section.page}#{anchor}" for anchor in section.anchors)


def point_out_orders(placed: Iterable[Placed]) -> Iterator[str]:
    """A note for each section that reads like orders to an agent; a person should look at it."""
    for place in placed:
        for what in orders(f"{place.section.title}\n{place.section.markdown}"):
            yield f"references/{place.file}:{place.lines[0]} {what}, from {place.section.url}"


def count_left_out(left_out: Iterable[Section], sections: Iterable[Section]) -> dict[str, str]:
    """How much of each page there was no room for: page -> "12 of 34" sections."""
    gone, total = (Counter(section.page for section in some) for some in (left_out, sections))
    return {page: f"{count} of {total[page]}" for page, count in gone.items()}


def render_skill_md(skill_md: str, files: Mapping[str, str], scope: Scope, version: str) -> bytes:
    """The SKILL.md of a built skill, as Hermes wants it."""
    return render(with_references(skill_md, files, scope, version), "hermes", version=__version__).encode()


def index_all(
    references: References,
    guides: Mapping[str, bytes],
    version: str,
    run: Run = map,
    progress: Progress = lambda stage, done, total: None,
) -> str:
    """The text of ``index.json`` over the references, the guides, and the sections that are left out."""
    search = load_search(sources() / "scripts")
    entries, sections = index_entries(references, guides, search, run, progress)
    return build_index(entries, sections, version, search, load_thesaurus().terms)


def write_guide_index(root: Path) -> Path:
    """Write the index over the guides alone, with which a checkout is a working skill.

    Args:
        root: The folder with the hand-written files.

    Returns:
        The file, ``references/index.json``.

    Raises:
        SkillError: A file cannot be read or written.
    """
    target = root / INDEX_FILE
    text = index_all(References({}, (), (), ()), read_hand_written(root).guides, "")
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SkillError(target, f"cannot be written ({error.strerror})", "make it writable") from error
    return target


def index_entries(
    references: References,
    guides: Mapping[str, bytes],
    search: ModuleType,
    run: Run = map,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[list[Entry], list[Section]]:
    """What the index is built from: every passage and hint with its terms, and every section."""
    texts = {Path(path).name: data.decode() for path, data in guides.items()}
    placed = [place for name, text in texts.items() for place in guide_sections(name, text)] + list(references.placed)
    titles = titles_of(place.section for place in placed)
    files = []
    for name, text in (*texts.items(), *references.files.items()):
        own = [place for place in placed if place.file == name]
        files.append(File(name, text, own, {place.section.url: titles[place.section.url] for place in own}))
    cut = run(partial(file_entries, sources() / "scripts"), files)
    sections = [place.section for place in placed] + list(references.left_out)
    hints = hint_entries(sections, load_thesaurus(), search.tokenize)
    entries: list[Entry] = []
    for done, found in enumerate(cut, 1):
        entries += found
        progress("indexing", done, len(files))
    entries += (index_entry(passage, search.tokenize) for passage in left_out(references.left_out))
    return entries + hints, sections
