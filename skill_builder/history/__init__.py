"""Which torch release has which object and parameter, read from the sources of every release since 2.4.

    wheels.py        a release's wheel, from pip or at hand      -> Snapshot
        modules.py       one module's source, reduced to names; functions.py one function's
        release.py       names followed from module to module, classes to their bases
        signatures.py    what can be called with what
        deprecations.py  what is deprecated, and what to use instead
        snapshot.py      all of it for the public names of the modules in scope (reach.py)
    storage.py       every release's facts in one file           <-> api_history.json (its format is there)
    query.py         History: since, until, parameters, moves, what a version lacks -> answers.py

Nothing of a release is installed, imported or executed. What its sources do not show, because it is bound in
C++, generated, or behind a decorator that hides its signature, is listed as unknown and never guessed.
"""

from __future__ import annotations

from pathlib import Path

from skill_builder.history.answers import Change, Deprecation, ObjectHistory, ParameterHistory, ReleaseChanges
from skill_builder.history.facts import Fact, Parameter, Snapshot
from skill_builder.history.query import History, release_number
from skill_builder.history.storage import HISTORY_FILE, load_history, save_history
from skill_builder.history.wheels import read_release, read_wheel
from skill_builder.records import Progress

__all__ = [
    "HISTORY_FILE",
    "Change",
    "Deprecation",
    "Fact",
    "History",
    "ObjectHistory",
    "Parameter",
    "ParameterHistory",
    "ReleaseChanges",
    "Snapshot",
    "add_release",
    "load_history",
    "read_release",
    "read_wheel",
    "release_number",
    "save_history",
]


def add_release(
    history: History, version: str, *, wheel: Path | None = None, progress: Progress | None = None
) -> History:
    """The history with one more release, in the place of an earlier patch of the same minor release.

    Args:
        history: What is covered so far; it stays as it is.
        version: Such as ``2.7.1``; ``2.7`` stands for its last patch release, ``newest`` for the newest.
        wheel: A wheel at hand; without it, pip downloads one into a temporary folder.
        progress: Called with ``"downloading"`` and ``"reading"``.

    Raises:
        HistoryError: No such release, no package index, a wheel that is damaged or is not of this release.
    """
    return history.with_release(read_release(version, wheel=wheel, progress=progress))
