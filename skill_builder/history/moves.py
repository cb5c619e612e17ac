"""What was renamed: old paths and new ones of the same object."""

from __future__ import annotations

from functools import cached_property

from skill_builder.history.facts import Snapshot
from skill_builder.history.lookup import last_true, locate, presence


class Moves:
    """The moves that the releases show.

    A path moved where one release has both the old and the new path for one object. Where a package is seen
    to have moved in this way, so did the paths below it that it has no more and the new package has since.
    """

    def __init__(self, snapshots: tuple[Snapshot, ...]) -> None:
        self._snapshots = snapshots

    def destination(self, path: str) -> str | None:
        """What a path became."""
        return self._through(path, self._destinations)

    def origin(self, path: str) -> str | None:
        """What a path was before, if an earlier release has it under that name."""
        old = self._through(path, self._origins)
        return old if old and self._has(old).index(True) < self._has(path).index(True) else None

    def _through(self, path: str, moves: dict[str, str]) -> str | None:
        """Where the path leads, or the class or module that it stands in."""
        if path in moves:
            return moves[path]
        owner, _, last = path.rpartition(".")
        moved = self._through(owner, moves) if owner else None
        other = f"{moved}.{last}"
        return other if moved and any(self._has(other)) else None

    def _has(self, name: str) -> list[bool | None]:
        return [presence(locate(snapshot, name)) for snapshot in self._snapshots]

    @cached_property
    def _first(self) -> dict[str, int]:
        """By name: the position of the first release that lists it."""
        listed = enumerate(self._snapshots)
        newest_first = [(name, position) for position, snapshot in listed for name in snapshot.facts][::-1]
        return dict(newest_first)

    @cached_property
    def _destinations(self) -> dict[str, str]:
        moves = {
            old: fact.target
            for snapshot in self._snapshots
            for old, fact in snapshot.facts.items()
            if fact.kind == "alias" and self._is_older(old, fact.target)
        }
        for package, successor in sorted({_without_common_end(old, new) for old, new in moves.items()}):
            for old in self._first:
                new = successor + old.removeprefix(package)
                if old.startswith(f"{package}.") and old not in moves and self._took_over(old, new):
                    moves[old] = new
        return moves

    @cached_property
    def _origins(self) -> dict[str, str]:
        """Of several old paths of one new one, the shortest of the oldest."""
        moves = [(self._first[old], old.count("."), old, new) for old, new in self._destinations.items()]
        return {new: old for _, _, old, new in sorted(moves, reverse=True)}

    def _is_older(self, old: str, new: str) -> bool:
        """Whether a path was there before another, or together with it under a name that is private."""
        became_public = "._" in old and "._" not in new
        return self._first[old] < self._first.get(new, len(self._snapshots)) + became_public

    def _took_over(self, old: str, new: str) -> bool:
        """Whether a path that is new is there in the first release that has the old one no more."""
        has = self._has(old)
        after = last_true(has) + 1
        if after == len(has) or has[after] is not False:
            return False
        return self._first[old] < self._first.get(new, -1) and self._has(new)[after] is True


def _without_common_end(old: str, new: str) -> tuple[str, str]:
    """Two paths without the names at their ends that are the same.

    >>> _without_common_end("torch._tensor.DTensor", "torch.tensor.DTensor")
    ('torch._tensor', 'torch.tensor')
    """
    first, second = old.split("."), new.split(".")
    while len(first) > 1 and len(second) > 1 and first[-1] == second[-1]:
        first.pop()
        second.pop()
    return ".".join(first), ".".join(second)
