"""The regression questions stay answerable: their sections exist and hold the facts that an answer needs."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from skill_builder.scope import load_scope

QUESTIONS = [
    json.loads(line) for line in (Path(__file__).parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
]
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=[question["id"] for question in QUESTIONS])
STYLES = {"howto", "symptom", "identifier", "concept"}
FIELDS = ["id", "question", "style", "topic", "gold", "facts", "source"]


def test_ids_and_wordings_are_unique():
    assert len({question["id"] for question in QUESTIONS}) == len(QUESTIONS) >= 80
    assert len({question["question"] for question in QUESTIONS}) == len(QUESTIONS)


def test_every_category_has_three_questions_and_every_style_occurs():
    topics = Counter(question["topic"] for question in QUESTIONS)
    assert set(topics) == {category.name for category in load_scope().categories}
    assert min(topics.values()) >= 3
    assert {question["style"] for question in QUESTIONS} == STYLES


@each_question
def test_a_question_is_complete(question):
    assert list(question) == FIELDS
    assert question["gold"] and question["facts"]
    assert question["source"] == "own" or question["source"].startswith("https://github.com/")


@each_question
def test_a_question_does_not_answer_itself(question):
    assert [fact for fact in question["facts"] if found(fact, question["question"])] == []


@each_question
def test_gold_sections_exist(question, docs_site_sections):
    assert [place for place in question["gold"] if place not in docs_site_sections] == []


@each_question
def test_each_fact_is_in_a_gold_section(question, docs_site_sections):
    texts = [docs_site_sections.get(place, "") for place in question["gold"]]
    assert [fact for fact in question["facts"] if not any(found(fact, text) for text in texts)] == []


def found(fact: str, text: str) -> bool:
    return re.search(fact, text, re.IGNORECASE) is not None
