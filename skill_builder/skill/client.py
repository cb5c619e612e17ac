"""Hermes Agent, where it is installed: the interpreter that runs it, and its own scan of a skill."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from skill_builder.errors import SkillError

SCAN_TIMEOUT = 300
"""Seconds; a scan takes one or two, on a busy machine several."""

_SCAN = """
import sys
sys.path[:] = filter(None, sys.path)  # a folder named tools where the user stands is not the client
import json
from pathlib import Path
from tools.skills_guard import scan_skill
result = scan_skill(Path(sys.argv[1]), source="community")
names = ("file", "line", "pattern_id", "severity", "description", "match")
print(json.dumps([{name: getattr(finding, name) for name in names} for finding in result.findings]))
"""


@dataclass(frozen=True, slots=True)
class ScanFinding:
    """One finding of the client's scanner, in its own words."""

    file: str
    line: int
    pattern_id: str
    severity: str
    """``critical``, ``high``, ``medium`` or ``low``; the first two block the install."""
    description: str
    match: str


def find_client(hermes: Path | None) -> Path | None:
    """The Python that has hermes-agent installed.

    Args:
        hermes: That Python, or the ``hermes`` executable; None looks for ``hermes`` on PATH.

    Raises:
        SkillError: ``hermes`` names nothing that can be run.
    """
    if hermes is None:
        on_path = shutil.which("hermes")
        return _interpreter(Path(on_path)) if on_path else None
    if not hermes.is_file():
        raise SkillError(hermes, "does not exist", "name the client's python or its hermes executable")
    return _interpreter(hermes)


def scan(python: Path, skill: Path) -> list[ScanFinding]:
    """Run the scanner that Hermes runs when it installs a skill from a community source.

    Raises:
        SkillError: The interpreter has no hermes-agent, or its scanner failed.
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user names the interpreter, the program is ours
            [python, "-c", _SCAN, skill.resolve()],
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=SCAN_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise SkillError(
            python, f"the client's scanner did not run ({said[-1]})", "install hermes-agent there"
        ) from error
    return [ScanFinding(**finding) for finding in json.loads(done.stdout)]


def _interpreter(hermes: Path) -> Path:
    """The Python behind a console script: from its first line, else the one beside it."""
    if hermes.name.startswith("python"):
        return hermes
    script = hermes.resolve()
    first = script.read_bytes().partition(b"\n")[0].decode("utf-8", "replace")
    named = Path(first.removeprefix("#!").strip())
    if first.startswith("#!") and named.name.startswith("python") and named.is_file():
        return named
    return script.with_name("python.exe" if script.suffix == ".exe" else "python")
