"""A page's HTML -> its article, made simple: what a converter would have to look around for is rewritten here.

lxml does this at the speed of C, and leaves a tenth of the elements: navigation, permalinks and the spans of the
highlighter are gone, signatures are Python, formulas are their TeX, and a parameter's type is one piece of code.
"""

from __future__ import annotations

import re

from lxml import etree, html
from lxml.html import HtmlElement

from skill_builder.corpus.harmless import visible
from skill_builder.corpus.signature import qualified_name, signature

MAX_DEPTH = 200
"""Elements nested deeper than this are no documentation (the deepest official page has about 40)."""

CODE_LINK = "data-code"
"""Attribute of an object's ``<dt>`` with the target of its ``[source]`` link."""

NUMBER = "data-number"
"""Attribute of an item of a numbered list."""
FIELD = "data-field"
"""Attribute of a ``<dd>`` in a field list: the field's name."""

_GONE = "gone"
"""A tag that stands for nothing, until it is stripped."""
_SPAN = re.compile(r"[1-9]|1\d", re.ASCII)
_START = re.compile(r"\d{1,6}", re.ASCII)
_SPACES = re.compile(r"[ \t]{2,}")
_NOISE_TAGS = (
    *("nav", "script", "style", "noscript", "button", "template", "svg", "iframe", "form", "input"),
    *("video", "audio", "object", "embed", "canvas", "textarea", "select", "title", "base", "link", "meta"),
)
_HIDDEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?:font-size|opacity)\s*:\s*0(?![.\d])", re.IGNORECASE
)
_NOISE_CLASSES = frozenset(
    (
        "headerlink",
        "copybtn",
        "date-info-last-verified",
        "sphx-glr-footer",
        "sphx-glr-signature",
        "sphx-glr-timing",
        "sphx-glr-download-link-note",
        "pytorch-call-to-action-links",
    )
)
_DATE_LINE = re.compile(r"\s*(Created|Last Updated) On\b")
_DIRECTIVE = re.compile(r"(>>>|\.\.\.) # *(x?doctest|xdoc):")
_DASH = re.compile(r"\s[\u2013-](?:\s|$)")
_TYPE_FIELDS = ("Return type", "Type")
_TEX_DELIMITERS = ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"))


class NoArticle(ValueError):
    """Why a page cannot be read."""


def tidy_article(page: str) -> str:
    """The article of a page, tidied, as HTML.

    Raises:
        NoArticle: The page is empty, breaks off, has neither an ``<article>`` nor a ``role=main``, or is nested too
            deep.
    """
    if not page.strip():
        raise NoArticle("the page is empty")
    if "<html" in page and "</html>" not in page:
        raise NoArticle("the page breaks off: it has no </html>")
    article = _article(html.document_fromstring(page))
    if article.xpath("." + "/*" * MAX_DEPTH):
        raise NoArticle(f"elements are nested more than {MAX_DEPTH} deep")
    for step in _STEPS:
        step(article)
    return str(html.tostring(article, encoding="unicode"))


def _article(root: HtmlElement) -> HtmlElement:
    for path in (_with_class("bd-article"), ".//article", ".//*[@role='main']"):
        for element in root.xpath(path):
            return element
    raise NoArticle("the page has no article (neither <article> nor role=main)")


def _with_class(*names: str, tag: str = "*") -> str:
    conditions = (f"contains(concat(' ', normalize-space(@class), ' '), ' {name} ')" for name in names)
    return f".//{tag}[{' or '.join(conditions)}]"


def _drop_invisible(article: HtmlElement) -> None:
    """What nobody sees is no text; and lxml writes no control characters, though it reads them."""
    for element in article.iter():
        if element.tail and element.tail != visible(element.tail):
            element.tail = visible(element.tail)
        if not isinstance(element.tag, str):
            continue
        if element.text and element.text != visible(element.text):
            element.text = visible(element.text)
        for name, value in element.items():
            if value != visible(value):
                del element.attrib[name]


def _drop_noise(article: HtmlElement) -> None:
    noise = list(article.iter(*_NOISE_TAGS))
    noise += [element for element in article.iter("*") if _is_noise(element)]
    noise += [element for element in article.iter("p") if _DATE_LINE.match(element.text_content())]
    etree.strip_tags(article, etree.Comment, etree.ProcessingInstruction)
    _remove(article, noise)


def _remove(article: HtmlElement, elements: list[HtmlElement]) -> None:
    """Take elements out, all at once: one at a time would copy the text between them again and again."""
    for element in elements:
        for child in list(element):
            element.remove(child)
        element.text = None
    _unwrap(article, elements)


def _unwrap(article: HtmlElement, elements: list[HtmlElement]) -> None:
    """Take elements away and leave what is in them."""
    for element in elements:
        if element is not article:
            element.tag = _GONE
    etree.strip_tags(article, _GONE)


def _is_noise(element: HtmlElement) -> bool:
    """Whether an element is there for a browser, or is not shown in one."""
    if not _NOISE_CLASSES.isdisjoint(element.get("class", "").split()):
        return True
    return element.get("hidden") is not None or bool(_HIDDEN.search(element.get("style", "")))


def _keep_code_links(article: HtmlElement) -> None:
    links = []
    for mark in article.xpath(_with_class("viewcode-link")):
        link = next(mark.iterancestors("a"), None)
        term = next(mark.iterancestors("dt"), None)
        if link is not None and term is not None:
            term.set(CODE_LINK, link.get("href", ""))
            links.append(link)
    _remove(article, links)


def _write_signatures(article: HtmlElement) -> None:
    for term in article.xpath(_with_class("sig", tag="dt")):
        kind = next((name for name in term.getparent().get("class", "").split() if name != "py"), "")
        # Without an anchor the object has no section of its own, whose title would say its full name.
        name = "" if term.get("id") else f"# {qualified_name(term)}\n"
        _only_text(term, name + signature(term, kind))


def _mark_terms(article: HtmlElement) -> None:
    """A term's type is set off from it, and a footnote's number is no link back to where it is used."""
    for element in article.xpath(_with_class("classifier")):
        element.text = f": {element.text or ''}"
    _unwrap(article, article.xpath(".//a[@role='doc-backlink']"))


def _typeset_formulas(article: HtmlElement) -> None:
    """Formulas become ``<code class="math">`` or ``<pre class="math">``, whether MathJax or KaTeX draws them."""
    for element in article.xpath(_with_class("math")):
        tex = element.xpath(".//annotation[@encoding='application/x-tex']")
        numbers = element.xpath(_with_class("eqno"))
        number = "".join(f" {found.text_content()}" for found in numbers)
        _remove(element, numbers)
        text = (tex[0] if tex else element).text_content().strip()
        for left, right in _TEX_DELIMITERS:
            if text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
        element.tag = "pre" if element.tag == "div" else "code"
        element.set("class", "math")
        _only_text(element, text + number)


def _flatten_code(article: HtmlElement) -> None:
    """Code holds text alone: the spans of the highlighter say nothing that the text does not."""
    for element in list(article.iter("pre", "code", "samp", "kbd", "tt")):
        if element.tag == "pre":
            _only_text(element, _without_directives(element.text_content()))
            continue
        element.tag = "code"
        if len(element):
            _only_text(element, element.text_content())


def _join_doctests(article: HtmlElement) -> None:
    """An example that Sphinx cut at its blank lines is one block again, without directives for the test runner."""
    joined: list[HtmlElement] = []
    codes: list[str] = []
    first: HtmlElement | None = None
    last: HtmlElement | None = None
    for block in article.xpath(_with_class("doctest", tag="div")):
        pre = next(block.iter("pre"), None)
        if pre is None:
            continue
        code = _without_directives(pre.text_content().strip("\n")).strip() + "\n"
        if last is not None and block.getprevious() is last and not (last.tail or "").strip():
            joined.append(block)
        else:
            _set_code(first, codes)
            first, codes = pre, []
        codes.append(code)
        last = block
    _set_code(first, codes)
    _remove(article, joined)


def _set_code(pre: HtmlElement | None, codes: list[str]) -> None:
    if pre is not None:
        _only_text(pre, "\n".join(codes).strip() + "\n")


def _without_directives(code: str) -> str:
    return "\n".join(line for line in code.split("\n") if not _DIRECTIVE.match(line))


def _unwrap_indentation(article: HtmlElement) -> None:
    """Sphinx writes an indented list as a quotation; nothing is quoted."""
    for element in list(article.iter("blockquote")):
        element.tag = "div"


def _type_parameters(article: HtmlElement) -> None:
    """Make ``<strong>name</strong> (<em>type</em>) - text`` read ``<code>name</code> (<code>type</code>): text``."""
    for field in article.xpath(_with_class("field-list", tag="dl") + "/dt"):
        body = field.getnext()
        if body is None or body.tag != "dd":
            continue
        is_type = field.text_content().strip(" :\n") in _TYPE_FIELDS
        for entry in body.xpath("./p | ./ul/li/p"):
            if is_type:
                code = _code(_squeezed(entry.text_content()))
                _only_text(entry, "")
                entry.append(code)
            else:
                _type_parameter(entry)


def _type_parameter(entry: HtmlElement) -> None:
    """Rewrite one entry; where it does not read ``name (type) - text``, leave it."""
    if not len(entry) or entry[0].tag != "strong" or (entry.text or "").strip():
        return
    name, *rest = entry
    parts: list[tuple[HtmlElement | None, str]] = [(None, name.tail or "")]
    for element in rest:
        parts += [(element, element.text_content()), (None, element.tail or "")]
    typed, used = "", []
    for position, (element, text) in enumerate(parts):
        before, *after = _DASH.split(text, maxsplit=1)
        typed += before
        if element is not None:
            used.append(element)
        if after and element is None:
            _set_typed(entry, name, _squeezed(typed), used, f": {after[0].lstrip()}")
            return
        if after or position == len(parts) - 1:
            break
    typed = _squeezed(typed)
    if typed.startswith("(") and typed.endswith(")"):
        _set_typed(entry, name, typed, used, "")


def _set_typed(entry: HtmlElement, name: HtmlElement, typed: str, used: list[HtmlElement], description: str) -> None:
    if typed and not (typed.startswith("(") and typed.endswith(")")):
        return
    for element in used:
        element.tail = None
        entry.remove(element)
    _only_text(name, _squeezed(name.text_content()))
    name.tag = "code"
    if typed:
        name.tail = " ("
        code = _code(typed[1:-1])
        code.tail = f"){description}"
        name.addnext(code)
    else:
        name.tail = description
    paragraph = entry.getnext()
    if (
        not description.strip(": ")
        and paragraph is not None
        and paragraph.tag == "p"
        and entry[-1] in (name, name.getnext())
    ):
        entry[-1].tail = (entry[-1].tail or "").rstrip() + " " + (paragraph.text or "")
        entry.extend(list(paragraph))
        paragraph.drop_tree()


def _plain_tables(article: HtmlElement) -> None:
    """Markdown tables have one header row and one body; further header rows become rows of the body."""
    for head in article.iter("thead"):
        for row in list(head)[:0:-1]:
            for cell in row.iter("th"):
                cell.tag = "td"
            head.addnext(row)
    for table in article.iter("table"):
        bodies = table.findall("tbody")
        for body in bodies[1:]:
            bodies[0].extend(list(body))
            table.remove(body)
    for cell in article.iter("td", "th"):
        if cell.get("colspan") is not None and not _SPAN.fullmatch(cell.get("colspan")):
            del cell.attrib["colspan"]


def _number_items(article: HtmlElement) -> None:
    """An item of a numbered list gets its number."""
    for items in article.iter("ol"):
        start = items.get("start", "1")
        first = int(start) if _START.fullmatch(start) else 1
        for number, item in enumerate(items.findall("li"), first):
            item.set(NUMBER, str(number))


def _label_fields(article: HtmlElement) -> None:
    """The body of a field gets the field's name."""
    for fields in article.xpath(_with_class("field-list", tag="dl")):
        label = ""
        for element in fields:
            if element.tag == "dt":
                label = element.text_content().strip(" :\n")
            elif element.tag == "dd":
                element.set(FIELD, label)


def _squeeze_spaces(article: HtmlElement) -> None:
    """Outside code a run of spaces is one: some patterns of the converter take the square of its length."""
    for element in article.iter("*"):
        if element.text and element.tag != "pre" and "sig" not in element.get("class", "").split():
            element.text = _SPACES.sub(" ", element.text)
        if element.tail:
            element.tail = _SPACES.sub(" ", element.tail)


def _only_text(element: HtmlElement, text: str) -> None:
    """Make a text the whole inside of an element."""
    for child in list(element):
        element.remove(child)
    element.text = text


def _code(text: str) -> HtmlElement:
    element = html.Element("code")
    element.text = text
    return element


def _squeezed(text: str) -> str:
    return " ".join(text.split())


_STEPS = (
    _drop_invisible,
    _keep_code_links,
    _drop_noise,
    _write_signatures,
    _mark_terms,
    _typeset_formulas,
    _join_doctests,
    _type_parameters,
    _flatten_code,
    _unwrap_indentation,
    _plain_tables,
    _number_items,
    _label_fields,
    _squeeze_spaces,
)
