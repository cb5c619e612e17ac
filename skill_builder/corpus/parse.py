"""A page -> its sections: one for each heading and one for each documented object.

Sphinx nests headings as ``<section id=...>`` and objects as ``<dl class="py ..."><dt id=...><dd>``. Each such
element is an *owner*: its text is what stands in it and in no owner inside it, so that every word of the page
is in one section, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bs4 import BeautifulSoup, Tag

from skill_builder.corpus.harmless import is_anchor, title_text
from skill_builder.corpus.markdown import Converter, classes, signature_block
from skill_builder.corpus.tidy import CODE_LINK, NoArticle, tidy_article
from skill_builder.errors import PageUnusable
from skill_builder.records import CodeLink, Page, Section
from skill_builder.scope import Scope, page_name

_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_ON_GITHUB = re.compile(r"https://github\.com/pytorch/pytorch/blob/([^/]+)/([^#]+)(?:#L(\d+))?")


class _Element(Tag):
    """A tag that finds a parent by name alone, as markdownify does at each tag, without building a filter for it."""

    def find_parent(self, name: str) -> Tag | None:  # type: ignore[override]  # the only way in which it is called
        return next((parent for parent in self.parents if parent.name == name), None)


@dataclass(frozen=True, slots=True)
class _Owner:
    element: Tag
    parent: _Owner | None

    @property
    def depth(self) -> int:
        return self.parent.depth + 1 if self.parent else 0


def parse_page(page: Page, scope: Scope) -> list[Section]:
    """The sections of a page, in the order of the page.

    Raises:
        PageUnusable: The page has no article, or no text in it, or is nested too deep.
        ScopeError: No category takes the page.
    """
    try:
        article = BeautifulSoup(tidy_article(page.html), "lxml", element_classes={Tag: _Element}).find(True)
        assert isinstance(article, Tag)
        owners = _recognised(article)
    except NoArticle as error:
        remedy = "open it in a browser: is this a Sphinx page, and has the site's theme changed?"
        raise PageUnusable(page.url, str(error), remedy) from error
    headings = [heading for owner in owners if (heading := _heading(owner)) is not None]
    converter = Converter(page.url, apart=[owner.element for owner in owners] + headings)
    sections: dict[int, Section] = {}
    for owner in owners:
        around = sections[id(owner.parent.element)] if owner.parent else None
        section = _section(owner, page.url, converter)
        category = scope.category_of(
            page_name(page.url),
            (section.url.partition("#")[2], *section.anchors),
            section.name,
            around.category if around else "",
        )
        sections[id(owner.element)] = replace(section, category=category, parent=around.url if around else "")
    found = _with_leftover(list(sections.values()), converter.to_markdown(article), page, scope)
    if not any(section.markdown for section in found):
        raise PageUnusable(page.url, "the article has no text", "open the page in a browser and see what it holds")
    return found


def _recognised(article: Tag) -> list[_Owner]:
    """The owners of an article.

    Raises:
        NoArticle: It has headings, but there is no owner.
    """
    owners = list(_owners(article))
    if not owners and article.find(_HEADINGS):
        raise NoArticle("no heading is recognised (none is in a <section> with an id)")
    return owners


def _owners(article: Tag) -> Iterator[_Owner]:
    known: dict[int, _Owner] = {}
    for element in article.find_all(("section", "div", "dl")):
        if _is_owner(element):
            around = next((known[id(parent)] for parent in element.parents if id(parent) in known), None)
            owner = known[id(element)] = _Owner(element, around)
            yield owner


def _is_owner(element: Tag) -> bool:
    if element.name == "dl":
        term = element.find("dt", id=True, recursive=False) if "py" in classes(element) else None
        return term is not None and is_anchor(str(term["id"]))
    is_section = element.name == "section" or (element.name == "div" and "section" in classes(element))
    return is_section and is_anchor(str(element.get("id", "")))


def _own_elements(element: Tag) -> Iterator[Tag]:
    """The elements inside an owner that stand in no owner inside it."""
    for child in element.children:
        if isinstance(child, Tag) and not _is_owner(child):
            yield child
            yield from _own_elements(child)


def _heading(owner: _Owner) -> Tag | None:
    if owner.element.name == "dl":
        return None
    return next((element for element in _own_elements(owner.element) if element.name in _HEADINGS), None)


def _section(owner: _Owner, url: str, converter: Converter) -> Section:
    """A section without its category and parent, which depend on the one around it."""
    elements = [owner.element, *_own_elements(owner.element)]
    ids = [name for element in elements if is_anchor(name := str(element.get("id", "")))]
    if owner.element.name == "dl":
        return _object(owner, url, converter, ids)
    heading, anchor = _heading(owner), str(owner.element["id"])
    return Section(
        url=f"{url}#{anchor}",
        title=title_text(heading.get_text()) if heading else anchor,
        kind="heading",
        name="",
        parent="",
        depth=owner.depth,
        markdown=converter.to_markdown(owner.element),
        category="",
        anchors=tuple(other for other in ids if other != anchor),
    )


def _object(owner: _Owner, url: str, converter: Converter, ids: list[str]) -> Section:
    terms = owner.element.find_all("dt", recursive=False)
    name = next(str(term["id"]) for term in terms if term.has_attr("id"))
    bodies = [converter.to_markdown(body) for body in owner.element.find_all("dd", recursive=False)]
    signatures = signature_block(*(term.get_text() for term in terms))
    return Section(
        url=f"{url}#{name}",
        title=name,
        kind=next((kind for kind in classes(owner.element) if kind != "py"), "object"),
        name=name,
        parent="",
        depth=owner.depth,
        markdown="\n\n".join([signatures, *filter(None, bodies)]),
        category="",
        anchors=tuple(other for other in ids if other != name),
        code=next((link for term in terms if (link := _code_link(term)) is not None), None),
    )


def _code_link(term: Tag) -> CodeLink | None:
    match = _ON_GITHUB.match(str(term.get(CODE_LINK, "")))
    if match is None:
        return None
    tag, file, line = match.groups()
    return CodeLink(file, int(line) if line else None, tag)


def _with_leftover(sections: list[Section], leftover: str, page: Page, scope: Scope) -> list[Section]:
    """Text outside every section opens the page's first heading, or is a section of its own where there is none."""
    if not leftover:
        return sections
    if sections and sections[0].kind == "heading":
        joined = f"{leftover}\n\n{sections[0].markdown}".strip()
        return [replace(sections[0], markdown=joined), *sections[1:]]
    name = page_name(page.url)
    category = scope.category_of(name, (), "", "")
    return [Section(page.url, name, "heading", "", "", 0, leftover, category), *sections]
