"""Which pages are in scope, and which category each section belongs to: ``scope.yaml``, read and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from skill_builder.errors import ScopeError

SCOPE_FILE = Path(__file__).with_name("scope.yaml")
SAFE_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's safe loader, in C where PyYAML was built with it."""

OFFICIAL_SITE = "https://docs.pytorch.org/"


@dataclass(frozen=True, slots=True)
class Category:
    """One reference file, ``references/docs-<name>.md``."""

    name: str
    title: str
    about: str
    """What is in it, a list of topics for the reader who chooses a file."""
    sections: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The file's name in ``references/``."""
        return f"docs-{self.name}.md"


@dataclass(frozen=True, slots=True)
class Documentation:
    """What belongs to the skill of all that an ``objects.inv`` lists."""

    pages: tuple[str, ...]
    objects: tuple[str, ...]
    exclude: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StubObject:
    """An object that an installed page documents."""

    module: str
    """The module that users import it from."""
    name: str
    """Its name there, dotted inside a class; ``__doc__`` stands for the module's own text."""
    members: tuple[str, ...] = ()
    """Which members of a class are documented with it; ``*`` alone: every public one that has a docstring."""

    @property
    def qualified(self) -> str:
        """The name by which documentation refers to it."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class StubSection:
    """A heading of an installed page and the objects under it."""

    title: str
    """The heading, whose slug is the anchor; empty for what stands before the first one."""
    objects: tuple[StubObject, ...]


@dataclass(frozen=True, slots=True)
class StubPage:
    """A page of the API that is rendered from the installed torch."""

    name: str
    """The official page's name, such as ``elastic/run``."""
    title: str
    modules: tuple[str, ...]
    """Modules whose anchors are on this page."""
    sections: tuple[StubSection, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits of the built skill and of its shares, in KiB."""

    skill: int
    file: int
    docs: int
    index: int
    guides: int
    scripts: int
    rest: int


@dataclass(frozen=True, slots=True)
class Scope:
    """The whole of ``scope.yaml``."""

    path: Path
    documentation: Documentation
    tutorials: tuple[str, ...]
    leave_out: tuple[str, ...]
    """Patterns of pages and of ``page#anchor``; the first goes first when the budget is short."""
    categories: tuple[Category, ...]
    installed: tuple[StubPage, ...]
    """The pages of ``--source installed``."""
    budget: Budget

    def has_page(self, page: str) -> bool:
        """Whether a page belongs to the skill for its own sake, whatever objects it documents."""
        return matches(page, self.documentation.pages) and not matches(page, self.documentation.exclude)

    def has_object(self, name: str, page: str) -> bool:
        """Whether a documented object belongs to the skill: by its name, or because its page does."""
        if matches(page, self.documentation.exclude):
            return False
        return self.has_page(page) or name.startswith(self.documentation.objects)

    def category_of(self, page: str, anchors: Iterable[str], name: str, parent: str) -> str:
        """The category of a section.

        Args:
            page: The page's name, such as ``distributed``.
            anchors: Every anchor of the section.
            name: The documented object's qualified name, or empty.
            parent: The category of the section around it; empty for a page's first.

        Raises:
            ScopeError: No category takes the page.
        """
        places = [f"{page}#{anchor}" for anchor in anchors]
        for category in self.categories:
            if any(matches(place, category.sections) for place in places):
                return category.name
        for category in self.categories:
            if name and category.objects and name.startswith(category.objects):
                return category.name
        if parent:
            return parent
        for pattern, category in self._page_patterns():
            if fnmatchcase(page, pattern):
                return category.name
        raise ScopeError(
            self.path,
            f"no category takes the page {page!r}",
            "name it under `pages` of the category it belongs to",
        )

    def _page_patterns(self) -> list[tuple[str, Category]]:
        """Page patterns, the most specific first: exact names before wildcards, long before short."""
        pairs = [(pattern, category) for category in self.categories for pattern in category.pages]
        return sorted(pairs, key=lambda pair: ("*" in pair[0] or "?" in pair[0], -len(pair[0]), pair[0]))


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether any of the shell patterns matches the whole name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@cache
def page_name(url: str) -> str:
    """The name by which ``scope.yaml`` knows an official page.

    >>> page_name("https://docs.pytorch.org/docs/stable/elastic/run.html#usage")
    'elastic/run'
    >>> page_name("https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html")
    'tutorials/intermediate/TP_tutorial'
    """
    path = url.removeprefix(OFFICIAL_SITE).partition("#")[0].removesuffix(".html")
    return path.split("/", 2)[2] if path.startswith("docs/") else path


def load_scope(path: Path = SCOPE_FILE) -> Scope:
    """Read and check a scope file.

    Raises:
        ScopeError: The file is missing, is not YAML, or has a wrong or unknown key; the line is named.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=SAFE_LOADER)
    except OSError as error:
        raise ScopeError(path, f"cannot be read ({error.strerror})", "restore it from the repository") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        raise ScopeError(where, "is not YAML", "mend the syntax at this line") from error
    reader = _Reader(path)
    top = reader.mapping(
        root, required=("documentation", "tutorials", "leave_out", "categories", "installed", "budget")
    )
    documentation = reader.mapping(top["documentation"], required=_names(Documentation))
    return Scope(
        path=path,
        documentation=Documentation(**{key: reader.strings(node) for key, node in documentation.items()}),
        tutorials=reader.strings(top["tutorials"]),
        leave_out=reader.strings(top["leave_out"]),
        categories=tuple(reader.category(name, node) for name, node in reader.mapping(top["categories"]).items()),
        installed=reader.stub_pages(top["installed"]),
        budget=Budget(
            **{key: reader.number(node) for key, node in reader.mapping(top["budget"], required=_names(Budget)).items()}
        ),
    )


def _names(record: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(record))


class _Reader:
    """Checks YAML nodes, so that every complaint has a line number."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def error(self, node: yaml.Node | None, problem: str, remedy: str) -> ScopeError:
        line = node.start_mark.line + 1 if node else 1
        return ScopeError(f"{self.path}:{line}", problem, remedy)

    def mapping(
        self, node: yaml.Node | None, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, "a mapping is expected here", "write `key: value` lines")
        found: dict[str, yaml.Node] = {}
        known = required + optional
        for key, value in node.value:
            name = str(key.value)
            if known and name not in known:
                raise self.error(key, f"unknown key {name!r}", f"use one of {', '.join(known)}")
            if name in found:
                raise self.error(key, f"key {name!r} stands twice", "remove one of the two")
            found[name] = value
        for name in required:
            if name not in found:
                raise self.error(node, f"key {name!r} is missing", "add it")
        return found

    def strings(self, node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise self.error(node, "a list of names is expected here", "write one `- name` a line")
        return tuple(str(item.value) for item in node.value)

    def string(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(node, "a text is expected here", "write it on the same line")
        return str(node.value)

    def number(self, node: yaml.Node) -> int:
        if not isinstance(node, yaml.ScalarNode) or not str(node.value).isascii() or not str(node.value).isdigit():
            raise self.error(node, "a whole number is expected here", "write digits only")
        return int(node.value)

    def category(self, name: str, node: yaml.Node) -> Category:
        keys = self.mapping(node, required=("title", "about"), optional=("sections", "objects", "pages"))
        if not all((part.isalnum() and part.islower()) or part.isdigit() for part in name.split("-")):
            raise self.error(node, f"category {name!r} is not a file name", "use lower-case words joined by hyphens")
        return Category(
            name=name,
            title=self.string(keys["title"]),
            about=self.string(keys["about"]),
            **{key: self.strings(keys[key]) for key in ("sections", "objects", "pages") if key in keys},
        )

    def stub_pages(self, node: yaml.Node) -> tuple[StubPage, ...]:
        pages = tuple(self.stub_page(name, page) for name, page in self.mapping(node).items())
        if not pages:
            raise self.error(node, "no page is named here", "name at least one")
        return pages

    def stub_page(self, name: str, node: yaml.Node) -> StubPage:
        keys = self.mapping(node, required=("title",), optional=("modules", "objects", "sections"))
        first = [StubSection("", self.stub_objects(keys["objects"]))] if "objects" in keys else []
        headed = self.mapping(keys["sections"]) if "sections" in keys else {}
        return StubPage(
            name=name,
            title=self.string(keys["title"]),
            modules=self.strings(keys["modules"]) if "modules" in keys else (),
            sections=(
                *first,
                *(StubSection(title, self.stub_objects(objects)) for title, objects in headed.items()),
            ),
        )

    def stub_objects(self, node: yaml.Node) -> tuple[StubObject, ...]:
        objects: list[StubObject] = []
        for module, names in self.mapping(node).items():
            if not isinstance(names, yaml.SequenceNode):
                raise self.error(names, "a list of objects is expected here", "write [name, Class.*, ...]")
            objects += [self.stub_object(module, item) for item in names.value]
        return tuple(objects)

    def stub_object(self, module: str, node: yaml.Node) -> StubObject:
        members: tuple[str, ...] = ()
        if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
            [(key, listed)] = node.value
            name, members = self.string(key), self.strings(listed)
        else:
            name = self.string(node)
            if name.endswith(".*"):
                name, members = name.removesuffix(".*"), ("*",)
        if not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
            raise self.error(node, f"{module}.{name} is no name in Python", "write it as users do")
        return StubObject(module, name, members)
