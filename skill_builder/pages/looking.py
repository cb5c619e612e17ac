"""The process in which torch is imported to see what it has; ``skill_builder/compare.py`` starts it.

Standard input brings the names of objects, a JSON list. Standard output carries one line of JSON:
``{"release": ..., "objects": {name: ...}}``, or ``{"unusable": [where, problem, remedy]}``. An object is ``null`` where
torch has none, and else ``{"parameters": [[name, default], ...]}``, or ``{"parameters": null}`` where Python knows
no signature; a default is its ``repr``, or ``null``.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from skill_builder.pages.rendering import Report, Unusable, find, import_torch

_MARKS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def main() -> None:
    """Look up the names given on standard input."""
    report = Report()
    names: list[str] = json.load(sys.stdin)
    try:
        torch = import_torch()
    except Unusable as error:
        report.write({"unusable": error.args})
        return
    report.write({"release": torch.__version__, "objects": {name: look_up(name) for name in names}})


def look_up(name: str) -> dict[str, Any] | None:
    """What torch has under a full name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:cut]), parts[cut:]
        if module in sys.modules or find(module) is not None:
            found = find(module, ".".join(rest))
            if found is not None:
                around = find(module, ".".join(rest[:-1])) if rest else None
                return {"parameters": parameters(found, around, parts[-1])}
    return None


def parameters(found: Any, around: Any, name: str) -> list[list[str | None]] | None:  # noqa: ANN401  (torch's)
    """The parameters that a caller passes, so without ``self``."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    listed = list(signature.parameters.values())
    bound = inspect.isclass(around) and isinstance(inspect.getattr_static(around, name, None), staticmethod)
    if inspect.isclass(around) and inspect.isfunction(found) and not bound:
        listed = listed[1:]
    return [
        [_MARKS.get(one.kind, "") + one.name, None if one.default is one.empty else repr(one.default)] for one in listed
    ]


if __name__ == "__main__":
    main()
