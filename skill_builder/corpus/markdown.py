"""Tidied HTML -> Markdown that a reader who writes code can use.

markdownify converts plain HTML; the rules here add what is Sphinx's own: admonitions, field lists, definition lists,
code with its language, formulas, and links made absolute. Each ``convert_<tag>`` turns one element, its inside already
converted, into text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, urljoin, urlsplit

from bs4 import Tag
from markdownify import MarkdownConverter

from skill_builder.corpus.harmless import defuse
from skill_builder.corpus.signature import parses_as_python
from skill_builder.corpus.tidy import FIELD, NUMBER

_LANGUAGES = {
    "python3": "python",
    "pycon": "python",
    "ipython3": "python",
    "shell": "bash",
    "sh": "bash",
    "shell-session": "console",
    "c++": "cpp",
    "none": "text",
}
_SHELL_START = re.compile(r"(\$ |#!|torchrun\b|python3? |pip |export |srun\b|[A-Z_]+=\S+ \S)")
_LISTED_FIELDS = ("Parameters", "Keyword Arguments", "Variables", "Raises", "Returns", "Return type", "Yields")
_LINE_MARKER = re.compile(r"([-+*]|\d{1,9}[.)]|#{1,6})(\s|$)|>|(=+|-+)\s*$|\||~~~")
_STARTS_BLOCK = re.compile(r"\s*([-+*]\s|\d{1,9}[.)]\s|`{3,}|>|\|)")
_OPENS_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_IMAGE_NAME = re.compile(r"\.(png|jpe?g|gif|svg|webp)$", re.IGNORECASE)
_MARKDOWN_LINK = re.compile(r"\]\(")
_BLANK_LINES = re.compile(r"\n{3,}")
_BACKTICKS = re.compile(r"`+")


def language(code: str, declared: str) -> str:
    """The language of a code block.

    Args:
        code: The block's text.
        declared: The word after ``highlight-`` in its class; ``default`` where the author named none.
    """
    declared = declared.lower()
    if declared != "default":
        return _LANGUAGES.get(declared, declared)
    if code.lstrip().startswith(">>>") or parses_as_python(code):
        return "python"
    return "bash" if _SHELL_START.match(code.lstrip()) else "text"


def code_block(code: str, language: str) -> str:
    """A fenced block, its fence longer than any run of backticks inside."""
    fence = "`" * max(3, _longest_backticks(code) + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def absolute(url: str, href: str) -> str | None:
    """A link as an absolute http(s) URL, safe inside ``[...](...)``; None for any other scheme."""
    if _MARKDOWN_LINK.search(href):
        return None
    try:
        target = urljoin(url, href.strip())
        scheme, host = urlsplit(target)[:2]
    except ValueError:
        return None
    if scheme not in ("http", "https") or not host:
        return None
    return quote(target, safe="%/:=&?~#+!$,;'@*-._")


class Converter(MarkdownConverter):
    """markdownify with the rules for what Sphinx writes.

    Args:
        url: The page's official URL, to which relative links are relative.
        apart: Elements that are left out of the text of those around them.
    """

    def __init__(self, url: str, apart: Iterable[Tag] = ()) -> None:
        super().__init__(bullets="-")
        self._url = url
        self._apart = {id(element) for element in apart}

    def to_markdown(self, element: Tag) -> str:
        """The Markdown of an element's inside, without a leading or trailing blank line."""
        text: str = super().process_tag(element, parent_tags=set())  # type: ignore[misc]  # absent from its stubs
        lines = (line.rstrip() for line in text.split("\n"))
        return defuse(_BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n"))

    def process_tag(self, node: Tag, parent_tags: set[str] | None = None) -> str:
        """Convert an element, unless it is one that is kept apart."""
        if id(node) in self._apart:
            return ""
        return str(super().process_tag(node, parent_tags))  # type: ignore[misc]  # absent from its stubs

    def escape(self, text: str, parent_tags: set[str]) -> str:
        """Escape what would be read as emphasis, code, a link or a tag; underscores inside names are harmless."""
        text = text.replace("\\", "\\\\").replace("*", r"\*").replace("`", r"\`").replace("](", r"]\(")
        return _OPENS_TAG.sub(r"\<", text)

    def convert_a(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        target = absolute(self._url, str(el.get("href", "")))
        label = " ".join(text.split())
        if target is None or not label or "_noformat" in parent_tags:
            return text
        return f"{' ' * text[0].isspace()}[{label}]({target}){' ' * text[-1].isspace()}"

    def convert_code(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = " ".join(text.split())
        if not text:
            return ""
        if "math" in classes(el):
            return f"$`{text}`$"
        fence = "`" * (_longest_backticks(text) + 1)
        pad = " " if "`" in text else ""
        return f"{fence}{pad}{text}{pad}{fence}"

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        code = text.strip("\n").rstrip()
        if not code.strip():
            return ""
        if "math" in classes(el):
            return f"\n\n{code_block(code, 'math')}\n\n"
        around = (name for element in [el, *list(el.parents)[:2]] for name in classes(element))
        declared = (name.removeprefix("highlight-") for name in around if name.startswith("highlight-"))
        return f"\n\n{code_block(code, language(code, next(declared, 'default')))}\n\n"

    def convert_div(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        write = next((_DIVISIONS[name] for name in classes(el) if name in _DIVISIONS), _block)
        return write(text) if text.strip() else ""

    convert_aside = convert_div
    convert_figure = convert_div

    def convert_p(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = text.strip()
        if "_inline" in parent_tags or not text:
            return f" {text} " if text else ""
        if "rubric" in classes(el):
            return f"\n\n**{text.strip('*')}**\n\n"
        return f"\n\n{_without_line_markers(text)}\n\n"

    def convert_img(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        alt = str(el.get("alt") or "").strip()
        return "" if _IMAGE_NAME.search(alt) else self.escape(alt, parent_tags)

    def convert_dl(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return _block(text.strip("\n")) if text.strip() else ""

    def convert_dt(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        around = classes(el.parent)
        if "sig" in classes(el):
            return f"\n\n{signature_block(el.get_text())}\n\n"
        text = " ".join(text.split())
        if not text:
            return ""
        if "field-list" in around:
            return f"\n\n**{text.rstrip(':')}**\n\n"
        return f"\n- {text if text.startswith('`') else f'**{text}**'}\n"

    def convert_dd(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        around = classes(el.parent)
        text = text.strip("\n")
        if not text.strip():
            return ""
        if "py" in around:
            return _block(text)
        if "field-list" not in around:
            return f"\n{_indented(text)}\n"
        is_listed = el.get(FIELD) in _LISTED_FIELDS
        if is_listed and el.find(("ul", "ol"), recursive=False) is None:
            text = "- " + _indented(text).lstrip()
        return _block(text)

    def convert_li(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        text = text.strip()
        mark = f"{el[NUMBER]}. " if el.has_attr(NUMBER) else "- "
        return mark + _indented(text, " " * len(mark)).lstrip(" ") + "\n" if text else "\n"

    def convert_hN(self, n: int, el: Tag, text: str, parent_tags: set[str]) -> str:
        return f"\n\n**{' '.join(text.split())}**\n\n"

    def convert_hr(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return "\n\n"


def classes(element: Tag | None) -> list[str]:
    """The classes of an element."""
    found = element.get("class") if element is not None else None
    return list(found) if isinstance(found, list) else []


def signature_block(*stubs: str) -> str:
    """The signatures of an object, one for each overload, as a code block."""
    code = "\n".join(stubs)
    return code_block(code, "python" if parses_as_python(code) else "text")


def _without_line_markers(text: str) -> str:
    """A paragraph in which no line starts like a list item, quotation or heading."""
    kept: list[str] = []
    for line in text.split("\n"):
        if kept and _LINE_MARKER.match(line):
            kept[-1] += f" {line}"
        else:
            kept.append(line)
    text = "\n".join(kept)
    return f"\\{text}" if _LINE_MARKER.match(text) and not text[0].isdigit() else text


def _block(text: str) -> str:
    return f"\n\n{text.strip(chr(10))}\n\n"


def _admonition(text: str) -> str:
    title, _, body = text.strip().partition("\n\n")
    body = body.lstrip("\n")
    gap = " " if body[:1].isalnum() or body[:1] in "`[(" else "\n\n"
    return _quotation(f"**{' '.join(title.split())}:**{gap}{body}")


def _quotation(text: str) -> str:
    """A labelled block; each of its paragraphs is one line, so that no mark stands between two words."""
    lines: list[str] = []
    fence = False
    for line in text.strip().split("\n"):
        starts_block = fence or not line.strip() or _STARTS_BLOCK.match(line)
        if not starts_block and lines and lines[-1].strip() and not lines[-1].lstrip().startswith("```"):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        fence ^= line.lstrip().startswith("```")
    return _block("\n".join(f"> {line}".rstrip() for line in lines))


def _line_block(text: str) -> str:
    return _block("\\\n".join(line for line in text.split("\n") if line.strip()))


def _line(text: str) -> str:
    return f"\n{text.strip()}\n"


# Class of a <div> -> how it is written.
_DIVISIONS: dict[str, Callable[[str], str]] = {
    "admonition": _admonition,
    "deprecated": _quotation,
    "versionadded": _quotation,
    "versionchanged": _quotation,
    "versionremoved": _quotation,
    "line-block": _line_block,
    "line": _line,
}


def _indented(text: str, indent: str = "  ") -> str:
    return "\n".join(f"{indent}{line}" if line else line for line in text.split("\n"))


def _longest_backticks(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
