"""Rivals: each finds its way in sections that it has stored, in this process and in one of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skill_builder.index import rivals
from skill_builder.index.rivals import RESULTS, RIVALS, skill_seekers

SECTIONS = [
    ("a.html#shard", "Sharding splits the parameters of a module over the ranks."),
    ("a.html#save", "Saving a checkpoint writes each rank's part to its own file."),
    ("a.html#clip", "Clipping limits the norm of all gradients together."),
    *((f"b.html#{number}", f"Filler about topic number {number}.") for number in range(RESULTS)),
]
ASKED = "saving a checkpoint"
SEEKERS_SKILL = Path(__file__).parents[2] / "build" / "bench" / "skill-seekers"
each_rival = pytest.mark.parametrize("rival", RIVALS, ids=[rival.name for rival in RIVALS])


@pytest.fixture
def stored(rival, tmp_path):
    if reason := rival.unavailable():
        pytest.skip(reason)
    rival.store(SECTIONS, str(tmp_path))
    return tmp_path


@each_rival
def test_the_section_with_the_words_comes_first_with_its_text(rival, stored):
    found = rival.open(str(stored))(ASKED)
    assert found[0] == SECTIONS[1]
    assert len(found) <= RESULTS


@each_rival
def test_a_process_of_its_own_finds_the_same(rival, stored):
    command = [sys.executable, rivals.__file__, str(stored), rival.name, ASKED]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert [tuple(section) for section in json.loads(printed)] == rival.open(str(stored))(ASKED)


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if "MiniLM" not in rival.name], ids=lambda each: each.name)
@pytest.mark.parametrize("question", ["", "?! …", "zyzzyva", '"unbalanced OR (', "NEAR NOT AND"])
def test_a_question_without_a_known_word_finds_nothing(rival, stored, question):
    assert rival.open(str(stored))(question) == []


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if rival.name == "SQLite FTS5"], ids=["SQLite FTS5"])
def test_any_word_of_a_question_is_enough_for_full_text_search(rival, stored):
    assert rival.open(str(stored))("how does xyzzy clipping work?")[0] == SECTIONS[2]


def test_a_rival_that_is_not_installed_says_what_to_install():
    rival = rivals.Rival("x", rivals._wants("sys", "no_such_module"), lambda *_: None, lambda _: list)
    assert rival.unavailable() == "no_such_module not installed; pip install 'fsdp-skill[bench]'"


def test_skill_seekers_own_search_gives_whole_pages_once():
    if not SEEKERS_SKILL.is_dir():
        pytest.skip(f"{SEEKERS_SKILL} is absent; make bench writes it")
    found = skill_seekers(str(SEEKERS_SKILL))("fully_shard")
    assert found
    assert len({text for _, text in found}) == len(found)
    assert all(url.startswith("http") and "fully_shard" in text for url, text in found)
