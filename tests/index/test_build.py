"""The index: rank-bm25's own scores, in few bytes, the same bytes each time."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rank_bm25 import BM25Okapi

from skill_builder.build import write_guide_index
from skill_builder.index.build import K1, B, build_index
from skill_builder.index.entries import Entry, index_entry, load_search
from skill_builder.records import Passage, Section
from skill_builder.skill.assemble import sources

SEARCH = load_search(sources() / "scripts")
SHARED = Path(__file__).parents[3] / "shared"
WORDS = ["shard", "gather", "reduce", "mesh", "rank", "torch", "load", "save", "hook", "optimizer", "dtype", "cpu"]


def write(folder, texts):
    """An index over one passage a text, and the entries that it was built from."""
    entries, sections = [], []
    for number, text in enumerate(texts):
        url = f"https://docs.pytorch.org/docs/stable/a.html#s{number}"
        sections.append(Section(url, f"Title {number}", "heading", "", "", 0, text, "fsdp2"))
        passage = Passage("a.md", (number + 1, number + 1), url, (f"Title {number}",), "heading", "", "fsdp2", text)
        entries.append(index_entry(passage, SEARCH.tokenize))
    (folder / "references").mkdir()
    (folder / "references" / "a.md").write_text("\n".join(texts), encoding="utf-8")
    (folder / "references" / "index.json").write_text(build_index(entries, sections, "2.13", SEARCH), "utf-8")
    return SEARCH.Index(str(folder)), entries


def assert_same_scores(index, entries, query):
    terms = SEARCH.tokenize(query)
    expected = BM25Okapi([entry.terms for entry in entries], k1=K1, b=B).get_scores(terms)
    weighted = [index.matches(term)[:2] for term in terms]
    for number, score in enumerate(expected):
        assert index.score(number, weighted) == pytest.approx(score, rel=1e-9, abs=1e-9)


def test_scores_are_those_of_rank_bm25(tmp_path):
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 60))) for _ in range(50)]
    index, entries = write(tmp_path, texts)
    for word in WORDS:
        assert_same_scores(index, entries, word)
    assert_same_scores(index, entries, " ".join(WORDS * 2))


def test_a_term_in_most_passages_keeps_rank_bm25s_floor(tmp_path):
    index, entries = write(tmp_path, ["shard mesh"] * 9 + ["gather"])
    assert_same_scores(index, entries, "shard gather")


def test_postings_survive_large_gaps_and_counts(tmp_path):
    texts = ["needle " * 700] + ["hay"] * 400 + ["needle " * 3] + ["hay"] * 40 + ["needle " * 4]
    index, _ = write(tmp_path, texts)
    assert index.postings("needl") == {0: 255, 401: 3, 442: 4}


def test_scores_on_the_built_skill_are_those_of_rank_bm25(built_skill, indexed_entries):
    questions = SHARED / "eval" / "questions.jsonl"
    if not questions.is_file():
        pytest.skip(f"{questions} is absent")
    index = SEARCH.Index(str(built_skill))
    for line in questions.read_text(encoding="utf-8").splitlines():
        assert_same_scores(index, indexed_entries, json.loads(line)["question"])


def test_the_same_passages_give_the_same_bytes_whatever_the_hash_seed(tmp_path):
    script = (
        "from tests.index.test_build import write; from pathlib import Path; import sys;"
        "write(Path(sys.argv[1]), ['shard the mesh', 'gather NCCL_DEBUG', 'fully_shard(model)'])"
    )
    texts = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([sys.executable, "-c", script, str(folder)], check=True, env=environment)
        texts.append((folder / "references" / "index.json").read_bytes())
    assert texts[0] == texts[1]


def test_what_is_packed_holds_none_of_the_letters_that_look_like_a_key(tmp_path):
    write(tmp_path, ["shard " * n for n in range(1, 200)])
    data = json.loads((tmp_path / "references" / "index.json").read_text(encoding="utf-8"))
    packed = "".join(data["catalog"] + data["postings"])
    assert not set(packed) & set(SEARCH.LETTERS[0])


def test_an_entry_has_the_words_of_its_text_and_titles():
    passage = Passage("a.md", (1, 1), "u", ("Page", "fully_shard"), "function", "fully_shard", "fsdp2", "Shards it.")
    assert index_entry(passage, SEARCH.tokenize) == Entry(
        "u", ("shard", "fully_shard", "ful", "shard", "fully_shard", "ful", "shard", "pag"), passage
    )


def test_the_index_over_the_guides_that_is_committed_is_fresh(tmp_path):
    (tmp_path / "references").mkdir()
    shutil.copy(sources() / "SKILL.md", tmp_path)
    for guide in (sources() / "references").glob("guide-*.md"):
        shutil.copy(guide, tmp_path / "references")
    fresh = write_guide_index(tmp_path).read_text("utf-8")
    assert (sources() / "references" / "index.json").read_text("utf-8") == fresh, "run `make fix`"
    answer = SEARCH.search(SEARCH.Index(str(sources())), "the order of calls with fully_shard")
    assert answer[0].text
