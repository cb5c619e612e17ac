"""Evaluation: the figures of the acceptance script, broken down, with the misses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from skill_builder.errors import IndexDamaged, NotASkill, QuestionsUnusable
from skill_builder.index.evaluate import (
    BUDGET_CHARS,
    Figures,
    Question,
    by,
    compare,
    comparison_as_fields,
    comparison_as_text,
    evaluate,
    figures,
    load_questions,
    report_as_fields,
    run,
    skill_passages,
    skill_sections,
)
from skill_builder.index.rivals import RIVALS, Rival
from tests.index.small import PAGE, small_skill

SHARED = Path(__file__).parents[3] / "shared"
OWN = Path(__file__).parents[1] / "questions.jsonl"
COMMAND = [sys.executable, "-c", "from skill_builder.cli import main; main()", "eval"]


@pytest.fixture
def skill(tmp_path):
    return small_skill(tmp_path / "skill")


def question(*, gold=(), facts=("fact",), style="howto", topic="fsdp2", text="?"):
    return Question("Q1", text, style, topic, tuple(gold), tuple(facts))


def outcome(results, **fields):
    return run(lambda _: results, [question(**fields)])[0]


def test_every_fact_must_be_in_what_an_agent_reads():
    results = [("u", "One FACT."), ("v", "Another\nthing")]
    assert outcome(results, facts=["fact", "another thing"]).answered
    assert outcome(results, facts=["fact", "absent"]).missing == ("absent",)


def test_what_stands_after_the_budget_is_not_read():
    assert outcome([("u", "x" * (BUDGET_CHARS - 4)), ("v", "fact")], facts=["fac"]).answered
    assert not outcome([("u", "x" * (BUDGET_CHARS - 4)), ("v", "fact")], facts=["fact"]).answered


def test_the_rank_is_of_the_first_labelled_section_whatever_the_host_and_version():
    results = [("https://docs.pytorch.org/docs/stable/a.html#x", ""), ("http://127.0.0.1:1/docs/2.13/b.html#y", "")]
    assert outcome(results, gold=["c.html#z", "b.html#y"]).rank == 2
    assert outcome(results, gold=["c.html#z"]).rank == 0
    assert outcome(results, gold=[]).came == ("a.html#x", "b.html#y")


def test_figures_are_shares_of_the_questions():
    ranked = [("u", "fact")] * 5 + [("a.html#x", "")]
    outcomes = [outcome([("a.html#x", "fact")], gold=["a.html#x"]), outcome(ranked, gold=["a.html#x"]), outcome([])]
    found = figures(outcomes)
    assert (found.questions, found.fact_1500, found.gold_5) == (3, 2 / 3, 1 / 3)
    assert found.mrr_10 == pytest.approx((1 + 1 / 6) / 3)
    assert figures([]).questions == 0


def test_groups_have_figures_of_their_own():
    outcomes = [outcome([("u", "fact")], style="howto"), outcome([], style="symptom")]
    assert {name: group.fact_1500 for name, group in by(outcomes, lambda each: each.style).items()} == {
        "howto": 1.0,
        "symptom": 0.0,
    }


def test_a_report_names_what_came_instead_and_what_the_skill_has_no_room_for(skill):
    report = evaluate(
        skill,
        [
            question(text="shard parameters", gold=["a.html#shard"], facts=["splits"]),
            question(text="shard parameters", gold=["a.html#gone"], facts=["nowhere"], style="concept"),
        ],
    )
    assert report.total.fact_1500 == 0.5
    fields = report_as_fields(report)
    assert (fields["style"]["concept"]["fact@1500"], fields["style"]["howto"]["fact@1500"]) == (0.0, 1.0)
    (miss,) = fields["misses"]
    assert (miss["wanted"], miss["has_text"], miss["missing"]) == (("a.html#gone",), False, ("nowhere",))
    assert miss["came"][0] == "a.html#shard"


def test_sections_are_the_passages_put_together_without_those_that_have_no_text(skill):
    sections = dict(skill_sections(skill))
    assert f"{PAGE}#gone" not in sections
    assert len(skill_passages(skill)) > len(sections)
    assert sections[f"{PAGE}#long"].count("gather") == 400


def test_the_figures_are_those_of_the_acceptance_script(built_skill, tmp_path):
    script = SHARED / "eval" / "score.py"
    if not script.is_file():
        pytest.skip(f"{script} is absent")
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(OWN.read_text(encoding="utf-8").splitlines(keepends=True)[:160:8]), encoding="utf-8")
    printed = subprocess.run(
        [sys.executable, str(script), str(built_skill), str(path)], capture_output=True, text=True, check=True
    ).stdout
    theirs = [float(figure) for figure in re.findall(r"(?:fact@1500|gold@5|MRR@10) +([\d.]+)", printed)]
    found = evaluate(built_skill, load_questions(path)).total
    assert [round(figure, 3) for figure in (found.fact_1500, found.gold_5, found.mrr_10)] == theirs
    assert found.fact_1500 > 0


@pytest.mark.parametrize(
    ("line", "problem"),
    [("{", "no question"), ('{"id": "Q1"}', "KeyError"), ("[]", "TypeError"), ('{"id": "Q1", "question": 1}', "style")],
)
def test_a_line_that_is_no_question_is_named(tmp_path, line, problem):
    path = tmp_path / "questions.jsonl"
    path.write_text(f"\n{line}\n", encoding="utf-8")
    with pytest.raises(QuestionsUnusable, match=f"questions.jsonl:2: .*{problem}"):
        load_questions(path)


def test_a_folder_that_is_no_skill_and_a_damaged_index_are_named(skill, tmp_path):
    with pytest.raises(NotASkill, match=r"has no scripts/search_docs\.py"):
        evaluate(tmp_path / "nothing", [])
    (skill / "references" / "index.json").write_text("{}", encoding="utf-8")
    with pytest.raises(IndexDamaged, match=r"index\.json"):
        evaluate(skill, [])


def test_rivals_search_the_same_sections_and_missing_ones_are_skipped_with_a_reason(skill, monkeypatch):
    full_text = next(rival for rival in RIVALS if rival.name == "SQLite FTS5")
    absent = Rival("absent", lambda: "not here", full_text.store, full_text.open)
    monkeypatch.setattr("skill_builder.index.evaluate.RIVALS", (full_text, absent))
    found = compare(skill, [question(text="gather", gold=["a.html#long"], facts=["gather"])], skill / "nothing")
    assert [rival.tool for rival in found] == ["SQLite FTS5", "absent", "Skill Seekers"]
    assert found[0].figures == Figures(1, 1.0, 1.0, 1.0)
    assert [rival.figures for rival in found[1:]] == [None, None]
    assert found[1].note == "not here"
    assert "make bench writes one" in found[2].note
    assert "absent                          skipped: not here" in comparison_as_text(found)
    assert comparison_as_fields(found)[1] == {"tool": "absent", "skipped": "not here"}


def test_the_command_prints_tables_or_json(skill, tmp_path):
    path = tmp_path / "questions.jsonl"
    line = {"id": "Q7", "question": "gather", "style": "howto", "topic": "fsdp2", "gold": ["a.html#no"], "facts": ["y"]}
    path.write_text(json.dumps(line), encoding="utf-8")
    printed = subprocess.run([*COMMAND, str(skill), str(path)], capture_output=True, text=True, check=True).stdout
    assert re.search(r"^  howto +1 +0\.000 +0\.000 +0\.000$", printed, re.MULTILINE)
    assert "miss Q7 gather\n  wanted  a.html#no (no room for its text)\n  without y\n  came    a.html#long" in printed
    as_json = subprocess.run([*COMMAND, str(skill), str(path), "--json"], capture_output=True, text=True, check=True)
    fields = json.loads(as_json.stdout)
    assert list(fields) == ["questions", "all", "style", "topic", "misses"]
    assert fields["all"] == {"questions": 1, "fact@1500": 0.0, "gold@5": 0.0, "MRR@10": 0.0}


def test_the_command_fails_with_one_line(tmp_path):
    done = subprocess.run([*COMMAND, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "name a built skill, or run fsdp-skill build" in done.stderr
