"""A built skill, read back from its files: every section and object with its signature and text.

References and guides are Markdown as ``corpus/references.py`` writes it; what it does so that the files hang together
(reference links, line numbers, the head of a file) is undone, so that only what the documentation says is compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from skill_builder.corpus.references import official_anchor
from skill_builder.errors import NotASkill, SkillError
from skill_builder.index.entries import load_search
from skill_builder.skill.assemble import sources
from skill_builder.skill.manifest import load_manifest

NOT_COMPARED = ("manifest.json", "references/index.json")
"""Made from the rest."""

_HEADING = re.compile(r"^(#{1,6}) (?:\[(?P<label>.*)\]\((?P<url>\S+)\)|(?P<title>.*))$")
_OBJECT = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
_DEFINITION = re.compile(r"^\[([^\]]+)\]: \S+$")
_CODE_LINE = re.compile(r"^Code: `[^`]+`$")
_AVAILABILITY = re.compile(r"^\*[^*].*\*$")  # since which torch, above the signature
_FENCE = re.compile(r"^[>\s]*(?:[-+*]\s+|\d+[.)]\s+)?(`{3,})")
_STARTS_BLOCK = re.compile(r"\s*([-+*] |\d{1,9}[.)] |>|\||#{1,6} |`{3,})")
_LINK = re.compile(r"\[((?:[^\[\]\\`]|\\.|`[^`]*`)+)\](?:\[\]|\(([^()\s]+)\))?")
_DOCS_VERSION = re.compile(r"^(https?://[^/]+/docs/)[^/]+/")
_OFFICIAL = "https://docs.pytorch.org/"

_BLOCKS = MarkdownIt("commonmark").disable("inline")
"""Finds headings outside code blocks, and their lines."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A section, an object or a whole file, as far as its changes are worth knowing."""

    key: str
    """The official URL, whatever the documentation's version; for guides and files the path in the skill."""
    kind: str
    """``object``, ``section`` or ``file``."""
    title: str
    url: str
    """Empty for what has no page on the site."""
    category: str
    file: str
    """Path in the skill."""
    line: int
    signature: str
    """An object's stub, or several, without the fence."""
    lines: tuple[str, ...]
    """The text: a paragraph or list item a line, code line by line; links that only the skill needs are plain text."""

    @property
    def name(self) -> str:
        """The last part of an object's name."""
        return self.title.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Built:
    """A skill that is there to be compared."""

    folder: Path
    manifest: Mapping[str, Any]
    """Empty where the skill has none."""
    entries: tuple[Entry, ...]
    sizes: Mapping[str, int]
    """Category -> bytes."""
    left_out: Mapping[str, str]
    """Sections that have no room, but stand in the index: key -> category."""


def read_built(folder: Path) -> Built:
    """Read a skill folder.

    Raises:
        NotASkill: The folder has no SKILL.md.
        SkillError: A file or the manifest cannot be read.
    """
    if not (folder / "SKILL.md").is_file():
        raise NotASkill(folder, "has no SKILL.md", "name the folder of a skill")
    manifest = load_manifest(folder) if (folder / "manifest.json").exists() else {}
    texts = dict(_texts(folder))
    sizes: Counter[str] = Counter()
    for path, text in texts.items():
        sizes[category_of(path)] += len(text.encode())
    entries = tuple(entry for path, text in texts.items() for entry in _entries(path, text))
    return Built(folder, manifest, entries, sizes, _left_out(folder))


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or name in NOT_COMPARED or "__pycache__" in path.parts:
            continue
        try:
            yield name, path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise SkillError(path, f"cannot be read ({error.strerror})", "change its permissions") from error


def category_of(path: str) -> str:
    """The category that a file of the skill belongs to.

    >>> category_of("references/docs-fsdp2.md"), category_of("scripts/train_fsdp2.py"), category_of("SKILL.md")
    ('fsdp2', 'scripts', 'skill')
    """
    folder, _, name = path.rpartition("/")
    if folder == "references" and name.startswith("docs-"):
        return name.removeprefix("docs-").removesuffix(".md")
    if folder == "references" and name.startswith("guide-"):
        return "guides"
    return folder.partition("/")[0] or "skill"


def _left_out(folder: Path) -> dict[str, str]:
    """From the index, where it is of the format that this builder reads."""
    search = load_search(sources() / "scripts")
    try:
        index = search.Index(str(folder))
    except search.BrokenSkill:
        return {}
    with_text = {section for section, first in zip(index.section, index.first, strict=False) if first}
    others = set(range(len(index.titles))) - with_text
    return {neutral(index.url(section)): index.categories[index.category[section]] for section in sorted(others)}


def _entries(path: str, text: str) -> Iterator[Entry]:
    if path.startswith("references/docs-"):
        yield from _numbered(_docs_entries(path, text))
    elif path.startswith("references/") and path.endswith(".md"):
        yield from _numbered(_guide_entries(path, text))
    else:
        yield Entry(path, "file", path, "", category_of(path), path, 1, "", tuple(text.rstrip("\n").split("\n")))


def _numbered(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Give every entry of a file a key of its own."""
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry.key] += 1
        count = seen[entry.key]
        yield entry if count == 1 else Entry(f"{entry.key}~{count}", *_fields(entry)[1:])


def _fields(entry: Entry) -> list[Any]:
    return [getattr(entry, name) for name in Entry.__slots__]


def _docs_entries(path: str, text: str) -> Iterator[Entry]:
    """The sections of a reference; the head of the file, up to its first page, is no section."""
    page = ""
    labels = _labels(text)
    for line, level, heading, body in _sections(text):
        if level == 1:
            continue
        title, url = heading["label"] or heading["title"] or "", heading["url"] or ""
        signature, rest = _signature(body) if _OBJECT.fullmatch(title) else ("", body)
        page = url.partition("#")[0] or page
        if not url:
            url = f"{page}#{title if signature else official_anchor(title)}"
        if "#" not in url and not any(body):
            continue  # the heading of a page whose first sections stand in another file
        kind = "object" if signature else "section"
        lines = tuple(logical_lines(rest, labels))
        yield Entry(neutral(url), kind, title, url, category_of(path), path, line, signature, lines)


def _guide_entries(path: str, text: str) -> Iterator[Entry]:
    labels = _labels(text)
    for line, _, heading, body in _sections(text):
        title = heading["label"] or heading["title"] or ""
        key = f"{path}#{official_anchor(title)}"
        yield Entry(key, "section", title, "", "guides", path, line, "", tuple(logical_lines(body, labels)))


def _sections(text: str) -> Iterator[tuple[int, int, re.Match[str], list[str]]]:
    """Line, level, heading and body of every heading."""
    lines = text.rstrip("\n").split("\n")
    while lines and (_DEFINITION.match(lines[-1]) or not lines[-1]):
        lines.pop()
    starts = [
        (token.map[0], match)
        for token in _BLOCKS.parse(text)
        if token.type == "heading_open" and token.level == 0 and token.map and token.map[0] < len(lines)
        if (match := _HEADING.match(lines[token.map[0]]))
    ]
    ends = [start for start, _ in starts[1:]] + [len(lines)]
    for (start, match), end in zip(starts, ends, strict=True):
        yield start + 1, len(match[1]), match, lines[start + 1 : end]


def _labels(text: str) -> frozenset[str]:
    """Labels of the reference links that a file defines."""
    found = (_DEFINITION.match(line) for line in text.split("\n"))
    return frozenset(match[1].casefold() for match in found if match)


def _signature(body: list[str]) -> tuple[str, list[str]]:
    """An object's stub, and its text without the line that says where its code is; no stub, no object."""
    start = next((number for number, line in enumerate(body) if line and not _AVAILABILITY.match(line)), len(body))
    fence = _FENCE.match(body[start]) if start < len(body) else None
    if fence is None:
        return "", body
    end = next((n for n in range(start + 1, len(body)) if body[n] == fence[1]), len(body))
    rest = [line for line in (*body[:start], *body[end + 1 :]) if not _CODE_LINE.match(line)]
    return "\n".join(body[start + 1 : end]), rest


def logical_lines(body: list[str], labels: frozenset[str] = frozenset()) -> Iterator[str]:
    """A text with each paragraph and list item on one line; where it was wrapped makes no difference.

    >>> list(logical_lines(["Shard the", "[`model`] here.", "", "- a", "  b"], frozenset(["`model`"])))
    ['Shard the `model` here.', '- a b']
    """
    fence, open_line = "", ""
    for line in body:
        match = _FENCE.match(line)
        is_code = bool(fence) or match is not None
        if open_line and (is_code or not line.strip() or _STARTS_BLOCK.match(line)):
            yield open_line
            open_line = ""
        if is_code:
            yield line
            if match and not fence:
                fence = match[1]
            elif match and match[1] == fence:
                fence = ""
        elif line.strip():
            plain = _plain(line, labels)
            open_line = f"{open_line} {plain.strip()}" if open_line else plain.rstrip()
    if open_line:
        yield open_line


def _plain(line: str, labels: frozenset[str]) -> str:
    """A line without the links that lead into the skill or the official documentation."""

    def text_of(match: re.Match[str]) -> str:
        label, target = match.groups()
        if target is None:
            return label if label.casefold() in labels else match.group()
        return label if "://" not in target or target.startswith(_OFFICIAL) else match.group()

    return _LINK.sub(text_of, line)


def neutral(url: str) -> str:
    """A URL with the documentation's version taken out of it.

    >>> neutral("https://docs.pytorch.org/docs/2.9/fsdp.html#x")
    'https://docs.pytorch.org/docs/stable/fsdp.html#x'
    """
    return _DOCS_VERSION.sub(r"\1stable/", url)
