"""Passages -> ``references/index.json``, which ``scripts/search_docs.py`` reads.

Format 11, a JSON object:

- ``format``, ``about``;
- ``catalog``, ``numbers``, ``postings``: each lines of base64, some letters changed (``LETTERS`` there), of
  zlib-compressed bytes;
- the catalog is a text: the columns that ``TEXTS`` names, divided by ``RECORD``, in each its texts, divided by
  ``FIELD``. ``about`` has the documentation's version, rank-bm25's parameters ``k1`` and ``b``, the mean length of an
  entry in terms, and the largest ``idf``; ``synonyms`` a phrase and its words in turn; ``messages`` an error message in
  lower case and the number of the section about it in turn; ``titles`` and ``anchors`` are the sections', the anchor
  left empty where it is the title; ``releases`` says, where there is something to say, since and until when torch has
  the section's object, what replaces it in later releases and in earlier ones, and its later parameters
  (``2.7 - - old.name mesh=2.9,group=2.10``); ``idf`` is rank-bm25's weight of a term that so many entries have;
  ``terms``, the last column, has ``FIELD`` around each, and those first that most entries have, so that what is looked
  for stands near the start;
- the numbers are the columns that ``NUMBERS`` names, each its length and its values, of 16 bits: first the low bytes
  of all, then the high ones. For each section ``kind``, ``category``, ``page`` (one of ``pages``), ``parents`` (its own
  number where there is none), ``passages`` (how many) and ``section_lengths``, the lengths of its entries, a hint's as
  often as its words count in the section; for each passage, in the order of the sections, ``file``, ``first`` and
  ``last`` line; for each entry ``section`` (the distance from the one before) and ``lengths``: entries are the passages
  and after them the hints, the words that people use for a section; ``frequency``, how many entries have each term;
- the postings are three planes of bytes, each with one for every entry of every term, term by term: the low and the
  high byte of the distance from the entry before (the first one's is its number), and how often the entry has the term
  (255: as often or more).

rank-bm25 (Okapi) weighs the terms; what is stored are its numbers, so that ``idf * (k1 + 1) * count / (count + norm)``,
added up over the words of a query, is its score. The tokenizer is the one in ``search_docs.py``, loaded from that file.

Plain base64 would hold by chance, in one build of ten, what Hermes' scanner takes for an access key (``AKIA`` and
sixteen letters) or for a miner's name, and then blocks the skill; without the letters in ``LETTERS`` none of 600 did.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, ModuleType

from deflate import zlib_compress
from rank_bm25 import BM25Okapi

from skill_builder.index.entries import Entry
from skill_builder.index.passages import MESSAGE
from skill_builder.records import Availability, Section

K1 = 1.2
B = 0.6
"""BM25's saturation and length normalisation, chosen on this project's own questions."""

BEST = 12
"""libdeflate's highest level."""

MIN_MESSAGE = 16
"""Characters of a message that is looked for in queries."""

LINE = 100
"""Characters of base64 a line."""


def build_index(
    entries: Sequence[Entry],
    sections: Iterable[Section],
    version: str,
    search: ModuleType,
    synonyms: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The text of ``index.json``.

    Args:
        entries: The passages in the order of the files, then the hints.
        sections: Every section that an entry belongs to, for the titles around it.
        version: The documentation's version.
        search: ``search_docs.py``, which says how the index is written.
        synonyms: Word or phrase of a query -> words to search for as well.
    """
    scorer = BM25Okapi([entry.terms for entry in entries], k1=K1, b=B)
    passages = [entry.passage for entry in entries if entry.passage is not None]
    by_url = {section.url: section for section in sections}
    used = _used(entries, by_url)
    places = {url: number for number, url in enumerate(used)}
    rows = [by_url[url] for url in used]
    categories = list(dict.fromkeys(section.category for section in rows))
    kinds = list(dict.fromkeys(section.kind for section in rows))
    files = list(dict.fromkeys(passage.file for passage in passages))
    pages = list(dict.fromkeys(section.page for section in rows))
    common = Counter(term for entry in entries for term in set(entry.terms))
    terms = sorted(common, key=lambda term: (-common[term], term))
    postings = _postings(entries, terms)
    weights = {count: scorer.idf[term] for term, count in common.items()}
    idf = [round(weights.get(count, 0.0), 12) for count in range(max(weights, default=0) + 1)]
    passages_of = Counter(passage.url for passage in passages)
    texts: dict[str, Iterable[object]] = {
        "about": (version, scorer.k1, scorer.b, scorer.avgdl, max(idf)),
        "files": files,
        "categories": categories,
        "kinds": kinds,
        "synonyms": (text for pair in sorted(synonyms.items()) for text in pair),
        "messages": (text for number, section in enumerate(rows) for text in _messages(section, number)),
        "titles": (section.title for section in rows),
        "pages": pages,
        "anchors": (anchor if (anchor := section.url.partition("#")[2]) != section.title else "" for section in rows),
        "releases": (_releases(section.availability) for section in rows),
        "terms": ("", *terms, ""),
        "idf": idf,
    }
    numbers: dict[str, list[int]] = {
        "kind": [kinds.index(section.kind) for section in rows],
        "category": [categories.index(section.category) for section in rows],
        "parents": [places.get(section.parent, number) for number, section in enumerate(rows)],
        "page": [pages.index(section.page) for section in rows],
        "passages": [passages_of[url] for url in used],
        "section_lengths": _section_lengths(entries, places, search.HINT_COUNT),
        "section": _distances([places[entry.url] for entry in entries]),
        "lengths": [len(entry.terms) for entry in entries],
        "file": [files.index(passage.file) for passage in passages],
        "first": [passage.lines[0] for passage in passages],
        "last": [passage.lines[1] for passage in passages],
        "frequency": [common[term] for term in terms],
    }
    catalog = search.RECORD.join(search.FIELD.join(map(str, texts[name])) for name in search.TEXTS)
    index = {
        "format": search.INDEX_FORMAT,
        "about": "Search index; written by fsdp-skill build, read by scripts/search_docs.py.",
        "catalog": _packed(catalog.encode(), search.LETTERS),
        "numbers": _packed(_columns([numbers[name] for name in search.NUMBERS]), search.LETTERS),
        "postings": _packed(postings, search.LETTERS),
    }
    return json.dumps(index, indent=0) + "\n"


def _messages(section: Section, number: int) -> Iterator[str]:
    """Each message of a title that holds some, in lower case and long enough to be told from other words."""
    if section.kind == MESSAGE:
        for message in section.title.lower().replace(" ... ", ", ").split(", "):
            if len(message) >= MIN_MESSAGE:
                yield from (message, str(number))


def _releases(found: Availability | None) -> str:
    if found is None:
        return ""
    parameters = ",".join(f"{name}={release}" for name, release in found.parameters)
    words = (found.since, found.until, found.instead if found.until else None, found.before, parameters)
    return " ".join((word or "-").replace(" ", "_") for word in words)


def _used(entries: Iterable[Entry], by_url: dict[str, Section]) -> list[str]:
    """URLs of the sections of the entries, in the order of these, and then of those around them that have none."""
    used = dict.fromkeys(entry.url for entry in entries if entry.url in by_url)
    for url in list(used):
        while (url := by_url[url].parent) in by_url:
            used.setdefault(url)
    return list(used)


def _postings(entries: Sequence[Entry], terms: Sequence[str]) -> bytes:
    """The three planes."""
    found: dict[str, list[tuple[int, int]]] = {term: [] for term in terms}
    for number, entry in enumerate(entries):
        for term, count in Counter(entry.terms).items():
            found[term].append((number, count))
    distances = [
        number - before
        for postings in found.values()
        for (number, _), (before, _) in zip(postings, [(0, 0), *postings], strict=False)
    ]
    counts = bytes(min(count, 255) for postings in found.values() for _, count in postings)
    return _planes(distances) + counts


def _section_lengths(entries: Sequence[Entry], places: Mapping[str, int], hint_count: int) -> list[int]:
    lengths = [0] * len(places)
    for entry in entries:
        lengths[places[entry.url]] += len(entry.terms) * (hint_count if entry.passage is None else 1)
    return lengths


def _columns(columns: Iterable[Sequence[int]]) -> bytes:
    return _planes([value for column in columns for value in (len(column), *column)])


def _planes(values: Sequence[int]) -> bytes:
    """The low bytes of all values, then the high ones; so they compress best."""
    return bytes(value & 0xFF for value in values) + bytes(value >> 8 & 0xFF for value in values)


def _distances(column: Sequence[int]) -> list[int]:
    return [value - before for value, before in zip(column, [0, *column], strict=False)]


def _packed(data: bytes, letters: tuple[bytes, bytes]) -> list[str]:
    text = b64encode(zlib_compress(data, BEST)).translate(bytes.maketrans(*letters)).decode()
    return [text[start : start + LINE] for start in range(0, len(text), LINE)]
