"""The command line: parse, call, print. The only place that prints or exits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
from rich.console import Console

from skill_builder import records
from skill_builder.errors import BuilderError, NotACheckout, NotASkill, QuestionsUnusable, SkillError
from skill_builder.scope import OFFICIAL_SITE, SCOPE_FILE, Scope, load_scope
from skill_builder.skill.assemble import SKILL_NAME, sources
from skill_builder.skill.frontmatter import FORMATS, TARGETS, Format, Target
from skill_builder.workers import WORKERS, started

if TYPE_CHECKING:
    from rich.progress import Progress

    from skill_builder.build import BuildReport, BuildRequest
    from skill_builder.compare import Disagreement
    from skill_builder.skill.install import Plan
    from skill_builder.skill.validate import Finding

# A command loads what it needs when it runs: all of it takes more than half a second.

P = ParamSpec("P")
R = TypeVar("R")

BUILT = Path("dist") / SKILL_NAME
SEEKERS = Path("build") / "bench" / "skill-seekers"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DIFFERENT = 3

VERSION_NAME = re.compile(r"\w[\w.+-]{0,40}", re.ASCII)

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
def build(as_json: bool, installed_compare: bool, **options: Any) -> None:  # noqa: ANN401 - as `build_request` takes them
    """Build the skill from the official documentation.

    What is built already is left as it is when nothing has changed.
    """
    out = options["out"] = options["out"] or default_out(options["docs_version"])
    # Where a skill is, there may be nothing to do for workers; else they load what they need while this process does.
    with nullcontext() if out.exists() else started(options["workers"]) as pool, progress() as report_progress:
        from skill_builder.build import build_skill

        report = build_skill(build_request(**options), report_progress, pool=pool)
    for note in (*report.manifest.notes, *report.notes):
        messages.print(f"note: {note}", markup=False)
    disagreements = None
    if installed_compare:
        from skill_builder.compare import compare_installed

        disagreements = compare_installed(report.out)
    if as_json:
        manifest = json.loads((report.out / "manifest.json").read_text(encoding="utf-8"))
        if disagreements is not None:
            manifest["installed_compare"] = [asdict(disagreement) for disagreement in disagreements]
        click.echo(json.dumps(manifest, indent=1, ensure_ascii=False))
        return
    print_report(report)
    if disagreements is not None:
        print_disagreements(disagreements)


def default_out(docs_version: str) -> Path:
    """Where the skill of a version is built."""
    return BUILT if docs_version == "stable" else Path("dist") / docs_version / SKILL_NAME


def build_request(
    source: str,
    url: str,
    docs_version: str,
    scope: Path,
    cache: str | None,
    allow_missing: int,
    accept_shrink: bool,
    workers: int,
    out: Path | None = None,
) -> BuildRequest:
    """What the options of ``build`` ask for."""
    from skill_builder.build import BuildRequest

    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is not an http(s) address", param_hint="--url")
    if not VERSION_NAME.fullmatch(docs_version):
        raise click.BadParameter(f"{docs_version!r} is not stable, main or a release", param_hint="--docs-version")
    return BuildRequest(
        scope=load_scope(scope),
        out=out or default_out(docs_version),
        source=source,  # type: ignore[arg-type]  # click has checked it
        url=url,
        docs_version=docs_version,
        cache=cache or "use",  # type: ignore[arg-type]
        allow_missing=allow_missing,
        accept_shrink=accept_shrink,
        workers=workers,
    )


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
    from skill_builder.rebuild import check_skill

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
    from skill_builder.pages.cache import cache_folder, clear

    folder = cache_folder()
    click.echo(f"{folder}: {clear(folder) / 1024:.0f} KiB removed")


hermes_option = click.option(
    "--hermes", type=click.Path(path_type=Path), help="Hermes' command or Python, for its own scanner."
)


@main.command("validate")
@click.argument("skill", metavar="DIR", type=click.Path(path_type=Path), default=BUILT)
@hermes_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@told
def validate_command(skill: Path, hermes: Path | None, as_json: bool) -> None:
    """Check that clients will take a skill and that it holds together."""
    from skill_builder.skill.validate import validate

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


@main.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path), default=BUILT)
@click.option("--html", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write a page to read as well.")
@click.option("--json", "as_json_", is_flag=True, help="Print JSON.")
@told
def diff(old: Path, new: Path, page: Path | None, as_json_: bool) -> None:
    """Compare two built skills by section and object; exit status 3 when they differ."""
    from skill_builder.drift import as_html, as_json, as_text, compare_builds, read_built

    drift = compare_builds(read_built(old), read_built(new))
    if page is not None:
        write_page(page, as_html(drift))
    click.echo(json.dumps(as_json(drift), indent=1) if as_json_ else as_text(drift), nl=as_json_)
    if drift.changes:
        sys.exit(EXIT_DIFFERENT)


def write_page(page: Path, text: str) -> None:
    """Write a page of HTML for people."""
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SkillError(page, f"cannot be written ({error.strerror})", "name another file with --html") from error


def default_home() -> Path:
    """Hermes' home on this machine."""
    from skill_builder.skill.install import hermes_home

    return hermes_home()


home_option = click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=default_home,
    show_default="$HERMES_HOME, or else ~/.hermes",
    help="Hermes' home.",
)
replace_option = click.option(
    "--replace", is_flag=True, help="Other skills of the same name make way; copies are kept."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")


@main.command("package")
@click.argument("skill", metavar="DIR", type=click.Path(path_type=Path), default=BUILT)
@click.option("--target", type=click.Choice(TARGETS), default="hermes", show_default=True, help="The client.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="zip", show_default=True, help="What to write.")
@click.option("--out", type=click.Path(path_type=Path), help="The package's folder.  [default: dist/TARGET-FORMAT]")
@hermes_option
@dry_run_option
@told
def package_command(
    skill: Path, target: Target, form: Format, out: Path | None, hermes: Path | None, *, dry_run: bool
) -> None:
    """Pack a built skill for others, with checksums; the same skill always gives the same bytes."""
    from skill_builder.skill.publish import check_package_place, package, require_valid, write_package

    out = out or Path("dist") / f"{target}-{form}"
    check_package_place(out)
    require_valid(skill, hermes=hermes)
    files = package(skill, target, form)
    if not dry_run:
        write_package(out, files)
    size = sum(len(data) for data in files.values())
    click.echo(f"{out}: {len(files)} files, {size / 1024:.0f} KiB{' would be written' * dry_run}")


@main.command()
@click.argument("skill", metavar="DIR", type=click.Path(path_type=Path), default=BUILT)
@home_option
@replace_option
@hermes_option
@dry_run_option
@told
def install(skill: Path, home: Path, hermes: Path | None, *, replace: bool, dry_run: bool) -> None:
    """Install a built skill for Hermes on this machine."""
    from skill_builder.skill.install import carry_out, locked, plan_install
    from skill_builder.skill.publish import require_valid

    require_valid(skill, hermes=hermes)
    if dry_run:
        print_plan(plan_install(skill, home, replace=replace), dry_run=True)
        return
    with locked(home):
        plan = plan_install(skill, home, replace=replace)
        print_plan(plan, [] if plan.is_same else carry_out(plan))


@main.command()
@home_option
@dry_run_option
@told
def uninstall(home: Path, *, dry_run: bool) -> None:
    """Remove the installed skill; what somebody changed in it is kept."""
    from skill_builder.skill.install import carry_out, locked, plan_uninstall

    if dry_run:
        print_plan(plan_uninstall(home), dry_run=True)
        return
    with locked(home):
        plan = plan_uninstall(home)
        print_plan(plan, carry_out(plan))


def print_plan(plan: Plan, kept: Iterable[Path] = (), *, dry_run: bool = False) -> None:
    """What an install or uninstall does or did, and what it kept of the user's."""
    would = "would be " if dry_run else ""
    if plan.is_same:
        click.echo(f"{plan.place}: up to date")
        return
    click.echo(f"{plan.place}: {would}{'removed' if plan.files is None else 'installed'}")
    for name in plan.edited:
        messages.print(f"note: {plan.place / name} had been changed since it was installed", markup=False)
    for path in plan.makes_way:
        messages.print(f"note: {path} {would}replaced", markup=False)
    for folder in kept:
        messages.print(f"note: kept in {folder}", markup=False)


@main.command()
@home_option
@replace_option
@hermes_option
@click.option("--html", "page", metavar="FILE", type=click.Path(path_type=Path), help="Write what changed as a page.")
@dry_run_option
@told
def update(
    home: Path,
    hermes: Path | None,
    page: Path | None,
    *,
    replace: bool,
    dry_run: bool,
    **options: Any,  # noqa: ANN401 - as `build_request` takes them
) -> None:
    """Build the installed skill anew, validate it, say what changed, and install it if all went well."""
    from skill_builder.drift import as_html, as_text
    from skill_builder.skill.install import place_in
    from skill_builder.update import UpdateRequest
    from skill_builder.update import update as update_skill

    request = UpdateRequest(build_request(**options), home, replace, hermes, dry_run)
    with progress() as report_progress:
        report = update_skill(request, report_progress, lambda skill: has_changed(skill, request.build.scope))
    if report.drift is not None:
        click.echo(as_text(report.drift), nl=False)
        if page is not None and not dry_run:
            write_page(page, as_html(report.drift))
    if report.plan is None:
        click.echo(f"{place_in(home)}: up to date")
    else:
        print_plan(report.plan, report.kept, dry_run=dry_run)


def has_changed(skill: Path, scope: Scope) -> bool:
    """Whether the documentation has changed since a skill was built, or that cannot be told."""
    from skill_builder.rebuild import check_skill

    try:
        return bool(check_skill(skill, scope))
    except NotASkill:
        return True


update.params += [option for option in build.params if option.name not in ("out", "as_json", "installed_compare")]


def finding_fields(finding: Finding) -> dict[str, Any]:
    """A finding for a program."""
    return {name: getattr(finding, name) for name in ("file", "line", "rule", "severity", "problem", "remedy")}


@main.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--dir", "skill", type=click.Path(path_type=Path), default=BUILT, help="The skill to search.")
def search(arguments: tuple[str, ...], skill: Path) -> None:
    """Search a built skill; takes the options of scripts/search_docs.py, and --dir DIR."""
    from skill_builder.index.entries import load_search

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # as the script itself does
    module = load_search(sources() / "scripts")
    sys.exit(module.main(list(arguments), skill=str(skill)))


@main.command()
@click.argument("name", metavar="NAME")
@click.argument("dest", metavar="DEST", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite what is there.")
@told
def template(name: str, dest: Path, *, force: bool) -> None:
    """Copy a training template: fsdp2, fsdp1, mixed_precision or cpu_offload, to the file or folder DEST."""
    from skill_builder.skill.templates import copy_template

    click.echo(copy_template(name, dest, force=force))


@main.command()
@told
def index() -> None:
    """Renew the index over the guides, with which a checkout is a working skill without a build."""
    from skill_builder.build import write_guide_index

    if not (sources() / "pyproject.toml").is_file():
        raise NotACheckout(sources(), "an installed package, whose index is fresh", "run it in a checkout")
    click.echo(write_guide_index(sources()))


@main.command()
@click.argument("releases", metavar="[RELEASE]...", nargs=-1)
@click.option("--wheel", type=click.Path(path_type=Path), help="The release's wheel, if it is at hand.")
@told
def history(releases: tuple[str, ...], wheel: Path | None) -> None:
    """Read torch releases, such as 2.14 or 2.14.1, into the history (default: the newest), and renew its guide."""
    from skill_builder.build import write_guide_index
    from skill_builder.history import HISTORY_FILE, add_release, load_history, save_history
    from skill_builder.history.guide import with_tables

    if wheel is not None and len(releases) != 1:
        raise click.UsageError("--wheel is of one release: name it")
    known = load_history()
    with progress() as report_progress:
        for release in releases or ("newest",):
            known = add_release(known, release, wheel=wheel, progress=report_progress)
    save_history(known)
    guide = sources() / "references" / "guide-versions.md"
    guide.write_text(with_tables(guide.read_text(encoding="utf-8"), known), encoding="utf-8")
    write_guide_index(sources())
    click.echo(f"{HISTORY_FILE}: torch {', '.join(known.versions)}")


@main.command("eval")
@click.argument("skill", metavar="[DIR]", type=click.Path(path_type=Path), default=BUILT)
@click.argument("questions", metavar="[QUESTIONS]", type=click.Path(path_type=Path), required=False)
@click.option("--compare", "with_rivals", is_flag=True, help="Ask other tools too, over the same sections.")
@click.option(
    "--seekers",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=SEEKERS,
    show_default=True,
    help="What Skill Seekers made of the same pages, for --compare.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@told
def eval_command(skill: Path, questions: Path | None, with_rivals: bool, seekers: Path, as_json: bool) -> None:
    """Measure how often a skill's search gives the answer.

    QUESTIONS has a JSON object a line: id, question, style, topic, gold (page.html#anchor of the sections that hold
    the answer) and facts (patterns that an answer matches); the checkout's own if left out.
    """
    from skill_builder.index.evaluate import (
        compare,
        comparison_as_fields,
        comparison_as_text,
        evaluate,
        load_questions,
        report_as_fields,
        report_as_text,
    )

    path = questions or own_questions()
    asked = load_questions(path)
    report = evaluate(skill, asked)
    compared = compare(skill, asked, seekers, lambda tool: messages.print(f"{tool} ...")) if with_rivals else []
    if as_json:
        rivals = {"compare": comparison_as_fields(compared)} if with_rivals else {}
        click.echo(json.dumps({"questions": str(path), **report_as_fields(report), **rivals}, indent=1))
        return
    click.echo(report_as_text(report))
    if with_rivals:
        click.echo(f"\n{comparison_as_text(compared)}")


def own_questions() -> Path:
    """The questions in the checkout that this package is run from."""
    path = Path(__file__).parents[1] / "tests" / "questions.jsonl"
    if not path.is_file():
        raise QuestionsUnusable("QUESTIONS", "is missing, and there is no checkout with its own", "name a file")
    return path


@contextmanager
def progress() -> Iterator[records.Progress]:
    """Bars where stderr is a terminal, a line at the start of each stage elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from stamina.instrumentation import set_on_retry_hooks

    set_on_retry_hooks(())  # Else each new try is a line of stamina's on stderr.
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
