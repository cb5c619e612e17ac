"""A Markdown file of the skill, read for checking: its links, anchors, code blocks and prose, with lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from skill_builder.fragments import Fragments

_MARKDOWN = MarkdownIt("commonmark").enable("table").disable("text_join")  # tells `\\[` from `[`
_TEXT = ("text", "text_special", "code_inline")
_ANCHOR = re.compile(r"""<a (?:id|name)=["']([^"']+)["']\s*/?>""")
_DANGLING_LABEL = re.compile(r"(?<![\w\]`)\\])\[(`[^`\]]+`)\](?![\[(\w])")


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit of text and the line it stands on, counted from 1."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced code block."""

    line: int
    """Line of the opening fence, counted from 1."""
    language: str
    code: str


@dataclass(frozen=True, slots=True)
class Document:
    """What the rules look at in one Markdown file."""

    anchors: frozenset[str]
    """Slugs of headings, as GitHub makes them, and the ids of explicit anchors."""
    links: tuple[Piece, ...]
    """Targets of links and images, those of reference links included."""
    dangling: tuple[Piece, ...]
    """Labels of shortcut reference links that have no definition."""
    code: tuple[CodeBlock, ...]
    prose: tuple[Piece, ...]
    """Lines of text without inline code."""
    html: tuple[Piece, ...]
    """Raw HTML outside code, without explicit anchors."""


def read_document(text: str) -> Document:
    """Take a Markdown text apart; frontmatter is blanked so that lines keep their numbers."""
    tokens = _MARKDOWN.parse(_without_frontmatter(text))
    pieces = list(_inline(tokens))
    html = [Piece(line, child.content) for line, child in pieces if child.type.startswith("html")]
    return Document(
        anchors=frozenset(_slugs(tokens)) | {id_ for piece in html for id_ in _ANCHOR.findall(piece.text)},
        links=tuple(Piece(line, target) for line, child in pieces if (target := _target(child))),
        dangling=tuple(
            Piece(piece.line, label)
            for piece in _lines(pieces, with_code=True)
            for label in _DANGLING_LABEL.findall(piece.text)
        ),
        code=tuple(_code_blocks(tokens)),
        prose=tuple(_lines(pieces, with_code=False)),
        html=tuple(piece for piece in html if _is_markup(piece.text)),
    )


def _without_frontmatter(text: str) -> str:
    if not text.startswith("---\n"):
        return text
    header, fence, body = text.partition("\n---\n")
    return "\n" * (header + fence).count("\n") + body if fence else text


def _inline(tokens: list[Token]) -> Iterator[tuple[int, Token]]:
    """Every inline token, and every block of HTML, with its line."""
    line = 1
    for token in tokens:
        if token.map:
            line = token.map[0] + 1
        if token.type == "html_block":
            yield line, token
        current = line
        for child in token.children or ():
            if child.type in ("softbreak", "hardbreak"):
                current += 1
            else:
                yield current, child


def _target(token: Token) -> str:
    """Where a link or an image leads; empty for other tokens."""
    return str(token.attrGet("href") or token.attrGet("src") or "")


def _lines(pieces: list[tuple[int, Token]], *, with_code: bool) -> Iterator[Piece]:
    """The text of each line; code is kept in backticks, or else leaves a gap between its sides."""
    texts: dict[int, str] = {}
    for line, child in pieces:
        if child.type == "text":
            texts[line] = texts.get(line, "") + child.content
        elif child.type == "code_inline":
            texts[line] = texts.get(line, "") + (f"`{child.content}`" if with_code else "``")
        elif child.type == "text_special" and not with_code:
            texts[line] = texts.get(line, "") + child.content
        else:
            texts[line] = texts.get(line, "") + "\0"
    return (Piece(line, text) for line, text in texts.items())


def _slugs(tokens: list[Token]) -> Iterator[str]:
    fragments = Fragments()
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            yield fragments.add("".join(c.content for c in inline.children or () if c.type in _TEXT))


def _code_blocks(tokens: list[Token]) -> Iterator[CodeBlock]:
    for token in tokens:
        if token.type == "fence" and token.map:
            language = token.info.split()[0].lower() if token.info.strip() else ""
            yield CodeBlock(token.map[0] + 1, language, token.content)


def _is_markup(html: str) -> bool:
    """Whether anything is left of a piece of HTML without the anchors that links need."""
    return bool(_ANCHOR.sub("", html).replace("</a>", "").strip())
