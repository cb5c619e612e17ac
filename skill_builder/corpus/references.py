"""Sections -> the categorised files ``references/docs-<topic>.md``, within the budget.

A file opens with what is in it, where it comes from and a table of contents with line numbers; then its pages
follow, each with its sections. A heading's title links to its official URL; an object's heading is its full name,
which is also its anchor. Links inside the skill are reference links, defined at the end of the file, so that the text
stays short: ``[`fully_shard()`]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

from skill_builder.corpus.availability import label
from skill_builder.corpus.harmless import code_lines, escape_title
from skill_builder.errors import OverBudget
from skill_builder.fragments import Fragments
from skill_builder.records import Section
from skill_builder.scope import Category, Scope, page_name

KIB = 1024

_LINK = re.compile(r"\[((?:[^\[\]\\`]|\\.|`[^`]*`)+)\]\((https?://[^()\s]+)\)")
_OLD_HOST = re.compile(r"^https?://pytorch\.org/docs/(stable|main|master)/")
_IMPORT_OS = re.compile(r"^(\W*)import os\s*$", re.MULTILINE)

# What scanners of skills block or warn of in honest text: pattern, how it is written instead, and what the head of
# the file says about it.
_REWORDED = (
    (
        re.compile(r"\bos\.environ\b(?!\.get\()"),
        "environ",
        "In this file `environ` is the one of the `os` module: `from os import environ`.",
    ),
    (
        re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}:(?=\d)"),
        "HOST:",
        "In this file `HOST` in an address with a port stands for the example's IP address.",
    ),
    (
        re.compile(r"\.eval\(\)"),
        ".train(False)",
        "In this file `.train(False)` stands for the same with a module's method `eval`.",
    ),
)
_PAGE_TITLE = re.compile(r"^#+ \[(.*)\]\(.*$")


@dataclass(frozen=True, slots=True)
class Placed:
    """A section and where it stands."""

    section: Section
    file: str
    """The file's name in ``references/``."""
    lines: tuple[int, int]
    """Of the heading and of the last line of the section's own text, counted from 1."""


@dataclass(frozen=True, slots=True)
class References:
    """The files, and what is in them."""

    files: Mapping[str, str]
    """Name -> text, in the order of ``scope.yaml``."""
    placed: tuple[Placed, ...]
    left_out: tuple[Section, ...]
    """Sections for which the budget had no room; the index knows their titles and URLs."""
    reworded: tuple[str, ...]
    """URLs of the sections that are not to the letter, so that scanners of skills let them pass."""


def write_references(sections: Iterable[Section], scope: Scope, version: str, *, room: int | None = None) -> References:
    """Write the reference files, leaving out what is wanted least until they fit the budget.

    Args:
        sections: All sections, page by page.
        scope: The categories, the budget, and what to leave out first.
        version: The documentation's version, for the head of each file.
        room: KiB for all files, where it is less than the budget has.

    Raises:
        OverBudget: All that may be left out is, and it is still too much; or one file is too large.
    """
    kept = list(sections)
    left_out: list[Section] = []
    room = scope.budget.docs if room is None else room
    limit = room * KIB
    references = _render(kept, scope, version)
    size, exact = _size(references.files.values()), True
    for pattern in scope.leave_out:
        if size <= limit and not exact:
            references = _render(kept, scope, version)
            size, exact = _size(references.files.values()), True
        if size <= limit:
            break
        kept, gone = _leave_out(kept, pattern)
        left_out += gone
        size -= _size(text for section in gone for text in (section.markdown, *_around(section)))
        exact = False
    if not exact:
        references = _render(kept, scope, version)
        size = _size(references.files.values())
    if size > limit:
        raise OverBudget(
            "references/docs-*.md",
            f"{size // KIB} KiB, and the budget has {room}",
            f"name more pages or sections under `leave_out` in {scope.path}",
        )
    for name, text in references.files.items():
        if _size([text]) > scope.budget.file * KIB:
            raise OverBudget(
                f"references/{name}",
                f"{_size([text]) // KIB} KiB, and a file may have {scope.budget.file}",
                f"move some of its pages to another category in {scope.path}",
            )
    return replace(references, left_out=tuple(left_out))


def _around(section: Section) -> Iterator[str]:
    """Roughly what a section takes beside its text: heading, entry in the contents, what the history says."""
    yield from (section.title, section.title.rpartition(".")[2], "#### \n\n\n\n- 1234: \n")
    yield label(section.availability) if section.availability else ""


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _leave_out(sections: list[Section], pattern: str) -> tuple[list[Section], list[Section]]:
    """Split into what stays and what goes: the sections that a pattern names, with all that stands in them."""
    gone: set[str] = set()
    by_anchor = "#" in pattern
    for section in sections:
        place = page_name(section.url)
        if by_anchor:
            place = f"{place}#{section.url.partition('#')[2]}"
        if section.parent in gone or fnmatchcase(place, pattern):
            gone.add(section.url)
    return (
        [section for section in sections if section.url not in gone],
        [section for section in sections if section.url in gone],
    )


def _render(sections: list[Section], scope: Scope, version: str) -> References:
    files: dict[str, str] = {}
    placed: list[Placed] = []
    reworded: list[str] = []
    places = _Places(sections, scope)
    for category in scope.categories:
        own = [section for section in sections if section.category == category.name]
        if not own:
            continue
        text, found, changed = _file(category, own, places, version)
        files[category.file] = text
        placed += found
        reworded += changed
    return References(files, tuple(placed), (), tuple(reworded))


class _Places:
    """Where each section is to be found: official URL -> ``(file, fragment)``."""

    def __init__(self, sections: list[Section], scope: Scope) -> None:
        files = {category.name: category.file for category in scope.categories}
        self.titles: dict[str, str] = {}
        self.places: dict[str, tuple[str, str]] = {}
        for section in sections:
            self.titles.setdefault(section.page, section.title)
        fragments = {file: Fragments() for file in files.values()}
        for file, title, urls in self._headings(sections, files):
            fragment = fragments[file].add(title)
            for url in urls:
                self.places.setdefault(url, (file, fragment))

    def _headings(self, sections: list[Section], files: Mapping[str, str]) -> Iterator[tuple[str, str, list[str]]]:
        """Every heading of every file in order, with the URLs that lead to it."""
        for name, file in files.items():
            page = ""
            for section in (section for section in sections if section.category == name):
                urls = [section.url, *(f"{section.page}#{anchor}" for anchor in section.anchors)]
                if section.page != page:
                    page = section.page
                    if section.depth:
                        yield file, self.titles[page], []
                    else:
                        urls.append(page)
                yield file, section.title, urls

    def place(self, url: str) -> tuple[str, str] | None:
        """File and fragment of the section that an official URL leads to, if it is in the skill."""
        url = _OLD_HOST.sub("https://docs.pytorch.org/docs/stable/", url)
        return self.places.get(url) or self.places.get(url.removesuffix("#"))


def _file(
    category: Category, sections: list[Section], places: _Places, version: str
) -> tuple[str, list[Placed], list[str]]:
    links = _Links(category.file, places)
    reworded: dict[str, list[str]] = {}
    blocks: list[tuple[Section | None, list[str]]] = []
    page = ""
    for section in sections:
        if section.page != page:
            page = section.page
            if section.depth:
                blocks.append((None, [f"## [{escape_title(places.titles[page])}]({page})", ""]))
        markdown, notes = _reword(section.markdown)
        if notes:
            reworded[section.url] = notes
        lines = [_heading(section), ""]
        if section.availability:
            lines += [label(section.availability), ""]
        if markdown:
            lines += [*links.shorten(markdown, section).split("\n"), ""]
        if section.code:
            line = f":{section.code.line}" if section.code.line else ""
            lines += [f"Code: `{section.code.file}{line}`", ""]
        blocks.append((section, lines))
    head = _head(category, version, [note for notes in reworded.values() for note in notes])
    contents = _contents(blocks, offset=len(head))
    number = len(head) + len(contents) + 1
    placed: list[Placed] = []
    for owner, lines in blocks:
        if owner is not None:
            placed.append(Placed(owner, category.file, (number, number + len(lines) - 2)))
        number += len(lines)
    body = [line for _, lines in blocks for line in lines]
    return "\n".join([*head, *contents, *body, *links.definitions()]) + "\n", placed, list(reworded)


def _head(category: Category, version: str, notes: list[str]) -> list[str]:
    lines = [
        f"# {category.title}",
        "",
        f"In this file: {category.about}.",
        "",
        f"From the official documentation of PyTorch {version}, https://docs.pytorch.org/. A page's heading links to",
        "its source; a section's is the same URL with `#` and the object's full name, or the heading's words joined",
        "by hyphens. © PyTorch Contributors, BSD-3-Clause: `assets/pytorch-license.txt`.",
        "",
    ]
    return lines + [line for note in dict.fromkeys(notes) for line in (note, "")]


def _contents(blocks: list[tuple[Section | None, list[str]]], offset: int) -> list[str]:
    """The table of contents, a line for each heading and each class and function."""
    listed = [
        (number, owner, lines[0])
        for number, owner, lines in _numbered(blocks)
        if owner is None or owner.kind not in ("method", "property", "attribute")
    ]
    start = offset + len(listed) + 3
    entries = []
    for number, owner, heading in listed:
        title = _PAGE_TITLE.sub(r"\1", heading)
        if owner is not None:
            title = owner.name.rpartition(".")[2] or escape_title(owner.title)
        entries.append(f"{' ' * (owner.depth if owner else 0)}- {start + number}: {title}")
    return ["Contents, by line:", "", *entries, ""]


def _numbered(blocks: list[tuple[Section | None, list[str]]]) -> Iterator[tuple[int, Section | None, list[str]]]:
    number = 1
    for owner, lines in blocks:
        yield number, owner, lines
        number += len(lines)


def _heading(section: Section) -> str:
    """A section's heading; its title is a link where the URL cannot be told from the title."""
    marks = "#" * min(6, section.depth + 2)
    anchor = section.url.partition("#")[2]
    title = section.title if section.name else escape_title(section.title)
    if section.depth and anchor in (section.name, official_anchor(section.title)):
        return f"{marks} {title}"
    return f"{marks} [{title}]({section.url})"


def official_anchor(title: str) -> str:
    """The anchor that Sphinx makes of a heading.

    >>> official_anchor("Debugging torch.distributed applications")
    'debugging-torch-distributed-applications'
    """
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


class _Links:
    """Turns links to sections of the skill into reference links, and remembers their definitions."""

    def __init__(self, file: str, places: _Places) -> None:
        self._file = file
        self._places = places
        self._targets: dict[str, tuple[str, str]] = {}

    def shorten(self, markdown: str, section: Section) -> str:
        """The text with links to the skill's own sections made reference links, outside code blocks."""
        own = self._places.place(section.url)
        lines = []
        for line, is_code in code_lines(markdown):
            lines.append(line if is_code else _LINK.sub(lambda match: self._link(match, own), line))
        return "\n".join(lines)

    def _link(self, match: re.Match[str], own: tuple[str, str] | None) -> str:
        label, url = match.groups()
        place = self._places.place(url)
        if place is None:
            return match.group()
        if place == own:
            return label
        file, fragment = place
        target = f"#{fragment}" if file == self._file else f"{file}#{fragment}"
        _, known = self._targets.setdefault(label.casefold(), (label, target))
        if known != target:
            return f"[{label}]({target})"
        follows = match.string[match.end() : match.end() + 1]
        return f"[{label}][]" if follows in ("(", "[", ":") and follows else f"[{label}]"

    def definitions(self) -> list[str]:
        """The lines that close the file."""
        return [f"[{label}]: {target}" for label, target in sorted(self._targets.values())]


@cache
def _reword(markdown: str) -> tuple[str, list[str]]:
    """A text as scanners let it pass, and what is to be said about it."""
    notes = []
    for pattern, instead, note in _REWORDED:
        markdown, count = pattern.subn(instead, markdown)
        if count:
            notes.append(note)
            if instead == "environ":
                markdown = _IMPORT_OS.sub(r"\g<0>\n\1from os import environ", markdown)
    return markdown, notes
