"""What passes between the stages, so that no stage imports another's inside."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Progress = Callable[[str, int, int], None]
"""Called with a stage ("fetching", "rendering", ...), how many are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Page:
    """One documentation page, as it came from a source."""

    url: str
    """The official URL, without fragment, whatever mirror or renderer the page came from."""
    html: str

    @property
    def digest(self) -> str:
        """The first 16 digits of the SHA-256 of the page, which tell whether it changed."""
        return hashlib.sha256(self.html.encode(errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class DocumentedObject:
    """One line of the ``py:`` domain of ``objects.inv``."""

    name: str
    role: str
    """``class``, ``function``, ``method``, ``property``, ``attribute``, ``module``, ..."""
    url: str
    """The official URL with the object's anchor."""


@dataclass(frozen=True, slots=True)
class PageSource:
    """A source that has been reached: what it documents, and its pages."""

    origin: str
    """``site`` or ``installed``."""
    address: str
    """Where the pages come from: the base URL, or the installed torch's version and place."""
    version: str
    """The documentation's version, such as ``2.13``."""
    objects: tuple[DocumentedObject, ...]
    """Every documented object in scope, from the source's own inventory, sorted by URL and name."""
    pages: Iterator[Page]
    """The pages in the order of their URLs, lazily: later ones are fetched while earlier ones are parsed."""
    notes: list[str] = field(default_factory=list)
    """What people should know: missing optional pages, counts of warnings. Grows with ``pages``."""
    stale: list[str] = field(default_factory=list)
    """URLs of the pages that could not be had, for which the last good copy stands. Grows with ``pages``."""


@dataclass(frozen=True, slots=True)
class CodeLink:
    """Where an object is defined, from its ``[source]`` link."""

    file: str
    """Path in the torch package, such as ``torch/distributed/fsdp/api.py``."""
    line: int | None = None
    tag: str | None = None
    """The release tag on GitHub, such as ``v2.13.0``."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Which releases of torch have an object and its parameters, as far as that is not all that are covered.

    Releases are written as ``2.7``; None and nothing stand for "in all releases covered".
    """

    since: str | None = None
    """The first release with the object."""
    until: str | None = None
    """The last release with it."""
    removed: str | None = None
    """The first release without it."""
    deprecated: str | None = None
    """The first release that says not to use it; the empty string if all releases covered do."""
    instead: str | None = None
    """What to write in place of a removed or deprecated object."""
    before: str | None = None
    """What releases before ``since`` have in its place."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Parameters that came later than the object: name and first release."""
    defaults: tuple[tuple[str, str, str | None, str | None], ...] = ()
    """Defaults that changed: parameter, release, the default from it on and the one before; None if required."""


@dataclass(frozen=True, slots=True)
class Section:
    """One heading, or one documented object, with the text that is its own.

    Text under a nested heading or object belongs to that one's section alone.
    """

    url: str
    """The official URL with the section's own anchor."""
    title: str
    """The heading, or the object's qualified name."""
    kind: str
    """``heading``, ``class``, ``function``, ``method``, ``property``, ``attribute``, ..."""
    name: str
    """The object's qualified name as users write it; empty for a heading."""
    parent: str
    """URL of the section that this one stands in; empty for a page's first."""
    depth: int
    """0 for a page's first section, one more for each section around it."""
    markdown: str
    """The text, without the title; links are absolute."""
    category: str
    anchors: tuple[str, ...] = ()
    """Further anchors on the same page that lead here, such as ``module-torch.distributed.fsdp``."""
    code: CodeLink | None = None
    availability: Availability | None = None

    @property
    def page(self) -> str:
        """The URL of the page that the section is on."""
        return self.url.partition("#")[0]


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a reference that an agent reads at once: at most a screenful, never half a code block."""

    file: str
    """Name of the file in ``references/``."""
    lines: tuple[int, int]
    """First and last line, counted from 1."""
    url: str
    titles: tuple[str, ...]
    """From the page's title down to the section's own."""
    kind: str
    name: str
    category: str
    text: str = field(repr=False)
