#!/usr/bin/env python3
"""Search this skill's guides and the official PyTorch documentation in it.

usage: search_docs.py [--budget TOKENS] [--limit N] [--category C] [--torch VERSION] [--json] -- QUERY

QUERY is a question in your own words, an error message, a whole log, or the name of an object; - reads it from
standard input. The best passages come first, each with its file and its official URL.

  --budget TOKENS  tokens to print at most, counted as 4 characters each (default 1500)
  --limit N        results to print at most (default 12)
  --category C     only this category, such as fsdp2, checkpoint or guides
  --torch VERSION  mark what this release lacks (default: the torch beside this Python, if there is one)
  --json           print JSON
  -h, --help       print this

Exit status: 0 found, 1 nothing found, 2 wrong usage or a broken skill. Needs Python 3.8 and nothing else.
"""

# A search is a new process each time: importing re, json and argparse would cost more than all of its work, the file is
# compiled each time, and memory that is touched for the first time is slow. So the usual path does without those
# modules and without copies of the index, and the file without annotations.
import gc
import os
import sys
import zlib
from binascii import a2b_base64
from itertools import accumulate

CHARS_PER_TOKEN = 4
DEFAULT_BUDGET = 1500
DEFAULT_LIMIT = 12
MAX_QUERY = 20_000
"""Characters; of a longer query the start and the end count, where a log names its command and its error."""
SKILL = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# How passages are ranked and shown; chosen on this project's own questions (tests/questions.jsonl).
HINT_COUNT = 2
"""How often a word of the hint counts in the section."""
EXTRA = 0.5
"""Weight of the words that the thesaurus adds to a query."""
COVERED = 0.5
"""Power of the share of the query, by weight of its words, that the section has."""
GUIDE = 0.6
"""Weight of a guide beside the documentation: its sections are short, and in the words of users."""
QUOTED = 1.5
"""What a section gains whose title, an error message, stands in the query, as a share of the best score."""
NAMED = 0.3
"""What an object that a query names gains, as a share of the best score, if its name is rare."""
ASKED = 2.0
"""The same, where the name is the whole query."""
LIKELY = 40
"""Sections of which the passages are looked at."""
MAX_NAMED = 3
"""Objects that gain from a name that several share."""
WINDOWS = (400, 300, 250)
"""Tokens that the best section may have, the second and the third, before more is shown of any."""
MAX_MISSES = 8
"""Passages too long for what is left of the budget, after which no shorter one is looked for."""

# --- words -----------------------------------------------------------------------------------------------------

STOP_WORDS = frozenset(
    """a about after again all also although am an and any anyone are as at be because been before being both but by
    can cannot could d did do does doesn doing don done down each either else ever few for from further get gets
    getting give gives given go goes going got had has have having he help her here his how i if in into is isn it its
    itself just know let like ll look looks make makes many may me mean might more most much must my need needs no nor
    not now of off ok on once one only or other our ours out over own please put re really s same say says see seem
    seems she should
    so some something still such sure t take than thank thanks that the their theirs them then there these they thing
    things this those through to too try trying under until up us use used uses using ve very want wants was way we well
    were what when where whether which while who why will with within without won would yes you your yours
    """.split()  # noqa: SIM905 - forty lines as a list
)

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


class _Separators(dict):
    """For str.translate: every character that is in no word becomes a space."""

    def __missing__(self, character):
        self[character] = " "
        return " "


_WORD_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_."
_SEPARATORS = _Separators({ord(character): character for character in _WORD_CHARACTERS})
_TERMS = {}


def words_of(text):
    """The words, numbers and identifiers of a text, as they are written."""
    return [word for word in (piece.strip("._") for piece in text.translate(_SEPARATORS).split()) if word]


def is_identifier(word):
    """Whether a word looks like a name from code: ``no_sync``, ``torch.amp``, ``DeviceMesh``, but not ``GPUs``."""
    if "_" in word or "." in word:
        return not word[0].isdigit()
    inner = word[1:]
    return inner != inner.lower() and not word.isupper() and not (word[-1] == "s" and word[:-1].isupper())


def parts_of(identifier):
    """The words in an identifier: ``set_module``, ``DTensor`` and ``bf16`` give two each."""
    parts = [""]
    for position, character in enumerate(identifier):
        before = parts[-1][-1:]
        if character in "._":
            parts.append("")
            continue
        following = identifier[position + 1 : position + 2]
        starts = character.isupper() and (before.islower() or (before.isupper() and following.islower()))
        if before and (starts or character.isdigit() != before.isdigit()):
            parts.append("")
        parts[-1] += character
    return [part for part in parts if part]


def stem(word):
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
    return word[:-1] + "z" if word.endswith("is") and len(word) > 6 else word


def tokenize(text):
    """The terms of a text, in order, with repetitions.

    A plain word gives its stem, unless it is a stop word. An identifier (``set_requires_gradient_sync``,
    ``MixedPrecisionPolicy``, ``torch.distributed.fsdp``, ``NCCL_DEBUG``) gives itself in lower case, its last dotted
    part, and the stems of its words.
    """
    terms = []
    for word in words_of(text):
        if word not in _TERMS:
            _TERMS[word] = terms_of(word)
        terms += _TERMS[word]
    return terms


def terms_of(word):
    """The terms of one word."""
    lower = word.lower()
    if not is_identifier(word):
        return [] if lower in STOP_WORDS else [stem(lower)]
    last = lower.rpartition(".")[2]
    parts = [stem(part.lower()) for part in parts_of(word)]
    return [lower] + [last] * (last != lower) + parts * (len(parts) > 1)


def focus(query):
    """What a pasted log or traceback asks: its error lines and its end, without frames, addresses and times."""
    if "\n" not in query:
        return query
    import re  # noqa: PLC0415 - see the top

    query = re.sub(r'^\s*File ".*", line \d+.*$|^\s*[\^~]+\s*$|^Traceback .*:$', "", query, flags=re.MULTILINE)
    query = re.sub(
        r"0x[0-9a-f]+|\b\d{4}-\d\d-\d\d[T ][\d:.,]+|^\[?rank\s?\d+\]?:|\S*/site-packages/", " ", query, flags=re.M
    )
    lines = [line for line in dict.fromkeys(line.strip() for line in query.split("\n")) if line]
    errors = [
        line for line in lines if re.search(r"error|exception|warning|timed? ?out|fail|assert|abort|hang", line, re.I)
    ]
    return "\n".join(dict.fromkeys(errors[-8:] + lines[-4:])) if len(lines) > 12 else "\n".join(lines)


# --- index -----------------------------------------------------------------------------------------------------

INDEX_FORMAT = 11
TEXTS = (
    *("about", "files", "categories", "kinds", "synonyms", "messages"),
    *("titles", "pages", "anchors", "releases", "idf", "terms"),
)
NUMBERS = (
    *("kind", "category", "parents", "page", "passages", "section_lengths"),
    *("section", "lengths", "file", "first", "last", "frequency"),
)
"""What is in the catalog and in the numbers, in this order; see skill_builder/index/build.py."""
RECORD, FIELD = "\x1e", "\x1f"
"""Characters that end a column of the catalog, and a text in it."""
LETTERS = (b"IiOo/", b"!#~;^")
"""Letters of base64, and those that index.json has in their place."""
_UNPACK = bytes.maketrans(LETTERS[1], LETTERS[0])


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

    def __init__(self, skill):
        self.folder = os.path.join(skill, "references")
        path = os.path.join(self.folder, "index.json")
        try:
            with open(path, "rb") as file:
                data = file.read().translate(_UNPACK)
            if b'"format": %d,' % INDEX_FORMAT not in data:
                raise BrokenSkill(f"{path} is not of format {INDEX_FORMAT}, which this search reads")
            self._read(unpack(data, "catalog").decode(), unpack(data, "numbers"), unpack(data, "postings"))
        except OSError as error:
            raise BrokenSkill(f"{path}: {error.strerror}") from error
        except (ValueError, IndexError, zlib.error) as error:
            raise BrokenSkill(f"{path} is damaged ({type(error).__name__}: {error})") from error
        self._files = {}
        self._texts = {}
        self._names = ""
        self._matches = {}

    def _read(self, catalog, numbers, postings):
        self._catalog, self._at = catalog, catalog.rindex(RECORD) + 1
        texts = [column.split(FIELD) for column in catalog[: self._at - 1].split(RECORD)]
        about, self.files, self.categories, self.kinds, synonyms, messages, self.titles, *rest = texts
        self._pages, self._anchors, self._releases, self.idf = rest
        self.version, self.k1, self.b, mean, self.rarest = about[0], *map(float, about[1:])
        self.synonyms = dict(zip(synonyms[::2], synonyms[1::2]))
        self.messages = dict(zip(messages[::2], messages[1::2]))
        self.kind, self.category, self.parents, self._page, self._passages, *rest = read_columns(numbers)
        self.section_lengths, section, self.lengths, self.file, self.first, self.last, self._frequency = rest
        self.section = list(accumulate(section))
        self._ends = list(accumulate(self._passages))
        self.base = self.k1 * (1 - self.b)
        self.slope = self.k1 * self.b / mean
        self.section_slope = self.k1 * self.b * len(self.titles) / sum(self.section_lengths)
        self._size = sum(self._frequency)
        self._postings = postings
        if len(postings) != 3 * self._size:
            raise ValueError("postings are missing")

    def passages(self, section):
        """The passages of a section, in order."""
        end = self._ends[section]
        return range(end - self._passages[section], end)

    def knows(self, term):
        """Whether any entry has a term."""
        return self._catalog.find(f"{FIELD}{term}{FIELD}", self._at) >= 0

    def terms(self):
        """Every term, those that most entries have first."""
        return self._catalog[self._at + 1 : -1].split(FIELD)

    def postings(self, term):
        """How often each entry that has a term has it, in order."""
        at = self._catalog.find(f"{FIELD}{term}{FIELD}", self._at)
        if at < 0:
            return {}
        place = self._catalog.count(FIELD, self._at, at)
        start = sum(self._frequency[:place])
        low, high, counts = (
            self._postings[plane + start : plane + start + self._frequency[place]]
            for plane in (0, self._size, 2 * self._size)
        )
        return dict(zip(accumulate(from_planes(low + high)), counts))

    def matches(self, term):
        """The importance of a term, how often each entry has it, and how well each section matches it.

        A section's score is BM25's (Okapi) of its entries together, and of its hint once more.
        """
        if term not in self._matches:
            counts = self.postings(term)
            idf = float(self.idf[len(counts)]) if counts else self.rarest
            gain, base, slope, lengths = idf * (self.k1 + 1), self.base, self.section_slope, self.section_lengths
            section_of, passages = self.section, len(self.first)
            hints = {}
            sections = {}
            for entry, n in counts.items():
                section = section_of[entry]
                if entry < passages:
                    sections[section] = sections.get(section, 0) + n
                else:
                    sections[section] = sections.get(section, 0) + n * HINT_COUNT
                    hints[section] = gain * n / (n + base + self.slope * self.lengths[entry])
            for section, n in sections.items():
                sections[section] = gain * n / (n + base + slope * lengths[section])
            for section, score in hints.items():
                sections[section] += score
            self._matches[term] = idf, counts, sections
        return self._matches[term]

    def score(self, entry, weighted):
        """The score by BM25 (Okapi) of an entry for terms, each with its weight and how often each entry has it."""
        norm = self.base + self.slope * self.lengths[entry]
        found = ((weight, counts[entry]) for weight, counts in weighted if entry in counts)
        return (self.k1 + 1) * sum(weight * n / (n + norm) for weight, n in found)

    def is_object(self, section):
        """Whether a section documents an object rather than standing under a heading."""
        return self.kinds[self.kind[section]] not in ("heading", "message")

    def quoted(self, text):
        """The sections about an error message that stands in a text."""
        text = " ".join(text.lower().split())
        return [int(section) for message, section in self.messages.items() if message in text]

    def named(self, name):
        """The objects that have a name in lower case, whole or as its last part."""
        if not self._names:
            self._names = f".{f'{FIELD}.'.join(self.titles)}{FIELD}".lower()
        ending = f".{name}{FIELD}"
        found, at = [], self._names.find(ending)
        while at >= 0:
            found.append(self._names.count(FIELD, 0, at))
            at = self._names.find(ending, at + 1)
        return [section for section in found if self.is_object(section)]

    def last_names(self):
        """The last part of each object's name, in lower case."""
        names = (title for section, title in enumerate(self.titles) if self.is_object(section))
        return sorted({name.rpartition(".")[2].lower() for name in names})

    def heading(self, section):
        """The titles from the page down to the section."""
        titles = [self.titles[section]]
        while self.parents[section] != section:
            section = self.parents[section]
            titles.append(self.titles[section])
        return " > ".join(reversed(titles))

    def url(self, section):
        """The official URL of a section, or a guide's file and heading."""
        return f"{self._pages[self._page[section]]}#{self._anchors[section] or self.titles[section]}"

    def availability(self, section):
        """Since and until when torch has an object, what replaces it later and earlier, and its later parameters."""
        words = self._releases[section].split(" ")
        return ["" if word == "-" else word for word in words] if len(words) == 5 else [""] * 5

    def read(self, passage):
        """A passage's text, or where to read it if the skill has no room for it."""
        if passage not in self._texts:
            first, last = self.first[passage], self.last[passage]
            if first:
                lines = self._lines(self.files[self.file[passage]])[first - 1 : last]
                self._texts[passage] = clean(b"\n".join(lines).decode(errors="replace"))
            else:
                url = self.url(self.section[passage])
                self._texts[passage] = f"This skill has no room for the text of this section. Read it at {url}"
        return self._texts[passage]

    def _lines(self, name):
        if name not in self._files:
            path = os.path.join(self.folder, name)
            try:
                with open(path, "rb") as file:
                    self._files[name] = file.read().split(b"\n")
            except OSError as error:
                raise BrokenSkill(f"{path}: {error.strerror}") from error
        return self._files[name]


def unpack(data, name):
    """Bytes from a list of lines of base64 in index.json, which hold them compressed."""
    start = data.index(b'"%s": [' % name.encode()) + len(name) + 5
    lines = memoryview(data)[start : data.index(b"]", start)]
    return zlib.decompress(a2b_base64(lines))  # skips quotes, commas and ends of lines


def from_planes(data):
    """Numbers from -32,768 to 32,767 from their low bytes, which come first, and their high ones."""
    half = len(data) // 2
    pairs = bytearray(2 * half)
    pairs[sys.byteorder == "big" :: 2] = data[:half]
    pairs[sys.byteorder == "little" :: 2] = data[half : 2 * half]
    return memoryview(pairs).cast("h")


def read_columns(data):
    """Arrays of numbers: each is its length and then its numbers."""
    values = from_planes(data)
    columns, start = [], 0
    while start < len(values):
        end = start + 1 + values[start]
        columns.append(values[start + 1 : end])
        start = end
    return columns


def clean(text):
    """A passage without the marks of links that lead to other parts of the skill: search for the name instead."""
    start, *links = text.split("[`")
    pieces = [start]
    for link in links:
        name, mark, rest = link.partition("`]")
        if not mark or rest.startswith("(http"):
            pieces.append("[`" + link)
            continue
        if rest.startswith("[]"):
            rest = rest[2:]
        elif rest.startswith(("(#", "(docs-", "(guide-")):
            rest = rest.partition(")")[2]
        pieces.append(f"`{name}`{rest}")
    return "".join(pieces).strip("\n")


# --- ranking ---------------------------------------------------------------------------------------------------


def rank(index, query, category=None):
    """The score of each passage that may answer: its own, its section's and its section's hint's.

    Only sections of the category count, by its place in ``index.categories``, if there is one.
    """
    terms = tokenize(focus(query))
    weights = {}
    for term in terms:
        weights[term] = weights.get(term, 0.0) + 1.0
    asked = frozenset(terms)
    for term in added_terms(index, query):
        weights[term] = weights.get(term, 0.0) + EXTRA
    sections = {}
    covered = {}
    weighted = []
    importance_of_all = 0.0
    for term, weight in weights.items():
        importance, of_entries, of_sections = index.matches(term)
        weighted.append((weight * importance, of_entries))
        for section, score in of_sections.items():
            sections[section] = sections.get(section, 0.0) + weight * score
        if term in asked:
            importance_of_all += importance
            for section in of_sections:
                covered[section] = covered.get(section, 0.0) + importance
    guides = index.categories.index("guides") if "guides" in index.categories else -1
    shares = {
        section: (part / importance_of_all) ** COVERED * (GUIDE if index.category[section] == guides else 1.0)
        for section, part in covered.items()
        if category in (None, index.category[section])
    }
    likely = sorted(shares, key=lambda section: -sections[section] * shares[section])[:LIKELY]
    scores = {
        passage: (index.score(passage, weighted) + sections[section]) * shares[section]
        for section in likely
        for passage in index.passages(section)
    }
    best = max(scores.values(), default=1.0)
    for section, gain in {**named_sections(index, query), **dict.fromkeys(index.quoted(query), QUOTED)}.items():
        if category not in (None, index.category[section]):
            continue
        for place, passage in enumerate(index.passages(section)):
            scores[passage] = scores.get(passage, 0.0) + best * gain * 0.99**place
    return scores


def added_terms(index, query):
    """What the thesaurus adds for the words and phrases of a query."""
    separated = query.lower().translate({ord(mark): " " for mark in "?!,;:()[]{}<>\"'`\n\t"})
    words = f" {' '.join(word.strip('.') for word in separated.split())} "
    found = (meaning for phrase, meaning in index.synonyms.items() if f" {phrase} " in words)
    return [term for meaning in found for term in tokenize(meaning)]


def named_sections(index, query):
    """The objects that a query names, and what they gain: more if the name is rare, most if it is all that is asked.

    A name may be full, a last part, or, where nothing has it, nearly right.
    """
    words = words_of(query)
    asked = words[0].lower() if len(words) == 1 else ""
    names = {word.lower() for word in words if is_identifier(word)} | ({asked} if asked else set())
    gains = {}
    for name in sorted(names):
        last = name.rpartition(".")[2]
        found = index.named(name) or index.named(last)
        if not found and (name == asked or not index.knows(last)) and len(last) > 5:
            close = nearest(last, index.last_names(), count=1)
            found = index.named(close[0]) if close else []
        rarity = index.matches(last)[0] / index.rarest
        for section in found[:MAX_NAMED]:
            gains[section] = max(gains.get(section, 0.0), ASKED if name == asked else NAMED * rarity)
    return gains


def nearest(name, names, count):
    """The names that are most like one that nobody knows."""
    from difflib import get_close_matches  # noqa: PLC0415 - see the top

    return get_close_matches(name.lower().rpartition(".")[2], sorted(set(names)), n=count, cutoff=0.84)


# --- releases --------------------------------------------------------------------------------------------------


def installed_torch():
    """The version of the torch beside this Python, as its version.py says; empty if there is none."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), "rb") as file:
                said = file.read().partition(b"__version__ = ")[2].decode(errors="replace")
        except OSError:
            continue
        return said[1:].partition(said[:1])[0] if said else ""
    return ""


def release_number(version):
    """``(2, 7)`` of ``2.7``, ``2.7.1`` and ``2.7.1+cu128``; empty if that is no version."""
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(part.isdigit() for part in parts) else ()


def lacking(index, section, torch):
    """What a release of torch lacks of an object, and what it has instead; empty if nothing."""
    since, until, instead, before, parameters = index.availability(section)
    release = release_number(torch)
    if not release:
        return ""
    if since and release_number(since) > release:
        return f"{f'Use `{before}`: ' if before else ''}torch {torch} lacks this, which is new in {since}."
    if until and release_number(until) < release:
        return f"{f'Use `{instead}`: ' if instead else ''}torch {torch} lacks this; the last with it is {until}."
    pairs = (pair.split("=") for pair in parameters.split(",") if pair)
    newer = [f"`{name}` (new in {first})" for name, first in pairs if release_number(first) > release]
    return f"torch {torch} lacks its {', '.join(newer)}." if newer else ""


# --- what is shown ---------------------------------------------------------------------------------------------


class Result:
    """Neighbouring passages of one section, to be read at once."""

    def __init__(self, section, first, last, score, text):
        self.section = section
        self.first = first
        self.last = last
        self.score = score
        self.text = text


def tokens(text):
    """How many tokens a text is counted as."""
    return -(-len(text) // CHARS_PER_TOKEN)


def search(
    index,
    query,
    *,
    budget=DEFAULT_BUDGET,
    limit=DEFAULT_LIMIT,
    category=None,
    torch="",
):
    """The best passages for a query, best first, in all at most ``budget`` tokens; of the best at least its beginning.

    Only sections of the category count, if there is one; what the release ``torch`` lacks is said first.
    """
    scores = rank(index, query, None if category is None else index.categories.index(category))
    order = sorted(scores, key=lambda p: (-scores[p], p))
    sections = {index.section[passage] for passage in order}
    remarks = {section: remark for section in sections if (remark := lacking(index, section, torch))} if torch else {}
    results = []
    for first, last in choose(index, order, scores, remarks, budget=budget, limit=limit):
        section = index.section[first]
        texts = [remarks[section]] if section in remarks else []
        texts += map(index.read, range(first, last + 1))
        results.append(
            Result(section, first, last, max(map(scores.__getitem__, range(first, last + 1))), "\n\n".join(texts))
        )
    if not results and order:
        best = order[0]
        text = index.read(best)[: budget * CHARS_PER_TOKEN]
        results.append(Result(index.section[best], best, best, scores[best], text))
    return results


def choose(index, order, scores, remarks, *, budget, limit):
    """Which passages are shown: runs of neighbours of one section, each by its first and last passage.

    The best sections come first, with what stands around their best passage, up to ``WINDOWS``; then whatever else
    scores best, at the end of a run or as a new one, as long as the budget lasts.
    """
    runs = []
    shown = set()
    misses = 0

    def cost(passage):
        return tokens(index.read(passage)) + 1

    for windows in (WINDOWS, ()):
        for passage in order:
            if misses >= MAX_MISSES or (windows and len(runs) >= min(limit, len(windows))):
                break
            section, text = index.section[passage], index.read(passage)
            of_section = [run for run in runs if index.section[run[0]] == section]
            if text in shown or (windows and of_section):
                continue
            beside = next((run for run in of_section if passage in (run[0] - 1, run[1] + 1)), None)
            price = cost(passage) + (tokens(remarks[section]) + 1 if section in remarks and beside is None else 0)
            if price > budget or (beside is None and len(runs) >= limit):
                misses += price > budget
                continue
            shown.add(text)
            budget -= price
            if beside is not None:
                beside[:] = [min(beside[0], passage), max(beside[1], passage)]
                continue
            runs.append([passage, passage])
            room = min(budget, windows[len(runs) - 1] - cost(passage)) if windows else 0
            while True:
                around = (p for p in (runs[-1][0] - 1, runs[-1][1] + 1) if p in scores and index.section[p] == section)
                best = max((p for p in around if cost(p) <= room), key=lambda p: (scores[p], -p), default=None)
                if best is None:
                    break
                shown.add(index.read(best))
                budget -= cost(best)
                room -= cost(best)
                runs[-1] = [min(runs[-1][0], best), max(runs[-1][1], best)]
    return runs


# --- command line ----------------------------------------------------------------------------------------------


def as_json(index, query, results):
    """The results for a program."""
    found = []
    for result in results:
        first, last = index.first[result.first], index.last[result.last]
        file = json_text(index.files[index.file[result.first]]) if first else "null"
        category = json_text(index.categories[index.category[result.section]])
        since, until = (json_text(release) if release else "null" for release in index.availability(result.section)[:2])
        found.append(
            f'{{"title": {json_text(index.heading(result.section))}, "url": {json_text(index.url(result.section))}, '
            f'"file": {file}, "lines": [{first}, {last}], "category": {category}, "score": {result.score:.4f}, '
            f'"tokens": {tokens(result.text)}, "since": {since}, "until": {until}, "text": {json_text(result.text)}}}'
        )
    total = sum(tokens(result.text) for result in results)
    return f'{{"query": {json_text(query)}, "results": [{", ".join(found)}], "tokens": {total}}}'


def json_text(text):
    """A text as JSON."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    if plain.isprintable():
        return f'"{plain}"'
    import json  # noqa: PLC0415 - see the top

    return json.dumps(text)


def as_text(index, results):
    """The results for a reader."""
    blocks = []
    for result in results:
        first, last = index.first[result.first], index.last[result.last]
        place = f"references/{index.files[index.file[result.first]]}:{first}-{last}  " if first else ""
        since = index.availability(result.section)[0]
        title = index.heading(result.section) + (f" (since {since})" if since else "")
        blocks.append(f"=== {title}\n{place}{index.url(result.section)}\n\n{result.text}\n")
    return "\n".join(blocks)


def suggestions(index, query):
    """What to try when nothing was found."""
    known = index.last_names() + index.terms()
    words = {word for word in words_of(query)[:50] if len(word) > 3}
    near = sorted({match for word in words for match in nearest(word, known, count=3)})
    return f"the nearest names are: {', '.join(near[:8])}" if near else "try other words, or the name of an object"


class Usage(Exception):
    """The command line is wrong."""


def parse(arguments):
    """The options of a command line by their names, and the query."""
    options = {}
    words = list(arguments)
    while words and words[0].startswith("-") and words[0] != "-":
        name, equals, value = words.pop(0).partition("=")
        if name == "--":
            break
        if name in ("--json", "--help", "-h"):
            options[name] = ""
        elif name in ("--budget", "--limit", "--category", "--torch"):
            options[name] = value if equals else words.pop(0) if words else ""
        else:
            raise Usage(f"no option {name!r}; see --help")
    return options, " ".join(words)


def number(options, name, default):
    """The value of an option that is a number."""
    value = options.get(name, str(default))
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise Usage(f"{name} wants a whole number of at least 1, not {value!r}")
    return int(value)


def read_query(words):
    """The query of the command line; ``-`` stands for standard input."""
    query = sys.stdin.buffer.read().decode("utf-8", errors="replace") if words == "-" else words
    if not query.strip():
        raise Usage("the query is empty: say what you want to know")
    if len(query) > MAX_QUERY:
        query = query[: MAX_QUERY // 2] + "\n" + query[-MAX_QUERY // 2 :]
    return query


def main(arguments=None, skill=SKILL):
    """Search as the command line says, which is the process's if there are no arguments; gives the exit status."""
    try:
        return run(sys.argv[1:] if arguments is None else arguments, skill)
    except (Usage, BrokenSkill) as error:
        remedy = "; install the skill again, or rebuild it with fsdp-skill build" * isinstance(error, BrokenSkill)
        print(f"search_docs.py: {error}{remedy}", file=sys.stderr)
        return 2


def run(arguments, skill):
    """Parse the command line, search, print."""
    options, words = parse(arguments)
    if "--help" in options or "-h" in options:
        print(__doc__, end="")
        return 0
    budget, limit = number(options, "--budget", DEFAULT_BUDGET), number(options, "--limit", DEFAULT_LIMIT)
    category, torch = options.get("--category"), options.get("--torch")
    if torch is not None and not release_number(torch):
        raise Usage(f"--torch wants a release such as 2.7, not {torch!r}")
    query = read_query(words)
    index = Index(skill)
    if category is not None and category not in index.categories:
        raise Usage(f"no category {category!r}: use one of {', '.join(index.categories)}")
    beside = installed_torch() if torch is None else ""
    results = search(index, query, budget=budget, limit=limit, category=category, torch=torch or beside)
    documented = release_number(index.version)
    if beside and documented and documented != release_number(beside):
        note = f"beside this Python is torch {beside}, the documentation is of {index.version}; what it lacks is marked"
        print(f"search_docs.py: {note}", file=sys.stderr)
    if "--json" in options:
        print(as_json(index, query, results))
    elif results:
        print(as_text(index, results), end="")
    if not results:
        print(f"search_docs.py: nothing found; {suggestions(index, query)}", file=sys.stderr)
    return 0 if results else 1


if __name__ == "__main__":
    gc.disable()
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has what it wants
        status = 0
    os._exit(status)  # taking the index apart would cost as much as the search
