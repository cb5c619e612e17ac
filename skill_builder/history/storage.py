"""``api_history.json``: every covered release's facts in one compact file, and back again.

    {"format": 1,
     "releases": ["2.4.1", "2.5.1", ...],                   one for each minor release, the oldest first
     "names": {
       "torch.distributed.fsdp": {                          a module, or a package that leads into one
         "": "module",                                      the module itself
         "fully_shard": {                                   a name in it, a class's members with their dots
           "2.6": ["function", "module, *, mesh=None"],     what a range of releases says: one release,
           "2.7-2.8": [...],                                from one to another,
           "2.9-": [...]}}}}                                from one to the newest

A name of which every release says the same has that fact in the place of the ranges. A fact is

    "attribute"                                  a kind (``facts.KINDS``) without anything to add
    "=torch.amp.autocast"                        an alias, and what it stands for
    [kind, signature, {...}]                     the signature, Python's syntax without annotations, or null;
                                                 then, only where there is something to say,
                                                   "at": the place of the definition
                                                   "bases": classes to look up members in, in this order
                                                   "deprecated": the replacement, empty where none is named
                                                   "deprecated_parameters": {parameter: the same for it}

The bytes follow from the facts alone.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from skill_builder.errors import HistoryError
from skill_builder.history.facts import KINDS, Fact, Snapshot
from skill_builder.history.query import History, minor, release_number
from skill_builder.history.reach import WINDOWS

HISTORY_FILE = Path(__file__).parents[1] / "api_history.json"

_FORMAT = 1


def load_history(path: Path = HISTORY_FILE) -> History:
    """Read a history.

    Raises:
        HistoryError: The file is missing or is no history.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise HistoryError(path, problem, "restore it from the repository") from error
    try:
        return _decoded(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = "is not a history that this version of the builder can read"
        raise HistoryError(path, problem, "restore it from the repository") from error


def save_history(history: History, path: Path = HISTORY_FILE) -> None:
    """Write a history; the file is the old or the new one at any time, whatever happens meanwhile.

    Raises:
        HistoryError: The file cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=".api_history-", delete=False
        ) as file:
            temporary = Path(file.name)
            try:
                file.write(encode(history))
                file.close()
                temporary.chmod(0o644)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise HistoryError(path, problem, "make room or choose another place") from error


def encode(history: History) -> str:
    """The text of a history's file, a name a line."""
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    modules = _modules(history)
    for name in sorted({name for snapshot in history.snapshots for name in snapshot.facts}):
        module = _module_of(name, modules)
        rows[module][name[len(module) :].removeprefix(".")] = _row(history, name)
    groups = [
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f"{json.dumps(n)}: {_dumped(row)}" for n, row in names.items())
        + "\n}"
        for module, names in sorted(rows.items())
    ]
    head = f'"format": {_FORMAT},\n"releases": {json.dumps(list(history.versions))}'
    return f'{{{head},\n"names": {{\n' + ",\n".join(groups) + "\n}}\n"


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _modules(history: History) -> set[str]:
    listed = {name for s in history.snapshots for name, fact in s.facts.items() if fact.kind == "module"}
    return listed | set(WINDOWS)


def _module_of(name: str, modules: set[str]) -> str:
    while name not in modules:
        name = name.rpartition(".")[0]
    return name


def _row(history: History, name: str) -> object:
    """What all releases say of a name: one fact, or a fact for each range of releases."""
    facts = [_encoded(snapshot.facts.get(name)) for snapshot in history.snapshots]
    if all(fact == facts[0] for fact in facts):
        return facts[0]
    return {
        _range(history.releases, first, last): facts[first] for first, last in _runs(facts) if facts[first] is not None
    }


def _runs(facts: list[object]) -> Iterator[tuple[int, int]]:
    first = 0
    for index in range(1, len(facts) + 1):
        if index == len(facts) or facts[index] != facts[first]:
            yield first, index - 1
            first = index


def _range(releases: tuple[str, ...], first: int, last: int) -> str:
    if last == len(releases) - 1:
        return f"{releases[first]}-"
    return releases[first] if first == last else f"{releases[first]}-{releases[last]}"


def _encoded(fact: Fact | None) -> object:
    if fact is None:
        return None
    if fact.kind == "alias":
        return f"={fact.target}"
    more = {
        "at": fact.target or None,
        "bases": list(fact.bases) or None,
        "deprecated": fact.deprecated,
        "deprecated_parameters": dict(fact.deprecated_parameters) or None,
    }
    said = {key: value for key, value in more.items() if value is not None}
    if said:
        return [fact.kind, fact.signature, said]
    return fact.kind if fact.signature is None else [fact.kind, fact.signature]


def _decoded(document: Mapping[str, Any]) -> History:
    if document["format"] != _FORMAT:
        raise ValueError(document["format"])
    versions = sorted(document["releases"], key=release_number)
    releases = [minor(version) for version in versions]
    facts: list[dict[str, Fact]] = [{} for _ in versions]
    for module, names in document["names"].items():
        for name, row in names.items():
            for position, fact in _spread(row, releases):
                facts[position][f"{module}.{name}" if name else module] = fact
    return History(
        tuple(Snapshot(version, dict(sorted(said.items()))) for version, said in zip(versions, facts, strict=True))
    )


def _spread(row: object, releases: list[str]) -> Iterator[tuple[int, Fact]]:
    ranges = row if isinstance(row, dict) else {f"{releases[0]}-": row}
    for covered, encoded in ranges.items():
        first, dash, last = covered.partition("-")
        end = releases.index(last) if last else len(releases) - 1 if dash else releases.index(first)
        fact = _fact(encoded)
        yield from ((position, fact) for position in range(releases.index(first), end + 1))


def _fact(encoded: object) -> Fact:
    if isinstance(encoded, str):
        if encoded.startswith("="):
            return Fact("alias", target=encoded[1:])
        encoded = [encoded, None]
    if not isinstance(encoded, list):
        raise TypeError(encoded)
    kind, signature, *rest = encoded
    if kind not in KINDS:
        raise ValueError(kind)
    more = rest[0] if rest else {}
    return Fact(
        kind,
        signature,
        more.get("at", ""),
        tuple(more.get("bases", ())),
        more.get("deprecated"),
        tuple(sorted(more.get("deprecated_parameters", {}).items())),
    )
