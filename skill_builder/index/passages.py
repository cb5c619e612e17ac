"""References and guides -> passages: pieces that an agent reads at once, never half a code block."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from markdown_it import MarkdownIt

from skill_builder.corpus.references import Placed
from skill_builder.fragments import Fragments
from skill_builder.records import Passage, Section

TARGET_CHARS = 700
"""A passage grows by whole paragraphs, list items and code blocks up to this many characters (175 tokens)."""

GUIDES = "guides"

MESSAGE = "message"
"""Kind of a guide's section whose heading has code in it: the error messages that it is about."""

_BLOCK_PARSER = MarkdownIt("commonmark").enable("table").disable("inline")
"""Finds blocks and their lines; what stands inside a line is of no interest here."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A paragraph, list item, table or code block; lines counted from 1, the last one included."""

    first: int
    last: int


def cut_file(
    name: str, text: str, placed: Iterable[Placed], titles: Mapping[str, tuple[str, ...]]
) -> Iterator[Passage]:
    """Cut the sections of one file into passages.

    Args:
        name: The file's name in ``references/``.
        text: What stands in it.
        placed: Its sections, in the order in which they stand.
        titles: URL of each of them -> its title, after those of the sections around it.
    """
    blocks, lines = list(_blocks(text)), text.split("\n")
    starts = [block.first for block in blocks]
    for place in placed:
        start, end = (bisect_left(starts, line) for line in (place.lines[0], place.lines[1] + 1))
        for first, last in _grouped(blocks[start:end], lines, place.lines[0]):
            found = "\n".join(lines[first - 1 : last])
            yield _passage(place.section, name, (first, last), titles[place.section.url], found)


def titles_of(sections: Iterable[Section]) -> dict[str, tuple[str, ...]]:
    """URL of each section -> its title, after those of the sections around it."""
    by_url = {section.url: section for section in sections}
    return {url: _titles(section, by_url) for url, section in by_url.items()}


def left_out(sections: Iterable[Section]) -> list[Passage]:
    """A passage without text for each section that the skill has no room for; its URL says where to read it."""
    sections = list(sections)
    titles = titles_of(sections)
    return [_passage(section, "", (0, 0), titles[section.url], "") for section in sections]


def _passage(section: Section, file: str, lines: tuple[int, int], titles: tuple[str, ...], text: str) -> Passage:
    return Passage(file, lines, section.url, titles, section.kind, section.name, section.category, text)


def _titles(section: Section, by_url: Mapping[str, Section]) -> tuple[str, ...]:
    titles = [section.title]
    while section.parent in by_url:
        section = by_url[section.parent]
        titles.append(section.title)
    return tuple(reversed(titles))


def _blocks(text: str) -> Iterator[_Block]:
    """The blocks of a text in order; a list gives its items, everything else is one block."""
    for token in _BLOCK_PARSER.parse(text):
        if token.map is None or token.nesting < 0:
            continue
        is_list = token.type in ("bullet_list_open", "ordered_list_open")
        is_item = token.type == "list_item_open" and token.level == 1
        if (token.level == 0 and not is_list) or is_item:
            yield _Block(token.map[0] + 1, token.map[1])


def _grouped(blocks: list[_Block], lines: list[str], heading: int) -> Iterator[tuple[int, int]]:
    """Runs of blocks of about ``TARGET_CHARS``; a heading stays with what follows it."""
    run: list[_Block] = []
    for block in blocks:
        size = sum(len(line) + 1 for line in lines[(run or [block])[0].first - 1 : block.last])
        if run and size > TARGET_CHARS and run[-1].first != heading:
            yield run[0].first, run[-1].last
            run = []
        run.append(block)
    if run:
        yield run[0].first, run[-1].last


def guide_sections(name: str, text: str) -> Iterator[Placed]:
    """A section a heading; its URL is the guide's file with the heading's fragment."""
    tokens = _BLOCK_PARSER.parse(text)
    headings = [
        (int(token.tag[1]), tokens[position + 1].content, token.map[0] + 1)
        for position, token in enumerate(tokens)
        if token.type == "heading_open" and token.map is not None
    ]
    end = text.count("\n") + 1
    open_sections: list[tuple[int, str]] = []
    fragments = Fragments()
    for position, (level, title, line) in enumerate(headings):
        last = headings[position + 1][2] - 1 if position + 1 < len(headings) else end
        url = f"references/{name}#{fragments.add(title)}"
        while open_sections and open_sections[-1][0] >= level:
            open_sections.pop()
        parent = open_sections[-1][1] if open_sections else ""
        kind = MESSAGE if "`" in title else "heading"
        section = Section(url, title.replace("`", ""), kind, "", parent, len(open_sections), "", GUIDES)
        open_sections.append((level, url))
        yield Placed(section, name, (line, last))
