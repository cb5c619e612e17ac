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
DEFAULT_LIMIT = 8
MAX_QUERY = 20_000
"""Characters; of a longer query the start and the end count, where a log names its command and its error."""
MAX_MISSES = 8
"""Passages too long for what is left of the budget, after which no shorter one is looked for."""
MAX_NAMED = 3
"""Objects that are shown first when several share the name that was asked for."""
NAMED = 2.0
"""How far an object that is the query stands above the best passage that only mentions it."""
INDEX_FORMAT = 1
SKILL = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# --- words -----------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*|[0-9]+(?:\.[0-9]+)*")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
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


# --- index -----------------------------------------------------------------------------------------------------


class BrokenSkill(Exception):
    """The index or a reference is missing or damaged."""


class Index:
    """``references/index.json``, as skill_builder/index/build.py documents it.

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
            self.titles: list[str] = catalog["titles"]
            self.urls: list[str] = catalog["urls"]
            self.kinds: list[str] = [catalog["kinds"][number] for number in catalog["kind"]]
            self.category: list[int] = catalog["category"]
            self.parents: list[int] = catalog["parents"]
            self.section: list[int] = catalog["section"]
            self.file: list[int] = catalog["file"]
            self.lines: list[list[int]] = catalog["lines"]
            self.saturation: float = data["k1"] + 1
            self.norms = [data["k1"] * (1 - data["b"] + data["b"] * n / data["mean"]) for n in catalog["lengths"]]
            self.idf: list[float] = catalog["idf"]
            self.postings = unpack(data["postings"])
            self.terms = {}
            start = 0
            for term, size in zip(catalog["terms"].split(" "), catalog["sizes"]):
                self.terms[term] = (start, start + size)
                start += size
        except OSError as error:
            raise BrokenSkill(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
            raise BrokenSkill(f"{path} is damaged ({type(error).__name__}: {error})") from error

    def scores(self, terms: list[str]) -> dict[int, float]:
        """BM25 (Okapi) of every passage that has one of the terms, by its number."""
        scores: dict[int, float] = {}
        for term in terms:
            if term not in self.terms:
                continue
            postings = read_postings(self.postings, *self.terms[term])
            weight = self.idf[len(postings)] * self.saturation
            for passage, count in postings:
                scores[passage] = scores.get(passage, 0.0) + weight * count / (count + self.norms[passage])
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
    results: list[Result] = []
    seen: set[str] = set()
    spent = misses = 0
    for passage in sorted(scores, key=lambda p: (-scores[p], p)):
        text = index.read(passage)
        cost = tokens(text)
        if text in seen:
            continue
        if spent + cost > budget:
            misses += 1
            if not results:
                cut = text[: budget * CHARS_PER_TOKEN]
                return [Result(index.section[passage], passage, passage, scores[passage], cut)]
            if misses == MAX_MISSES:
                break
            continue
        neighbour = next((r for r in results if adjoins(index, r, passage)), None)
        if neighbour is None and len(results) == limit:
            break
        seen.add(text)
        spent += cost
        if neighbour is None:
            results.append(Result(index.section[passage], passage, passage, scores[passage], text))
        elif passage < neighbour.first:
            neighbour.first, neighbour.text = passage, f"{text}\n\n{neighbour.text}"
        else:
            neighbour.last, neighbour.text = passage, f"{neighbour.text}\n\n{text}"
    return results


def adjoins(index: Index, result: Result, passage: int) -> bool:
    """Whether a passage stands right before or after a result, in the same section."""
    return index.section[passage] == result.section and passage in (result.first - 1, result.last + 1)


def rank(index: Index, query: str) -> dict[int, float]:
    """The score of every passage that has to do with the query."""
    scores = index.scores(tokenize(query))
    for section in named_sections(index, query):
        own = [passage for passage, of in enumerate(index.section) if of == section]
        best = max(scores.values(), default=1.0)
        for place, passage in enumerate(own):
            scores[passage] = best * (NAMED - place * 0.01) + scores.get(passage, 0.0)
    return scores


def named_sections(index: Index, query: str) -> list[int]:
    """The objects that the whole query names: by the full name, else by its last part, else nearly."""
    match = _NAME.fullmatch(query.strip())
    if match is None:
        return []
    name = match.group(1).lower()
    objects = [(title.lower(), section) for section, title in enumerate(index.titles) if is_object(index, section)]
    exact = [section for title, section in objects if title == name]
    ending = [section for title, section in objects if title.endswith("." + name)]
    if exact or ending:
        return (exact or ending)[:MAX_NAMED]
    close = nearest(name, [title.rpartition(".")[2] for title, _ in objects], count=1)
    return [section for title, section in objects if title.rpartition(".")[2] in close][:MAX_NAMED]


def is_object(index: Index, section: int) -> bool:
    """Whether a section documents an object rather than standing under a heading."""
    return index.kinds[section] != "heading"


def nearest(name: str, names: list[str], count: int) -> list[str]:
    """The names that are most like one that nobody knows."""
    from difflib import get_close_matches  # noqa: PLC0415 - 3 ms that only a misspelt name costs

    return get_close_matches(name.lower().rpartition(".")[2], sorted(set(names)), n=count, cutoff=0.8)


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
