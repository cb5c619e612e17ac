"""Where the documentation in a built skill and the torch that is installed disagree."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skill_builder.corpus.harmless import code_lines
from skill_builder.errors import TorchUnusable
from skill_builder.pages.installed import child_environment

_OBJECT = re.compile(r"#{2,6} (\w+(?:\.\w+)+)$")
_TIMEOUT = 300.0
"""Seconds; importing torch takes a few."""

Parameters = list[tuple[str, str | None]]
"""Names, ``*`` and ``**`` before them, with their defaults."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An object that is documented one way and installed another."""

    name: str
    kind: str
    """``missing`` from torch, or ``signature``."""
    documented: str
    installed: str


def compare_installed(skill: Path) -> list[Disagreement]:
    """Look up every object that a skill documents in the installed torch.

    Annotations are not compared, nor defaults that are no literals: how they are written depends on who writes them.

    Raises:
        TorchUnusable: torch is missing, too old or broken.
    """
    stubs = documented_stubs(skill)
    installed = _look_up(stubs)
    found = (_compare(name, stub, installed[name]) for name, stub in stubs.items())
    return [disagreement for disagreement in found if disagreement is not None]


def documented_stubs(skill: Path) -> dict[str, str]:
    """The objects in a skill's references: full name -> signature as Python, or nothing for what has none."""
    stubs: dict[str, str] = {}
    for file in sorted((skill / "references").glob("docs-*.md")):
        stubs.update(_stubs(file.read_text(encoding="utf-8")))
    return stubs


def _stubs(text: str) -> Iterator[tuple[str, str]]:
    name, code, done = "", [""], False
    for line, is_code in code_lines(text):
        heading = None if is_code else _OBJECT.match(line)
        if heading or (not is_code and line.startswith("#")):
            if name:
                yield name, "\n".join(code)
            name, code, done = heading[1] if heading else "", [], False
        elif is_code and not line.startswith("```") and not done:
            code.append(line)
        elif not is_code and code:
            done = True
    if name:
        yield name, "\n".join(code)


def _look_up(names: Iterable[str]) -> Mapping[str, Any]:
    """Ask a process of its own, as ``pages/installed.py`` does and for its reasons."""
    done = subprocess.run(
        [sys.executable, "-m", "skill_builder.pages.looking"],
        input=json.dumps(list(names)).encode(),
        capture_output=True,
        env=child_environment(),
        timeout=_TIMEOUT,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise TorchUnusable(
            "torch", f"it cannot be looked at (exit status {done.returncode})", "check `python -c 'import torch'`"
        ) from None
    if "unusable" in answer:
        raise TorchUnusable(*answer["unusable"])
    objects: Mapping[str, Any] = answer["objects"]
    return objects


def _compare(name: str, stub: str, installed: Mapping[str, Any] | None) -> Disagreement | None:
    if installed is None:
        return Disagreement(name, "missing", stub.partition("\n")[0], "")
    documented = parameters_of(stub)
    if documented is None or installed["parameters"] is None:
        return None
    here: Parameters = [(parameter, default) for parameter, default in installed["parameters"]]
    if _comparable(documented, here) == _comparable(here, documented):
        return None
    return Disagreement(name, "signature", _written(documented), _written(here))


def parameters_of(stub: str) -> Parameters | None:
    """The parameters of a stub; None where it is not one function or class with parameters."""
    try:
        found = [
            node for node in ast.walk(ast.parse(stub)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(found) != 1 or any(getattr(one, "id", "") == "property" for one in found[0].decorator_list):
        return None
    given = found[0].args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + [ast.unparse(one) for one in given.defaults]
    listed: Parameters = [(one.arg, default) for one, default in zip(plain, defaults, strict=True) if one.arg != "self"]
    if given.vararg:
        listed.append((f"*{given.vararg.arg}", None))
    for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        listed.append((one.arg, None if value is None else ast.unparse(value)))
    if given.kwarg:
        listed.append((f"**{given.kwarg.arg}", None))
    return listed


def _comparable(parameters: Parameters, others: Parameters) -> list[tuple[str, str]]:
    """Defaults count where both are literals, and elsewhere only whether there is one."""
    theirs = dict(others)
    return [(name, _default(default, theirs.get(name))) for name, default in parameters]


def _default(own: str | None, other: str | None) -> str:
    if own is None:
        return ""
    if other is None:
        return "..."
    try:
        ast.literal_eval(other)
        return repr(ast.literal_eval(own))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return "..."


def _written(parameters: Parameters) -> str:
    return f"({', '.join(name if default is None else f'{name}={default}' for name, default in parameters)})"
