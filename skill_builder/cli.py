"""The command line: parse, call, print. The only place that prints or exits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from stamina.instrumentation import set_on_retry_hooks

from skill_builder import records
from skill_builder.build import WORKERS, BuildReport, BuildRequest, build_skill
from skill_builder.compare import Disagreement, compare_installed
from skill_builder.errors import BuilderError
from skill_builder.index.build import load_search
from skill_builder.pages.cache import cache_folder, clear
from skill_builder.rebuild import check_skill
from skill_builder.scope import OFFICIAL_SITE, SCOPE_FILE, load_scope
from skill_builder.skill.assemble import SKILL_NAME, sources
from skill_builder.skill.validate import Finding, validate

P = ParamSpec("P")
R = TypeVar("R")

BUILT = Path("dist") / SKILL_NAME
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIFFERENT = 3

VERSION_NAME = re.compile(r"\w[\w.+-]{0,40}", re.ASCII)

set_on_retry_hooks(())  # Else each new try is a line of stamina's on stderr.
messages = Console(stderr=True, highlight=False, soft_wrap=True)
"""Messages and progress; results go to stdout."""


def told(command: Callable[P, R]) -> Callable[P, R]:
    """Turn an error of ours into a line and an exit status; anything else is a bug and tracebacks."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BuilderError as error:
            messages.print(f"fsdp-skill: {error}", style="red", markup=False)
            sys.exit(EXIT_FAILED)

    return wrapper


scope_option = click.option(
    "--scope",
    type=click.Path(path_type=Path),
    default=SCOPE_FILE,
    show_default="the builder's own",
    help="Which pages are in scope.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fsdp-skill")
def main() -> None:
    """Build, search, check and publish the pytorch-fsdp skill."""


@main.command()
@click.option(
    "--source",
    type=click.Choice(["auto", "site", "installed"]),
    default="auto",
    show_default=True,
    help="The official site, the torch that is installed, or the first of them that can be reached.",
)
@click.option("--url", metavar="BASE", default=OFFICIAL_SITE, show_default=True, help="The site's root, or a mirror's.")
@click.option("--docs-version", metavar="V", default="stable", show_default=True, help="stable, main or a release.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"The skill's folder.  [default: {BUILT}, or dist/V/{SKILL_NAME} for another version than stable]",
)
@scope_option
@click.option("--refresh", "cache", flag_value="refresh", help="Fetch every page anew.")
@click.option("--offline", "cache", flag_value="offline", help="Use the pages that were kept, and send no request.")
@click.option(
    "--allow-missing",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Go on when up to N pages fail (their last good copies stand in), or documented objects are missing.",
)
@click.option("--accept-shrink", is_flag=True, help="Go on when the skill loses much of what it had.")
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1, max=64),
    default=WORKERS,
    show_default=True,
    help="Processes that parse, each with 80 MB.",
)
@click.option("--installed-compare", is_flag=True, help="List where the built skill and the installed torch disagree.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON.")
@told
def build(
    source: str,
    url: str,
    docs_version: str,
    out: Path | None,
    scope: Path,
    cache: str | None,
    allow_missing: int,
    accept_shrink: bool,
    workers: int,
    installed_compare: bool,
    as_json: bool,
) -> None:
    """Build the skill from the official documentation.

    What is built already is left as it is when nothing has changed.
    """
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not an http(s) address", param_hint="--url")
    if not VERSION_NAME.fullmatch(docs_version):
        raise click.BadParameter(f"{docs_version!r} is not stable, main or a release", param_hint="--docs-version")
    request = BuildRequest(
        scope=load_scope(scope),
        out=out or (BUILT if docs_version == "stable" else Path("dist") / docs_version / SKILL_NAME),
        source=source,  # type: ignore[arg-type]  # click has checked it
        url=url,
        docs_version=docs_version,
        cache=cache or "use",  # type: ignore[arg-type]
        allow_missing=allow_missing,
        accept_shrink=accept_shrink,
        workers=workers,
    )
    with progress() as report_progress:
        report = build_skill(request, report_progress)
    for note in (*report.manifest.notes, *report.notes):
        messages.print(f"note: {note}", markup=False)
    disagreements = compare_installed(report.out) if installed_compare else None
    if as_json:
        manifest = json.loads((report.out / "manifest.json").read_text(encoding="utf-8"))
        if disagreements is not None:
            manifest["installed_compare"] = [asdict(disagreement) for disagreement in disagreements]
        click.echo(json.dumps(manifest, indent=1, ensure_ascii=False))
        return
    print_report(report)
    if disagreements is not None:
        print_disagreements(disagreements)


def print_disagreements(disagreements: list[Disagreement]) -> None:
    """Where the documentation and the installed torch disagree, an object a line."""
    for found in disagreements:
        if found.kind == "missing":
            click.echo(f"not in the installed torch: {found.name}")
        else:
            click.echo(f"another signature: {found.name}: documented {found.documented}, installed {found.installed}")
    click.echo(f"{len(disagreements)} objects are documented one way and installed another")


def print_report(report: BuildReport) -> None:
    """What was built, from where, and what is not in it."""
    manifest = report.manifest
    if not report.changed:
        click.echo(f"{report.out}: nothing has changed; {manifest.counts['pages']} pages, as they were")
        return
    covered, documented = manifest.coverage["with_section"], manifest.coverage["documented"]
    click.echo(f"{report.out}: from {manifest.address} ({manifest.reason}), PyTorch {manifest.documentation}")
    click.echo(f"{manifest.counts['pages']} pages, {manifest.counts['sections']} sections")
    click.echo(f"coverage: {covered} of {documented} documented objects")
    size = sum(report.sizes.values())
    click.echo(f"{len(report.sizes)} files, {size / 1024:.0f} KiB")
    for url in manifest.stale:
        click.echo(f"stale: {url}")
    for name in manifest.coverage["missing"]:  # type: ignore[attr-defined]
        click.echo(f"missing: {name}")
    if manifest.left_out:
        click.echo("no room for these sections; the search still names them:")
        for page, count in manifest.left_out.items():
            click.echo(f"  {page} ({count})")


@main.command("check")
@click.argument("skill", metavar="DIR", type=click.Path(path_type=Path), default=BUILT)
@scope_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@told
def check(skill: Path, scope: Path, as_json: bool) -> None:
    """Ask whether the documentation has changed since a skill was built.

    Exit status 0: no; 3: yes, and the pages are listed.
    """
    with progress() as report_progress:
        changes = check_skill(skill, load_scope(scope), report_progress)
    if as_json:
        click.echo(json.dumps(asdict(changes), indent=1))
    else:
        for kind, urls in asdict(changes).items():
            for url in urls:
                click.echo(f"{kind}: {url}")
    messages.print(f"{skill}: the documentation has {'changed' if changes else 'not changed'}", markup=False)
    if changes:
        sys.exit(EXIT_DIFFERENT)


@main.group("cache")
def cache_group() -> None:
    """The pages that were kept, so that a build asks only for what has changed."""


@cache_group.command("clear")
@told
def clear_cache() -> None:
    """Remove them."""
    folder = cache_folder()
    click.echo(f"{folder}: {clear(folder) / 1024:.0f} KiB removed")


@main.command("validate")
@click.argument("skill", metavar="DIR", type=click.Path(path_type=Path), default=BUILT)
@click.option("--hermes", type=click.Path(path_type=Path), help="Hermes' command or Python, for its own scanner.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@told
def validate_command(skill: Path, hermes: Path | None, as_json: bool) -> None:
    """Check that clients will take a skill and that it holds together."""
    findings = validate(skill, hermes=hermes)
    if as_json:
        click.echo(json.dumps([finding_fields(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            place, kind = f"{finding.file}:{finding.line}", f"{finding.severity} [{finding.rule}]"
            click.echo(f"{place}: {kind} {finding.problem}; {finding.remedy}")
    errors = sum(finding.severity == "error" for finding in findings)
    messages.print(f"{skill}: {errors} errors, {len(findings) - errors} warnings")
    if errors:
        sys.exit(EXIT_FAILED)


def finding_fields(finding: Finding) -> dict[str, Any]:
    """A finding for a program."""
    return {name: getattr(finding, name) for name in ("file", "line", "rule", "severity", "problem", "remedy")}


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--dir", "skill", type=click.Path(path_type=Path), default=BUILT, help="The skill to search.")
def search(arguments: tuple[str, ...], skill: Path) -> None:
    """Search a built skill; takes the options of scripts/search_docs.py, and --dir DIR."""
    module = load_search(sources() / "scripts")
    sys.exit(module.main(list(arguments), skill=str(skill)))


@contextmanager
def progress() -> Iterator[records.Progress]:
    """Bars where stderr is a terminal, a line at the start of each stage elsewhere."""
    if not messages.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages, transient=True) as bars:
        yield _Bars(bars)


class _Lines:
    def __init__(self) -> None:
        self._stages: set[str] = set()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._stages:
            self._stages.add(stage)
            messages.print(f"{stage} ...")


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage)
        self._bars.update(self._tasks[stage], completed=done, total=total or None)
