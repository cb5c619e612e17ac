"""Whether a skill can be published: the Agent Skills rules, Hermes' limits, and that it holds together.

A rule is a function that takes the skill and yields what it finds; `RULES` lists them all. Limits that
are the client's own carry its name and were read from hermes-agent 0.19.0.
"""

from __future__ import annotations

import ast
import posixpath
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import yaml

from skill_builder.errors import NotASkill, SkillError
from skill_builder.index.entries import load_search
from skill_builder.scope import load_scope
from skill_builder.skill.assemble import sources
from skill_builder.skill.client import find_client, scan
from skill_builder.skill.document import CodeBlock, Document, Piece, read_document
from skill_builder.skill.frontmatter import AGENT_SKILLS_FIELDS, HERMES_FIELDS, compose, split

INDEX = "references/index.json"

Severity = Literal["error", "warning"]

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
"""Characters, as the Agent Skills specification says."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
"""The specification's names, of which Hermes takes those that start with a letter."""

MAX_FILES = 50
MAX_SKILL_TOKENS = 4000
CHARACTERS_PER_TOKEN = 4
PLATFORMS = ("linux", "macos", "windows")
"""Any other value hides the skill from Hermes."""
TRIGGER_WORDS = ("FSDP",)
TRIGGER_CHARACTERS = 57
"""Hermes lists a skill with this much of a description that is longer than 60 characters."""
FORBIDDEN_SUFFIXES = frozenset(
    ".exe .dll .so .dylib .bin .dat .com .msi .dmg .app .deb .rpm".split()  # noqa: SIM905 - reads as a list
)

NAMED_PATH = re.compile(
    r"(?:\]\(|`|(?:^|[\s\"']))((?:references|templates|scripts|assets|examples)/[^\s)`\"'<>]+)", re.MULTILINE
)
"""A path that Hermes downloads when SKILL.md names it: only in these folders, only after these characters."""
INSTALLED_PATH = re.compile(r"\$\{HERMES_SKILL_DIR\}/([^\s)`\"'<>]+)")
"""A path in the installed skill. It must exist, but does not count as named."""
UNDELIVERED = frozenset(("LICENSE", "manifest.json"))
"""Top-level files that may be there though installing from a URL never brings any but SKILL.md."""

_PROMPT = re.compile(r"\s*(?:>>>|\.\.\.) ?(.*)")
PYTHON_LANGUAGES = frozenset(("python", "python3", "py", "pycon"))
LEFTOVERS = re.compile("¶|\uf0c1|🔗|\\[source\\]|\\bCreated On\\b|\\bLast Updated On\\b")
"""What Sphinx and its themes put around text: permalinks, source links, dates."""
INVISIBLE = re.compile("[\u200b-\u200d\u2060-\u2064\ufeff\u202a-\u202e\u2066-\u2069]")
BLOCKED_ENVIRON = re.compile(r"os\.environ\b(?!\s*\.get\s*\(\s*[\"'])")
"""The one thing in honest PyTorch text that Hermes blocks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a skill."""

    file: str
    """Path in the skill; ``.`` for the skill as a whole."""
    line: int
    """Counted from 1; 0 for the file as a whole."""
    rule: str
    severity: Severity
    problem: str
    """A clause without a full stop, as is the remedy."""
    remedy: str


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill folder, its files read once."""

    folder: Path
    client: Path | None
    """The Python that has hermes-agent, if any."""
    sizes: Mapping[str, int]
    """Bytes of each regular file, by its path in the skill."""
    symlinks: tuple[str, ...]
    texts: Mapping[str, str]
    """Files that are UTF-8."""
    documents: Mapping[str, Document]
    """Those that are Markdown."""
    fields: Mapping[str, Any]
    """The frontmatter; empty where it cannot be read."""

    @property
    def text(self) -> str:
        """SKILL.md."""
        return self.texts["SKILL.md"]

    def field_line(self, name: str) -> int:
        """The line of a top-level key in the frontmatter."""
        return next((k.start_mark.line + 1 for k, _ in compose(self.text).value if k.value == name), 1)


Rule = Callable[[Skill], Iterator[Finding]]


def validate(skill: Path, *, hermes: Path | None = None) -> list[Finding]:
    """Everything that is wrong with a skill folder, in the order of files and lines.

    Args:
        skill: The folder.
        hermes: The client's Python or ``hermes`` executable; None looks for ``hermes`` on PATH. Where
            there is a client, its own scanner is run.

    Raises:
        NotASkill: The folder has no readable SKILL.md.
        SkillError: ``hermes`` cannot be run.
    """
    value = read_skill(skill, client=find_client(hermes))
    findings = {finding for rule in RULES for finding in rule(value)}
    return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.rule, finding.problem))


def read_skill(folder: Path, *, client: Path | None = None) -> Skill:
    """Read a skill folder.

    Raises:
        NotASkill: The folder has no readable SKILL.md.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    files = {name: path for name, path in paths.items() if path.is_file() and not path.is_symlink()}
    texts = {name: text for name, path in files.items() if (text := _text(path)) is not None}
    if "SKILL.md" not in texts:
        raise NotASkill(folder, "has no SKILL.md that is UTF-8 text", "name the folder of a skill")
    try:
        fields, _ = split(texts["SKILL.md"])
    except SkillError:
        fields = {}
    return Skill(
        folder=folder,
        client=client,
        sizes={name: path.stat().st_size for name, path in files.items()},
        symlinks=tuple(name for name, path in paths.items() if path.is_symlink()),
        texts=texts,
        documents={name: read_document(text) for name, text in texts.items() if name.endswith(".md")},
        fields=fields,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


# Frontmatter


def frontmatter_is_yaml(skill: Skill) -> Iterator[Finding]:
    """SKILL.md begins with a YAML mapping that has a name and a description."""
    try:
        split(skill.text)
    except SkillError as error:
        file, _, line = error.where.partition(":")
        yield Finding(file, int(line), "frontmatter", "error", error.problem, error.remedy)


def frontmatter_is_strict(skill: Skill) -> Iterator[Finding]:
    """Strict readers refuse flow lists, and end the frontmatter at any ``---``."""
    if not skill.fields:
        return
    for node in _nodes(compose(skill.text)):
        line = node.start_mark.line + 1
        if isinstance(node, yaml.CollectionNode) and node.flow_style:
            yield _error("SKILL.md", line, "frontmatter", "a flow list or mapping", "write one `- item` a line")
        if isinstance(node, yaml.ScalarNode) and "---" in node.value:
            yield _error("SKILL.md", line, "frontmatter", "a value holds `---`", "write a dash or a comma")


def _nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    yield node
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for child in pair:
                yield from _nodes(child)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _nodes(child)


def fields_are_known(skill: Skill) -> Iterator[Finding]:
    """Top-level fields are those of one of the two targets."""
    for name in skill.fields:
        if name not in HERMES_FIELDS:
            yield _field_error(skill, name, "fields", f"unknown field {name!r}", "move it under `metadata`")


def metadata_is_flat(skill: Skill) -> Iterator[Finding]:
    """In a skill for the strict validator, metadata maps strings to strings."""
    metadata = skill.fields.get("metadata", {})
    if not isinstance(metadata, dict):
        yield _field_error(skill, "metadata", "metadata", "is no mapping", "write `key: value` lines under it")
    elif set(skill.fields) <= set(AGENT_SKILLS_FIELDS):
        for name, value in metadata.items():
            if not isinstance(value, str):
                problem = f"the value of {name!r} is no string"
                yield _field_error(skill, "metadata", "metadata", problem, "join its parts with commas")


def name_is_valid(skill: Skill) -> Iterator[Finding]:
    """The name is short, plain, and the folder's."""
    if "name" not in skill.fields:
        return
    name, folder = str(skill.fields["name"]), skill.folder.resolve().name
    if not NAME.fullmatch(name):
        remedy = "use lower-case words and digits joined by single hyphens, a letter first"
        yield _field_error(skill, "name", "name", f"{name!r} is no skill name", remedy)
    if len(name) > MAX_NAME:
        problem = f"the name has {len(name)} characters"
        yield _field_error(skill, "name", "name", problem, f"use at most {MAX_NAME}")
    if name != folder:
        problem = f"{name!r} is not the folder's name, {folder!r}"
        yield _field_error(skill, "name", "name", problem, "rename one of the two")


def texts_are_short(skill: Skill) -> Iterator[Finding]:
    """Fields of text keep to the specification's lengths."""
    for name, limit in (("description", MAX_DESCRIPTION), ("compatibility", MAX_COMPATIBILITY)):
        value = skill.fields.get(name, "")
        if not isinstance(value, str):
            yield _field_error(skill, name, name, "is no text", "write it on one line, in quotes")
        elif len(value) > limit:
            problem = f"the {name} has {len(value)} characters"
            yield _field_error(skill, name, name, problem, f"use at most {limit}")


def description_triggers(skill: Skill) -> Iterator[Finding]:
    """What makes an agent load the skill is in the part of the description that Hermes shows."""
    shown = str(skill.fields.get("description", ""))[:TRIGGER_CHARACTERS]
    for word in TRIGGER_WORDS:
        if shown and word not in shown:
            problem = f"{word!r} is not among the first {TRIGGER_CHARACTERS} characters"
            yield _field_error(skill, "description", "trigger", problem, "begin with what the skill is for")


def platforms_are_known(skill: Skill) -> Iterator[Finding]:
    """Hermes hides a skill for platforms that it does not know."""
    platforms = skill.fields.get("platforms", [])
    for platform in platforms if isinstance(platforms, list) else [platforms]:
        if platform not in PLATFORMS:
            problem = f"{platform!r} hides the skill from Hermes"
            yield _field_error(skill, "platforms", "platforms", problem, f"use {', '.join(PLATFORMS)}")


# Limits


def sizes_are_within_limits(skill: Skill) -> Iterator[Finding]:
    """The skill stays below what Hermes blocks or warns of."""
    budget = load_scope().budget
    total = sum(skill.sizes.values())
    if total > budget.skill * 1024:
        yield _error(
            ".",
            0,
            "size",
            f"{_kib(total)} in all",
            f"shorten it to {budget.skill} KiB, which Hermes installs",
        )
    if len(skill.sizes) > MAX_FILES:
        yield _error(".", 0, "size", f"{len(skill.sizes)} files", f"merge some, Hermes takes {MAX_FILES}")
    for name, size in skill.sizes.items():
        if size > budget.file * 1024:
            yield _error(name, 0, "size", _kib(size), f"split it, a file may have {budget.file} KiB")


def files_are_text(skill: Skill) -> Iterator[Finding]:
    """Clients fetch files as text and refuse links and what looks like a program."""
    for name in skill.sizes:
        if Path(name).suffix.lower() in FORBIDDEN_SUFFIXES:
            problem = f"Hermes refuses files that end in {Path(name).suffix}"
            yield _error(name, 0, "suffix", problem, "remove or rename it")
        if name not in skill.texts:
            yield _error(name, 0, "encoding", "is not UTF-8 text", "remove it or save it as UTF-8")
    for name in skill.symlinks:
        yield _error(name, 0, "symlink", "is a symbolic link", "replace it by a copy of the file")


def skill_md_is_short(skill: Skill) -> Iterator[Finding]:
    """SKILL.md is loaded whole into the agent's context."""
    tokens = -(-len(skill.text) // CHARACTERS_PER_TOKEN)
    if tokens > MAX_SKILL_TOKENS:
        problem = f"{tokens} tokens of {CHARACTERS_PER_TOKEN} characters"
        yield _error("SKILL.md", 0, "tokens", problem, f"shorten it to {MAX_SKILL_TOKENS}")


# Paths and links


def named_files_exist(skill: Skill) -> Iterator[Finding]:
    """One file that is named and missing makes the whole install fail."""
    for piece in _paths(skill.text, NAMED_PATH, INSTALLED_PATH):
        if piece.text not in skill.sizes:
            problem = f"names {piece.text!r}, which is not there"
            yield _error("SKILL.md", piece.line, "named", problem, "add the file or correct the path")


def files_are_named(skill: Skill) -> Iterator[Finding]:
    """A file that SKILL.md does not name never arrives."""
    named = {piece.text for piece in _paths(skill.text, NAMED_PATH)}
    for name in sorted(skill.sizes.keys() - named - UNDELIVERED - {"SKILL.md"}):
        if NAMED_PATH.fullmatch(f"`{name}"):
            remedy = f"write `{name}` in SKILL.md, after a backtick, a quote or a space"
            yield _error(name, 0, "unnamed", "is not named in SKILL.md, so Hermes leaves it behind", remedy)
        else:
            remedy = "move it to references/, scripts/ or assets/, without spaces in its name"
            yield _error(name, 0, "unnamed", "Hermes never installs a file of this path", remedy)


def _paths(text: str, *patterns: re.Pattern[str]) -> Iterator[Piece]:
    """Paths as Hermes reads them: without trailing punctuation, fragment and query."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            path = unquote(urlsplit(match[1].rstrip(".,;:")).path)
            yield Piece(text.count("\n", 0, match.start(1)) + 1, posixpath.normpath(path))


def links_resolve(skill: Skill) -> Iterator[Finding]:
    """Every link inside the skill leads to a file, and its fragment to a heading or an anchor."""
    for name, document in skill.documents.items():
        for link in document.links:
            problem = _broken(skill, name, link.text)
            if problem:
                yield _error(name, link.line, "links", problem, "correct the link or add what it leads to")
        for label in document.dangling:
            yield Finding(
                name,
                label.line,
                "links",
                _severity(name),
                f"[{label.text}] has no definition",
                f"add a line `[{label.text}]: target` or drop the brackets",
            )


def _broken(skill: Skill, source: str, link: str) -> str:
    """Why a link leads nowhere; empty if it leads somewhere or out of the skill."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    path = unquote(parts.path)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    if target not in skill.sizes:
        return f"{link!r} leads to no file of the skill"
    fragment = unquote(parts.fragment)
    if fragment and target in skill.documents and fragment not in skill.documents[target].anchors:
        return f"{link!r} leads to no heading of {target}"
    return ""


# Text


def python_parses(skill: Skill) -> Iterator[Finding]:
    """Python in code blocks and scripts parses; official documentation may hold pseudo-code."""
    for name, document in skill.documents.items():
        for block in document.code:
            if block.language in PYTHON_LANGUAGES:
                for line, problem in _syntax_errors(block):
                    yield Finding(name, line, "python", _severity(name), problem, "correct the code")
    for name, text in skill.texts.items():
        if name.endswith(".py"):
            for line, problem in _syntax_errors(CodeBlock(0, "python", text)):
                yield _error(name, line, "python", problem, "correct the code")


def _syntax_errors(block: CodeBlock) -> Iterator[tuple[int, str]]:
    wrong = _syntax_error(_source(block.code))
    if wrong:
        yield block.line + (wrong.lineno or 1), f"does not parse as Python ({wrong.msg})"


def _syntax_error(source: str) -> SyntaxError | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            ast.parse(source)
        except SyntaxError as error:
            return error
        except (ValueError, RecursionError, MemoryError) as error:  # a null character, or nested too deep
            return SyntaxError(str(error))
    return None


def _source(code: str) -> str:
    """The Python of a block, its lines where they were: of a session, what stands after the prompts."""
    if not re.search(r"^\s*>>>", code, re.MULTILINE):
        return textwrap.dedent(code)
    lines = (_PROMPT.match(line) for line in code.split("\n"))
    return "\n".join(match[1] if match else "" for match in lines)


def nothing_is_left_over(skill: Skill) -> Iterator[Finding]:
    """Neither HTML nor what a website puts around its text is left."""
    for name, document in skill.documents.items():
        for piece in document.html:
            problem = f"raw HTML: {piece.text.strip().splitlines()[0]}"
            yield _error(name, piece.line, "markup", problem, "write Markdown or set it as code")
        for piece in document.prose:
            for found in LEFTOVERS.findall(piece.text):
                yield _error(name, piece.line, "markup", f"leftover {found!r}", "remove it")


def nothing_is_invisible(skill: Skill) -> Iterator[Finding]:
    """No character that a reader cannot see."""
    for name, line, text in _text_lines(skill):
        for character in sorted(set(INVISIBLE.findall(text))):
            problem = f"invisible character U+{ord(character):04X}"
            yield _error(name, line, "invisible", problem, "remove it")


# What clients do with it


def environ_is_read_by_name(skill: Skill) -> Iterator[Finding]:
    """Without the client at hand, the one thing that is known to make it refuse such a skill."""
    if skill.client is None:
        for name, line, text in _text_lines(skill):
            if BLOCKED_ENVIRON.search(text):
                remedy = 'write `os.environ.get("NAME")`, or `environ[...]` with `from os import environ`'
                yield _error(name, line, "environ", "Hermes blocks os.environ in this form", remedy)


def client_finds_it_safe(skill: Skill) -> Iterator[Finding]:
    """The client's own scanner, where there is a client. Its high and critical findings block the install."""
    if skill.client is None:
        return
    for found in scan(skill.client, skill.folder):
        yield Finding(
            "." if found.file == "(directory)" else found.file,
            found.line,
            "scanner",
            "error" if found.severity in ("critical", "high") else "warning",
            f"Hermes says {found.severity}, {found.pattern_id}: {found.description} ({found.match})",
            "reword it" if found.line else "change the file",
        )


def index_agrees(skill: Skill) -> Iterator[Finding]:
    """The index can be read, and every passage in it stands where the index says, under its section's heading."""
    search = load_search(sources() / "scripts")
    try:
        index = search.Index(str(skill.folder))
    except search.BrokenSkill as error:
        yield _error(INDEX, 0, "index", str(error), "build the skill anew")
        return
    titled: set[int] = set()
    for passage, (first, last) in enumerate(zip(index.first, index.last, strict=True)):
        name, section = f"references/{index.files[index.file[passage]]}", index.section[passage]
        if not first:
            continue
        lines = skill.texts.get(name, "").split("\n")
        if last > len(lines):
            yield _error(INDEX, 0, "index", f"{name} has no line {last}", "build the skill anew")
        elif section not in titled and index.titles[section] not in lines[first - 1].replace("`", ""):
            problem = f"{name}:{first} is not the heading {index.titles[section]!r}"
            yield _error(INDEX, 0, "index", problem, "build the skill anew")
        titled.add(section)


RULES: tuple[Rule, ...] = (
    frontmatter_is_yaml,
    frontmatter_is_strict,
    fields_are_known,
    metadata_is_flat,
    name_is_valid,
    texts_are_short,
    description_triggers,
    platforms_are_known,
    sizes_are_within_limits,
    files_are_text,
    skill_md_is_short,
    named_files_exist,
    files_are_named,
    links_resolve,
    python_parses,
    nothing_is_left_over,
    nothing_is_invisible,
    environ_is_read_by_name,
    client_finds_it_safe,
    index_agrees,
)


def _error(file: str, line: int, rule: str, problem: str, remedy: str) -> Finding:
    return Finding(file, line, rule, "error", problem, remedy)


def _field_error(skill: Skill, field: str, rule: str, problem: str, remedy: str) -> Finding:
    return _error("SKILL.md", skill.field_line(field), rule, problem, remedy)


def _severity(file: str) -> Severity:
    """Official documentation is not ours to correct."""
    return "warning" if posixpath.basename(file).startswith("docs-") else "error"


def _text_lines(skill: Skill) -> Iterator[tuple[str, int, str]]:
    for name, text in skill.texts.items():
        for line, content in enumerate(text.split("\n"), start=1):
            yield name, line, content


def _kib(size: int) -> str:
    return f"{-(-size // 1024)} KiB"
