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

from skill_builder.errors import BuilderError
from skill_builder.index.build import load_search

BUDGET_TOKENS = 1500
BUDGET_CHARS = 4 * BUDGET_TOKENS
_ROOT = re.compile(r"^https?://[^/]+/(?:docs/[^/]+/)?")
_SPACES = re.compile(r"\s+")


class QuestionsUnusable(BuilderError):
    """A file of questions cannot be read."""


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


Engine = Callable[[str], Sequence[tuple[str, str]]]
"""A search: question -> URL and text of each result, best first, the texts together about 1,500 tokens."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search gave for a question."""

    question: Question
    answered: bool
    rank: int
    """Of the first labelled section among the first ten results, from 1; 0 if there is none."""
    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares of a set of questions, from 0 to 1."""

    questions: int
    fact_1500: float
    gold_5: float
    mrr_10: float


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


def skill_engine(skill: Path) -> Engine:
    """The search of a built skill, in this process."""
    search = load_search(skill / "scripts")
    index = search.Index(str(skill))

    def engine(question: str) -> list[tuple[str, str]]:
        found = search.search(index, question, budget=BUDGET_TOKENS)
        return [(index.url(result.section), result.text) for result in found]

    return engine


def run(engine: Engine, questions: Iterable[Question]) -> list[Outcome]:
    """Ask every question."""
    return [_ask(engine, question) for question in questions]


def _ask(engine: Engine, question: Question) -> Outcome:
    results = engine(question.question)
    text = _SPACES.sub(" ", "\n".join(text for _, text in results))[:BUDGET_CHARS]
    urls = tuple(_ROOT.sub("", url) for url, _ in results[:10])
    ranks = [urls.index(place) + 1 for place in question.gold if place in urls]
    answered = all(re.search(fact, text, re.IGNORECASE) for fact in question.facts)
    return Outcome(question, answered, min(ranks, default=0), urls)


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
