"""What the index is built from: passages, and hints, each with its terms. Also in other processes; it loads little."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from skill_builder.corpus.references import Placed
from skill_builder.index.passages import cut_file
from skill_builder.index.thesaurus import Thesaurus
from skill_builder.records import Passage, Section

TITLE_WEIGHT = 2
"""A word of the section's title counts as often as this many in the text; of the titles around it, once."""

_NOT_WORDS = re.compile(r"^Code: `.*$|^ *`{3}\w*$|https?://\S+", re.MULTILINE)
"""What stands in a passage for a reader to follow, and is not what it says."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A passage, or a section's hint, with the terms under which it is found."""

    url: str
    """Of the section."""
    terms: tuple[str, ...]
    passage: Passage | None = None
    """None for a hint."""


def load_search(scripts: Path) -> ModuleType:
    """``search_docs.py`` as a module: the skill's own file, so that building and searching cut words alike."""
    spec = importlib.util.spec_from_file_location("search_docs", scripts / "search_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def index_entry(passage: Passage, tokenize: Callable[[str], list[str]]) -> Entry:
    """A passage with the words of its text and its titles.

    Of an object's full name only the last part counts: the search finds the name itself without the index.
    """
    *around, title = (name.rpartition(".")[2] for name in passage.titles)
    heading, _, rest = passage.text.partition("\n")
    text = _NOT_WORDS.sub(" ", rest if heading.startswith("#") else passage.text)
    terms = tokenize(text) + tokenize(title) * TITLE_WEIGHT + tokenize(" ".join(around))
    return Entry(passage.url, tuple(terms), passage)


def hint_entries(
    sections: Iterable[Section], thesaurus: Thesaurus, tokenize: Callable[[str], list[str]]
) -> list[Entry]:
    """The hints: for each section that the thesaurus knows, the words that people use for it."""
    hints = ((section.url, tokenize(thesaurus.words_for(section))) for section in sections)
    return [Entry(url, tuple(terms)) for url, terms in hints if terms]


@dataclass(frozen=True, slots=True)
class File:
    """A reference or guide that is to be cut."""

    name: str
    text: str
    placed: Sequence[Placed]
    """Its sections, in order."""
    titles: Mapping[str, tuple[str, ...]]
    """URL of each of them -> its title, after those of the sections around it."""


def file_entries(scripts: Path, file: File) -> list[Entry]:
    """The passages of a file with their terms.

    Args:
        scripts: The folder of ``search_docs.py``, which has the tokenizer.
        file: What is cut.
    """
    tokenize = _search(scripts).tokenize
    return [index_entry(passage, tokenize) for passage in cut_file(file.name, file.text, file.placed, file.titles)]


_search = cache(load_search)
