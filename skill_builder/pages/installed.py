"""The torch that is installed, as pages: Sphinx renders them from the docstrings.

Sphinx and torch run in a process of their own (``rendering.py``), started as ``python -m`` with this
process's ``sys.path``. So neither torch's import (seconds, 300 MB, warnings, threads) nor what Sphinx does to
``logging``, docutils, ``sys.path`` and the locale stays in the builder; whatever either prints is kept from
the terminal; and a torch that kills its process on import is a message instead of the builder's end.
``multiprocessing`` with *spawn* would do the same, but runs the caller's main module again.

The pages are held as text, and the folder that they were rendered in is gone before this module returns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sphobjinv

from skill_builder.errors import TorchUnusable
from skill_builder.records import DocumentedObject, Page, PageSource, Progress
from skill_builder.scope import OFFICIAL_SITE, Scope

OFFICIAL_DOCS = f"{OFFICIAL_SITE}docs/stable/"
STAGE = "rendering"


def installed_pages(scope: Scope, *, progress: Progress) -> PageSource:
    """Render the pages under ``installed`` in ``scope.yaml`` from the torch that is importable.

    Args:
        scope: Which pages and objects to render.
        progress: Called with ``rendering``, how many pages are done, and of how many.

    Raises:
        TorchUnusable: torch is missing, too old or broken, or Sphinx failed.
    """
    with tempfile.TemporaryDirectory(prefix="fsdp-skill-") as folder:
        rendered = _render(scope, Path(folder), progress)
        site = Path(folder, "html")
        return PageSource(
            origin="installed",
            address=f"torch {rendered['release']} in {rendered['place']}",
            version=rendered["version"],
            objects=_documented_objects(scope, site),
            pages=_pages(scope, site),
            notes=_notes(rendered),
        )


def _render(scope: Scope, folder: Path, progress: Progress) -> dict[str, Any]:
    """Let a child process write ``folder/html``; returns what it says about it."""
    chatter = folder / "chatter.txt"
    with (
        chatter.open("wb") as stderr,
        subprocess.Popen(  # noqa: S603  (this interpreter, a module of ours, a folder that we made)
            [sys.executable, "-m", "skill_builder.pages.rendering", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_environment(),
        ) as child,
    ):
        try:
            return _converse(child, scope, progress)
        except _Silent:
            raise TorchUnusable(
                "torch",
                f"its documentation could not be rendered ({_last_words(chatter, child.wait())})",
                "check that `python -c 'import torch'` works, or build with `--source site`",
            ) from None
        finally:
            child.terminate()
            child.wait()  # It writes to the folder, which goes next.


class _Silent(Exception):
    """The child ended before it said what came of its work."""


def _converse(child: subprocess.Popen[bytes], scope: Scope, progress: Progress) -> dict[str, Any]:
    """Hand the child its task and follow what it reports, a line of JSON each, to the last."""
    assert child.stdin and child.stdout
    try:
        with child.stdin:
            child.stdin.write(json.dumps([asdict(page) for page in scope.installed]).encode())
    except BrokenPipeError:
        raise _Silent from None
    done, total = 0, len(scope.installed)
    progress(STAGE, done, total)
    for line in child.stdout:
        match json.loads(line):
            case "read":
                done += 1
                progress(STAGE, done, total)
            case {"unusable": reason}:
                raise TorchUnusable(*reason)
            case {"rendered": rendered}:
                return dict(rendered)
    raise _Silent


def child_environment() -> dict[str, str]:
    """The same modules in reach as here, and an order of sets in signatures that is the same each time."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(place or str(Path.cwd()) for place in sys.path),
        "PYTHONSAFEPATH": "1",  # Else `-m` would add the working directory.
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
    }


def _last_words(chatter: Path, status: int) -> str:
    """How a process ended, and the last line that it printed."""
    lines = chatter.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"exit status {status}: {last}"


def _documented_objects(scope: Scope, site: Path) -> tuple[DocumentedObject, ...]:
    inventory = sphobjinv.Inventory(site / "objects.inv")
    objects = [
        DocumentedObject(item.name, item.role, OFFICIAL_DOCS + item.uri_expanded)
        for item in inventory.objects
        if item.domain == "py" and scope.has_object(item.name, item.uri.partition(".html#")[0])
    ]
    return tuple(sorted(objects, key=lambda item: (item.url, item.name)))


def _pages(scope: Scope, site: Path) -> Iterator[Page]:
    files = sorted(f"{page.name}.html" for page in scope.installed)
    return iter([Page(OFFICIAL_DOCS + file, (site / file).read_text(encoding="utf-8")) for file in files])


def _notes(rendered: dict[str, Any]) -> list[str]:
    missing, warnings = rendered["missing"], rendered["warnings"]
    notes = []
    if missing:
        notes.append(f"{len(missing)} names that torch {rendered['release']} lacks: {', '.join(missing)}")
    if warnings:
        notes.append(f"{warnings} warnings from torch's docstrings")
    return notes
