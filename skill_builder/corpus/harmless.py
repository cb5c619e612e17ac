"""What a page could hide in its text, and how it is kept from an agent that reads the text.

Pages are other people's words. Characters that nobody sees are taken out; what a line would be read as, other than the
words that it shows, is escaped; sentences that read like orders to an agent are pointed out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_TITLE = 200
"""Characters; the longest official title has 80."""
_INVISIBLE = re.compile(
    "["
    "\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # controls but tab and newline
    "\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\ud800-\\udfff"
    "\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
    "]"
)
"""Joiners, direction marks, fillers, variation selectors, tags: a text can hold with them what no person sees."""
_ANCHOR = re.compile(r"[\w.:-]{1,300}")
_FENCE = re.compile(r"^[>\s]*(?:[-+*]\s+|\d+[.)]\s+)?(`{3,})[^`]*$")
_BLOCK_MARK = re.compile(r"((?:[ \t]|>|[-+*][ \t]|\d{1,9}[.)][ \t])*)(?:(#{1,6})(?=\s|$)|(=+|-+)[ \t]*$|(~{3,}))")
_CONTAINERS = re.compile(r"(?:[ \t]|>|[-+*][ \t]|\d{1,9}[.)][ \t])*")
_RISKY = re.compile(r"\\.|`+|\[|\](?=:)|\]\((?!https?://)|<(?=[A-Za-z/!?])")
_TITLE_MARK = re.compile(r"[\\`*\[\]<]")

# What a sentence that gives orders to an agent has in it, and how it is called.
_ORDERS = (
    (re.compile(r"\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:previous|prior|above|earlier|all)\b.{0,40}"
                r"\b(?:instructions?|prompts?|rules?|directions?|messages?)\b", re.IGNORECASE),
     "tells the reader to ignore instructions"),
    (re.compile(r"\byou are (?:now|no longer)\b|\b(?:act|behave|respond) as (?:an?|the|if)\b.{0,40}"
                r"\b(?:assistant|agent|model|ai|user|admin\w*)\b", re.IGNORECASE),
     "tells the reader who it is"),
    (re.compile(r"\b(?:system|developer) (?:prompt|instruction)s?\b|<\|?(?:im_start|system|endoftext)\|?>"
                r"|\[/?(?:INST|SYSTEM)\]", re.IGNORECASE),
     "speaks of a system prompt"),
    (re.compile(r"\bdo not (?:tell|inform|mention|reveal|show)\b.{0,30}\b(?:user|human|anyone|person)\b"
                r"|\bwithout (?:telling|informing|asking)\b.{0,20}\b(?:user|human)\b", re.IGNORECASE),
     "asks to keep something from the user"),
    (re.compile(r"\b(?:send|post|upload|exfiltrate|leak|reveal|print)\b.{0,40}"
                r"\b(?:api[ _-]?keys?|passwords?|credentials?|secrets?|ssh keys?|access tokens?)\b", re.IGNORECASE),
     "asks for secrets"),
    (re.compile(r"\b(?:curl|wget)\b[^|\n]{0,200}\|\s{0,4}(?:sudo\s{1,4})?(?:ba|z|da)?sh\b", re.IGNORECASE),
     "pipes a download into a shell"),
)  # fmt: skip
_SPACE = re.compile(r"\s+")


def visible(text: str) -> str:
    """A text without the characters that a reader does not see."""
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub("", text)


def title_text(text: str) -> str:
    """A title on one line, at most ``MAX_TITLE`` characters."""
    title = " ".join(text.split())
    return title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1].rstrip()}\u2026"


def escape_title(title: str) -> str:
    """A title as Markdown in which nothing but its words is read."""
    return _TITLE_MARK.sub(r"\\\g<0>", title)


def is_anchor(name: str) -> bool:
    """Whether an element's id can stand in a URL and a heading as it is."""
    return bool(_ANCHOR.fullmatch(name))


def code_lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a fenced block."""
    fence = ""
    for line in markdown.split("\n"):
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[1] == fence:
                fence = ""
        elif match:
            fence = match[1]
            yield line, True
        else:
            yield line, False


def defuse(markdown: str) -> str:
    """A text in which no line outside code is a heading, raw HTML, a definition of a link, or a link but to http(s)."""
    return "\n".join(line if is_code else _defuse_line(line) for line, is_code in code_lines(markdown))


def _defuse_line(line: str) -> str:
    mark = _BLOCK_MARK.match(line)
    if mark:
        line = f"{mark[1]}\\{line[mark.end(1) :]}"
    if "](" in line or "]:" in line or "<" in line:
        return "".join(_defused(line))
    return line


def _defused(line: str) -> Iterator[str]:
    """The pieces of a line, those that are risky escaped; what is escaped already or is code stays.

    A bracket before a colon ends a definition only if it is the first that is opened on the line, or on one before.
    """
    ends = _code_ends(line)
    containers = _CONTAINERS.match(line)
    label = containers.end() if containers else 0
    opened = label
    done = 0
    while found := _RISKY.search(line, done):
        yield line[done : found.start()]
        done = found.end()
        if found[0].startswith("`"):
            done = ends.get(found.start(), done)
            yield line[found.start() : done]
        elif found[0] == "[":
            opened = found.start()
            yield "["
        elif found[0].startswith("\\") or (found[0] == "]" and opened != label):
            yield found[0]
        else:
            yield r"]\(" if found[0] == "](" else f"\\{found[0]}"
    yield line[done:]


def _code_ends(line: str) -> dict[int, int]:
    """Where each run of backticks that opens code starts -> where that code ends."""
    ends: dict[int, int] = {}
    later: dict[int, int] = {}
    for run in reversed(list(re.finditer(r"`+", line))):
        size = len(run[0])
        if size in later:
            ends[run.start()] = later[size]
        later[size] = run.end()
    return ends


def orders(text: str) -> tuple[str, ...]:
    """What in a text reads like orders to an agent."""
    flat = _SPACE.sub(" ", text)
    return tuple(what for pattern, what in _ORDERS if pattern.search(flat))
