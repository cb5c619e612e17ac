"""A page becomes sections that hold all of its text, once."""

import re
from collections import Counter

import pytest
from bs4 import BeautifulSoup

from skill_builder.corpus.parse import parse_page
from skill_builder.errors import PageUnusable, ScopeError
from skill_builder.records import CodeLink, Page
from skill_builder.scope import load_scope

URL = "https://docs.pytorch.org/docs/stable/distributed.html"
SCOPE = load_scope()
PAGE = """
<html><body><nav>everything</nav><article class="bd-article">
<section id="outer"><span id="alias"></span>
<h1>Outer<a class="headerlink" href="#outer">#</a></h1>
<p>Before.</p>
<section id="collective-functions">
<h2>Inner <code>x</code></h2>
<p>Inside.</p>
<dl class="py class" id="module-a"><dt class="sig sig-object py" id="a.C">
<em class="property">class </em><span class="sig-name descname">C</span>
<a class="reference external" href="https://github.com/pytorch/pytorch/blob/v2.12.0/torch/a.py#L311"><span
class="viewcode-link">[source]</span></a></dt>
<dd><p>Class.</p>
<dl class="py method"><dt class="sig sig-object py" id="a.C.m"><span class="sig-name descname">m</span>
<span class="sig-paren">(</span><span class="sig-paren">)</span></dt>
<dt class="sig sig-object py" id="a.C.n"><span class="sig-name descname">n</span>
<span class="sig-paren">(</span><span class="sig-paren">)</span></dt>
<dd><p>Method.</p></dd></dl>
<p>After the method.</p></dd></dl>
</section>
<p>After.</p>
</section>
</article></body></html>
"""


def parse(html, url=URL):
    return parse_page(Page(url, html), SCOPE)


def test_one_section_a_heading_and_one_an_object():
    fields = [(s.url.partition("#")[2], s.title, s.kind, s.name, s.depth) for s in parse(PAGE)]
    assert fields == [
        ("outer", "Outer", "heading", "", 0),
        ("collective-functions", "Inner x", "heading", "", 1),
        ("a.C", "a.C", "class", "a.C", 2),
        ("a.C.m", "a.C.m", "method", "a.C.m", 3),
    ]


def test_each_section_has_its_own_text_only():
    assert [section.markdown for section in parse(PAGE)] == [
        "Before.\n\nAfter.",
        "Inside.",
        "```python\nclass C: ...\n```\n\nClass.\n\nAfter the method.",
        "```python\ndef m(): ...\ndef n(): ...\n```\n\nMethod.",
    ]


def test_parents_anchors_categories_and_source():
    outer, inner, cls, method = parse(PAGE)
    assert [section.parent for section in (outer, inner, cls, method)] == ["", outer.url, inner.url, cls.url]
    assert [section.anchors for section in (outer, cls, method)] == [("alias",), ("module-a",), ("a.C.n",)]
    assert [section.category for section in (outer, inner, cls)] == ["process-groups", "collectives", "collectives"]
    assert cls.code == CodeLink("torch/a.py", 311, "v2.12.0")


def test_text_before_the_first_heading_opens_its_section():
    page = "<article class='bd-article'><p>First.</p><section id='a'><h1>A</h1><p>Second.</p></section></article>"
    assert [section.markdown for section in parse(page)] == ["First.\n\nSecond."]


def test_a_page_without_headings_is_one_section():
    section, found = parse(
        "<div role='main'><p>Text.</p><dl class='py function'><dt class='sig' id='f'>f</dt><dd>Does.</dd></dl></div>"
    )
    assert (section.url, section.markdown, found.name) == (URL, "Text.", "f")


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ("", "the page is empty"),
        ("  \n", "the page is empty"),
        ("<html><body><p>Moved.</p></body></html>", "the page has no article (neither <article> nor role=main)"),
        ("<article class='bd-article'><section id='a'><h1>A</h1></section></article>", "the article has no text"),
        (f"<article>{'<div>' * 250}deep", "elements are nested more than 200 deep"),
    ],
)
def test_a_page_that_cannot_be_read_says_why(html, problem):
    with pytest.raises(PageUnusable, match=re.escape(problem)) as caught:
        parse(html)
    assert caught.value.where == URL


def test_a_page_that_fits_no_category_is_named():
    with pytest.raises(ScopeError, match="no category takes the page 'unheard/of'"):
        parse(PAGE, "https://docs.pytorch.org/docs/stable/unheard/of.html")


def test_ten_thousand_siblings_parse():
    items = "".join(f"<section id='s{n}'><h2>H{n}</h2><p>t{n}</p></section>" for n in range(10_000))
    assert len(parse(f"<article class='bd-article'><section id='a'><h1>A</h1>{items}</section></article>")) == 10_001


def test_no_text_of_the_docs_site_is_lost_and_none_is_there_twice(docs_site_pages):
    for page in docs_site_pages:
        assert words_of_sections(parse_page(page, SCOPE)) == words_of_article(page.html), page.url


def test_no_text_of_the_rendered_site_is_lost_and_none_is_there_twice(site_pages):
    for page in site_pages:
        assert words_of_sections(parse_page(page, SCOPE)) == words_of_article(page.html), page.url


def words(text):
    return Counter(re.findall(r"\w+", text))


def words_of_article(html):
    """The words of an article but those of signatures, navigation and directives for the test runner."""
    article = BeautifulSoup(html, "lxml").find("article", class_="bd-article")
    for element in article.select("dt.sig, nav, script, style, .headerlink, .viewcode-link, .date-info-last-verified"):
        element.decompose()
    for example in article.find_all("pre"):
        lines = example.get_text().split("\n")
        example.string = "\n".join(line for line in lines if not re.match(r"(>>>|\.\.\.) # *x?doc(test)?:", line))
    for image in article.find_all("img"):
        image.replace_with(
            "" if image.get("alt", "").endswith((".png", ".jpg", ".svg")) else f" {image.get('alt', '')} "
        )
    for element in article.find_all(["br", "dt", "dd"]) + article.select(".classifier"):
        element.insert(0, " ")
        element.append(" ")
    for numbered in article.find_all("ol"):
        for number, item in enumerate(numbered.find_all("li", recursive=False), int(numbered.get("start", 1))):
            item.insert(0, f" {number} ")
    return words(article.get_text())


def words_of_sections(sections):
    """The words of titles and texts, but for signatures, the targets of links, and marks of Markdown."""
    total = Counter()
    for section in sections:
        text = section.markdown
        if section.name:
            text = re.sub(r"\A(`{3,})\w+\n.*?\n\1", "", text, flags=re.DOTALL)
        else:
            total += words(section.title)
        text = re.sub(r"^(`{3,})python\n# [\w.]+\n(class|def) .*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        text = re.sub(r"\]\(https?://[^)\s]*\)", "]", text)
        text = re.sub(r"^([> ]*)`{3,}\w+$", r"\1", text, flags=re.MULTILINE)
        total += words(text)
    return total
