"""The maintainer's one command: check, build, validate, compare, install; each only if the one before went well."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from skill_builder import __version__
from skill_builder.build import BuildRequest, build_skill
from skill_builder.drift import Drift, compare_builds, read_built
from skill_builder.errors import NotASkill
from skill_builder.records import Progress
from skill_builder.skill.assemble import SKILL_NAME
from skill_builder.skill.install import Plan, carry_out, locked, place_in, plan_install
from skill_builder.skill.manifest import MANIFEST, load_manifest
from skill_builder.skill.publish import require_valid


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """How to update an installed skill."""

    build: BuildRequest
    """What to build it from; where to is not looked at."""
    home: Path
    """Hermes' home."""
    replace: bool = False
    """Other skills of the same name make way."""
    hermes: Path | None = None
    """As for `validate`."""
    dry_run: bool = False
    """Do everything but install."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What an update found and did."""

    drift: Drift | None
    """None if there was no need to build."""
    plan: Plan | None
    """What was installed, or with ``dry_run`` would have been; None if the installed skill is as it should be."""
    kept: tuple[Path, ...] = ()
    """As of `carry_out`."""


def update(
    request: UpdateRequest,
    progress: Progress = lambda stage, done, total: None,
    has_changed: Callable[[Path], bool] = lambda folder: True,
) -> UpdateReport:
    """Update the installed skill.

    Args:
        request: How.
        progress: Told how the build goes.
        has_changed: Whether the documentation is another than the one that the skill in a folder was built from.

    Raises:
        NotASkill: None is installed.
        InvalidSkill: What was built does not pass validation; nothing is installed.
        BuilderError: The build or the install failed; the skill that is installed is as it was.
    """
    installed = place_in(request.home)
    if not (installed / MANIFEST).is_file():
        raise NotASkill(installed, "fsdp-skill has installed no skill there", "run fsdp-skill install first")
    before = read_built(installed)
    if load_manifest(installed).get("builder") == __version__ and not has_changed(installed):
        return UpdateReport(None, None)
    with tempfile.TemporaryDirectory(prefix="fsdp-skill-") as folder:
        new = Path(folder) / SKILL_NAME
        build_skill(replace(request.build, out=new), progress)
        require_valid(new, hermes=request.hermes)
        drift = compare_builds(before, read_built(new))
        if request.dry_run:
            plan = plan_install(new, request.home, replace=request.replace)
            return UpdateReport(drift, None if plan.is_same else plan)
        with locked(request.home):
            plan = plan_install(new, request.home, replace=request.replace)
            if plan.is_same:
                return UpdateReport(drift, None)
            return UpdateReport(drift, plan, tuple(carry_out(plan)))
