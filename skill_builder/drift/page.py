"""What changed, as one HTML page that needs nothing but itself.

The text in it comes from the documentation, so that it may say anything: the template escapes all of it, and the page
forbids its browser to load or run what it does not hold itself.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from skill_builder.drift.compare import KINDS, Change, Drift
from skill_builder.drift.read import Entry
from skill_builder.drift.report import details, version_of

CONTEXT = 2
"""Lines shown around what is different."""
LONGEST_COMPARED = 4000
"""Words; two lines that are longer together are shown whole, for comparing them takes the square of that."""

_WORD = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a line, and whether it is what is different in it."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A line as it was and as it is; None where it is not there. Without either, lines that are not shown."""

    old: tuple[Piece, ...] | None = None
    new: tuple[Piece, ...] | None = None
    hidden: int = 0
    """Equal lines that are left out here."""

    @property
    def is_equal(self) -> bool:
        """Whether both sides say the same."""
        return self.old is not None and self.old == self.new


def as_html(drift: Drift) -> str:
    """The page."""
    folder = Path(__file__).parent
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined)
    environment.filters["kib"] = lambda size: f"{size / 1024:.1f}"
    environment.filters["signed"] = lambda number: f"{number:+,}".replace("-", "\u2212") if number else "0"
    style, script = ((folder / f"page.{suffix}").read_text(encoding="utf-8") for suffix in ("css", "js"))
    return environment.get_template("page.html").render(
        drift=drift,
        names=KINDS,
        old=version_of(drift.old),
        new=version_of(drift.new),
        changes=[(change, list(details(change)), list(rows(change))) for change in drift.changes],
        changed_categories=sorted({change.category for change in drift.changes}),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    """As a content security policy names what it lets run."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def rows(change: Change) -> Iterator[Row]:
    """The lines of a change side by side; far from what is different they are only counted."""
    sides = _lines(change.old), _lines(change.new)
    matcher = SequenceMatcher(None, *sides, autojunk=False)
    for number, (tag, first, last, start, end) in enumerate(operations := matcher.get_opcodes()):
        if tag == "equal":
            is_last = number == len(operations) - 1
            yield from _equal(sides[0][first:last], before=number > 0, after=not is_last)
        else:
            yield from _different(sides[0][first:last], sides[1][start:end])


def _lines(entry: Entry | None) -> list[str]:
    if entry is None:
        return []
    return [*entry.signature.splitlines(), *([""] if entry.signature else []), *entry.lines]


def _equal(lines: list[str], *, before: bool, after: bool) -> Iterator[Row]:
    """What is equal, of which only the lines beside what is different are shown."""
    head = lines[: CONTEXT if before else 0]
    rest = lines[len(head) :]
    tail = rest[max(0, len(rest) - CONTEXT) :] if after else []
    hidden = len(rest) - len(tail)
    if hidden <= CONTEXT:
        head, hidden, tail = lines, 0, []
    yield from (_same(line) for line in head)
    if hidden:
        yield Row(hidden=hidden)
    yield from (_same(line) for line in tail)


def _same(line: str) -> Row:
    return Row((Piece(line),), (Piece(line),))


def _different(old: list[str], new: list[str]) -> Iterator[Row]:
    for number in range(max(len(old), len(new))):
        before, after = (side[number] if number < len(side) else None for side in (old, new))
        if before is None or after is None:
            yield Row(_whole(before), _whole(after))
        else:
            yield Row(*_word_by_word(before, after))


def _whole(line: str | None) -> tuple[Piece, ...] | None:
    return None if line is None else (Piece(line),)


def _word_by_word(old: str, new: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    words = _WORD.findall(old), _WORD.findall(new)
    if len(words[0]) + len(words[1]) > LONGEST_COMPARED:
        return (Piece(old),), (Piece(new),)
    matcher = SequenceMatcher(None, *words, autojunk=False)
    if matcher.ratio() < 0.3:  # two other lines: marks would be all over them
        return (Piece(old),), (Piece(new),)
    operations = matcher.get_opcodes()
    return (
        tuple(_pieces((words[0][o[1] : o[2]], o[0] != "equal") for o in operations)),
        tuple(_pieces((words[1][o[3] : o[4]], o[0] != "equal") for o in operations)),
    )


def _pieces(runs: Iterable[tuple[list[str], bool]]) -> Iterator[Piece]:
    yield from (Piece("".join(words), differs) for words, differs in runs if words)
