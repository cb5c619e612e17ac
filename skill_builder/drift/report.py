"""What changed, for a terminal and for a program."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from itertools import groupby
from typing import Any

from skill_builder.drift.compare import KINDS, Change, Drift
from skill_builder.drift.read import Built, Entry


def as_text(drift: Drift) -> str:
    """A line a change, by category, and what it is about."""
    lines = [f"{version_of(drift.old)} -> {version_of(drift.new)}: {summary(drift)}"]
    for category, changes in groupby(drift.changes, key=lambda change: change.category):
        lines += ["", f"{category}:"]
        for change in changes:
            lines.append(f"  {', '.join(KINDS[kind] for kind in change.kinds)}: {change.entry.title}")
            lines += [f"      {detail}" for detail in details(change)]
    return "\n".join(lines) + "\n"


def summary(drift: Drift) -> str:
    """How much of each kind.

    The counts overlap: one section can have a new signature and a new text.
    """
    return ", ".join(f"{count} {KINDS[kind]}" for kind, count in drift.counts.items()) or "no difference"


def details(change: Change) -> Iterator[str]:
    """What there is to say about a change, each on one line."""
    for item in change.signature:
        yield "signature differs" if item.what == "signature" else str(item)
    yield from change.notes


def version_of(built: Built) -> str:
    """What a build documents, in words."""
    version = built.manifest.get("documentation")
    return f"PyTorch {version}" if version else str(built.folder)


def as_json(drift: Drift) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "old": _build(drift.old),
        "new": _build(drift.new),
        "summary": drift.counts,
        "categories": [
            {"category": row.category, "sections": row.sections, "left_out": row.left_out, "bytes": row.size}
            for row in drift.categories
        ],
        "changes": [_change(change) for change in drift.changes],
    }


def _build(built: Built) -> dict[str, Any]:
    kept = ("documentation", "origin", "address", "built", "builder", "coverage")
    return {"folder": str(built.folder), **{name: built.manifest.get(name) for name in kept}}


def _change(change: Change) -> dict[str, Any]:
    return {
        "kinds": change.kinds,
        "category": change.category,
        "kind": change.entry.kind,
        "title": change.entry.title,
        "old": _place(change.old),
        "new": _place(change.new),
        "signature": [
            {"what": item.what, "name": item.name, "old": item.old, "new": item.new} for item in change.signature
        ],
        "notes": change.notes,
        "diff": list(unified_diff(_lines(change.old), _lines(change.new), lineterm="", n=1))[2:],
    }


def _place(entry: Entry | None) -> dict[str, Any] | None:
    return {"title": entry.title, "url": entry.url, "file": entry.file, "line": entry.line} if entry else None


def _lines(entry: Entry | None) -> list[str]:
    return [*entry.signature.splitlines(), *entry.lines] if entry else []
