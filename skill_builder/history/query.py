"""Questions to the history: since when, until when, under which name, with which parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from skill_builder.errors import HistoryError
from skill_builder.history.answers import Change, Deprecation, ObjectHistory, ParameterHistory, ReleaseChanges
from skill_builder.history.facts import Fact, Parameter, Snapshot, parameters_of
from skill_builder.history.lookup import Located, last_true, locate, presence
from skill_builder.history.moves import Moves
from skill_builder.history.reach import is_bound


@dataclass(frozen=True)
class History:
    """What every covered release says."""

    snapshots: tuple[Snapshot, ...]
    """One for each minor release, the oldest first."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The releases covered in full, such as ``2.7.1``."""
        return tuple(snapshot.version for snapshot in self.snapshots)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases covered, such as ``2.7``."""
        return tuple(minor(version) for version in self.versions)

    def with_release(self, snapshot: Snapshot) -> History:
        """The history with one more release; it takes the place of another patch release of the same minor.

        Releases are added from the oldest to the newest: what a release has without offering it counts for
        names that an earlier one offers, and is forgotten for all others.
        """
        kept = [old for old in self.snapshots if minor(old.version) != minor(snapshot.version)]
        earlier = [s for s in kept if release_number(s.version) < release_number(snapshot.version)]
        offered = {name for old in earlier for name in old.facts}
        left_over = {
            name: Fact("alias", target=place) if place in snapshot.facts else Fact("unknown", target=place)
            for name, place in snapshot.besides.items()
            if name in offered
        }
        facts = dict(sorted({**snapshot.facts, **left_over}.items()))
        added = Snapshot(snapshot.version, facts)
        return History(tuple(sorted([*kept, added], key=lambda s: release_number(s.version))))

    def object(self, name: str) -> ObjectHistory | None:
        """All that is known of a name: the path that users write, another, an old one, or the definition's.

        None for a name that no covered release is known to have.
        """
        if name not in self._objects:
            self._objects[name] = self._object(name)
        return self._objects[name]

    @cached_property
    def _objects(self) -> dict[str, ObjectHistory | None]:
        return {}

    def _object(self, name: str) -> ObjectHistory | None:
        path = name if any(self._has(name)) else self._by_definition(name)
        located = [locate(snapshot, path) for snapshot in self.snapshots] if path else []
        has = [presence(found) for found in located]
        if not path or not any(has):
            return None
        last = last_true(has)
        newest = located[last]
        assert newest is not None and newest.fact is not None
        gone = self._until(has)
        return ObjectHistory(
            path=path,
            name=newest.name,
            kind=newest.fact.kind,
            releases=tuple(r for r, there in zip(self.releases, has, strict=True) if there),
            since=self._since(has),
            until=gone,
            removed=self.releases[last + 1] if gone else None,
            deprecated=self._deprecation(located, lambda fact: fact.deprecated),
            moved_from=self._moves.origin(path),
            moved_to=self._moves.destination(path),
            parameters=self._parameters(located),
        )

    def fact_in(self, name: str, version: str) -> Fact | None:
        """What a release says of a name, under any of its paths; None when it lacks the name.

        A name of which the release's sources show nothing, but which it may have, is ``unknown``.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        found = locate(self.snapshot_for(version), name)
        return (found.fact or Fact("unknown")) if found else None

    def missing_in(self, name: str, version: str) -> bool:
        """Whether a release is known to lack a name that another covered release has.

        False for a name that is not known at all, and for what the sources of the release do not show.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        snapshot = self.snapshot_for(version)
        path = name if any(self._has(name)) else self._by_definition(name)
        return path is not None and locate(snapshot, path) is None

    def parameter_missing_in(self, name: str, parameter: str, version: str) -> bool:
        """Whether a release is known to have an object, but not a parameter that another covered release has.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        history = self.object(name)
        if history is None or not history.parameters or parameter not in history.parameters:
            return False
        found = locate(self.snapshot_for(version), history.path)
        row = _parameters(found.fact) if found and found.fact else None
        return row is not None and _takes(row, parameter) is False

    def names_in(self, version: str) -> tuple[str, ...]:
        """Every name of a release by the path that users write, sorted, with members and modules.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        facts = self.snapshot_for(version).facts
        return tuple(sorted(name for name, fact in facts.items() if fact.kind != "alias"))

    def unknown_in(self, version: str) -> tuple[str, ...]:
        """The names of a release that its sources do not show whole: C++, factories, hidden signatures.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        facts = self.snapshot_for(version).facts
        return tuple(sorted(name for name, fact in facts.items() if _is_unknown(fact)))

    def replacement(self, name: str, version: str | None = None) -> str | None:
        """What to write instead of a name; None when no release states anything.

        Args:
            name: A deprecated, moved or removed name; or, with a version, one that is too new for it.
            version: The release to write for; without it, what the newest offers.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        history = self.object(name)
        if history is None:
            return None
        stated = history.deprecated.replacement if history.deprecated else None
        if version is None:
            return stated or history.moved_to
        older = [history.moved_from, *self._predecessors.get(history.path, ())]
        candidates = filter(None, [stated, history.moved_to, *older])
        return next((other for other in candidates if self._offers(other, version)), None)

    @cached_property
    def _moves(self) -> Moves:
        return Moves(self.snapshots)

    @cached_property
    def _predecessors(self) -> dict[str, list[str]]:
        """By name: what it replaces, as the deprecations of all releases say."""
        found: dict[str, list[str]] = {}
        for snapshot in self.snapshots:
            for name, fact in snapshot.facts.items():
                if fact.deprecated and name not in found.setdefault(fact.deprecated, []):
                    found[fact.deprecated].append(name)
        return found

    def _offers(self, name: str, version: str) -> bool:
        """Whether a release has a name; what is no name of torch, such as a command, counts as there."""
        return not any(self._has(name)) or not self.missing_in(name, version)

    def changes_in(self, version: str) -> ReleaseChanges:
        """What a release changed against the one before it; nothing for the oldest covered.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        now = self.snapshot_for(version)
        before = self.snapshots[max(self.snapshots.index(now) - 1, 0)]
        kept = [(name, locate(before, name), fact) for name, fact in now.facts.items() if fact.kind != "alias"]
        pairs = [(name, old.fact, fact) for name, old, fact in kept if old and old.fact]
        return ReleaseChanges(
            release=minor(now.version),
            added=self._only_in(now, before),
            removed=self._only_in(before, now),
            deprecated=tuple(n for n, old, new in pairs if old.deprecated is None and new.deprecated is not None),
            added_parameters=tuple(_differing(pairs, lambda old, new: _only_taken_by(new, old))),
            removed_parameters=tuple(_differing(pairs, _only_taken_by)),
            deprecated_parameters=tuple(
                (name, parameter)
                for name, old, new in pairs
                for parameter, _ in new.deprecated_parameters
                if parameter not in dict(old.deprecated_parameters)
            ),
            changed_defaults=tuple(
                (name, parameter, before_default, now_default)
                for name, old, new in pairs
                for parameter, before_default, now_default in _changed_defaults(old, new)
            ),
        )

    def snapshot_for(self, version: str) -> Snapshot:
        """The release that a version such as ``2.7``, ``2.7.1+cu128`` or ``2.9.0a0`` belongs to.

        A version newer than all covered counts as the newest: what it has besides is not known.

        Raises:
            HistoryError: The version is older than all covered, or is no version.
        """
        if not re.match(r"\d+\.\d+", version):
            raise HistoryError(f"version {version!r}", "is not a version of torch", "write it as 2.7 or 2.7.1")
        wanted = release_number(version)[:2]
        older = [s for s in self.snapshots if release_number(s.version)[:2] <= wanted]
        if not older:
            covered = f"{self.releases[0]} to {self.releases[-1]}" if self.snapshots else "none"
            problem = f"is not among the releases covered ({covered})"
            raise HistoryError(f"torch {version}", problem, "name a newer one, or add it to the history")
        return older[-1]

    def _has(self, name: str) -> Iterator[bool]:
        return (bool(presence(locate(snapshot, name))) for snapshot in self.snapshots)

    @cached_property
    def _definitions(self) -> dict[str, str]:
        """The path that users write by the place of the definition; newer releases go before older ones."""
        return {
            fact.target: name
            for snapshot in self.snapshots
            for name, fact in snapshot.facts.items()
            if fact.target and fact.kind != "alias"
        }

    def _by_definition(self, name: str) -> str | None:
        """The path that users write for a definition's place, or for a member of what is defined there."""
        place, member = name, ""
        while place:
            if place in self._definitions:
                path = self._definitions[place] + member
                return path if any(self._has(path)) else None
            place, _, last = place.rpartition(".")
            member = f".{last}{member}"
        return None

    def _since(self, has: list[bool | None]) -> str | None:
        first = has.index(True)
        return self.releases[first] if first and has[first - 1] is False else None

    def _until(self, has: list[bool | None]) -> str | None:
        last = last_true(has)
        return self.releases[last] if last + 1 < len(has) and has[last + 1] is False else None

    def _deprecation(self, located: list[Located | None], said: Callable[[Fact], str | None]) -> Deprecation | None:
        """What the newest release with the object says, and since when without a break."""
        texts = [(i, said(found.fact)) for i, found in enumerate(located) if found and found.fact]
        replacement = texts[-1][1]
        if replacement is None:
            return None
        first = texts[-1][0]
        for index, text in reversed(texts):
            if text is None:
                break
            first = index
        return Deprecation(self.releases[first] if first else None, replacement or None)

    def _parameters(self, located: list[Located | None]) -> dict[str, ParameterHistory] | None:
        rows = [_parameters(found.fact) if found and found.fact else None for found in located]
        known = [row for row in rows if row is not None]
        if not known:
            return None
        names = dict.fromkeys(name for row in reversed(known) for name in row)
        return {name: self._parameter(name, located, rows) for name in names}

    def _parameter(
        self, name: str, located: list[Located | None], rows: list[dict[str, Parameter] | None]
    ) -> ParameterHistory:
        seen = [
            False if found is None else None if row is None else _takes(row, name)
            for found, row in zip(located, rows, strict=True)
        ]
        holders = [(i, row[name]) for i, row in enumerate(rows) if row is not None and name in row]
        return ParameterHistory(
            name=name,
            since=self._since(seen),
            until=self._until(seen),
            defaults=tuple(self._runs([(i, parameter.default) for i, parameter in holders])),
            kinds=tuple(self._runs([(i, parameter.kind) for i, parameter in holders])),
            deprecated=self._deprecation(
                [found if row and name in row else None for found, row in zip(located, rows, strict=True)],
                lambda fact: dict(fact.deprecated_parameters).get(name),
            ),
        )

    def _runs(self, values: list[tuple[int, str | None]]) -> Iterator[Change]:
        previous: object = values
        for index, value in values:
            if value != previous:
                yield Change(self.releases[index], value)
            previous = value

    def _only_in(self, one: Snapshot, other: Snapshot) -> tuple[str, ...]:
        """Names of one release that another lacks, without the members of what is lacking as a whole."""
        lacking = {n for n, f in one.facts.items() if f.kind != "alias" and locate(other, n) is None}
        return tuple(sorted(name for name in lacking if name.rpartition(".")[0] not in lacking))


def minor(version: str) -> str:
    """``2.7`` of ``2.7.1``."""
    return ".".join(version.split(".")[:2])


@cache
def release_number(version: str) -> tuple[int, ...]:
    """``(2, 7, 1)`` of ``2.7.1+cu128``."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _parameters(fact: Fact) -> dict[str, Parameter] | None:
    if fact.signature is None:
        return None
    return {parameter.name: parameter for parameter in parameters_of(fact.signature)}


def _takes(row: Mapping[str, Parameter], name: str) -> bool | None:
    """Whether a signature takes a parameter; None when it may, by ``**kwargs``."""
    if name in row:
        return True
    return None if any(parameter.kind == "VAR_KEYWORD" for parameter in row.values()) else False


def _is_unknown(fact: Fact) -> bool:
    hidden = fact.kind in ("class", "function", "method") and fact.signature is None
    return fact.kind in ("unknown", "value") or hidden or any(is_bound(base) for base in fact.bases)


def _differing(
    pairs: list[tuple[str, Fact, Fact]],
    difference: Callable[[Mapping[str, Parameter], Mapping[str, Parameter]], list[str]],
) -> Iterator[tuple[str, str]]:
    for name, old, new in pairs:
        before, now = _parameters(old), _parameters(new)
        if before is not None and now is not None:
            yield from ((name, parameter) for parameter in difference(before, now))


def _only_taken_by(one: Mapping[str, Parameter], other: Mapping[str, Parameter]) -> list[str]:
    return [name for name in one if _takes(other, name) is False]


def _changed_defaults(old: Fact, new: Fact) -> Iterator[tuple[str, str | None, str | None]]:
    before, now = _parameters(old) or {}, _parameters(new) or {}
    for name in now:
        if name in before and before[name].default != now[name].default:
            yield name, before[name].default, now[name].default
