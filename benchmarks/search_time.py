"""Searching: a fresh process against Skill Seekers' and a bare interpreter, and many queries in one process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.processes import SEEKERS_SKILL, SKILL, cold, median_ratio, peak_mb, verdict
from skill_builder.index.evaluate import BUDGET_TOKENS, skill_engine, skill_passages, skill_sections
from skill_builder.index.rivals import RIVALS

MAX_OF_SEEKERS = 0.6
MAX_OF_BARE = 2.5
MAX_OF_RANK_BM25 = 1
MAX_MB = 40
BARE = "python3 -c pass"
OURS = "pytorch-fsdp"
SEEKERS = "Skill Seekers"
PASSAGES = "rank_bm25, the same passages"
SECTIONS = "rank_bm25, whole sections"
RANK_BM25 = next(rival for rival in RIVALS if rival.name == "rank_bm25, our tokenizer")


def ours(question: str) -> list[str]:
    """A search as an agent runs it."""
    script = SKILL / "scripts" / "search_docs.py"
    return [sys.executable, str(script), "--json", "--budget", str(BUDGET_TOKENS), "--", question]


def seekers(question: str) -> list[str]:
    """A search of the skill that Skill Seekers wrote."""
    return [sys.executable, str(SEEKERS_SKILL / "scripts" / "search.py"), "--json", "--", question]


def bare(_question: str) -> list[str]:
    """An interpreter that does nothing."""
    return [sys.executable, "-c", "pass"]


@dataclass(frozen=True)
class Searches:
    """Milliseconds of each round by the name of the tool, and what a search weighs."""

    cold: dict[str, list[float]]
    warm: dict[str, list[float]]
    """Milliseconds a query, of each round."""
    mb: dict[str, float]


def measure(questions: Sequence[str], stored: Path, *, cold_rounds: int, warm_rounds: int) -> Searches:
    """Time searches, a question a round when cold, all questions when warm.

    Args:
        questions: What is asked.
        stored: Where each rival's ``store`` has written, a folder a rival.
        cold_rounds: Rounds of one process a tool.
        warm_rounds: Rounds of all questions.
    """
    commands = {BARE: bare, OURS: ours, SEEKERS: seekers}
    times = measure_cold(commands, questions, cold_rounds)
    mb = {name: max(peak_mb(command(question)) for question in questions[:5]) for name, command in commands.items()}
    return Searches(times, measure_warm(questions, stored, warm_rounds), mb)


def measure_cold(
    commands: dict[str, Callable[[str], list[str]]], questions: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each round by the name of the tool; the tools take turns."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        cold(command(questions[0]))  # reads the files into the system's cache
    for number in range(rounds):
        for name, command in commands.items():
            times[name].append(cold(command(questions[number % len(questions)])))
    return times


def measure_warm(questions: Sequence[str], stored: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a query in one process, opening not counted."""
    engines = {OURS: partial(skill_engine, SKILL)}
    for name, texts in ((PASSAGES, skill_passages(SKILL)), (SECTIONS, skill_sections(SKILL))):
        folder = stored / name
        folder.mkdir(parents=True, exist_ok=True)
        RANK_BM25.store(texts, str(folder))
        engines[f"{name} ({len(texts)})"] = partial(RANK_BM25.open, str(folder))
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, opened in engines.items():
            search = opened()
            started = time.perf_counter()
            for question in questions:
                search(question)
            times[name].append((time.perf_counter() - started) * 1000 / len(questions))
    return times


def as_markdown(searches: Searches) -> str:
    """The figures as Markdown."""
    cold_times, warm = searches.cold, searches.warm
    rounds = len(cold_times[OURS])
    mb = searches.mb[OURS]
    cold_rows = [f"| {name} | {median(times):.1f} | {searches.mb[name]:.0f} |" for name, times in cold_times.items()]
    ratios = {name: median_ratio(warm[OURS], times) for name, times in warm.items()}
    warm_rows = [f"| {name} | {median(times):.2f} | {ratios[name]:.2f} |" for name, times in warm.items()]
    against_passages = next(ratio for name, ratio in ratios.items() if name.startswith(PASSAGES))
    return "\n".join(
        [
            "## Search, a fresh process",
            "",
            f"From the start of the interpreter to its end, {rounds} alternating rounds, each with another question.",
            "",
            "| | ms (median) | memory, MB |",
            "| --- | ---: | ---: |",
            *cold_rows,
            "",
            f"Against Skill Seekers: {verdict(median_ratio(cold_times[OURS], cold_times[SEEKERS]), MAX_OF_SEEKERS)}. "
            f"Against a bare interpreter: {verdict(median_ratio(cold_times[OURS], cold_times[BARE]), MAX_OF_BARE)}. "
            f"Memory: {mb:.0f} MB (target {MAX_MB}{'' if mb <= MAX_MB else ', missed'}).",
            "",
            "## Search, many queries in one process",
            "",
            "Opening not counted, cutting the query into words and reading the texts included. rank_bm25 has our",
            "tokenizer; over whole sections it scores fewer texts than ours does.",
            "",
            "| | ms a query | ours against it |",
            "| --- | ---: | ---: |",
            *warm_rows,
            "",
            f"Against rank_bm25 on the same passages: {verdict(against_passages, MAX_OF_RANK_BM25)}.",
        ]
    )
