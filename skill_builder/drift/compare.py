"""Two built skills -> what changed, section by section."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from skill_builder.drift.read import Built, Entry
from skill_builder.drift.signatures import SignatureChange, compare_signatures

KINDS = {
    "deprecated": "newly deprecated",
    "removed": "removed",
    "signature": "signature changed",
    "added": "added",
    "moved": "moved",
    "text": "text changed",
    "left-out": "no room any more",
    "taken-in": "has room again",
}
"""What can happen to a section, what matters most first."""

ALIKE = 0.75
"""Share of equal words from which a section that is gone and one that is new are the same one, moved."""
SHORT = 8
"""Words; shorter texts are alike by chance."""

_SENTENCE = re.compile(r"(?<=[.!?:])\s+")
_DEPRECATED = re.compile(
    r"\b(?:is|are|was|been|be|being|now)\s+deprecated\b|\bdeprecated since\b|^\W*deprecated\b|\bdeprecated\W*\)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one section, object or file."""

    kinds: tuple[str, ...]
    """Of ``KINDS``, in that order."""
    old: Entry | None
    new: Entry | None
    category: str
    signature: tuple[SignatureChange, ...] = ()
    notes: tuple[str, ...] = ()
    """Where it moved from and to; the sentence that deprecates it."""

    @property
    def entry(self) -> Entry:
        """The section as it is, or else as it was."""
        entry = self.new or self.old
        assert entry is not None
        return entry


@dataclass(frozen=True, slots=True)
class CategorySize:
    """What a category holds in both builds."""

    category: str
    sections: tuple[int, int]
    left_out: tuple[int, int]
    """Sections that have no room."""
    size: tuple[int, int]
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Everything that is different between two builds."""

    old: Built
    new: Built
    changes: tuple[Change, ...]
    categories: tuple[CategorySize, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Kind -> number of changes, without the kinds that do not occur."""
        counts = Counter(kind for change in self.changes for kind in change.kinds)
        return {kind: counts[kind] for kind in KINDS if counts[kind]}


def compare_builds(old: Built, new: Built) -> Drift:
    """Compare two builds; the changes come by category, then as they stand in the files."""
    pairs = list(_pairs(old.entries, new.entries))
    changes = [change for pair in pairs if (change := _change(*pair, old, new)) is not None]
    changes.sort(key=lambda change: (change.category, change.entry.file, change.entry.line))
    return Drift(old, new, tuple(changes), tuple(_sizes(old, new)))


def _pairs(old: Iterable[Entry], new: Iterable[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Which section became which: by URL; then objects by name; then what says nearly the same."""
    before, after = list(old), list(new)
    for match in (_by_key, _by_name, _by_text):
        found = list(match(before, after))
        yield from found
        before = _without(before, (first for first, _ in found))
        after = _without(after, (second for _, second in found))
    yield from ((entry, None) for entry in before)
    yield from ((None, entry) for entry in after)


def _without(entries: list[Entry], gone: Iterable[Entry]) -> list[Entry]:
    known = {id(entry) for entry in gone}
    return [entry for entry in entries if id(entry) not in known]


def _by_key(old: list[Entry], new: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    return _only(old, new, lambda entry: entry.key)


def _by_name(old: list[Entry], new: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    return _only(old, new, lambda entry: entry.title if entry.kind == "object" else "")


def _only(old: list[Entry], new: list[Entry], trait: Callable[[Entry], str]) -> Iterator[tuple[Entry, Entry]]:
    """Pairs that share a trait which no other section of their build has."""
    groups: dict[str, tuple[list[Entry], list[Entry]]] = defaultdict(lambda: ([], []))
    for side, entries in enumerate((old, new)):
        for entry in entries:
            groups[trait(entry)][side].append(entry)
    for value, (before, after) in groups.items():
        if value and len(before) == len(after) == 1:
            yield before[0], after[0]


def _by_text(old: list[Entry], new: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Objects of the same last name, headings of the same title, whose texts are alike; or the very same text."""
    after: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in new:
        for trait in _traits(entry):
            after[trait].append(entry)
    taken: set[int] = set()
    for entry in old:
        candidates = [other for trait in _traits(entry) for other in after[trait] if id(other) not in taken]
        best = max(candidates, key=lambda other: _likeness(entry, other), default=None)
        if best is not None and _likeness(entry, best) >= ALIKE:
            taken.add(id(best))
            yield entry, best


def _traits(entry: Entry) -> list[tuple[str, str]]:
    if entry.kind == "file":
        return [("file", "\n".join(entry.lines))]
    traits = [(entry.kind, entry.name if entry.kind == "object" else entry.title)]
    if len(_words(entry)) >= SHORT:
        traits.append(("text", " ".join(_words(entry))))
    return traits


def _words(entry: Entry) -> list[str]:
    return [word for line in entry.lines for word in line.split()]


def _likeness(old: Entry, new: Entry) -> float:
    """Share of equal words, 0 to 1; what says next to nothing is alike only in the same signature or text."""
    words = _words(old), _words(new)
    if min(map(len, words)) < SHORT:
        return float(words[0] == words[1] and old.signature == new.signature and bool(old.signature or words[0]))
    matcher = SequenceMatcher(None, *words, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= ALIKE else 0.0


def _change(old: Entry | None, new: Entry | None, before: Built, after: Built) -> Change | None:
    if old is None:
        assert new is not None
        return Change(("taken-in" if new.key in before.left_out else "added",), None, new, new.category)
    if new is None:
        return Change(("left-out" if old.key in after.left_out else "removed",), old, None, old.category)
    signature = compare_signatures(old.signature, new.signature)
    moved, deprecated = _moved(old, new), _deprecated(old, new)
    happened = {
        "deprecated": bool(deprecated),
        "signature": bool(signature),
        "moved": bool(moved),
        "text": old.lines != new.lines,
    }
    kinds = tuple(kind for kind in KINDS if happened.get(kind))
    if not kinds:
        return None
    return Change(kinds, old, new, new.category, tuple(signature), (*moved, *deprecated))


def _moved(old: Entry, new: Entry) -> list[str]:
    """From where to where; an object's new name, a section's new page or file."""
    traits = (
        ("name", old.title, new.title),
        ("page", old.key.partition("#")[0], new.key.partition("#")[0]),
        ("file", old.file, new.file),
    )
    return [f"{what} {before} -> {after}" for what, before, after in traits if before != after]


def _deprecated(old: Entry, new: Entry) -> list[str]:
    """The sentences that deprecate something, where there are more of them than there were."""
    before, after = _deprecations(old), _deprecations(new)
    return [sentence for sentence in after if sentence not in before] if len(after) > len(before) else []


def _deprecations(entry: Entry) -> list[str]:
    if entry.kind == "file":
        return []
    sentences = (sentence for line in entry.lines for sentence in _SENTENCE.split(line))
    return [sentence.strip(" *>") for sentence in sentences if _DEPRECATED.search(sentence)]


def _sizes(old: Built, new: Built) -> Iterator[CategorySize]:
    sections = [Counter(entry.category for entry in built.entries) for built in (old, new)]
    left_out = [Counter(built.left_out.values()) for built in (old, new)]
    for category in sorted(old.sizes.keys() | new.sizes.keys()):
        yield CategorySize(
            category,
            (sections[0][category], sections[1][category]),
            (left_out[0][category], left_out[1][category]),
            (old.sizes.get(category, 0), new.sizes.get(category, 0)),
        )
