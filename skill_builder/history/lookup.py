"""Where a name leads in one release: through aliases, into classes and up to their bases."""

from __future__ import annotations

from dataclasses import dataclass

from skill_builder.history.facts import Fact, Snapshot
from skill_builder.history.reach import is_bound


@dataclass(frozen=True, slots=True)
class Located:
    """Where a name leads in one release."""

    name: str
    fact: Fact | None
    """None when the release may have it, but its sources do not show it: members of what is bound in C++."""


def locate(snapshot: Snapshot, name: str) -> Located | None:
    """Where a name leads in a release; None when the release lacks it."""
    fact = snapshot.facts.get(name)
    if fact is not None:
        return locate(snapshot, fact.target) if fact.kind == "alias" else Located(name, fact)
    owner, _, last = name.rpartition(".")
    found = locate(snapshot, owner) if owner else None
    if found is None:
        return None
    if found.fact is None or found.fact.kind in ("unknown", "value"):
        return Located(name, None)
    if found.name != owner:
        return locate(snapshot, f"{found.name}.{last}")
    return _inherited(snapshot, found.fact, last)


def _inherited(snapshot: Snapshot, fact: Fact, member: str) -> Located | None:
    for base in fact.bases:
        if not is_bound(base) and (found := locate(snapshot, f"{base}.{member}")):
            return found
    return Located(member, None) if any(is_bound(base) for base in fact.bases) else None


def presence(found: Located | None) -> bool | None:
    """Whether a release has a name; None when its sources do not show it."""
    if found is None:
        return False
    return True if found.fact else None


def last_true(has: list[bool | None]) -> int:
    """The position of the last True."""
    return len(has) - 1 - has[::-1].index(True)
