"""The fragments that Markdown readers (GitHub's rules) give to headings, so that links can lead to them."""

from __future__ import annotations

import re
from collections import Counter

_LEFT_OUT = re.compile(r"[^\w\- ]")


def slug(title: str) -> str:
    """The fragment of a heading, before equal ones are numbered.

    >>> slug("`fully_shard`: what it does, and when")
    'fully_shard-what-it-does-and-when'
    """
    return _LEFT_OUT.sub("", title.strip().lower()).replace(" ", "-")


class Fragments:
    """Gives the headings of one file their fragments, in order; from the second on, equal ones are numbered."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def add(self, title: str) -> str:
        """The next heading's fragment."""
        base = slug(title)
        count = self._seen[base]
        self._seen[base] += 1
        return f"{base}-{count}" if count else base
