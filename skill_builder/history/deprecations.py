"""What a release calls deprecated: by decorator, by a warning in the body, by a directive in the docstring.

The text itself is not kept, only whether it is there and which replacement it names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from skill_builder.history.facts import parameters_of
from skill_builder.history.functions import Function, Warned, dotted, text_of
from skill_builder.history.modules import Class, Value
from skill_builder.history.release import Found, Release

_CATEGORIES = ("DeprecationWarning", "FutureWarning")
_DIRECTIVE = re.compile(r"^(?P<indent> *)\.\. deprecated::.*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(?P<indent> *)\*{0,2}(?P<name>\w+)(?: \([^)]*\))?:")
_NAME = r"(?P<name>[A-Za-z_](?:[\w.]*\w)?)"
_REPLACEMENTS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b(?:replaced (?:by|with)|renamed (?:to|as)|in favou?r of|superseded by) +(?:the +)?{_NAME}",
        rf"\b(?:use|switch to|call|using) +(?:the +)?(?:new +)?(?:public +)?(?:APIs?,? +)?{_NAME}",
    )
)
_NO_NAMES = frozenset(
    re.findall(
        r"\w+",
        """a an any api apis at class for function in instead it its later method of on other our public
        python set std that the them these this those torch your""",
    )
)
"""Words that follow "use" without being the name of anything in Python."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One deprecation."""

    text: str
    subject: str
    """The parameter that is deprecated; empty for the object itself."""


def notices(release: Release, found: Found, signature: str | None) -> list[Notice]:
    """Everything that an object's source calls deprecated: the object itself, or a parameter of it."""
    names = [parameter.name for parameter in parameters_of(signature)] if signature else []
    if isinstance(found.binding, Class):
        return [
            *_decorated(release, found),
            *_directives(found.binding.doc, names),
            *(notice for maker in _makers(found) for notice in _of_function(release, maker, names, found.name)),
        ]
    if isinstance(found.binding, Function):
        return _of_function(release, found, names, found.name)
    return []


def replacements(text: str) -> Iterator[str]:
    """Names that a text recommends, the likeliest first, without the marks around them.

    >>> list(replacements("`f` is deprecated, please use :func:`torch.distributed.g` instead."))
    ['torch.distributed.g']
    """
    plain = re.sub(r":[a-z:]+:`~?", "`", text).replace("``", "`")
    plain = re.sub(r"[\s`'@]+", " ", plain)
    for pattern in _REPLACEMENTS:
        for match in pattern.finditer(plain):
            if match["name"].lower() not in _NO_NAMES:
                yield match["name"]


def _makers(found: Found) -> Iterator[Found]:
    assert isinstance(found.binding, Class)
    for name in ("__init__", "__new__", "__post_init__"):
        member = found.binding.members.get(name)
        if isinstance(member, Function):
            yield Found(found.module, f"{found.name}.{name}", member)


def _of_function(release: Release, found: Found, names: list[str], owner: str) -> list[Notice]:
    function = found.binding
    assert isinstance(function, Function)
    return [
        *_decorated(release, found),
        *_directives(function.doc, names),
        *_warnings(release, found, names, owner.rpartition(".")[2]),
    ]


def _decorated(release: Release, found: Found) -> Iterator[Notice]:
    assert isinstance(found.binding, Function | Class)
    for decorator in found.binding.decorators:
        if not isinstance(decorator, ast.Call):
            continue
        path = dotted(decorator.func)
        origin = release.follow(found.module, path)
        if path.rpartition(".")[2] == "deprecated" or (origin and origin.name == "deprecated"):
            message = decorator.args[0] if decorator.args else None
            yield Notice(_message(release, found.module, message, {}) or "", "")


def _directives(doc: str, names: list[str]) -> Iterator[Notice]:
    for match in _DIRECTIVE.finditer(doc):
        indent = len(match["indent"])
        block = re.match(rf"[^\n]*\n((?: {{{indent + 1},}}[^\n]*\n|\s*\n)*)", doc[match.start() :] + "\n")
        text = block[1] if block else ""
        subject = _argument_above(doc[: match.start()], indent) if indent else ""
        if subject in ("", *names):
            yield Notice(text, subject)


def _argument_above(doc: str, indent: int) -> str:
    """The argument whose description a directive stands in, or what else is above it, less indented."""
    for line in reversed(doc.splitlines()):
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            match = _ARGUMENT.match(line)
            return str(match["name"]) if match else line.strip()
    return ""


def _warnings(release: Release, found: Found, names: list[str], owner: str) -> Iterator[Notice]:
    function = found.binding
    assert isinstance(function, Function)
    for warned in function.warned:
        text = _warning(release, found, warned)
        if text is None or not re.search("deprecat", text, re.IGNORECASE):
            continue
        if warned.always and re.search(rf"\b{re.escape(owner)}\b", text):
            yield Notice(text, "")
        elif not warned.always and (subject := _parameter_called_deprecated(text, names)):
            yield Notice(text, subject)


def _parameter_called_deprecated(text: str, names: list[str]) -> str:
    """The parameter of which a sentence says that it is deprecated.

    >>> _parameter_called_deprecated("The `check` argument in `DDP` is deprecated.", ["module", "check"])
    'check'
    """
    for sentence in re.split(r"(?<=\.)\s", text):
        subject, marker, _ = sentence.partition("deprecat")
        words = [match[0] for match in re.finditer(r"\w+", subject)] if marker else []
        if named := [word for word in words if word in names]:
            return named[0]
    return ""


def _warning(release: Release, found: Found, warned: Warned) -> str | None:
    """The text with which a call warns of a deprecation, also through a function of the same module."""
    call = warned.call
    if dotted(call.func) in ("warnings.warn", "warn"):
        if not _is_for_deprecation(call) or not call.args:
            return None
        return _message(release, found.module, call.args[0], {})
    helper = _helper(release, found, dotted(call.func))
    if helper is None:
        return None
    known = _bound_texts(helper, call)
    for inner in helper.warned:
        if dotted(inner.call.func) in ("warnings.warn", "warn") and _is_for_deprecation(inner.call):
            return _message(release, found.module, inner.call.args[0], known)
    return None


def _is_for_deprecation(call: ast.Call) -> bool:
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    return bool(call.args) and any(dotted(value) in _CATEGORIES for value in given)


def _helper(release: Release, found: Found, path: str) -> Function | None:
    module = release.module(found.module)
    if module is None or not path:
        return None
    head, _, name = path.rpartition(".")
    owner = module.names.get(found.name.partition(".")[0]) if head in ("self", "cls") else None
    if isinstance(owner, Class):
        member = owner.members.get(name)
        return member if isinstance(member, Function) else None
    reached = release.follow(found.module, path)
    return reached.binding if reached and isinstance(reached.binding, Function) else None


def _bound_texts(function: Function, call: ast.Call) -> dict[str, str]:
    """The texts that a call passes, by parameter."""
    names = [arg.arg for arg in function.arguments.args if arg.arg not in ("self", "cls")]
    pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg)]
    return {name: text for name, value in pairs if (text := text_of(value, {})) is not None}


def _message(release: Release, module: str, node: ast.expr | None, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name) and node.id not in known:
        found = release.follow(module, node.id)
        node = found.binding.value if found and isinstance(found.binding, Value) else None
    return text_of(node, known)
