#!/usr/bin/env python3
"""Search this skill's guides and the official PyTorch documentation in it.

    search_docs.py [--budget TOKENS] [--limit N] [--category C] [--json] -- QUERY

QUERY is a question in your own words, an error message, a whole traceback, or the name of an object. ``-`` reads it
from standard input. The best passages come first, as many as fit the budget, each with its file and its official URL.
Exit status: 0 found, 1 nothing found, 2 wrong usage or a broken skill. Needs Python 3.8 and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import zlib
from binascii import a2b_base64
from functools import lru_cache

CHARS_PER_TOKEN = 4
DEFAULT_BUDGET = 1500
DEFAULT_LIMIT = 12
SECTIONS = 5
"""Sections that are shown before more is shown of one."""
MAX_MISSES = 8
"""Passages too long for what is left of the budget, after which no shorter one is looked for."""
MAX_NAMED = 3
"""Objects that gain from a name that several share."""
MAX_QUERY = 20_000
"""Characters; of a longer query the start and the end count, where a log names its command and its error."""
INDEX_FORMAT = 2
SKILL = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# How a passage is ranked; chosen on this project's own questions (tests/questions.jsonl).
SECTION = 1.0
"""Weight of the score of the whole section that a passage is in."""
HINT = 1.0
"""Weight of the score of the section's hint, the words that people use for it."""
HINT_COUNT = 2
"""How often a word of the hint counts in the section."""
EXTRA = 0.5
"""Weight of the words that the thesaurus adds to a query."""
COVERED = 0.5
"""Power of the share of the query, by weight of its words, that the section has."""
NAMED = 0.3
"""What an object that a query names gains, as a share of the best score, if its name is rare."""
ASKED = 2.0
"""The same, where the name is the whole query."""
WINDOWS = (300, 250, 200)
"""Tokens that the best section may have at first, the second, ...; what is left of the budget follows."""
WORTH = 0.4
"""A neighbour is shown with a passage if it has this share of its score."""

# --- words -----------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[0-9]+(?:\.[0-9]+)*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PLAIN_WORD = re.compile(r"[\w.+=-]*\w")
_NAME = re.compile(r"[`'\"]?([A-Za-z_][\w.]*)(?:\(\))?[`'\"]?")
_IDENTIFIER = re.compile(r"[._]|[a-z][A-Z]|[A-Z]{2}[a-z]")

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "after",
        "again",
        "all",
        "also",
        "although",
        "am",
        "an",
        "and",
        "any",
        "anyone",
        "are",
        "as",
        "at",
        "be",
        "because",
        "been",
        "before",
        "being",
        "both",
        "but",
        "by",
        "can",
        "cannot",
        "could",
        "d",
        "did",
        "do",
        "does",
        "doesn",
        "doing",
        "don",
        "done",
        "down",
        "each",
        "either",
        "else",
        "ever",
        "few",
        "for",
        "from",
        "further",
        "get",
        "gets",
        "getting",
        "give",
        "gives",
        "given",
        "go",
        "goes",
        "going",
        "got",
        "had",
        "has",
        "have",
        "having",
        "he",
        "help",
        "her",
        "here",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "isn",
        "it",
        "its",
        "itself",
        "just",
        "know",
        "let",
        "like",
        "ll",
        "look",
        "looks",
        "make",
        "makes",
        "many",
        "may",
        "me",
        "mean",
        "might",
        "more",
        "most",
        "much",
        "must",
        "my",
        "need",
        "needs",
        "no",
        "nor",
        "not",
        "now",
        "of",
        "off",
        "ok",
        "on",
        "once",
        "one",
        "only",
        "or",
        "other",
        "our",
        "ours",
        "out",
        "over",
        "own",
        "please",
        "put",
        "re",
        "really",
        "s",
        "same",
        "say",
        "says",
        "see",
        "seem",
        "seems",
        "she",
        "should",
        "so",
        "some",
        "something",
        "still",
        "such",
        "sure",
        "t",
        "take",
        "than",
        "thank",
        "thanks",
        "that",
        "the",
        "their",
        "theirs",
        "them",
        "then",
        "there",
        "these",
        "they",
        "thing",
        "things",
        "this",
        "those",
        "through",
        "to",
        "too",
        "try",
        "trying",
        "under",
        "until",
        "up",
        "us",
        "use",
        "used",
        "uses",
        "using",
        "ve",
        "very",
        "want",
        "wants",
        "was",
        "way",
        "we",
        "well",
        "were",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "while",
        "who",
        "why",
        "will",
        "with",
        "within",
        "without",
        "won",
        "would",
        "yes",
        "you",
        "your",
        "yours",
    ]
)


@lru_cache(maxsize=None)
def stem(word: str) -> str:
    """Cut a lower-case word's inflection, so that "sharding", "shards" and "sharded" are one term."""
    if len(word) < 4 or not word.isalpha():
        return word
    if word.endswith("ies") and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)] + instead
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "lsz":
        word = word[:-1]
    return word.replace("is", "iz") if word.endswith("is") and len(word) > 6 else word


_ENDINGS = (
    ("ization", "iz"),
    ("isation", "iz"),
    ("ications", "ic"),
    ("ication", "ic"),
    ("uction", "uc"),
    ("ations", ""),
    ("ation", ""),
    ("ating", ""),
    ("ated", ""),
    ("ate", ""),
    ("eed", "eed"),
    ("ing", ""),
    ("ed", ""),
    ("ally", "al"),
    ("ly", ""),
    ("sion", "s"),
    ("e", ""),
)


def tokenize(text: str) -> list[str]:
    """The terms of a text, in order, with repetitions.

    A plain word gives its stem, unless it is a stop word. An identifier (``set_requires_gradient_sync``,
    ``MixedPrecisionPolicy``, ``torch.distributed.fsdp``, ``NCCL_DEBUG``) gives itself in lower case, its last dotted
    part, and the stems of its words.
    """
    terms = []
    for match in _WORD.finditer(text):
        word = match.group()
        lower = word.lower().strip("_.")
        if word[0].isdigit():
            terms.append(word)
            continue
        if not _IDENTIFIER.search(word.strip("_.")):
            if lower not in STOP_WORDS and lower:
                terms.append(stem(lower))
            continue
        terms.append(lower)
        last = lower.rpartition(".")[2]
        if last != lower:
            terms.append(last)
        parts = [stem(part.lower()) for part in _PARTS.findall(word)]
        if len(parts) > 1:
            terms.extend(parts)
    return terms


_FRAME = re.compile(r'^\s*File ".*", line \d+.*$|^\s*[\^~]+\s*$|^Traceback .*:$', re.MULTILINE)
_NOISE = re.compile(
    r"0x[0-9a-fA-F]+|\b\d{4}-\d\d-\d\d[T ][\d:.,]+|^\[?rank\s?\d+\]?:|[^\s\"]*/site-packages/", re.MULTILINE
)
_ERROR_LINE = re.compile(r"Error|Exception|Warning|timed? ?out|failed|assert|abort|hang|mismatch", re.IGNORECASE)
LONG_QUERY = 12
"""Lines; of a longer one those that speak of an error count, and the last ones."""


def focus(query: str) -> str:
    """What a pasted log or traceback asks: its error lines and its end, without frames, addresses and times."""
    query = _NOISE.sub(" ", _FRAME.sub("", query))
    lines = [line for line in dict.fromkeys(line.strip() for line in query.split("\n")) if line]
    if len(lines) <= LONG_QUERY:
        return "\n".join(lines)
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return "\n".join(dict.fromkeys(errors[-LONG_QUERY:] + lines[-3:]))


# --- index -----------------------------------------------------------------------------------------------------


class BrokenSkill(Exception):
    """The index or a reference is missing or damaged."""


class Index:
    """``references/index.json``, as skill_builder/index/build.py documents it.

    Its entries are the passages and, after them, the hints: for a section the words that people use for it.

    Args:
        skill: The skill's folder.

    Raises:
        BrokenSkill: The file is missing or damaged.
    """

    def __init__(self, skill: str) -> None:
        self.folder = os.path.join(skill, "references")
        path = os.path.join(self.folder, "index.json")
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            if data["format"] != INDEX_FORMAT:
                raise BrokenSkill(f"{path} has format {data['format']}, and this search reads format {INDEX_FORMAT}")
            catalog = json.loads(unpack(data["catalog"]))
            self.version: str = data["documentation"]
            self.files: list[str] = catalog["files"]
            self.categories: list[str] = catalog["categories"]
            self.synonyms: dict[str, str] = catalog["synonyms"]
            self.titles: list[str] = catalog["titles"]
            self.urls: list[str] = catalog["urls"]
            self.kinds: list[str] = [catalog["kinds"][number] for number in catalog["kind"]]
            self.category: list[int] = catalog["category"]
            self.parents: list[int] = catalog["parents"]
            self.section: list[int] = catalog["section"]
            self.file: list[int] = catalog["file"]
            self.lines: list[list[int]] = catalog["lines"]
            self.k1: float = data["k1"]
            self.b: float = data["b"]
            self.lengths: list[int] = catalog["lengths"]
            self.norms = self._norms(self.lengths, data["mean"])
            self.idf: list[float] = catalog["idf"]
            self._postings = unpack(data["postings"])
            self.terms = {}
            start = 0
            for term, size in zip(catalog["terms"].split(" "), catalog["sizes"]):
                self.terms[term] = (start, start + size)
                start += size
        except OSError as error:
            raise BrokenSkill(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
            raise BrokenSkill(f"{path} is damaged ({type(error).__name__}: {error})") from error
        lengths = [0] * len(self.titles)
        for entry, section in enumerate(self.section):
            lengths[section] += self.lengths[entry] * (1 if entry < len(self.lines) else HINT_COUNT)
        self.section_norms = self._norms(lengths, sum(lengths) / max(1, len(lengths)))

    def _norms(self, lengths: list[int], mean: float) -> list[float]:
        return [self.k1 * (1 - self.b + self.b * length / mean) for length in lengths]

    def postings(self, term: str) -> list[tuple[int, int]]:
        """The entries that have a term, and how often."""
        return read_postings(self._postings, *self.terms[term]) if term in self.terms else []

    def weigh(self, frequency: int, count: int, norm: float) -> float:
        """BM25 (Okapi) of a term: by how many entries have it, how often this one has it, and the norm of its length."""
        return self.idf[frequency] * (self.k1 + 1) * count / (count + norm)

    def scores(self, terms: list[str]) -> dict[int, float]:
        """BM25 of every entry that has one of the terms, by its number."""
        scores: dict[int, float] = {}
        for term in terms:
            postings = self.postings(term)
            for entry, count in postings:
                weight = self.weigh(len(postings), count, self.norms[entry])
                scores[entry] = scores.get(entry, 0.0) + weight
        return scores

    def read(self, passage: int) -> str:
        """A passage's text, or where to read it if the skill has no room for it."""
        first, last = self.lines[passage]
        if not first:
            return f"This skill has no room for the text of this section. Read it at {self.urls[self.section[passage]]}"
        return clean("\n".join(self._file(self.file[passage])[first - 1 : last]))

    def _file(self, number: int, _cache: dict[str, list[str]] = {}) -> list[str]:  # noqa: B006 - a cache for the run
        path = os.path.join(self.folder, self.files[number])
        if path not in _cache:
            try:
                with open(path, encoding="utf-8") as file:
                    _cache[path] = file.read().split("\n")
            except OSError as error:
                raise BrokenSkill(f"{path}: {error.strerror}") from error
        return _cache[path]

    def heading(self, section: int) -> str:
        """The titles from the page down to the section."""
        titles = [self.titles[section]]
        while self.parents[section] >= 0:
            section = self.parents[section]
            titles.append(self.titles[section])
        return " > ".join(reversed(titles))


_LETTERS = str.maketrans("!#,;^", "IiOo/")


def unpack(lines: list[str]) -> bytes:
    """Bytes from the lines of base64 in which ``index.json`` keeps them compressed, some letters changed."""
    return zlib.decompress(a2b_base64("".join(lines).translate(_LETTERS)))


def read_postings(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """The passages that have a term, and how often.

    Each is one number of 7-bit groups, the highest first, 0x80 marking that more follow: four times the distance from
    the passage before, plus the count less one; 3 there means that the count less four follows as such a number.
    """
    postings = []
    passage, value, long_count = -1, 0, False
    for byte in data[start:end]:
        value = value << 7 | byte & 0x7F
        if byte & 0x80:
            continue
        if long_count:
            postings.append((passage, value + 4))
            long_count = False
        else:
            passage += value >> 2
            if value & 3 == 3:
                long_count = True
            else:
                postings.append((passage, (value & 3) + 1))
        value = 0
    return postings


_INNER_LINK = re.compile(r"\[(`[^`]+`|[^\[\]\n]+)\](?:\[\]|\((?:docs-[\w-]+\.md)?#[^()\s]*\)|(?![\[(]))")


def clean(text: str) -> str:
    """A passage without the marks of links that lead to other parts of the skill: search for the name instead."""
    return _INNER_LINK.sub(lambda match: match.group(1) if match.group(1)[0] == "`" else match.group(), text).strip(
        "\n"
    )


# --- ranking ---------------------------------------------------------------------------------------------------


class Result:
    """Neighbouring passages of one section, to be read at once."""

    def __init__(self, section: int, first: int, last: int, score: float, text: str) -> None:
        self.section = section
        self.first = first
        self.last = last
        self.score = score
        self.text = text


def tokens(text: str) -> int:
    """How many tokens a text is counted as."""
    return -(-len(text) // CHARS_PER_TOKEN)


def search(
    index: Index, query: str, *, budget: int = DEFAULT_BUDGET, limit: int = DEFAULT_LIMIT, category: str | None = None
) -> list[Result]:
    """The best passages for a query, best first.

    Args:
        index: The skill's index.
        query: A question, an error message, a log, or a name.
        budget: Upper limit for the tokens of all texts together.
        limit: Upper limit for the number of results.
        category: Only sections of this category.

    Returns:
        Results whose texts fit the budget; where even the best passage does not, its beginning.
    """
    scores = rank(index, query)
    if category is not None:
        wanted = index.categories.index(category)
        scores = {p: score for p, score in scores.items() if index.category[index.section[p]] == wanted}
    order = sorted(scores, key=lambda p: (-scores[p], p))
    page = Page(index, scores, budget)
    for passage in order:
        if len(page.results) == min(limit, SECTIONS) or page.full:
            break
        if page.is_new(index.section[passage]):
            page.show(passage, WINDOWS[min(len(page.results), len(WINDOWS) - 1)])
    for passage in order:
        if page.full:
            break
        if len(page.results) < limit or page.adjoining(passage):
            page.show(passage, 0)
    if not page.results and order:
        best = order[0]
        page.results.append(Result(index.section[best], best, best, scores[best], index.read(best)))
        page.results[0].text = page.results[0].text[: budget * CHARS_PER_TOKEN]
    return page.results


class Page:
    """What is shown to the reader: windows on sections, within a budget of tokens."""

    def __init__(self, index: Index, scores: dict[int, float], budget: int) -> None:
        self.results: list[Result] = []
        self._index = index
        self._scores = scores
        self._left = budget
        self._misses = 0
        self._texts: set[str] = set()
        self._passages: set[int] = set()

    @property
    def full(self) -> bool:
        """Whether there is no use in trying further passages."""
        return self._misses >= MAX_MISSES

    def is_new(self, section: int) -> bool:
        """Whether nothing of a section is shown."""
        return all(result.section != section for result in self.results)

    def show(self, passage: int, tokens_wanted: int) -> None:
        """Show a passage, unless it is shown or too long, with what is worth it around it."""
        text = self._index.read(passage)
        if passage in self._passages or text in self._texts:
            return
        if tokens(text) > self._left:
            self._misses += 1
            return
        first = last = passage
        texts = {passage: text}
        used = tokens(text)
        while True:
            around = [p for p in (first - 1, last + 1) if self._is_worth(p, passage)]
            around = [p for p in around if used + self._cost(p) <= min(tokens_wanted, self._left)]
            if not around:
                break
            best = max(around, key=lambda p: (self._scores[p], -p))
            texts[best] = self._index.read(best)
            used += self._cost(best)
            first, last = min(first, best), max(last, best)
        self._left -= sum(self._cost(p) for p in texts)
        self._texts.update(texts.values())
        self._passages.update(texts)
        joined = "\n\n".join(texts[p] for p in sorted(texts))
        beside = self.adjoining(passage)
        if beside is None:
            self.results.append(Result(self._index.section[passage], first, last, self._scores[passage], joined))
        elif first < beside.first:
            beside.first, beside.text = first, f"{joined}\n\n{beside.text}"
        else:
            beside.last, beside.text = last, f"{beside.text}\n\n{joined}"

    def adjoining(self, passage: int) -> Result | None:
        """The result that a passage stands right before or after, in the same section."""
        for result in self.results:
            if result.section == self._index.section[passage] and passage in (result.first - 1, result.last + 1):
                return result
        return None

    def _cost(self, passage: int) -> int:
        return tokens(self._index.read(passage)) + 1

    def _is_worth(self, passage: int, beside: int) -> bool:
        return (
            passage in self._scores
            and passage not in self._passages
            and self._index.section[passage] == self._index.section[beside]
            and self._scores[passage] >= WORTH * self._scores[beside]
        )


def rank(index: Index, query: str) -> dict[int, float]:
    """The score of every passage that has to do with the query: its own, its section's and its section's hint's."""
    terms = tokenize(focus(query))
    weights = dict.fromkeys(terms, 0.0)
    for term in terms:
        weights[term] += 1.0
    for term in added_terms(index, query):
        weights[term] = weights.get(term, 0.0) + EXTRA
    entries: dict[int, float] = {}
    sections: dict[int, float] = {}
    covered: dict[int, float] = {}
    asked = 0.0
    for term, weight in weights.items():
        postings = index.postings(term)
        importance = index.idf[len(postings)] if postings else max(index.idf)
        counts: dict[int, int] = {}
        for entry, count in postings:
            entries[entry] = entries.get(entry, 0.0) + weight * index.weigh(len(postings), count, index.norms[entry])
            section = index.section[entry]
            counts[section] = counts.get(section, 0) + count * (1 if entry < len(index.lines) else HINT_COUNT)
        is_asked = term in terms
        asked += importance * is_asked
        for section, count in counts.items():
            norm = index.section_norms[section]
            sections[section] = sections.get(section, 0.0) + weight * index.weigh(len(postings), count, norm)
            covered[section] = covered.get(section, 0.0) + importance * is_asked
    for hint in range(len(index.lines), len(index.section)):
        if hint in entries:
            sections[index.section[hint]] += entries.pop(hint) * HINT / SECTION
    scores = {
        passage: (entries.get(passage, 0.0) + SECTION * sections[section]) * (covered[section] / asked) ** COVERED
        for passage, section in enumerate(index.section[: len(index.lines)])
        if covered.get(section)
    }
    best = max(scores.values(), default=1.0)
    for section, gain in named_sections(index, query).items():
        own = (passage for passage, of in enumerate(index.section[: len(index.lines)]) if of == section)
        for place, passage in enumerate(own):
            scores[passage] = scores.get(passage, 0.0) + best * gain * 0.99**place
    return scores


def added_terms(index: Index, query: str) -> list[str]:
    """What the thesaurus adds for the words and phrases of a query."""
    words = " ".join(_PLAIN_WORD.findall(query.lower()))
    return [
        term
        for phrase, meaning in index.synonyms.items()
        if f" {phrase} " in f" {words} "
        for term in tokenize(meaning)
    ]


def named_sections(index: Index, query: str) -> dict[int, float]:
    """The objects that a query names, and what they gain: more if the name is rare, most if it is all that is asked.

    A name may be full, a last part, or, where nothing has it, nearly right.
    """
    objects = [(title.lower(), section) for section, title in enumerate(index.titles) if is_object(index, section)]
    by_name: dict[str, list[int]] = {}
    for title, section in objects:
        for name in {title, title.rpartition(".")[2]}:
            by_name.setdefault(name, []).append(section)
    match = _NAME.fullmatch(query.strip())
    asked = match.group(1).lower() if match else ""
    names = {word.strip("_.").lower() for word in _WORD.findall(query) if _IDENTIFIER.search(word.strip("_."))}
    gains: dict[int, float] = {}
    for name in sorted(names | ({asked} if asked else set())):
        last = name.rpartition(".")[2]
        found = by_name.get(name) or by_name.get(last)
        if not found and (name == asked or last not in index.terms) and len(last) > 5:
            close = nearest(last, [known for known in by_name if "." not in known], count=1)
            found = by_name[close[0]] if close else None
        rarity = index.idf[len(index.postings(last))] / max(index.idf) if last in index.terms else 1.0
        for section in (found or [])[:MAX_NAMED]:
            gains[section] = max(gains.get(section, 0.0), ASKED if name == asked else NAMED * rarity)
    return gains


def is_object(index: Index, section: int) -> bool:
    """Whether a section documents an object rather than standing under a heading."""
    return index.kinds[section] != "heading"


def nearest(name: str, names: list[str], count: int) -> list[str]:
    """The names that are most like one that nobody knows."""
    from difflib import get_close_matches  # noqa: PLC0415 - 3 ms that only a misspelt name costs

    return get_close_matches(name.lower().rpartition(".")[2], sorted(set(names)), n=count, cutoff=0.84)


# --- command line ----------------------------------------------------------------------------------------------


def as_json(index: Index, query: str, results: list[Result]) -> str:
    """The results for a program."""
    found = [
        {
            "title": index.heading(result.section),
            "url": index.urls[result.section],
            "file": index.files[index.file[result.first]] if index.lines[result.first][0] else None,
            "lines": [index.lines[result.first][0], index.lines[result.last][1]],
            "category": index.categories[index.category[result.section]],
            "score": round(result.score, 4),
            "tokens": tokens(result.text),
            "since": None,
            "until": None,
            "text": result.text,
        }
        for result in results
    ]
    return json.dumps({"query": query, "results": found, "tokens": sum(tokens(r.text) for r in results)}, indent=1)


def as_text(index: Index, results: list[Result]) -> str:
    """The results for a reader."""
    blocks = []
    for result in results:
        first, last = index.lines[result.first][0], index.lines[result.last][1]
        place = f"references/{index.files[index.file[result.first]]}:{first}-{last}  " if first else ""
        blocks.append(f"=== {index.heading(result.section)}\n{place}{index.urls[result.section]}\n\n{result.text}\n")
    return "\n".join(blocks)


def suggestions(index: Index, query: str) -> str:
    """What to try when nothing was found."""
    names = [title.rpartition(".")[2] for section, title in enumerate(index.titles) if is_object(index, section)]
    words = {word for word in _WORD.findall(query) if len(word) > 3}
    near = sorted({match for word in words for match in nearest(word, names + list(index.terms), count=3)})
    return f"the nearest names are: {', '.join(near[:8])}" if near else "try other words, or the name of an object"


def read_query(words: list[str]) -> str:
    """The query of the command line; ``-`` stands for standard input."""
    query = " ".join(words)
    if query == "-":
        query = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if len(query) > MAX_QUERY:
        query = query[: MAX_QUERY // 2] + "\n" + query[-MAX_QUERY // 2 :]
    return query


def main(arguments: list[str] | None = None, skill: str = SKILL) -> int:
    """Parse the command line, search, print.

    Args:
        arguments: Instead of those of the process.
        skill: The skill's folder.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="search_docs.py", description="Search this skill's guides and the official PyTorch documentation in it."
    )
    parser.add_argument(
        "query", nargs="+", metavar="QUERY", help="question, error message or name; - reads it from stdin"
    )
    parser.add_argument("--budget", type=int, default=DEFAULT_BUDGET, help="tokens to print at most (%(default)s)")
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, help="results at most (%(default)s)")
    parser.add_argument("--category", help="only this category, such as fsdp2 or checkpoint")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.budget < 1 or options.limit < 1:
        parser.error("--budget and --limit must be at least 1")
    query = read_query(options.query)
    if not query.strip():
        parser.error("the query is empty: say what you want to know")
    try:
        index = Index(skill)
        if options.category is not None and options.category not in index.categories:
            parser.error(f"no category {options.category!r}: use one of {', '.join(index.categories)}")
        results = search(index, query, budget=options.budget, limit=options.limit, category=options.category)
    except BrokenSkill as error:
        print(f"search_docs.py: {error}; install the skill again, or rebuild it with fsdp-skill build", file=sys.stderr)
        return 2
    if options.json:
        print(as_json(index, query, results))
    elif results:
        print(as_text(index, results), end="")
    if not results:
        print(f"search_docs.py: nothing found; {suggestions(index, query)}", file=sys.stderr)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
