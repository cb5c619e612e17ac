"""SKILL.md's frontmatter: read, and rendered for one of two clients from one source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import yaml

from skill_builder.errors import SkillError

Target = Literal["hermes", "agentskills"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""Clients."""
Format = Literal["dir", "zip", "well-known"]
FORMATS: tuple[Format, ...] = get_args(Format)
"""Packages."""

FENCE = "---\n"
AGENT_SKILLS_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""All that the Agent Skills specification allows at top level."""
HERMES_FIELDS = (*AGENT_SKILLS_FIELDS, "version", "author", "platforms", "dependencies")
"""What Hermes Agent reads or shows at top level."""
REQUIRED_FIELDS = ("name", "description")


def split(text: str) -> tuple[dict[str, Any], str]:
    """The frontmatter and the Markdown after it.

    Every scalar is a string, as it stands in the file: ``version: 1.10`` stays ``"1.10"``.

    Raises:
        SkillError: There is no frontmatter, it is not a YAML mapping, a key stands twice, or name or
            description is missing; the line is named.
    """
    _, body = _cut(text)
    fields = _mapping(compose(text))
    for name in REQUIRED_FIELDS:
        if not fields.get(name):
            raise SkillError("SKILL.md:1", f"the frontmatter has no {name}", f"add a `{name}:` line")
    return fields, body


def compose(text: str) -> yaml.MappingNode:
    """The frontmatter as YAML nodes, whose marks count lines from the top of the file.

    Raises:
        SkillError: There is no frontmatter, or it is not a YAML mapping; the line is named.
    """
    header, _ = _cut(text)
    try:
        node = yaml.compose(FENCE + header, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise SkillError(f"SKILL.md:{line}", "is not YAML", "mend the syntax at this line") from error
    if not isinstance(node, yaml.MappingNode):
        raise SkillError("SKILL.md:1", "the frontmatter is no mapping", "write `key: value` lines")
    return node


def render(source: str, target: Target, *, version: str) -> str:
    """SKILL.md for one client: block lists only, keys in the order of the source, the body unchanged.

    ``hermes`` gets the source with its version filled in. ``agentskills`` gets the fields that the
    specification allows; all others move under ``metadata``, which maps strings to strings: nested
    keys are joined by dots and list items by commas.

    Raises:
        SkillError: As `split`, and where ``metadata`` is no mapping.
    """
    fields, body = split(source)
    fields = _with_version(fields, version)
    return FENCE + _dump(_RENDERINGS[target](fields)) + FENCE + body


def _cut(text: str) -> tuple[str, str]:
    """The YAML between the two fences, and what follows the second."""
    header, found, body = text.removeprefix(FENCE).partition("\n" + FENCE)
    if not text.startswith(FENCE) or not found:
        raise SkillError("SKILL.md:1", "has no frontmatter", "begin with a `---` line, YAML and another `---` line")
    return header + "\n", body


def _mapping(node: yaml.MappingNode) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise SkillError(f"SKILL.md:{line}", "a key is no text", "write `key: value` lines")
        if key.value in fields:
            raise SkillError(f"SKILL.md:{line}", f"key {key.value!r} stands twice", "remove one of the two")
        fields[key.value] = _value(value)
    return fields


def _value(node: yaml.Node) -> Any:  # noqa: ANN401 - a string, or lists and mappings of them
    if isinstance(node, yaml.MappingNode):
        return _mapping(node)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item) for item in node.value]
    return node.value


def _with_version(fields: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The fields with this version, in the source's place or else after the required fields."""
    if "version" in fields:
        return {**fields, "version": version}
    first = {name: fields[name] for name in REQUIRED_FIELDS}
    return {**first, "version": version, **fields}


def _for_agentskills(fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in fields.items() if name in AGENT_SKILLS_FIELDS}
    moved = {name: value for name, value in fields.items() if name not in AGENT_SKILLS_FIELDS}
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise SkillError("SKILL.md", "`metadata` is no mapping", "write `key: value` lines under it")
    return {**kept, "metadata": dict(_flat({**moved, **metadata}))}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, ", ".join(value) if isinstance(value, list) else value


_RENDERINGS: Mapping[Target, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "hermes": dict,
    "agentskills": _for_agentskills,
}


def _dump(fields: Mapping[str, Any]) -> str:
    """Block YAML on unbroken lines; what is empty is left out, for YAML can write it only as a flow list."""
    return yaml.safe_dump(
        _without_empty(fields),
        allow_unicode=True,
        default_flow_style=False,
        sort_keys=False,
        width=float("inf"),
    )


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    pruned = {name: _without_empty(v) if isinstance(v, dict) else v for name, v in fields.items()}
    return {name: value for name, value in pruned.items() if value}
