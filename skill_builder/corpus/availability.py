"""Since and until which torch release: what the history says of the objects of a section, as data and as a line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from skill_builder.history import History, ParameterHistory, release_number
from skill_builder.records import Availability, Section

_SIGNATURE = re.compile(r"^```python\n((?:@property\n)?(?:async )?(?:def|class) [^`]*)```", re.MULTILINE)


def with_availability(sections: Iterable[Section], history: History, version: str) -> list[Section]:
    """The sections, each documented object with what is known of its releases.

    Args:
        sections: All of them.
        history: The releases that are known.
        version: The documentation's; parameters that came later are of no interest in it.
    """
    return [
        replace(section, availability=availability(section.name, history, version)) if section.name else section
        for section in sections
    ]


def availability(name: str, history: History, version: str) -> Availability | None:
    """What is known of an object's releases; None if there is nothing to say, or nothing is known."""
    known = history.object(name)
    if known is None:
        return None
    parameters = [p for p in (known.parameters or {}).values() if _is_public(p) and not _is_later(p.since, version)]
    found = Availability(
        since=known.since,
        until=known.until,
        removed=known.removed,
        deprecated=(known.deprecated.since or "") if known.deprecated else None,
        instead=history.replacement(name) if known.until or known.deprecated else None,
        before=_before(name, known.since, history),
        parameters=tuple((p.name, p.since) for p in parameters if p.since and p.since != known.since),
        defaults=tuple(change for p in parameters for change in _changed_defaults(p, version)),
    )
    return found if found != Availability() else None


def contradictions(sections: Iterable[Section], history: History, version: str) -> list[str]:
    """What the documentation has and, by the history, the release that it documents has not.

    Returns:
        Names of objects, and of parameters as ``object(parameter)``.
    """
    if ".".join(map(str, release_number(version)[:2])) not in history.releases:
        return []
    found = []
    for section in (section for section in sections if section.name):
        if history.missing_in(section.name, version):
            found.append(section.name)
            continue
        lacking = (p for p in signature_parameters(section) if history.parameter_missing_in(section.name, p, version))
        found += [f"{section.name}({parameter})" for parameter in lacking]
    return found


def signature_parameters(section: Section) -> list[str]:
    """The parameters in the signature with which the text of a function or class opens."""
    match = _SIGNATURE.match(section.markdown)
    if match is None:
        return []
    functions = (node for node in ast.walk(ast.parse(match[1])) if isinstance(node, ast.FunctionDef))
    arguments = next((node.args for node in functions), None)
    if arguments is None:
        return []
    named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [argument.arg for argument in named if argument.arg not in ("self", "cls")]


def label(found: Availability) -> str:
    """A line for a reader: since and until when, and what to write instead."""
    return f"*{'; '.join([*_object_facts(found), *_parameter_facts(found)])}.*"


def _object_facts(found: Availability) -> Iterator[str]:
    if found.since:
        yield f"Since torch {found.since}" + (f" (before: `{found.before}`)" if found.before else "")
    instead = f", use `{found.instead}`" if found.instead else ""
    if found.deprecated is not None:
        yield f"Deprecated{' since ' + found.deprecated if found.deprecated else ''}{instead}"
    if found.removed:
        yield f"Removed in {found.removed}{'' if found.deprecated is not None else instead}"


def _parameter_facts(found: Availability) -> Iterator[str]:
    for release in dict.fromkeys(release for _, release in found.parameters):
        names = ", ".join(f"`{name}`" for name, of in found.parameters if of == release)
        yield f"{names} since {release}"
    for name, release, now, before in found.defaults:
        yield f"`{name}` is {_default(now)} by default since {release}, before {_default(before)}"


def _default(source: str | None) -> str:
    return "required" if source is None else f"`{source}`"


def _before(name: str, since: str | None, history: History) -> str | None:
    if since is None:
        return None
    return history.replacement(name, history.releases[history.releases.index(since) - 1])


def _is_public(parameter: ParameterHistory) -> bool:
    return not parameter.name.startswith("_") and not (parameter.kinds[-1].value or "").startswith("VAR_")


def _changed_defaults(parameter: ParameterHistory, version: str) -> Iterator[tuple[str, str, str | None, str | None]]:
    for earlier, later in zip(parameter.defaults, parameter.defaults[1:], strict=False):
        if not _is_later(later.release, version):
            yield parameter.name, later.release, later.value, earlier.value


def _is_later(release: str | None, version: str) -> bool:
    """Whether a release came after the documented one; ``main`` documents the newest."""
    documented = release_number(version)[:2]
    return bool(release and documented and release_number(release) > documented)
