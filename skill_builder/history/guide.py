"""The tables of ``references/guide-versions.md``: what each release brought, from the history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skill_builder.history.answers import ReleaseChanges
from skill_builder.history.query import History

TABLES = "## What each release brought"
"""The heading under which the tables stand, to the end of the guide; what is above is written by hand."""

_AREAS = (
    ("FSDP", ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")),
    ("checkpoint", ("torch.distributed.checkpoint",)),
    ("DTensor, mesh", ("torch.distributed.tensor", "torch.distributed.device_mesh")),
    ("torchrun", ("torch.distributed.elastic", "torch.distributed.launcher", "torch.distributed.run")),
    ("", ("torch.distributed.pipelining", "torch.distributed.rpc")),
    ("DDP", ("torch.nn.parallel", "torch.distributed.algorithms", "torch.distributed.optim")),
    ("recompute", ("torch.utils.checkpoint",)),
    ("process groups", ("torch.distributed",)),
)
"""The first whose prefix a name has counts; what has none, as ``torch.cuda``, or one of no name is left out."""

_HIDDEN = ("elastic.agent", "elastic.multiprocessing", "elastic.rendezvous", "elastic.utils", "DataParallelCPU")
"""Parts of names that no user of torchrun writes."""
_MOST = 5
"""Names in a cell; of more, the last are counted."""


def with_tables(guide: str, history: History) -> str:
    """The guide with its tables made anew.

    Raises:
        ValueError: The guide has no heading for them.
    """
    written, heading, _ = guide.partition(f"{TABLES}\n")
    if not heading:
        raise ValueError(f"no line {TABLES!r} in the guide")
    return f"{written}{heading}\n" + "\n".join(_tables(history)) + "\n"


def _tables(history: History) -> Iterator[str]:
    first, last = history.releases[0], history.releases[-1]
    yield f"From the sources of torch {first} to {last}; names without modules, parameters in parentheses; `-` marks"
    yield "what is gone, `~` what is deprecated, `=` a changed default. The search knows the full names. Reasons:"
    yield "https://github.com/pytorch/pytorch/releases."
    for release in reversed(history.releases[1:]):
        rows = dict(_rows(history.changes_in(release)))
        yield f"\n### torch {release}\n"
        yield from ("| in | new, gone, changed |", "| --- | --- |")
        yield from (f"| {area} | {', '.join(cells)} |" for area, cells in rows.items())


def _rows(changes: ReleaseChanges) -> Iterator[tuple[str, list[str]]]:
    items = [
        *((name, "", "") for name in changes.added),
        *((name, "", f"({parameter})") for name, parameter in changes.added_parameters),
        *((name, "-", "") for name in changes.removed),
        *((name, "-", f"({parameter})") for name, parameter in changes.removed_parameters),
        *((name, "~", "") for name in changes.deprecated),
        *((name, "=", f"({parameter}={now})") for name, parameter, _, now in changes.changed_defaults),
    ]
    fields = {f"{name}.{parameter}" for name, parameter in (*changes.added_parameters, *changes.removed_parameters)}
    items = [item for item in items if item[0] not in fields]
    for area in filter(None, dict.fromkeys(area for area, _ in _AREAS)):
        own = [(name, mark, detail) for name, mark, detail in items if _area(name) == area and _is_public(name, detail)]
        cells = list(_joined(own))
        if cells:
            more = [f"and {len(cells) - _MOST} more"] if len(cells) > _MOST else []
            yield area, cells[:_MOST] + more


def _joined(items: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """One cell an object and mark: new parameters of one object together."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, mark, detail in items:
        grouped.setdefault((mark, name), []).append(detail[1:-1])
    for (mark, name), details in grouped.items():
        parameters = f"({', '.join(details)})" if any(details) else ""
        yield f"{mark}`{_short(name)}{parameters}`"


def _area(name: str) -> str:
    return next((area for area, prefixes in _AREAS if name.startswith(prefixes)), "")


def _is_public(name: str, detail: str) -> bool:
    private = any(part.startswith("_") for part in name.split(".")) or detail.startswith("(_")
    return not private and not any(part in name for part in _HIDDEN) and detail not in ("(args)", "(kwargs)")


def _short(name: str) -> str:
    """``FSDPModule.reshard`` of its full name: from the class on; of a function, with a module inside its area."""
    parts = name.split(".")
    first_class = next((place for place, part in enumerate(parts) if part[0].isupper()), None)
    if first_class is not None:
        return ".".join(parts[first_class:])
    of_area = {prefix.rpartition(".")[2] for area, prefixes in _AREAS if area for prefix in prefixes}
    return parts[-1] if parts[-2] in of_area else ".".join(parts[-2:])
