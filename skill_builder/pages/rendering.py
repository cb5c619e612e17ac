"""The process in which Sphinx documents the installed torch; ``installed.py`` starts it and says why.

Standard input brings the pages to render, as JSON. Standard output carries a line of JSON for each page that
was read (``"read"``), and a last one: ``{"rendered": ...}``, or ``{"unusable": [where, problem, remedy]}``.
All else that anything prints goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

from skill_builder.scope import StubObject, StubPage, StubSection

OLDEST_TORCH = (2, 6)
MOST_WORKERS = 4
"""More gain nothing: the largest page alone takes a quarter of the time."""
INSTALL = "pip install 'fsdp-skill[torch]'"
NOT_THERE = (ImportError, AttributeError, OSError, RuntimeError)
"""What asking torch for a module or an attribute raises where its build has no such part."""


def main() -> None:
    """Render the pages given on standard input into the folder given as the argument."""
    signal.signal(signal.SIGTERM, _leave)
    report = Report()
    folder = Path(sys.argv[1])
    pages = pages_from_json(json.load(sys.stdin))
    try:
        torch = import_torch()
    except Unusable as error:
        report.write({"unusable": error.args})
        return
    missing = write_stubs(pages, folder / "source")
    warnings = run_sphinx(folder, torch, root=pages[0].name, report=report)
    report.write(
        {
            "rendered": {
                "release": torch.__version__,
                "version": ".".join(torch.__version__.split(".")[:2]),
                "place": str(Path(inspect.getfile(torch)).parent),
                "missing": missing,
                "warnings": warnings,
            }
        }
    )


def pages_from_json(pages: list[dict[str, Any]]) -> tuple[StubPage, ...]:
    """Turn back what ``dataclasses.asdict`` and JSON made of the pages."""
    return tuple(
        StubPage(
            page["name"],
            page["title"],
            tuple(page["modules"]),
            tuple(
                StubSection(
                    section["title"],
                    tuple(StubObject(i["module"], i["name"], tuple(i["members"])) for i in section["objects"]),
                )
                for section in page["sections"]
            ),
        )
        for page in pages
    )


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """Unwind on SIGTERM, so that Sphinx ends its workers."""
    sys.exit(1)


class Report:
    """Standard output, kept for the parent alone: what prints to it afterwards prints to standard error."""

    def __init__(self) -> None:
        self.descriptor = os.dup(1)
        os.dup2(2, 1)

    def write(self, message: object) -> None:
        """Send one message; a short line is written at once, so Sphinx's workers may do so side by side."""
        os.write(self.descriptor, json.dumps(message).encode() + b"\n")


class Unusable(Exception):
    """No torch that can be documented; the arguments are those of ``TorchUnusable``."""


def import_torch() -> ModuleType:
    """Import torch.

    Raises:
        Unusable: It is missing, broken, something else, or too old.
    """
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise _broken(error) from error
        raise Unusable("torch", "is not installed", f"{INSTALL}, or build with `--source site`") from error
    except (ImportError, OSError) as error:
        raise _broken(error) from error
    place = f"torch in {', '.join(getattr(torch, '__path__', [str(torch.__file__)]))}"
    release = re.match(r"(\d+)\.(\d+)", getattr(torch, "__version__", ""))
    if not release:
        raise Unusable(place, "has no version, so it is not PyTorch", f"remove it, then {INSTALL}")
    if (int(release[1]), int(release[2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise Unusable(place, f"is {torch.__version__}, older than {oldest}", f"upgrade it: {INSTALL}")
    return torch


def _broken(error: Exception) -> Unusable:
    problem = next(iter(str(error).splitlines()), type(error).__name__)
    return Unusable("torch", f"cannot be imported ({problem})", f"reinstall it: {INSTALL}")


def write_stubs(pages: tuple[StubPage, ...], folder: Path) -> list[str]:
    """Write one reStructuredText file a page; returns the names that this torch lacks."""
    missing: list[str] = []
    for page in pages:
        file = folder / f"{page.name}.rst"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(stub(page, missing)) + "\n", encoding="utf-8")
    return sorted(missing)


def stub(page: StubPage, missing: list[str]) -> Iterator[str]:
    """The lines of a page: titles, and a directive for each object that is there."""
    yield from (":orphan:", "")
    yield from heading(page.title, "=")
    for module in page.modules:
        if find(module) is None:
            missing.append(module)
        else:
            yield from (f".. py:module:: {module}", "")
    for section in page.sections:
        if section.title:
            yield from heading(section.title, "-")
        for item in section.objects:
            yield from directive(item, missing)


def heading(title: str, underline: str) -> tuple[str, ...]:
    """A heading, in which no character is markup."""
    escaped = re.sub(r"([*_`|\\])", r"\\\1", title)
    return escaped, underline * len(escaped), ""


def directive(item: StubObject, missing: list[str]) -> Iterator[str]:
    """The autodoc directive that documents an object; none where it is missing."""
    if item.name == "__doc__":
        if find(item.module) is None:
            missing.append(item.module)
        else:
            # The module's anchor stands where `modules` says.
            yield from (f".. automodule:: {item.module}", "   :no-index:", "")
        return
    found = find(item.module, item.name)
    if found is None:
        missing.append(item.qualified)
        return
    yield f".. {directive_name(found)}:: {item.qualified}"
    members = [name for name in item.members if name == "*" or hasattr(found, name)]
    missing.extend(f"{item.qualified}.{name}" for name in item.members if name not in members)
    if members == ["*"]:
        yield "   :members:"
    elif members:
        yield from (f"   :members: {', '.join(members)}", "   :undoc-members:")
    yield ""


def find(module: str, name: str = "") -> Any:  # noqa: ANN401  (what a user's torch holds)
    """The module, or what it holds under a dotted name; None where this torch has none."""
    try:
        found = importlib.import_module(module)
        for part in filter(None, name.split(".")):
            found = getattr(found, part)
    except NOT_THERE:
        return None
    return found


def directive_name(found: object) -> str:
    """The autodoc directive for a kind of object."""
    if inspect.isclass(found):
        return "autoclass"
    return "autofunction" if callable(found) else "autodata"


class WarningCount(logging.Handler):
    """Counts records."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0

    def emit(self, _record: logging.LogRecord) -> None:
        """Count one."""
        self.count += 1


def run_sphinx(folder: Path, torch: ModuleType, *, root: str, report: Report) -> int:
    """Render ``folder/source`` into ``folder/html``; returns how often Sphinx warned."""
    app = Sphinx(
        srcdir=folder / "source",
        confdir=None,
        outdir=folder / "html",
        doctreedir=folder / "doctrees",
        buildername="html",
        confoverrides={
            "project": "PyTorch",
            "version": torch.__version__,
            "root_doc": root,
            "extensions": ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.linkcode"],
            "linkcode_resolve": Links(torch).resolve,
            "autodoc_inherit_docstrings": False,
            "autodoc_use_type_comments": False,
            "napoleon_use_ivar": True,
            "smartquotes_action": "D",
            "html_theme": "basic",
            "html_theme_options": {"nosidebar": True},
            "html_copy_source": False,
            "html_permalinks": False,
            "html_use_index": False,
            "html_domain_indices": False,
        },
        status=None,
        warning=None,
        parallel=num_workers(),
    )
    assert isinstance(app.builder, StandaloneHTMLBuilder)
    app.builder.search = False  # The index for searching the site in a browser.
    app.connect("doctree-read", lambda _app, _doctree: report.write("read"))
    warnings = WarningCount()
    logging.getLogger("sphinx").addHandler(warnings)
    gc.disable()  # Doctrees are many small objects: collecting takes a third of the time, to save 50 MB.
    app.build(force_all=True)
    return warnings.count


def num_workers() -> int:
    """How many processes Sphinx forks, each with some 100 MB of its own.

    On macOS none: its system libraries do not survive a fork once torch has loaded them.
    """
    return 1 if sys.platform == "darwin" else min(os.cpu_count() or 1, MOST_WORKERS)


class Links:
    """Where on GitHub objects are defined, for ``sphinx.ext.linkcode``."""

    def __init__(self, torch: ModuleType) -> None:
        self.root = Path(inspect.getfile(torch)).parent.parent
        release = re.match(r"\d+\.\d+\.\d+(rc\d+)?(?![.\w])", torch.__version__)
        revision = f"v{release[0]}" if release else torch.version.git_version
        self.address = f"https://github.com/pytorch/pytorch/blob/{revision}/"

    def resolve(self, domain: str, info: dict[str, str]) -> str | None:
        """The URL of an object's first line; None for what is not written in Python."""
        found: Any = find(info["module"], info["fullname"]) if domain == "py" else None
        if isinstance(found, property):
            found = found.fget
        found = inspect.unwrap(found)
        place = class_place(found) if inspect.isclass(found) else function_place(found)
        if place is None or not place[0].is_relative_to(self.root):
            return None
        file, line = place
        return f"{self.address}{file.relative_to(self.root).as_posix()}#L{line}"


def function_place(found: object) -> tuple[Path, int] | None:
    """The file and the first line of a function or method; None of what has no Python code."""
    code = getattr(found, "__code__", None)
    return (Path(code.co_filename), code.co_firstlineno) if code else None


def class_place(found: type) -> tuple[Path, int] | None:
    """The file and the first line of a class; None where no source defines it.

    torch sets ``__module__`` of many classes to the package that users import them from: their source is in
    that module or in one below it. Sphinx keeps what it has parsed; ``inspect`` parses a file for each class.
    """
    outermost = found.__qualname__.partition(".")[0]
    for name, module in sorted(sys.modules.items()):
        below = f"{name}.".startswith(f"{found.__module__}.")
        if below and outermost in getattr(module, "__dict__", {}):
            try:
                source = ModuleAnalyzer.for_module(name)
                source.analyze()
            except PycodeError:
                continue
            if found.__qualname__ in source.tags:
                return Path(source.srcname), source.tags[found.__qualname__][1]
    return None


if __name__ == "__main__":
    main()
