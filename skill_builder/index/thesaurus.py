"""The words of users for the words of the documentation: ``thesaurus.yaml``, hand-written, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

import yaml

from skill_builder.errors import ScopeError
from skill_builder.records import Section
from skill_builder.scope import SAFE_LOADER, page_name

_WILD = re.compile(r"[*?\[]")
_ENDING = re.compile(r"(?:[^*?\[#]*#)?\*\.[^*?\[]*")
THESAURUS_FILE = Path(__file__).with_name("thesaurus.yaml")


@dataclass(frozen=True)
class Thesaurus:
    """What people say for what the documentation says."""

    sections: Mapping[str, str]
    """Shell pattern of a place (``page#anchor``) -> words under which its section is found as well."""
    terms: Mapping[str, str]
    """Word or phrase of a query -> words to search for as well."""

    def words_for(self, section: Section) -> str:
        """All words for a section; empty where the thesaurus has none."""
        place = _place(section)
        patterns = [place] if place in self.sections else []
        # Most patterns are an ending from a dot on, of any page or of one: these are looked up, not tried one by one.
        page = place.partition("#")[0]
        endings = [f"*{place[start:]}" for start, character in enumerate(place) if character == "."]
        patterns += (p for ending in endings for p in (ending, f"{page}#{ending}") if p in self.sections)
        others = (*self._others.get(page, ()), *self._others.get("", ()))
        patterns += (pattern for pattern in others if fnmatchcase(place, pattern))
        return " ".join(self.sections[pattern] for pattern in patterns)

    def unused(self, sections: Iterable[Section]) -> list[str]:
        """The patterns that match none of the sections."""
        places = {_place(section) for section in sections}
        return [p for p in self.sections if p not in places and not any(fnmatchcase(place, p) for place in places)]

    @cached_property
    def _others(self) -> dict[str, list[str]]:
        """The patterns that must be tried, by their page; under "" those for several."""
        found: dict[str, list[str]] = {}
        for pattern in self.sections:
            if _WILD.search(pattern) and not _ENDING.fullmatch(pattern):
                page = pattern.partition("#")[0]
                found.setdefault("" if _WILD.search(page) else page, []).append(pattern)
        return found


def _place(section: Section) -> str:
    return f"{page_name(section.url)}#{section.url.partition('#')[2]}"


@cache
def load_thesaurus(path: Path = THESAURUS_FILE) -> Thesaurus:
    """Read a thesaurus.

    Raises:
        ScopeError: The file is missing, is not YAML, or does not map texts to texts.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=SAFE_LOADER)  # noqa: S506 - it is the safe one
    except OSError as error:
        raise ScopeError(path, f"cannot be read ({error.strerror})", "restore it from the repository") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ScopeError(f"{path}:{mark.line + 1 if mark else 1}", "is not YAML", "mend the syntax") from error
    for key in ("sections", "terms"):
        texts = data.get(key) if isinstance(data, dict) else None
        if not isinstance(texts, dict) or not all(isinstance(text, str) for pair in texts.items() for text in pair):
            raise ScopeError(
                path, f"{key!r} does not map texts to texts", "write `key: words` lines, in quotes if need be"
            )
    return Thesaurus(data["sections"], data["terms"])
