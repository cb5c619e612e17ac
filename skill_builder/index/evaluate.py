"""How often a search gives the answer: labelled questions against a built skill.

An agent reads what it is given first: a question counts as answered when all its facts are in the first 1,500 tokens
of the results' texts (``fact@1500``). ``gold@5`` asks whether a labelled section is among the first five results, and
MRR@10 is the mean reciprocal rank of the first labelled one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any

from skill_builder.errors import IndexDamaged, NotASkill, QuestionsUnusable
from skill_builder.index.entries import load_search
from skill_builder.index.rivals import RIVALS, SKILL_SEEKERS, skill_seekers

if TYPE_CHECKING:
    from skill_builder.index.rivals import Engine, Section

BUDGET_TOKENS = 1500
BUDGET_CHARS = 4 * BUDGET_TOKENS
_ROOT = re.compile(r"^https?://[^/]+/(?:docs/[^/]+/)?")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Question:
    """A question with what answers it."""

    id: str
    question: str
    style: str
    """``howto``, ``symptom``, ``identifier`` or ``concept``."""
    topic: str
    gold: tuple[str, ...]
    """``page.html#anchor`` of each section that holds the answer."""
    facts: tuple[str, ...]
    """Patterns that a text must match, all of them, to be an answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search gave for a question."""

    question: Question
    missing: tuple[str, ...]
    """The facts that an agent would not have read."""
    rank: int
    """Of the first labelled section among the first ten results, from 1; 0 if there is none."""
    came: tuple[str, ...]
    """The first ten results, as ``page.html#anchor``."""

    @property
    def answered(self) -> bool:
        """Whether an agent would have read every fact."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares of a set of questions, from 0 to 1."""

    questions: int
    fact_1500: float
    gold_5: float
    mrr_10: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a skill's search gives for a set of questions."""

    outcomes: tuple[Outcome, ...]
    total: Figures
    by_style: dict[str, Figures]
    by_topic: dict[str, Figures]
    places: frozenset[str]
    """``page.html#anchor`` of the sections whose text is in the skill."""

    @property
    def misses(self) -> list[Outcome]:
        """The questions that are not answered."""
        return [outcome for outcome in self.outcomes if not outcome.answered]

    def has_text(self, question: Question) -> bool:
        """Whether the skill had room for a labelled section, so that the search could answer from it."""
        return not self.places.isdisjoint(question.gold)


@dataclass(frozen=True, slots=True)
class Compared:
    """A rival's figures, or why there are none."""

    tool: str
    figures: Figures | None
    note: str = ""


def load_questions(path: Path) -> list[Question]:
    """Read a file of questions, one JSON object a line.

    Raises:
        QuestionsUnusable: It cannot be read, or a line is no question; the line is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise QuestionsUnusable(path, f"cannot be read ({error.strerror})", "name a file of questions") from error
    return [_question(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _question(line: str, where: str) -> Question:
    try:
        fields = json.loads(line)
        return Question(
            fields["id"],
            fields["question"],
            fields["style"],
            fields["topic"],
            tuple(fields["gold"]),
            tuple(fields["facts"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise QuestionsUnusable(
            where, f"no question ({error!r})", "write id, question, style, topic, gold and facts"
        ) from error


def evaluate(skill: Path, questions: Sequence[Question]) -> Report:
    """Ask a built skill every question.

    Raises:
        NotASkill: The folder holds no search script.
        IndexDamaged: The skill's index is missing or damaged.
    """
    outcomes = run(skill_engine(skill), questions)
    styles, topics = by(outcomes, lambda question: question.style), by(outcomes, lambda question: question.topic)
    places = frozenset(_place(url) for url, _ in skill_sections(skill))
    return Report(tuple(outcomes), figures(outcomes), styles, topics, places)


def skill_engine(skill: Path) -> Engine:
    """The search of a built skill, in this process."""
    search, index = _open(skill)

    def engine(question: str) -> list[Section]:
        found = search.search(index, question, budget=BUDGET_TOKENS)
        return [(index.url(result.section), result.text) for result in found]

    return engine


def skill_passages(skill: Path) -> list[Section]:
    """The passages whose text a built skill has, guides included, each with its section's URL, in order."""
    _, index = _open(skill)
    return [
        (index.url(index.section[passage]), index.read(passage)) for passage, line in enumerate(index.first) if line
    ]


def skill_sections(skill: Path) -> list[Section]:
    """The same by section."""
    texts: dict[str, list[str]] = {}
    for url, text in skill_passages(skill):
        texts.setdefault(url, []).append(text)
    return [(url, "\n\n".join(pieces)) for url, pieces in texts.items()]


def _open(skill: Path) -> tuple[ModuleType, Any]:
    """The skill's own search script, and its index."""
    scripts = skill / "scripts"
    if not (scripts / "search_docs.py").is_file():
        raise NotASkill(skill, "has no scripts/search_docs.py", "name a built skill, or run fsdp-skill build")
    search = load_search(scripts)
    try:
        return search, search.Index(str(skill))
    except search.BrokenSkill as error:
        raise IndexDamaged(skill, str(error), "build the skill again with fsdp-skill build") from error


def compare(
    skill: Path, questions: Sequence[Question], seekers: Path, starting: Callable[[str], None] = lambda tool: None
) -> list[Compared]:
    """Ask each rival that is installed, over the same sections.

    Args:
        skill: The built skill whose sections are searched.
        questions: What is asked.
        seekers: A folder that ``skill-seekers create`` wrote from the same pages.
        starting: Called with each rival's name before it is asked.
    """
    sections = skill_sections(skill)
    compared = []
    for rival in RIVALS:
        if reason := rival.unavailable():
            compared.append(Compared(rival.name, None, reason))
            continue
        starting(rival.name)
        with TemporaryDirectory() as folder:
            rival.store(sections, folder)
            compared.append(Compared(rival.name, figures(run(rival.open(folder), questions))))
    if (seekers / "scripts" / "index.db").is_file():
        starting(SKILL_SEEKERS)
        found = figures(run(skill_seekers(str(seekers)), questions))
        compared.append(Compared(SKILL_SEEKERS, found, "its sections are pages, which are no labelled sections"))
    else:
        compared.append(Compared(SKILL_SEEKERS, None, f"{seekers} is no skill of its own; make bench writes one"))
    return compared


def run(engine: Engine, questions: Iterable[Question]) -> list[Outcome]:
    """Ask every question."""
    return [_ask(engine, question) for question in questions]


def _ask(engine: Engine, question: Question) -> Outcome:
    results = engine(question.question)
    text = _SPACES.sub(" ", "\n".join(text for _, text in results))[:BUDGET_CHARS]
    came = tuple(_place(url) for url, _ in results[:10])
    ranks = [came.index(place) + 1 for place in question.gold if place in came]
    missing = tuple(fact for fact in question.facts if not re.search(fact, text, re.IGNORECASE))
    return Outcome(question, missing, min(ranks, default=0), came)


def _place(url: str) -> str:
    return _ROOT.sub("", url)


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """The shares over some outcomes."""
    count = len(outcomes)
    if not count:
        return Figures(0, 0.0, 0.0, 0.0)
    return Figures(
        questions=count,
        fact_1500=sum(outcome.answered for outcome in outcomes) / count,
        gold_5=sum(0 < outcome.rank <= 5 for outcome in outcomes) / count,
        mrr_10=sum(1 / outcome.rank for outcome in outcomes if outcome.rank) / count,
    )


def by(outcomes: Sequence[Outcome], key: Callable[[Question], str]) -> dict[str, Figures]:
    """The shares of each group of questions, such as each style or topic."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome.question), []).append(outcome)
    return {name: figures(group) for name, group in sorted(groups.items())}


# --- for readers and programs ----------------------------------------------------------------------------------

_HEAD = f"{'':30}{'questions':>10}{'fact@1500':>11}{'gold@5':>8}{'MRR@10':>8}"


def report_as_text(report: Report) -> str:
    """Tables of the figures, in all, by style and by topic, and each miss with what came instead."""
    lines = [_HEAD, _row("all", report.total)]
    for title, groups in (("style", report.by_style), ("topic", report.by_topic)):
        lines += ["", title, *(_row(f"  {name}", group) for name, group in groups.items())]
    without_text = sum(not report.has_text(outcome.question) for outcome in report.misses)
    lines += ["", f"{len(report.misses)} misses, {without_text} of them in sections that the skill has no room for"]
    for outcome in report.misses:
        question = outcome.question
        lines += [
            "",
            f"miss {question.id} {question.question}",
            f"  wanted  {', '.join(question.gold)}{'' if report.has_text(question) else ' (no room for its text)'}",
            f"  without {', '.join(outcome.missing)}",
            f"  came    {', '.join(outcome.came[:5]) or 'nothing'}",
        ]
    return "\n".join(lines)


def comparison_as_text(compared: Iterable[Compared]) -> str:
    """A table of the rivals' figures."""
    lines = [_HEAD]
    for rival in compared:
        if rival.figures is None:
            lines.append(f"{rival.tool:30}  skipped: {rival.note}")
        else:
            lines.append(_row(rival.tool, rival.figures) + (f"  {rival.note}" if rival.note else ""))
    return "\n".join(lines)


def _row(name: str, group: Figures) -> str:
    return f"{name:30}{group.questions:10}{group.fact_1500:11.3f}{group.gold_5:8.3f}{group.mrr_10:8.3f}"


def report_as_fields(report: Report) -> dict[str, Any]:
    """The same for a program."""
    return {
        "all": figures_as_fields(report.total),
        "style": {name: figures_as_fields(group) for name, group in report.by_style.items()},
        "topic": {name: figures_as_fields(group) for name, group in report.by_topic.items()},
        "misses": [
            {
                "id": outcome.question.id,
                "question": outcome.question.question,
                "wanted": outcome.question.gold,
                "has_text": report.has_text(outcome.question),
                "missing": outcome.missing,
                "came": outcome.came,
            }
            for outcome in report.misses
        ],
    }


def comparison_as_fields(compared: Iterable[Compared]) -> list[dict[str, Any]]:
    """A rival's figures, or ``skipped`` with the reason, each for a program."""
    return [
        {"tool": rival.tool, "skipped": rival.note}
        if rival.figures is None
        else {"tool": rival.tool, **figures_as_fields(rival.figures)}
        for rival in compared
    ]


def figures_as_fields(group: Figures) -> dict[str, float]:
    """Figures by the names that they have in tables."""
    return {
        "questions": group.questions,
        "fact@1500": round(group.fact_1500, 3),
        "gold@5": round(group.gold_5, 3),
        "MRR@10": round(group.mrr_10, 3),
    }
