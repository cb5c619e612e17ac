"""Every link to the documentation leads to a page and a place that exist."""

import re

import pytest

from tests.guides.blocks import DOCUMENTS, PROSE

STABLE = "https://docs.pytorch.org/docs/stable/"
_URL = re.compile(r"https://[^\s)>`\"']+")
_ID = re.compile(r'\bid="([^"]+)"')
GUIDES = [path for path in PROSE if path.name.startswith("guide-")]


def links(path):
    """URL of a document -> the first line that has it."""
    found = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        for url in _URL.findall(line):
            found.setdefault(url.rstrip(".,;:"), number)
    return found


def sections(path):
    """(heading, text) of a document, cut at the headings of the second level outside of code."""
    found, inside = [], False
    for line in path.read_text("utf-8").splitlines(keepends=True):
        inside ^= line.startswith("```")
        if not inside and line.startswith("## "):
            found.append([line[3:].strip(), ""])
        elif found:
            found[-1][1] += line
    return found


@pytest.fixture(scope="module")
def anchors(docs_site):
    """URL of a page -> its anchors."""
    pages = (docs_site / "docs" / "stable").rglob("*.html")
    return {
        STABLE + page.relative_to(docs_site / "docs" / "stable").as_posix(): set(_ID.findall(page.read_text("utf-8")))
        for page in pages
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documentation_links_lead_somewhere(path, anchors):
    lost = []
    for url, line in links(path).items():
        page, _, anchor = url.partition("#")
        if page.startswith(STABLE) and (page not in anchors or (anchor and anchor not in anchors[page])):
            lost.append(f"{path.name}:{line} {url}")
    assert lost == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_every_section_of_a_guide_links_the_documentation(path):
    assert [title for title, text in sections(path) if STABLE not in text] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_a_guide_is_short_and_says_first_what_it_answers(path):
    text = path.read_text("utf-8")
    title, blank, answers, *_ = text.split("\n")
    assert title.startswith("# ") and not blank and len(answers) > 40
    assert len(text.encode()) < 10_000
    assert [heading for heading, body in sections(path) if len(body) > 6_000] == []  # 1,500 tokens of 4 characters


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_a_guide_names_a_template_or_tool(path):
    assert re.search(r"`(scripts|assets)/\w", path.read_text("utf-8"))
