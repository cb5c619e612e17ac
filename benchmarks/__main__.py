"""Everything side by side with other tools: ``make bench`` writes speed.md, retrieval.md and retrieval.svg here.

    python -m benchmarks [--quick]

Wants a copy of the documentation beside the checkout (../shared/docs-site) and Skill Seekers in .venv-seekers, which
``make bench`` installs. It takes about five minutes, on a machine that should do nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import build_time, retrieval, search_time
from benchmarks.processes import ROOT, WORK, Failed, provenance, served

DOCS_SITE = ROOT.parent / "shared" / "docs-site"
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the builder and the search beside other tools.")
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    quick = parser.parse_args().quick
    for path, remedy in ((DOCS_SITE, "put a copy of the pages there"), (build_time.SEEKERS, "run make bench")):
        if not path.exists():
            sys.exit(f"benchmarks: {path} is absent; {remedy}")
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        run(quick=quick)
    except Failed as error:
        sys.exit(f"benchmarks: {error}")
    return 0


def run(*, quick: bool) -> None:
    """Measure, and write the reports."""
    print("building", flush=True)
    with served(DOCS_SITE) as url:
        builds = build_time.measure(url, rounds=1 if quick else 3)
    print("asking", flush=True)
    compared = retrieval.measure(WORK / "rivals", rounds=3 if quick else 15, slow_rounds=1 if quick else 3)
    print("searching", flush=True)
    questions = [question.question for question in compared.sets["own questions"]]
    searches = search_time.measure(
        questions, WORK / "rivals", cold_rounds=5 if quick else 60, warm_rounds=1 if quick else 5
    )
    speed = ["# Speed", provenance(), build_time.as_markdown(builds), search_time.as_markdown(searches)]
    write("speed.md", "\n\n".join(speed) + "\n")
    write("retrieval.md", retrieval.as_markdown(compared))
    write("retrieval.svg", retrieval.plot(compared))


def write(name: str, text: str) -> None:
    (HERE / name).write_text(text, encoding="utf-8")
    print(HERE / name)


if __name__ == "__main__":
    sys.exit(main())
