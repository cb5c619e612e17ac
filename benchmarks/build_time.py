"""Building from the same pages over loopback: ours against ``skill-seekers create``, in alternating rounds."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.processes import ROOT, SEEKERS_SKILL, SKILL, WORK, Cost, median_ratio, run_tree, verdict
from skill_builder.scope import OFFICIAL_SITE

SEEKERS = ROOT / ".venv-seekers" / "bin" / "skill-seekers"
MAX_RATIO = 0.5
MAX_MB = 400


@dataclass(frozen=True)
class Builds:
    """What each round took."""

    pages: int
    ours: list[Cost]
    theirs: list[Cost]


def measure(url: str, rounds: int) -> Builds:
    """Build both skills as often as there are rounds; the last ones stay in ``SKILL`` and ``SEEKERS_SKILL``."""
    ours, theirs = [], []
    pages: list[str] = []
    for _ in range(rounds):
        ours.append(build_ours(url))
        manifest = json.loads((SKILL / "manifest.json").read_text(encoding="utf-8"))
        pages = [url + page.removeprefix(OFFICIAL_SITE) for page in manifest["pages"]]
        theirs.append(build_theirs(url, pages))
    return Builds(len(pages), ours, theirs)


def build_ours(url: str) -> Cost:
    """One build, as the command line makes it, with nothing kept from an earlier one."""
    shutil.rmtree(SKILL, ignore_errors=True)
    start = "from skill_builder.cli import main; main()"
    command = [sys.executable, "-c", start, "build", "--source", "site", "--url", url, "--out", str(SKILL)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        return run_tree(command, cwd=WORK, env=environment)


def build_theirs(url: str, pages: Sequence[str]) -> Cost:
    """One run of Skill Seekers on the same pages: no pause between pages, no enhancement, with its index."""
    shutil.rmtree(SEEKERS_SKILL, ignore_errors=True)
    source = {
        "type": "documentation",
        "base_url": url,
        "start_urls": list(pages),
        "selectors": {"main_content": "article", "title": "h1", "code_blocks": "pre"},
        "url_patterns": {"include": ["/docs/stable/"], "exclude": ["genindex", "py-modindex", "search.html"]},
        "categories": {},
        "rate_limit": 0,
        "max_pages": len(pages),
    }
    config = {"name": "pytorch-fsdp", "description": "PyTorch distributed training", "sources": [source]}
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [str(SEEKERS), "create", str(path), "--index", "--enhance-level", "0", "--fresh"]
        return run_tree([*command, "--output", str(SEEKERS_SKILL)], cwd=Path(home), env={**os.environ, "HOME": home})


def as_markdown(builds: Builds) -> str:
    """The figures as Markdown."""
    ratio = median_ratio([cost.seconds for cost in builds.ours], [cost.seconds for cost in builds.theirs])
    mb = max(cost.mb for cost in builds.ours)
    rows = [("fsdp-skill build", builds.ours), ("skill-seekers create", builds.theirs)]
    lines = [
        f"| {name} | {median(cost.seconds for cost in costs):.1f} | {max(cost.mb for cost in costs):.0f} |"
        for name, costs in rows
    ]
    return "\n".join(
        [
            "## Build",
            "",
            f"The same {builds.pages} pages from a server on the same machine, {len(builds.ours)} alternating rounds. "
            "Skill Seekers 3.10.0 runs",
            "without pauses and without enhancement, and writes its index. Memory is the peak over all processes.",
            "",
            "| | seconds (median) | memory, MB |",
            "| --- | ---: | ---: |",
            *lines,
            "",
            f"Time against Skill Seekers: {verdict(ratio, MAX_RATIO)}. Memory: {mb:.0f} MB "
            f"(target {MAX_MB}{'' if mb <= MAX_MB else ', missed'}).",
        ]
    )
