"""What the history answers: one object, one parameter, one release. Releases are written as ``2.7``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deprecation:
    """What is not to be used any more."""

    since: str | None
    """The first release that says so; None when the oldest covered already does."""
    replacement: str | None
    """What the source names instead, by the path that users write where there is one."""


@dataclass(frozen=True, slots=True)
class Change:
    """From which release on something has a value."""

    release: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ParameterHistory:
    """One parameter over the releases that have the object it belongs to."""

    name: str
    since: str | None
    """The first release with it; None when the oldest covered has it, or when what was before cannot be seen,
    such as what ``**kwargs`` took."""
    until: str | None
    """The last release with it; None when the newest covered has it, or when what follows cannot be seen."""
    defaults: tuple[Change, ...]
    """The source text of the default, None for a required parameter; an entry a change, the oldest first."""
    kinds: tuple[Change, ...]
    """As ``inspect.Parameter.kind`` spells it; an entry for each change, oldest first."""
    deprecated: Deprecation | None


@dataclass(frozen=True, slots=True)
class ObjectHistory:
    """One name over all releases covered. Releases are written as ``2.7``."""

    path: str
    """The name that was asked for, or the one that leads to its definition."""
    name: str
    """The path that users write, in the newest release that has it."""
    kind: str
    """As ``Fact.kind``, in the newest release that has it."""
    releases: tuple[str, ...]
    """Every release that is known to have it under this path."""
    since: str | None
    """The first of them; None when it is the oldest covered, or when what was before cannot be seen."""
    until: str | None
    """The last of them; None when it is the newest covered, or when what comes after cannot be seen."""
    removed: str | None
    """The first release without it, None as for ``until``."""
    deprecated: Deprecation | None
    moved_from: str | None
    moved_to: str | None
    parameters: Mapping[str, ParameterHistory] | None
    """By name, in the newest order; None when no release shows the parameters."""


@dataclass(frozen=True, slots=True)
class ReleaseChanges:
    """What one release changed against the one before; of a class that came or went, members are left out."""

    release: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    deprecated: tuple[str, ...]
    added_parameters: tuple[tuple[str, str], ...]
    """Pairs of an object and its parameter, as in the following."""
    removed_parameters: tuple[tuple[str, str], ...]
    deprecated_parameters: tuple[tuple[str, str], ...]
    changed_defaults: tuple[tuple[str, str, str | None, str | None], ...]
    """Object, parameter, the default before, the default now."""
